"""Backends: workloads with limits, process groups and devices, and items put back."""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.benchmark.contract import Gang
from perfdag.hosts.local import LocalHost
from perfdag.outcome import Failed
from perfdag.shape import Shape
from perfdag.steps.queue.backend import Backend, Options
from perfdag.steps.queue.client import ClientStats, Work, request
from perfdag.steps.queue.deployment import DeploymentTarget, other_scaler
from perfdag.steps.queue.dispatcher import Limits
from perfdag.steps.queue.frontend import Frontend
from perfdag.steps.queue.local import Local
from perfdag.steps.queue.scaling_benchmark import QueueScaling, QueueScalingParams
from perfdag.steps.queue.validate import Plan, validate
from perfdag.steps.queue.wire import Address, address
from perfdag.steps.queue.workload import Outcome, Workload, shorter
from tests.conftest import CommandLine
from tests.fakes.api_server import ApiServer
from tests.queue.conftest import ANY, Dial, Start, StartBackends, clients, until, workers


def test_limit_kills_the_whole_process_group(tmp_path: Path) -> None:
    mark = tmp_path / "child"
    script = (
        f"import subprocess,sys,time; p=subprocess.Popen(['sleep','60']); "
        f"open({str(mark)!r},'w').write(str(p.pid)); time.sleep(60)"
    )
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


@pytest.mark.parametrize(
    ("command", "arguments", "limit", "outcome"),
    [
        (["sleep"], ["0.01"], 0, Outcome()),
        (["sleep", "60"], None, 0.05, Outcome(0, 0.05, "Sleep timeout")),
        (["sleep"], None, 0, Outcome(1, 0.0, "Sleep time (seconds) argument missing")),
        (["sleep"], ["x"], 0, Outcome(1, 0.0, "invalid sleep time value 'x'")),
        (
            ["sleep", "nan"],
            None,
            0,
            Outcome(1, 0.0, "invalid sleep time value 'nan': not between 0 and 1e9"),
        ),
    ],
)
def test_built_in_sleep(
    command: list[str], arguments: list[str] | None, limit: float, outcome: Outcome
) -> None:
    assert Workload(command).run(arguments, limit) == outcome


def test_built_in_usl_follows_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    assert Workload(["usl", "0.02", "0.5", "0.1"]).run(None, 0, running=3) == Outcome()
    assert pauses == [pytest.approx(0.02 * (1 + 0.5 * 2 + 0.1 * 6))]


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


