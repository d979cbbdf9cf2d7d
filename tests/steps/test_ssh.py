"""SshHost against a real sshd on loopback."""

import contextlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from perfdag.benchmark.contract import Failed, Infrastructure
from perfdag.hosts.local import LocalHost, listening_ports
from perfdag.hosts.ssh import SshHost
from perfdag.kube.pods import Pod
from perfdag.plan import make_plan
from perfdag.steps.loop import GangLost
from perfdag.steps.pods import lead, peer
from perfdag.steps.pods.context import EXIT_RETRYABLE
from perfdag.steps.pods.lead import GangPool
from perfdag.suite.load import parse_suite

from .test_plan_step import place

pytestmark = pytest.mark.skipif(
    shutil.which("ssh") is None or not Path(peer.SSHD).exists(),
    reason="needs OpenSSH client and server: apt-get install openssh-server",
)
QUOTES = "a 'single' \"double\" \n newline {{workflow.name}} $(HOME) `id` $HOME \\ ; & | * ? ~"


def until(is_over: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not is_over():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The keys of a run."""
    folder = tmp_path_factory.mktemp("keys")
    peer.make_keys(folder)
    return folder


class Served:
    def __init__(self, keys: Path, home: Path, pending: float = 30, lost: float = 30) -> None:
        self.port = _port()
        code = (
            "import sys; from pathlib import Path; from perfdag.steps.pods.peer import *; "
            "sys.exit(serve(Path(sys.argv[1]), Path(sys.argv[2]), ['127.0.0.1'], "
            "int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5])))"
        )
        options = [str(each) for each in (keys, home, self.port, pending, lost)]
        self.process = subprocess.Popen([sys.executable, "-c", code, *options])

    def wait(self) -> None:
        until(
            lambda: self.port in listening_ports(Path("/proc/net/tcp").read_text()),
        )


@contextlib.contextmanager
def serving(keys: Path, folder: Path) -> Iterator[Served]:
    (folder / "peer").mkdir()
    (folder / "peer/done").write_text("7")  # an attempt before was told to end
    server = Served(keys, folder / "peer", 30, 1)
    yield server
    if server.process.poll() is None:
        server.process.terminate()
        server.process.wait()


@contextlib.contextmanager
def connected(served: Served, keys: Path, folder: Path) -> Iterator[SshHost]:
    config = peer.client_config(keys, folder / "lead")
    host = SshHost("127.0.0.1", "node-x", config, served.port)
    host.connect(10)
    yield host
    host.close()


@pytest.fixture(scope="module")
def host(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHost]:
    """A peer whose connection several tests share."""
    folder = tmp_path_factory.mktemp("shared")
    with serving(keys, folder) as served, connected(served, keys, folder) as peer_host:
        yield peer_host


@pytest.fixture(params=["here", "peer"])
def either(request: pytest.FixtureRequest) -> Any:
    """This machine, and a peer: the contract of a host is the same."""
    if request.param == "here":
        return LocalHost(name="node-x")
    return request.getfixturevalue("host")


@pytest.fixture
def served(keys: Path, tmp_path: Path) -> Iterator[Served]:
    """A peer of this test alone."""
    with serving(keys, tmp_path) as peer_host:
        yield peer_host


@pytest.fixture
def own_host(served: Served, keys: Path, tmp_path: Path) -> Iterator[SshHost]:
    with connected(served, keys, tmp_path) as peer_host:
        yield peer_host


@pytest.fixture
def config(keys: Path, tmp_path: Path) -> Path:
    """The lead's configuration of ssh."""
    return peer.client_config(keys, tmp_path / "lead")


@pytest.fixture
def no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back the variables that a gang sets for its remote shell."""
    for name in ("PERFDAG_SSH_CONFIG", "PERFDAG_SSH_PORTS", "PERFDAG_IPS"):
        monkeypatch.setenv(name, "")


def running_pod(rank: int) -> Pod:
    return Pod(f"p{rank}", 0, 0, rank, "Running", f"node-{rank}", "127.0.0.1")


@pytest.mark.parametrize(
    ("argv", "options", "code", "output"),
    [
        pytest.param(["printf", "%s", QUOTES], {}, 0, QUOTES, id="argv unchanged"),
        pytest.param(
            ["sh", "-c", 'echo "$V"; pwd; cat; exit 3'],
            {"env": {"V": QUOTES}, "cwd": "/usr", "stdin": b"in"},
            3,
            f"{QUOTES}\n/usr\nin",
            id="environment, folder, standard input and exit code",
        ),
        pytest.param(
            ["sh", "-c", 'printf %s "$LD_LIBRARY_PATH"'],
            {},
            0,
            "/opt/openfoam/lib",
            id="libraries that the lead finds",
        ),
        pytest.param(["sh", "-c", "kill -9 $$"], {}, -9, "", id="a signal is a negative code"),
        pytest.param(["sh", "-c", "exit 255"], {}, 255, "", id="255 is no broken connection"),
    ],
)
def test_a_command_runs_on_the_peer_as_here(
    host: SshHost,
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    options: dict[str, Any],
    code: int,
    output: str,
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/openfoam/lib")
    result = host.run(argv, timeout=10, **options)
    assert (result.code, result.stdout) == (code, output)


def assert_ends(pid: int) -> None:
    """Wait until a process has ended."""
    stat = Path(f"/proc/{pid}/stat")
    until(lambda: not stat.exists() or "Z" in stat.read_text().split(")")[1][:3], 5)


def test_a_timeout_kills_the_remote_group(host: SshHost, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    result = host.run(["sh", "-c", f"sleep 100 & echo $! >{mark}; wait"], timeout=1)
    assert result.timed_out
    assert_ends(int(mark.read_text()))


def test_a_new_lead_ends_what_an_earlier_one_left(own_host: SshHost, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    command = f"sleep 100 & echo $! >{mark}.new; mv {mark}.new {mark}; wait"
    with own_host.serve(["sh", "-c", command]):  # the earlier lead was lost and never stopped it
        until(mark.exists)
        own_host.clean()
        assert_ends(int(mark.read_text()))


@pytest.mark.parametrize(
    "started",
    [
        "sleep 100 & ",
        "(trap '' TERM; exec sleep 100 >/dev/null 2>&1) & ",
        "setsid sleep 100 >/dev/null 2>&1 & ",
    ],
    ids=["plain", "ignores SIGTERM", "has a session of its own"],
)
def test_the_shell_of_a_pod_ends_a_server_and_what_it_started(
    started: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Pods have /bin/sh, which takes fewer forms of kill than the shell of this machine's user."""
    inside = ["env", f"PERFDAG_PEER={tmp_path}", "setsid", "sh", "-c"]
    monkeypatch.setattr(SshHost, "argv", lambda _, line: [*inside, line])
    host = SshHost("127.0.0.1", "pod", tmp_path / "config")
    mark = tmp_path / "pid"
    server = host.serve(["sh", "-c", f"{started}echo $! >{mark}; wait"])
    until(lambda: mark.exists() and mark.read_text())
    server.stop()
    assert_ends(int(mark.read_text()))
    assert not list((tmp_path / "pids").iterdir())


def test_server_is_ready_when_it_listens_and_ends_when_told(host: SshHost) -> None:
    port = host.free_port()
    argv = [sys.executable, "-m", "http.server", str(port)]
    with host.serve(argv, port=port, ready=10) as server:
        socket.create_connection(("127.0.0.1", port), 1).close()
    assert server.stop().code in (-15, -9)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 1)


