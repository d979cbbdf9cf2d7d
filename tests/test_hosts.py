"""LocalHost with real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfdag import processes
from perfdag.benchmark import Failed
from perfdag.hosts import LocalHost
from perfdag.processes import descendants

LISTEN = "import socket, time; time.sleep({wait}); s = socket.create_server(('127.0.0.1', {port})); print('listening', flush=True); {after}"


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
    ended = LocalHost().run(
        python("import sys, time; print('out'); print('err', file=sys.stderr); time.sleep(0.2); sys.exit(3)"), timeout=20
    )
    assert (ended.code, ended.stdout, ended.stderr, ended.timed_out) == (3, "out\n", "err\n", False)
    assert ended.seconds >= 0.2


def test_parameters_reach_argv_unchanged() -> None:
    odd = ["a b", "'\"", "$(touch x)", "{{workflow.name}}", "line\nbreak", "", "-", "*"]
    ended = LocalHost().run(python("import sys, json; print(json.dumps(sys.argv[1:]))") + odd, timeout=20)
    import json

    assert json.loads(ended.stdout) == odd


def test_a_timeout_kills_the_whole_tree_also_what_left_the_session() -> None:
    marker = "54321.125"
    code = f"import subprocess, time; subprocess.Popen(['setsid', 'sleep', '{marker}']); subprocess.Popen(['sleep', '{marker}']); time.sleep(60)"
    ended = LocalHost().run(python(code), timeout=1.0)
    assert ended.timed_out
    assert gone(f"^sleep {marker}")
    with pytest.raises(Failed, match="did not end within"):
        ended.check("the command")


def test_a_missing_program_is_named() -> None:
    with pytest.raises(Failed, match="no-such-program: not found on"):
        LocalHost().run(["no-such-program"], timeout=5)


def test_locale_is_fixed_and_env_is_added() -> None:
    ended = LocalHost().run(python("import os; print(os.environ['LC_ALL'], os.environ['EXTRA'])"), timeout=20, env={"EXTRA": "yes"})
    assert ended.stdout == "C.UTF-8 yes\n"


def test_serve_waits_until_the_socket_listens_and_never_connects() -> None:
    host = LocalHost()
    port = host.free_port()
    code = LISTEN.format(
        wait=0.4, port=port, after="s.settimeout(0.5)\ntry: s.accept(); print('connected')\nexcept TimeoutError: print('nobody')"
    )
    start = time.monotonic()
    with host.serve(python(code), port=port) as server:
        assert time.monotonic() - start >= 0.4
        ended = server.wait(10)
    assert ended.stdout == "listening\nnobody\n"


def test_a_server_that_dies_is_said_with_its_stderr() -> None:
    host = LocalHost()
    with pytest.raises(Failed, match=r"ended \(exit 4\) before it listened on tcp port \d+: no such device"):
        host.serve(python("import sys; print('no such device', file=sys.stderr); sys.exit(4)"), port=host.free_port())


def test_a_server_that_never_listens_is_given_up() -> None:
    host = LocalHost()
    with pytest.raises(Failed, match=r"did not listen on udp port \d+ within 0.3 s"):
        host.serve(["sleep", "54321.375"], port=host.free_port("udp"), proto="udp", ready=0.3)
    assert gone("^sleep 54321.375")


def test_leaving_the_block_ends_the_server_and_its_children() -> None:
    host = LocalHost()
    with host.serve(["sh", "-c", "sleep 54321.625 & wait"]):
        started = time.monotonic()
        while not running("^sleep 54321.625"):
            assert time.monotonic() - started < 10
            time.sleep(0.01)
    assert gone("^sleep 54321.625")


def test_a_server_that_ignores_sigterm_is_killed() -> None:
    with LocalHost().serve(
        python("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)")
    ) as server:
        time.sleep(0.5)
        start = time.monotonic()
        ended = server.stop(grace=0.3)
    assert ended.code == -9
    assert time.monotonic() - start < 5


def test_children_die_with_perfdag_when_it_is_killed() -> None:
    code = "from perfdag.hosts import LocalHost; LocalHost().run(['sleep', '54321.875'], timeout=60)"
    parent = subprocess.Popen(python(code), env=dict(os.environ))
    deadline = time.monotonic() + 10
    while not running("^sleep 54321.875") and time.monotonic() < deadline:
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    assert gone("^sleep 54321.875")


def test_cpus_pins_the_command() -> None:
    ended = LocalHost().run(python("import os; print(sorted(os.sched_getaffinity(0)))"), timeout=20, cpus="0")
    assert ended.stdout == "[0]\n"


def test_files(tmp_path: Path) -> None:
    host = LocalHost()
    path = str(tmp_path / "deep/file")
    host.put(path, b"data", 0o600)
    assert host.get(path) == b"data"
    assert Path(path).stat().st_mode & 0o777 == 0o600
    host.remove(str(tmp_path / "deep"))
    host.remove(str(tmp_path / "deep"))
    with pytest.raises(Failed, match="No such file"):
        host.get(path)


def test_descendants_may_end_while_they_are_listed() -> None:
    with subprocess.Popen(["sh", "-c", "for i in $(seq 300); do /bin/true; done"]) as busy:
        seen = 0
        while busy.poll() is None:
            seen += len(descendants(busy.pid))
    assert seen
    assert descendants(busy.pid) == []


def test_the_kernels_list_of_children_and_a_scan_agree() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 5 & (sleep 5 & wait) & wait"], start_new_session=True) as shell:
        deadline = time.monotonic() + 4
        while len(processes.descendants(shell.pid)) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        scanned, queue = processes._scanned(), [shell.pid]
        found = []
        while queue:
            queue += (below := scanned(queue.pop()))
            found += below
        assert sorted(found) == sorted(processes.descendants(shell.pid))
        assert len(found) == 3
        processes.signal_tree(shell.pid, signal.SIGKILL)


def test_only_the_head_of_a_tcp_table_is_read() -> None:
    rows = ["  sl  local_address rem_address   st\n", "   0: 00000000:0016 00000000:0000 0A\n", "   1: 0100007F:1F90 00000000:0000 0A\n"]

    def table() -> Iterator[str]:
        yield from rows
        yield "   2: 0100007F:AAAA 0100007F:0016 01\n"
        raise AssertionError("read beyond the first connection")

    assert processes.listening_ports("".join(processes._listed(table())), "tcp") == {22, 8080}