@pytest.mark.parametrize("text", ["", "9999", "host:", "host:x", "host:70000"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        address(text)


def test_addresses() -> None:
    assert address(":9997") == Address("", 9997)
    assert str(address("[::1]:5")) == "[::1]:5"


async def test_backoff_grows_by_its_step_up_to_the_most_and_an_item_begins_it_anew(
    frontend: Frontend,
) -> None:
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

    options = Options(workers(frontend), "sleep", "p", "n", backoff=0.1, backoff_max=0.25)
    await asyncio.to_thread(Hurried(options, Workload(["sleep", "0"])).serve)
    assert pauses == [0.1, 0.2, 0.25, 0.25, 0.1, 0.2]
    requests[0].close()


def test_bad_backoff() -> None:
    with pytest.raises(ValueError, match="back-off"):
        Options(Address("", 1), "q", "p", "n", backoff=6)


async def test_one_verdict_of_a_timeout_on_both_sides(
    frontend: Frontend, client_stats: ClientStats, backends: StartBackends
) -> None:
    await backends(frontend, 1, "sleep", "60")
    began = time.monotonic()
    await request(Work(clients(frontend), "sleep", limit=0.5), client_stats, 0)
    assert time.monotonic() - began < 4
    assert client_stats.causes == {"timeout": 1}
    assert (frontend.queues["sleep"].failure, frontend.queues["sleep"].success) == (1, 0)


async def test_sigterm_ends_after_the_current_item(
    frontend: Frontend, dial: Dial, backends: StartBackends
) -> None:
    line = await dial(frontend.ports[0], '{"Queue": "sleep"}')
    [process] = (await backends(frontend, 1, "sleep", "0.5")).running
    await until(lambda: frontend.queues["sleep"].running)
    process.send_signal(signal.SIGTERM)
    assert (await line.receive())["Retcode"] == 0
    assert await asyncio.to_thread(process.wait, 5) == 0


async def test_idle_backend_ends_at_once(frontend: Frontend, backends: StartBackends) -> None:
    [process] = (await backends(frontend, 1, "sleep", "1")).running
    await until(lambda: frontend.workers)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 5) == 0
    assert time.monotonic() - began < 1


async def test_a_replica_that_does_not_end_is_killed_with_its_command(
    frontend: Frontend, dial: Dial, backends: StartBackends
) -> None:
    marker = "54321.725"
    await dial(frontend.ports[0], '{"Queue": "sleep"}')
    replicas = await backends(frontend, 1, "/bin/sleep", marker, grace=0.1)
    await until(lambda: commands(marker) == 1)
    await replicas.stop()
    assert commands(marker) == 0


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
        "import socket, time; s = socket.create_server(('198.51.100.2', 9999)); "
        "print('listens', flush=True); "
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
            argv = [sys.executable, "-m", "perfdag.steps.queue.backend", json.dumps(fields)]
            with subprocess.Popen(argv, stderr=subprocess.PIPE) as backend:
                assert b"sleep" in frontend.stdout.readline()
                subprocess.run([*there, "ip", "addr", "flush", "dev", inside], check=True)
                try:
                    assert backend.wait(60) == 4
                finally:
                    backend.kill()
                    frontend.kill()
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", outside], capture_output=True, check=False)


async def test_without_backoff_an_empty_queue_ends_the_backend(
    frontend: Frontend, backends: StartBackends
) -> None:
    replicas = await backends(frontend, 1, "sleep", "0", backoff=0.0, backoff_max=0.0)
    assert await asyncio.to_thread(replicas.running[0].wait, 5) == 0


async def test_backends_outlive_a_restarted_frontend(
    start: Start, client_stats: ClientStats, backends: StartBackends
) -> None:
    first = await start()
    await backends(first, 1, "sleep", "0")
    await until(lambda: first.workers)
    await first.stop()
    second = Frontend(["sleep"], Limits())
    await second.start(ANY, workers(first), ANY)
    wire = Work(clients(second), "sleep")
    await asyncio.wait_for(request(wire, client_stats, 0), 10)
    assert client_stats.success == 1
    await second.stop()


TOLERATED = [{"operator": "Exists"}]


class Control(BaseHTTPRequestHandler):
    """A client's control port whose requests are never answered."""

    def do_GET(self) -> None:
        self.server.talks.wait()  # type: ignore[attr-defined]
        answer: dict[str, Any] = ClientStats().as_json()
        if "value=" in self.path:
            answer = {"result": int(self.path.rpartition("value=")[2])}
            self.server.requests.append(answer["result"])  # type: ignore[attr-defined]
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def control() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("0.0.0.0", 0), Control)
    server.requests, server.talks = [], threading.Event()  # type: ignore[attr-defined]
    server.talks.set()  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server
    server.talks.set()  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


def kubectl(*argv: str, stdin: Any = None) -> str:
    text = None if stdin is None else yaml.safe_dump_all(stdin)
    return subprocess.run(
        ["kubectl", *argv], input=text, capture_output=True, check=True, text=True
    ).stdout