def test_a_forwarded_port_reaches_a_server_that_only_the_peer_reaches(host: SshHost) -> None:
    port = host.free_port()
    argv = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
    with host.serve(argv, port=port, ready=10), host.forwarded(port) as own:
        assert own != port
        with socket.create_connection(("127.0.0.1", own), 5) as client:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.0 200"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", own), 1)


def test_a_server_that_ends_early_says_why(either: Any) -> None:
    with pytest.raises(Failed, match="no such device"):
        either.serve(["sh", "-c", "echo no such device >&2; exit 1"], port=either.free_port())


def test_a_port_where_somebody_listens_is_refused(either: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(Failed, match=f"tcp port {port} is in use on node-x"):
            either.serve(["touch", str(tmp_path / "started")], port=port)
    assert not (tmp_path / "started").exists()


def test_a_server_that_ended_is_not_taken_for_another_that_listens(
    host: SshHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [{1}, {1, 5201}]  # somebody was faster between the two looks

    def used_ports(awaited: int | None = None) -> set[int]:
        if len(tables) > 1:
            return tables.pop(0)
        time.sleep(1)
        return tables[0]

    monkeypatch.setattr(host, "used_ports", used_ports)
    with pytest.raises(
        Failed, match=r"ended \(exit 1\) before it listened on tcp port 5201: bind failed"
    ):
        host.serve(["sh", "-c", "echo bind failed >&2; exit 1"], port=5201)


def test_files(either: Any, tmp_path: Path) -> None:
    data = bytes(range(256)) * 10
    path = tmp_path / "a b" / "file'"
    either.put(str(path), data, 0o600)
    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == 0o600
    either.remove(str(path.parent))
    assert not path.parent.exists()


def test_what_does_not_change_is_asked_once(host: SshHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command over ssh would be part of the time between two samples."""
    path, used = host.which("sh"), host.used_ports()
    monkeypatch.setattr(host, "argv", lambda line: ["false"])
    assert host.which("sh") == path
    assert host.free_port() not in used


def test_which_and_absent_program(either: Any) -> None:
    assert either.which("sh")
    assert either.which("no-such-program") is None
    with pytest.raises(Failed, match="not found"):
        either.run(["no-such-program"], timeout=5)


@pytest.mark.parametrize("error", [None, SystemExit(EXIT_RETRYABLE)])
def test_a_peer_ends_with_0_only_where_its_lead_measured_the_batch(
    served: Served,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException | None,
) -> None:
    """`argo retry` keeps the pods that succeeded, and the next lead would find no peer."""

    pods = {rank: running_pod(rank) for rank in range(2)}
    monkeypatch.setattr(lead, "running", AsyncMock(return_value=pods))
    monkeypatch.setattr(lead, "ssh_port", lambda *_: served.port)
    monkeypatch.setattr(lead, "client_config", lambda folder, home: config)
    entry = "{benchmark: command, hosts: {count: 2}, params: {argv: ['true']}}"
    plan = make_plan(parse_suite(f"name: s\nentries: [{entry}]\n"))
    with (
        contextlib.suppress(SystemExit),
        lead.assembled(place(), plan, plan.shape_of(0), 0, 0) as hosts,
    ):
        assert [each.name for each in hosts.peers] == ["node-1"]
        if error:
            raise error
    assert served.process.wait(10) == (EXIT_RETRYABLE if error else 0)


@pytest.mark.usefixtures("no_pod")
def test_a_lead_has_its_peers_in_the_order_of_their_ranks_and_misses_one_that_ends(
    keys: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = [Served(keys, tmp_path / f"peer-{rank}", 30, 1) for rank in (1, 2)]
    for each in peers:
        each.wait()
    monkeypatch.setattr(lead, "ssh_port", lambda shape, run_id, rank: peers[rank - 1].port)
    pods = {rank: running_pod(rank) for rank in range(3)}
    gang = GangPool(pods=pods, hosts=[LocalHost("127.0.0.1", "node-0")])
    gang.connect("r", config)
    assert [host.name for host in gang.hosts] == [f"node-{rank}" for rank in range(3)]
    assert gang.lost() is None
    peers[1].process.terminate()
    peers[1].process.wait()
    with pytest.raises(GangLost, match="the peer on node-2 is gone"), gang.watched():
        time.sleep(60)
    gang.dismiss(measured=False)
    assert [peer.process.wait(30) for peer in peers] == [EXIT_RETRYABLE] * 2


def test_a_lost_lead_ends_the_peer_retryable(own_host: SshHost, served: Served) -> None:
    own_host.run(
        ["sleep", "1"], timeout=10
    )  # a lead that comes and goes between two looks of the peer was never there
    own_host.close()
    assert served.process.wait(15) == EXIT_RETRYABLE


def test_no_lead_ever_ends_the_peer_retryable(keys: Path, tmp_path: Path) -> None:
    assert Served(keys, tmp_path / "alone", pending=1).process.wait(15) == EXIT_RETRYABLE


def test_a_measured_program_does_not_see_where_its_peer_keeps_its_files(host: SshHost) -> None:
    seen = host.run(["sh", "-c", "echo ${PERFDAG_PEER-nothing}"], timeout=30)
    assert seen.stdout == "nothing\n"


def test_a_killed_peer_is_infrastructure(own_host: SshHost, served: Served) -> None:
    served.process.terminate()
    served.process.wait()
    with pytest.raises(Infrastructure):
        until(lambda: own_host.run(["true"], timeout=5).code)


def test_a_peer_proves_its_run(keys: Path, tmp_path: Path) -> None:
    peer.make_keys(tmp_path)
    (tmp_path / "id.pub").write_text((keys / "id.pub").read_text())
    other = Served(tmp_path, tmp_path / "peer")
    config = peer.client_config(keys, tmp_path / "lead")
    host = SshHost("127.0.0.1", "node-x", config, other.port)
    other.wait()
    with pytest.raises(Infrastructure, match=r"no ssh to node-x .*: Host key verification failed"):
        host.connect(0)
    other.process.terminate()
    other.process.wait()


@pytest.mark.usefixtures("no_pod")
def test_the_remote_shell_reaches_measured_addresses(
    served: Served, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a Multus network, where no sshd listens."""
    measured = iter(["192.168.0.2"])
    monkeypatch.setattr(lead, "extra_address", lambda host, shape: next(measured))
    monkeypatch.setattr(lead, "ssh_port", lambda *_: served.port)
    gang = GangPool(pods={1: running_pod(1)}, hosts=[LocalHost("192.168.0.1")])
    gang.connect("r", config)
    for address, where in (("192.168.0.1", ""), ("192.168.0.2", str(tmp_path / "peer"))):
        argv = [sys.executable, "-m", "perfdag", "step", "rsh", address, "echo", "$PERFDAG_PEER"]
        assert LocalHost().run(argv, timeout=60).stdout.strip() == where
    gang.dismiss(measured=True)
