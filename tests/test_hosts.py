"""LocalHost with real processes."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfdag.benchmark.contract import Failed
from perfdag.hosts.base import Usage
from perfdag.hosts.local import LocalHost

LISTEN = (
    "import socket, time; time.sleep({wait}); s = socket.create_server(('127.0.0.1', {port})); "
    "print('listening', flush=True); {after}"
)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def running(marker: str) -> bool:
    return subprocess.run(["pgrep", "-f", marker], capture_output=True, check=False).returncode == 0


def gone(marker: str, within: float = 5.0) -> bool:
    deadline = time.monotonic() + within
    while running(marker) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not running(marker)


def test_run_returns_both_streams_the_code_and_the_time() -> None:
    code = "import sys, time; print('out'); print('err', file=sys.stderr); time.sleep(0.2)"
    result = LocalHost().run(python(f"{code}; sys.exit(3)"), timeout=20)
    assert (result.code, result.stdout, result.stderr, result.timed_out) == (
        3,
        "out\n",
        "err\n",
        False,
    )
    assert result.seconds >= 0.2


ODD = ["a b", "'\"", "$(touch x)", "{{workflow.name}}", "line\nbreak", "", "-", "*"]


@pytest.mark.parametrize(
    ("code", "arguments", "output"),
    [
        pytest.param("sys.argv[1:]", ODD, f"{ODD}", id="parameters reach argv unchanged"),
        pytest.param("os.environ['LC_ALL'], os.environ['EXTRA']", [], "C.UTF-8 yes", id="locale"),
        pytest.param("os.sched_getaffinity(0)", [], "{0}", id="pinned"),
    ],
)
def test_a_command_has_its_arguments_environment_and_cpus(
    code: str, arguments: list[str], output: str
) -> None:
    argv = [*python(f"import os, sys; print({code})"), *arguments]
    result = LocalHost().run(argv, timeout=20, env={"EXTRA": "yes"}, cpus="0")
    assert result.stdout == f"{output}\n"


def test_a_timeout_kills_the_whole_tree_and_keeps_what_was_written() -> None:
    """One process left the session, one is a daemon that keeps the pipes open."""
    marker, start = "54321.125", time.monotonic()
    sleep = f"setsid sleep {marker} & setsid -f sleep {marker}; sleep {marker} & sleep 60"
    result = LocalHost().run(["sh", "-c", f"echo begun; {sleep}"], timeout=1.0)
    assert time.monotonic() - start < 10
    assert (result.timed_out, result.stdout) == (True, "begun\n")
    assert gone(f"^[^ ]*sleep {marker}")
    with pytest.raises(Failed, match="did not end within"):
        result.check("the command")


def test_the_end_of_a_command_is_read_once_with_what_it_and_its_children_used() -> None:
    assert LocalHost().run(["false"], timeout=20).code == 1
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    waited = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    memory = "x = b'x' * 600_000_000"

    def used(code: str) -> Usage:
        usage = LocalHost().run(python(code), timeout=60).usage
        assert usage
        return usage

    idle, parent, large = used(""), used(waited), used(memory)
    assert idle.user + idle.system < 0.3 <= parent.user + parent.system
    assert idle.peak_memory is None, "the child has less than perfdag, whose peak it inherits"
    assert (large.peak_memory or 0) > 600_000_000


def test_what_holds_the_output_of_a_command_that_ended_is_named() -> None:
    result = LocalHost().run(["sh", "-c", "setsid sleep 54321.25 & exit 0"], timeout=1.0)
    with pytest.raises(Failed, match=r"ended, but sleep \(pid \d+\) held its output open for"):
        result.check("the command")


def test_serve_waits_until_the_socket_listens_and_never_connects() -> None:
    host = LocalHost()
    port = host.free_port()
    code = LISTEN.format(
        wait=0.4,
        port=port,
        after=(
            "s.settimeout(0.5)\ntry: s.accept(); print('connected')\n"
            "except TimeoutError: print('nobody')"
        ),
    )
    start = time.monotonic()
    with host.serve(python(code), port=port) as server:
        assert time.monotonic() - start >= 0.4
        ended = server.wait(10)
    assert ended.stdout == "listening\nnobody\n"


def test_a_server_that_never_listens_is_given_up() -> None:
    host = LocalHost()
    with pytest.raises(Failed, match=r"did not listen on tcp port \d+ within 0.3 s"):
        host.serve(["sleep", "54321.375"], port=host.free_port(), ready=0.3)
    assert gone("^[^ ]*sleep 54321.375")


def test_leaving_the_block_ends_the_server_and_its_children() -> None:
    host = LocalHost()
    with host.serve(["sh", "-c", "sleep 54321.625 & wait"]):
        started = time.monotonic()
        while not running("^[^ ]*sleep 54321.625"):
            assert time.monotonic() - started < 10
            time.sleep(0.01)
    assert gone("^[^ ]*sleep 54321.625")


def test_a_server_that_ignores_sigterm_is_killed() -> None:
    with LocalHost().serve(
        python(
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', "
            "flush=True); time.sleep(60)"
        )
    ) as server:
        time.sleep(0.5)
        start = time.monotonic()
        ended = server.stop(grace=0.3)
    assert ended.code == -9
    assert time.monotonic() - start < 5


def killed(code: str, started: str) -> None:
    """Kill -9 a Python that runs `code` once a process matching `started` is there."""
    parent = subprocess.Popen(
        python("from perfdag.hosts.local import LocalHost; " + code), env=dict(os.environ)
    )
    deadline = time.monotonic() + 30
    try:
        while not running(started) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert running(started)
    finally:  # what came too late is not left to the tests after this one
        parent.kill()
        parent.wait()


@pytest.mark.parametrize("started", ["run", "serve"])
def test_a_command_and_its_workers_end_with_perfdag_when_it_is_killed(started: str) -> None:
    mine = f"{50_000 + os.getpid() % 10_000}.125"  # other workers look for theirs at the same time
    argv = ["sh", "-c", f"sleep {mine} & wait"]
    call = {
        "run": f"LocalHost().run({argv!r}, timeout=60)",
        "serve": f"LocalHost().serve({argv!r})",
    }[started]
    killed(f"{call}; import time; time.sleep(60)", f"^[^ ]*sleep {mine}")
    assert gone(f"sleep {mine}", within=2)


def test_without_taskset_the_error_names_it_and_not_the_command(tmp_path: Path) -> None:
    (tmp_path / "sleep").symlink_to(str(shutil.which("sleep")))
    env = {"PATH": str(tmp_path)}
    assert LocalHost().run(["sleep", "0"], timeout=20, env=env).code == 0
    with pytest.raises(
        Failed, match=r"^taskset: not found on .*, and hosts\.cpus is set; install util-linux"
    ):
        LocalHost().run(["sleep", "0"], timeout=20, env=env, cpus="0")


def test_a_file_that_cannot_be_written_is_named_with_its_host(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=f"writing {tmp_path} on here exited .*Is a directory"):
        LocalHost(name="here").put(str(tmp_path), b"")
