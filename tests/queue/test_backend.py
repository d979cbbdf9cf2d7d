"""Workloads with limits, process groups and devices; backends as processes."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfdag.steps.queue.backend.backend import Backend, Options
from perfdag.steps.queue.backend.processes import Processes
from perfdag.steps.queue.backend.workload import Outcome, Workload, device, shorter
from perfdag.steps.queue.client.load import request
from perfdag.steps.queue.client.stats import ClientStats
from perfdag.steps.queue.client.wires import KeptWire, Work
from perfdag.steps.queue.frontend.dispatcher import Limits
from perfdag.steps.queue.wire import Address, address
from tests.queue.conftest import Start, clients, workers
from tests.queue.conversation import dial


def test_limit_kills_the_whole_process_group(tmp_path: Path) -> None:
    mark = tmp_path / "child"
    script = f"import subprocess,sys,time; p=subprocess.Popen(['sleep','60']); open({str(mark)!r},'w').write(str(p.pid)); time.sleep(60)"
    began = time.monotonic()
    outcome = Workload([sys.executable, "-c", script]).run(None, 1.0)
    assert 0.9 < time.monotonic() - began < 2
    assert (outcome.retcode, outcome.timeout) == (124, 1.0)
    assert "limit of 1 s" in outcome.error
    child = Path(f"/proc/{mark.read_text()}/stat")
    for _ in range(100):
        if not child.exists() or ") Z " in child.read_text():
            return
        time.sleep(0.02)
    pytest.fail("the command's child survived")


@pytest.mark.parametrize(
    ("own", "requested", "holds"), [(0, 0, 0), (5, 0, 5), (0, 3, 3), (5, 3, 3), (2, 3, 2)]
)
def test_the_shorter_limit_holds(own: float, requested: float, holds: float) -> None:
    assert shorter(own, requested) == holds


def test_built_in_sleep() -> None:
    assert Workload(["sleep"]).run(["0.01"], 0) == Outcome()
    assert Workload(["sleep", "60"]).run(None, 0.05) == Outcome(0, 0.05, "Sleep timeout")
    assert Workload(["sleep"]).run(None, 0) == Outcome(
        1, 0.0, "Sleep time (seconds) argument missing"
    )
    assert "invalid sleep time value 'x'" in Workload(["sleep"]).run(["x"], 0).error
    assert "invalid" in Workload(["sleep", "nan"]).run(None, 0).error


def test_built_in_usl_follows_the_law() -> None:
    began = time.perf_counter()
    assert Workload(["usl", "0.02", "0.5", "0.1"]).run(None, 0, running=3) == Outcome()
    assert time.perf_counter() - began == pytest.approx(0.02 * (1 + 0.5 * 2 + 0.1 * 6), rel=0.2)


def test_return_code_and_arguments(tmp_path: Path) -> None:
    out = tmp_path / "out"
    workload = Workload(
        [
            sys.executable,
            "-c",
            "import sys; open(sys.argv[1], 'w').write(sys.argv[2]); sys.exit(3)",
            str(out),
        ],
        device="/dev/x",
    )
    outcome = workload.run(["<FILENAME>"], 0)
    assert outcome == Outcome(3, 0.0, f"{sys.executable} returned error code 3")
    assert out.read_text() == "</dev/x>"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "neither"),
        (["ls"], "neither an absolute path"),
        (["/no/such"], "not an executable"),
        (["sleep", "FILENAME"], "no file name"),
    ],
)
def test_bad_commands(command: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Workload(command)


def test_device_glob(tmp_path: Path) -> None:
    for name in ("renderD129", "renderD128"):
        (tmp_path / name).touch()
    assert device(str(tmp_path / "renderD*")) == str(tmp_path / "renderD128")
    assert device("") == ""
    with pytest.raises(ValueError, match="no files matching"):
        device(str(tmp_path / "nothing*"))


@pytest.mark.parametrize("text", ["", "9999", "host:", "host:x", "host:70000"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        address(text)


def test_addresses() -> None:
    assert address(":9997") == Address("", 9997)
    assert str(address("[::1]:5")) == "[::1]:5"


async def test_backoff_grows_by_its_step_up_to_the_most_and_an_item_begins_it_anew(
    start: Start,
) -> None:
    frontend = await start()
    pauses, requests = list[float](), list[socket.socket]()

    class Hurried(Backend):
        def _pause(self, seconds: float) -> None:
            pauses.append(round(seconds, 3))
            if len(pauses) == 4:
                requests.append(socket.create_connection(("127.0.0.1", frontend.ports[0])))
                requests[0].sendall(b'{"Queue": "sleep"}')
                while not frontend.queues["sleep"].waiting:
                    time.sleep(0.01)
            elif len(pauses) == 6:
                self.stop()

    options = Options(
        workers(frontend), "sleep", "p", "n", backoff=0.1, backoff_max=0.25, kept=False
    )
    await asyncio.to_thread(Hurried(options, Workload(["sleep", "0"])).serve)
    assert pauses == [0.1, 0.2, 0.25, 0.25, 0.1, 0.2]
    requests[0].close()


def test_bad_backoff() -> None:
    with pytest.raises(ValueError, match="back-off"):
        Options(Address("", 1), "q", "p", "n", backoff=6)


async def test_one_verdict_of_a_timeout_on_both_sides(start: Start) -> None:
    frontend = await start()
    replicas = Processes(workers(frontend), "sleep", ["sleep", "60"])
    await replicas.scale(1)
    client_stats = ClientStats()
    began = time.monotonic()
    try:
        await request(KeptWire(clients(frontend), Work("sleep", limit=1.0)), client_stats, 0)
    finally:
        await replicas.stop()
    assert time.monotonic() - began < 4
    assert client_stats.causes == {"timeout": 1}
    assert (frontend.queues["sleep"].failure, frontend.queues["sleep"].success) == (1, 0)


@pytest.mark.parametrize("kept", [True, False])
async def test_sigterm_ends_after_the_current_item(start: Start, kept: bool) -> None:
    frontend = await start()
    replicas = Processes(
        workers(frontend), "sleep", ["sleep", "0.5"], kept=kept, backoff=0.01, backoff_max=0.01
    )
    line = await dial(frontend.ports[0], '{"Queue": "sleep"}')
    await replicas.scale(1)
    process = replicas.running[0]
    while not frontend.queues["sleep"].running:
        await asyncio.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert (await line.receive())["Retcode"] == 0
    assert await asyncio.to_thread(process.wait, 5) == 0
    await replicas.stop()


async def test_idle_backend_ends_at_once(start: Start) -> None:
    frontend = await start()
    replicas = Processes(workers(frontend), "sleep", ["sleep", "1"])
    await replicas.scale(1)
    while not frontend.parked["sleep"]:
        await asyncio.sleep(0.01)
    began = time.monotonic()
    replicas.running[0].send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(replicas.running[0].wait, 5) == 0
    assert time.monotonic() - began < 1
    assert not frontend.parked["sleep"]
    replicas.running.clear()


async def test_a_replica_that_does_not_end_is_killed_with_its_command(start: Start) -> None:
    frontend = await start()
    marker = "54321.725"
    replicas = Processes(workers(frontend), "sleep", ["/bin/sleep", marker], grace=0.1)
    line = await dial(frontend.ports[0], '{"Queue": "sleep"}')
    await replicas.scale(1)
    while not frontend.queues["sleep"].running:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)  # the command starts after the item is taken
    assert commands(marker) == 1
    await replicas.stop()
    assert commands(marker) == 0
    await line.close()


def commands(marker: str) -> int:
    """Processes that run the command with that argument, zombies aside."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            count += path.read_bytes() == f"/bin/sleep\0{marker}\0".encode()
    return count