def deployment(namespace: str, replicas: int) -> dict[str, Any]:
    """Return a Deployment whose pods are ready on a simulated node."""
    labels = {"app": "fake", "tier": "back"}
    spec = {
        "nodeSelector": {"type": "kwok"},
        "tolerations": TOLERATED,
        "containers": [{"name": "c", "image": "none"}],
    }
    selector = {
        "matchLabels": {"app": "fake"},
        "matchExpressions": [{"key": "tier", "operator": "In", "values": ["back"]}],
    }
    template = {
        "metadata": {"labels": labels},
        "spec": {**spec, "terminationGracePeriodSeconds": 0},
    }
    meta = {"name": "fake", "namespace": namespace}
    whole = {"replicas": replicas, "selector": selector, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": whole}


def service(namespace: str, name: str, port: int) -> None:
    """Create a Service of a local port, with a pod that never runs for the API server's proxy."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.connect(
            ("203.0.113.1", 9)
        )  # sends nothing: only says by which address this machine is reached
        address = out.getsockname()[0]
    meta, ports = {"name": name, "namespace": namespace}, [{"name": "control", "port": 9996}]
    pod = {
        "schedulingGates": [{"name": "perfdag.test/never"}],
        "containers": [{"name": "c", "image": "none"}],
    }
    subset = {
        "addresses": [{"ip": address, "targetRef": {"kind": "Pod", **meta}}],
        "ports": [{"name": "control", "port": port}],
    }
    objects = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod},
        {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": ports}},
        {"apiVersion": "v1", "kind": "Endpoints", "metadata": meta, "subsets": [subset]},
    ]
    kubectl("apply", "-f", "-", stdin=objects)
    status = json.dumps({"status": {"podIP": address, "podIPs": [{"ip": address}]}})
    kubectl(
        "-n", namespace, "patch", "pod", name, "--subresource=status", "--type=merge", "-p", status
    )


@pytest.fixture
def namespace() -> Iterator[str]:
    """With a Deployment `fake` of two ready replicas."""
    name = f"perfdag-queue-{secrets.token_hex(4)}"
    if not kubectl("get", "nodes", "-l", "type=kwok", "-o", "name"):
        pytest.skip("the cluster has no simulated nodes")
    kubectl("create", "namespace", name)
    try:
        kubectl("apply", "-f", "-", stdin=[deployment(name, 2)])
        kubectl(
            "-n", name, "wait", "deployment", "fake", "--for=condition=Available", "--timeout=60s"
        )
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=false")


def replicas(namespace: str) -> int:
    return int(
        kubectl("-n", namespace, "get", "deployment", "fake", "-o", "jsonpath={.spec.replicas}")
    )


def validate_argv(namespace: str, *client: str) -> list[str]:
    """The command that validates the deployment `fake` with up to 3 replicas."""
    words = ("queue", "validate", "fake", "-n", namespace, *client, "--limit", "3")
    return [sys.executable, "-m", "perfdag", *words]


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize("end", ["SIGTERM", "SIGINT", "client gone"])
def test_replicas_are_put_back(namespace: str, control: ThreadingHTTPServer, end: str) -> None:
    url = f"http://127.0.0.1:{control.server_address[1]}"
    argv = validate_argv(namespace, "--client-url", url)
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as validator:
        deadline = time.monotonic() + 60
        while control.requests[-2:] != [0, 1]:  # type: ignore[attr-defined]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert replicas(namespace) == 1
        if end == "client gone":
            control.shutdown()
            control.server_close()
        else:
            validator.send_signal(getattr(signal, end))
        output = validator.communicate(timeout=60)[1]
    assert validator.returncode == (2 if end == "client gone" else 130), output
    assert "restoring 2 replicas" in output
    assert "Traceback" not in output
    assert replicas(namespace) == 2


@pytest.mark.cluster
@pytest.mark.slow
def test_a_client_that_hangs_holds_no_replicas(
    namespace: str, control: ThreadingHTTPServer
) -> None:
    service(namespace, "its-client", control.server_address[1])
    argv = validate_argv(namespace, "--client", "its-client")
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as validator:
        deadline = time.monotonic() + 60
        while control.requests[-2:] != [0, 1]:  # type: ignore[attr-defined]
            assert time.monotonic() < deadline
            assert validator.poll() is None, validator.communicate()[1]
            time.sleep(0.1)
        control.talks.clear()  # type: ignore[attr-defined]
        time.sleep(0.5)
        validator.send_signal(signal.SIGTERM)
        time.sleep(2)
        assert replicas(namespace) == 2
        output = validator.communicate(timeout=18)[1]
    assert validator.returncode == 130, output
    assert "the client may continue to send: no answer in 5 s" in output
    assert "Traceback" not in output


@pytest.mark.cluster
@pytest.mark.slow
def test_a_deployment_that_something_else_scales_is_refused(
    namespace: str, control: ThreadingHTTPServer, cli: CommandLine
) -> None:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "fake"}
    metric = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 90}},
    }
    spec = {"scaleTargetRef": reference, "maxReplicas": 2, "minReplicas": 2, "metrics": [metric]}
    meta = {"name": "hpa-of-fake", "namespace": namespace}
    kubectl(
        "apply",
        "-f",
        "-",
        stdin=[
            {
                "apiVersion": "autoscaling/v2",
                "kind": "HorizontalPodAutoscaler",
                "metadata": meta,
                "spec": spec,
            }
        ],
    )
    url = f"http://127.0.0.1:{control.server_address[1]}"
    assert (
        "HorizontalPodAutoscaler hpa-of-fake scales fake as well"
        in cli(
            ["queue", "validate", "fake", "-n", namespace, "--client-url", url, "--limit", "3"], 2
        ).err
    )
    assert replicas(namespace) == 2


async def test_rights_that_are_missing_are_reported(server: ApiServer) -> None:
    server.fail("/horizontalpodautoscalers", 403, "somebody cannot list horizontalpodautoscalers")
    target = DeploymentTarget(server.client(), "there", "fake")
    reports: list[str] = []
    assert await other_scaler(target, reports.append) is None
    assert "not known whether anything else scales fake: somebody cannot list" in reports[0]


def test_the_benchmark_ends_its_validator_gently(tmp_path: Path) -> None:
    params = QueueScalingParams(command=["sleep", "0.4"], limit=2)
    with pytest.raises(Failed, match="did not end within 8 s") as error:
        QueueScaling().run(Gang([LocalHost()], Shape(), 8, str(tmp_path)), params)
    assert "restoring 0 replicas" in error.value.texts["stderr"]


@pytest.mark.parametrize(
    "own", [{"glob": "/dev/null"}, {"item_limit": 3}, {"glob": "/dev/null", "item_limit": 3}]
)
def test_what_belongs_to_backends_here_is_refused_with_a_deployment(own: dict[str, Any]) -> None:
    params = {"command": ["/bin/cat", "FILENAME"], "glob": "/dev/null"}
    assert (
        QueueScaling().check(QueueScalingParams.model_validate({**params, "item_limit": 3}), None)
        == []
    )
    raised = QueueScaling().check(
        QueueScalingParams.model_validate({"deployment": "d", **own}), None
    )
    assert raised == [
        f"{' and '.join(own)}: set them in the manifest of the Deployment (glob, limit)"
    ]


async def test_the_first_file_of_a_glob_is_the_device(tmp_path: Path) -> None:
    for name in ("card0", "card1"):
        (tmp_path / name).write_text("#!/bin/sh\nsleep 0.05\n")
    async with Local(["/bin/sh", "FILENAME"], 1, glob=f"{tmp_path}/card*") as local:
        verdict = await validate(local.target, local.load, Plan(1), print)
    assert verdict.word == "passed"
    (node,) = verdict.as_json()["nodes"].values()
    assert node["devices"].keys() == {"card0"}


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
    benchmark = QueueScaling()
    with pytest.raises(Failed, match=r"/bin/sh ran past its limit of 0.2 s") as raised:
        benchmark.parse(
            benchmark.run(Gang([LocalHost()], Shape(), 60, str(tmp_path)), params), params
        )
    assert {
        str(row.subject).rpartition("/")[2]
        for row in raised.value.measurements
        if row.metric == "failures"
    } == {"card0"}
