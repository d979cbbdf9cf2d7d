"""Backends: workloads with limits, process groups and devices, and items put back."""

import asyncio
import contextlib
import signal
import sys
import time
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from perfdag.benchmark.contract import Failed, Gang
from perfdag.hosts.local import LocalHost
from perfdag.shape import Shape
from perfdag.steps.queue import backend, sites
from perfdag.steps.queue.backend import Backend, ItemEnd, Workload
from perfdag.steps.queue.client import ClientStats, Load
from perfdag.steps.queue.frontend import Frontend
from perfdag.steps.queue.protocol import Address
from perfdag.steps.queue.scaling_benchmark import QueueScaling, QueueScalingParams
from tests.queue.conftest import ANY, Dial, Start, StartBackends, clients, until, workers


async def test_limit_kills_the_whole_process_group(tmp_path: Path) -> None:
    mark = tmp_path / "child"
    script = (
        f"import subprocess,sys,time; p=subprocess.Popen(['sleep','60']); "
        f"open({str(mark)!r},'w').write(str(p.pid)); time.sleep(60)"
    )
    began = time.monotonic()
    outcome = await Workload([sys.executable, "-c", script]).run(None, 1.0)
    assert 0.9 < time.monotonic() - began < 2
    assert (outcome.retcode, outcome.timeout) == (124, 1.0)
    assert "limit of 1 s" in outcome.error
    child = Path(f"/proc/{mark.read_text()}/stat")
    for _ in range(100):
        if not child.exists() or ") Z " in child.read_text():
            return
        await asyncio.sleep(0.02)
    pytest.fail("the command's child survived")


@pytest.mark.parametrize(
    ("command", "arguments", "limit", "outcome"),
    [
        (["sleep"], ["0.01"], 0, ItemEnd()),
        (["sleep", "60"], None, 0.05, ItemEnd(0, 0.05, "Sleep timeout")),
        (["sleep"], None, 0, ItemEnd(1, 0.0, "Sleep time (seconds) argument missing")),
        (["sleep"], ["x"], 0, ItemEnd(1, 0.0, "invalid sleep time value 'x'")),
        (["sleep", "nan"], None, 0, ItemEnd(1, 0.0, "invalid sleep time value 'nan'")),
    ],
)
async def test_built_in_sleep(
    command: list[str], arguments: list[str] | None, limit: float, outcome: ItemEnd
) -> None:
    assert await Workload(command).run(arguments, limit) == outcome


async def test_built_in_usl_follows_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = AsyncMock()
    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert await Workload(["usl", "0.02", "0.5", "0.1"]).run(None, 0, running=3) == ItemEnd()
    sleep.assert_awaited_once_with(pytest.approx(0.02 * (1 + 0.5 * 2 + 0.1 * 6)))


async def test_a_frontend_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "ANSWER_SECONDS", 0.1)
    silent = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    at = Address("127.0.0.1", silent.sockets[0].getsockname()[1])
    slot = Backend(at, "sleep", "p", "n", Workload(["sleep", "0"]), retry_seconds=0.3)
    with pytest.raises(backend.UnreachableError, match="timed out"):
        await slot.serve()
    silent.close()


async def test_backoff_grows_by_its_step_up_to_the_most(
    frontend: Frontend,
) -> None:
    pauses = list[float]()

    class Hurried(Backend):
        async def pause(self, seconds: float) -> None:
            pauses.append(round(seconds, 3))
            if len(pauses) == 4:
                self.stopping.set()

    own = (workers(frontend), "sleep", "p", "n", Workload(["sleep", "0"]))
    await Hurried(*own, backoff=0.1, backoff_max=0.25).serve()
    assert pauses == [0.1, 0.2, 0.25, 0.25]


async def test_sigterm_ends_after_the_current_item(
    frontend: Frontend, dial: Dial, backends: StartBackends
) -> None:
    line = await dial(frontend.ports[0], '{"Queue": "sleep"}')
    [process] = backends(frontend, 1, "sleep", "0.5")
    await until(lambda: frontend.queues["sleep"].running)
    process.send_signal(signal.SIGTERM)
    assert (await line.receive())["Retcode"] == 0
    assert await asyncio.to_thread(process.wait, 5) == 0


async def test_a_command_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "GRACE_SECONDS", 0.1)
    marker = "54321.725"
    async with sites.LocalSite(["/bin/sleep", marker], 1) as site:
        await site.scale(1)
        await site.parallel(1)
        await until(lambda: commands(marker) == 1)
    await until(lambda: commands(marker) == 0)


def commands(marker: str) -> int:
    """Processes that run the command with that argument, zombies aside."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            count += path.read_bytes() == f"/bin/sleep\0{marker}\0".encode()
    return count


async def test_backends_outlive_a_restarted_frontend(
    start: Start, client_stats: ClientStats, backends: StartBackends
) -> None:
    first = await start()
    backends(first, 1, "sleep", "0")
    await until(lambda: first.connections["work"])
    await first.stop()
    second = Frontend(["sleep"])
    await second.start(ANY, workers(first), ANY)
    load = Load(clients(second), "sleep", client_stats, 1)
    await asyncio.wait_for(load.request(0), 10)
    assert client_stats.success == 1
    await second.stop()


def gang(seconds: float, scratch: Path) -> Gang:
    return Gang([LocalHost()], Shape(), seconds, str(scratch))


def test_the_benchmark_ends_in_its_time_and_restores_the_replicas(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "perfdag")
    params = QueueScalingParams(command=["sleep", "0.4"], limit=2)
    with pytest.raises(Failed, match="did not end within 2 s"):
        QueueScaling().run(gang(2, tmp_path), params)
    assert "restoring 0 replicas" in caplog.text


def test_the_benchmark_hands_device_and_limit_of_an_item_to_its_backends(tmp_path: Path) -> None:
    """An item that runs past its limit is killed, which fails it."""
    (tmp_path / "card0").write_text("#!/bin/sh\nsleep 30\n")
    own = {
        "command": ["/bin/sh", "FILENAME"],
        "glob": f"{tmp_path}/card*",
        "item_limit": 0.2,
        "limit": 1,
        "timeout": 5,
    }
    params = QueueScalingParams.model_validate(own)
    with pytest.raises(Failed, match=r"/bin/sh ran past its limit of 0.2 s") as raised:
        QueueScaling().run(gang(60, tmp_path), params)
    assert {
        str(row.subject).rpartition("/")[2]
        for row in raised.value.measurements
        if row.metric == "failures"
    } == {"card0"}