@pytest.mark.slow
def test_a_frontend_that_vanished_is_noticed(tmp_path: Path) -> None:
    """Yield a network namespace that loses its address: no packet is answered afterwards."""
    name, inside, outside = (f"pd{kind}{os.getpid() % 100000}" for kind in "nio")
    server = (
        "import socket, time; s = socket.create_server(('198.51.100.2', 9999)); print('listens', flush=True); "
        "s.settimeout(30); c, _ = s.accept(); print(c.recv(99), flush=True); time.sleep(99)"
    )
    there = ["ip", "netns", "exec", name]
    steps = [
        ["ip", "netns", "add", name],
        ["ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns", name],
        ["ip", "addr", "add", "198.51.100.1/30", "dev", outside],
        ["ip", "link", "set", outside, "up"],
        [*there, "ip", "addr", "add", "198.51.100.2/30", "dev", inside],
        [*there, "ip", "link", "set", inside, "up"],
    ]
    fields = {
        "frontend": "198.51.100.2:9999",
        "queue": "sleep",
        "pod": "p",
        "node": "n",
        "retry_seconds": 1,
        "workload": {"command": ["sleep"]},
    }
    try:
        for step in steps:
            if (
                shutil.which("ip") is None
                or subprocess.run(step, capture_output=True, check=False).returncode
            ):
                pytest.skip("no network namespace can be made here")
        with subprocess.Popen(
            [*there, sys.executable, "-c", server], stdout=subprocess.PIPE
        ) as frontend:
            assert frontend.stdout is not None
            assert frontend.stdout.readline() == b"listens\n"
            argv = [sys.executable, "-m", "perfdag.steps.queue.backend.backend", json.dumps(fields)]
            with subprocess.Popen(argv, stderr=subprocess.PIPE) as backend:
                assert b"perfdag/1" in frontend.stdout.readline()
                subprocess.run([*there, "ip", "addr", "flush", "dev", inside], check=True)
                try:
                    assert backend.wait(60) == 4
                finally:
                    backend.kill()
                    frontend.kill()
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", outside], capture_output=True, check=False)


async def test_without_backoff_an_empty_queue_ends_the_backend(start: Start) -> None:
    frontend = await start()
    replicas = Processes(workers(frontend), "sleep", ["sleep", "0"], kept=False)
    await replicas.scale(1)
    assert await asyncio.to_thread(replicas.running[0].wait, 5) == 0
    replicas.running.clear()


async def test_backends_outlive_a_restarted_frontend(start: Start) -> None:
    first = await start()
    where = workers(first)
    replicas = Processes(where, "sleep", ["sleep", "0"])
    await replicas.scale(1)
    while not first.parked["sleep"]:
        await asyncio.sleep(0.01)
    await first.stop()
    from perfdag.steps.queue.frontend.frontend import Frontend

    second = Frontend(["sleep"], Limits())
    anywhere = Address("127.0.0.1", 0)
    await second.start(anywhere, where, anywhere)
    client_stats = ClientStats()
    await asyncio.wait_for(
        request(KeptWire(Address("127.0.0.1", second.ports[0]), Work("sleep")), client_stats, 0), 10
    )
    assert client_stats.success == 1
    await replicas.stop()
    await second.stop()
