"""What a run costs on a cluster beside the measuring: overhead a point, fixed time a run, a further
batch; a sweep of no-op points; and what the steps of a large run read.

    python benchmarks/argo.py points --namespace bench [--points 100]      points of 1 s iperf in one shape, then the daemon pair
    python benchmarks/argo.py batches --namespace bench                    the same points in 1 and in 3 batches
    python benchmarks/argo.py sweep --namespace bench [--points 10000]     no-op points: wall time, pods, largest object, controller memory
    python benchmarks/argo.py sweep --namespace bench --batches 100        no-op points of a batch each, which all stand in the Workflow's status
    python benchmarks/argo.py render                                       planning and rendering 10,000 points, no cluster
    python benchmarks/argo.py steps --store s3://bucket/prefix             plan, resume, finish and site of 10,000 points and 100,000 samples, no cluster

The others need perfdag installed in the namespace, and images iperf and base. Baseline: the DAG of a daemon
server and a client a point that most Argo users would write, in the same run. Times are wall
seconds of this machine's clock, or the lead's where named. Exit 1 where a limit is not held.
"""  # noqa: E501

import argparse
import multiprocessing
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import orjson
import yaml

from perfdag.hosts import facts
from perfdag.kube.client import Kube, Object, run_with_client
from perfdag.plan import new_run_id
from perfdag.results.run_store import stored_plan
from perfdag.results.samples import SampleRecord, now, read_sample, sample_key
from perfdag.runs.cluster import ClusterRun
from perfdag.steps.pods.context import PodContext
from perfdag.store.base import Store
from perfdag.store.s3 import open_store
from tests.fakes.api_server import ApiServer

ARGO = "argoproj.io/v1alpha1"
OVERHEAD, FIXED, BATCH, RENDER = 0.3, 45.0, 15.0, 1.0
"""Limits in s: of a point beyond its own time, of a run, of each further batch, of planning and
rendering 10,000 points.
"""
OBJECT = 256 * 1024
"""Limit in bytes of any object that a sweep makes; etcd refuses one of 1.5 MB.

A Workflow's status is Argo's: it grows with every pod, and Argo compresses it from 1 MiB on. Of a
sweep of many batches it is told apart.
"""
OTHER_READS, STEP_MEMORY = 60, 2000.0
"""Limits of a step of a large run: objects that it reads beside the samples, and MB."""
problems: list[str] = []


def against(what: str, value: float, limit: float) -> str:
    """`what`, and whether its value is within the limit."""
    if value > limit:
        problems.append(what)
    return f"{what} (limit {limit:g}: {'NOT HELD' if value > limit else 'held'})"


def submit(suite: str, namespace: str) -> tuple[str, float]:
    """Submit and follow a suite; the Workflow's name and wall seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "suite.yaml"
        path.write_text(suite)
        start = time.monotonic()
        output = subprocess.run(
            [sys.executable, "-m", "perfdag", "submit", str(path), "-n", namespace, "--watch"],
            capture_output=True,
            text=True,
            check=False,
        )
    seconds = time.monotonic() - start
    if output.returncode != 0:
        sys.exit(f"{output.stdout[-2000:]}\n{output.stderr[-2000:]}")
    return output.stdout.split("workflow ")[1].split()[0], seconds


def look(name: str, namespace: str) -> ClusterRun:
    """The Workflow as it is now."""

    async def work(client: Kube) -> ClusterRun:
        return ClusterRun(await client.get(f"{ARGO}/Workflow", name, namespace))

    return run_with_client(work)


def parts(view: ClusterRun) -> list[SampleRecord]:
    """All samples of a run, in the order measured."""
    store, run_id = open_store(view.store), view.run_id
    keys = [key for key in store.list(f"runs/{run_id}/parts") if "/canary" not in key]
    return sorted(
        (read_sample(data) for _, data in store.get_many(keys)), key=lambda part: part.started_at
    )


def moment(text: str) -> float:
    """Seconds of an ISO time."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def iperf(points: int, extra: str = "") -> str:
    """Points of 1 s that differ in a port-free parameter, one shape of two hosts."""
    buffers = [16384 + 1024 * number for number in range(points)]
    entry = {
        "benchmark": "iperf",
        "params": {"duration": "1s"},
        "hosts": {"count": 2},
        "permutations": {"product": {"length": buffers}},
    }
    return f"{extra}" + yaml.safe_dump({"name": "argo-figure", "entries": [entry]})


def figures(view: ClusterRun, seconds: float, sample_seconds: float) -> tuple[float, float]:
    """Overhead a point on the lead's clock, and what is left of the wall time beside the lead's
    span; both in seconds.
    """
    samples = parts(view)
    span = moment(samples[-1].finished_at) - moment(samples[0].started_at)
    return (span - sample_seconds * len(samples)) / len(samples), seconds - span


def cost_of_points(args: argparse.Namespace) -> None:
    """Overhead a point and fixed time, with the daemon pair beside it."""
    name, seconds = submit(iperf(args.points), args.namespace)
    overhead, fixed = figures(look(name, args.namespace), seconds, 1.0)
    cost = against(f"{overhead:.3f} s overhead a point by the lead's clock", overhead, OVERHEAD)
    print(
        f"{args.points} points of 1 s in one gang: {seconds:.1f} s; {cost}, "
        f"{against(f'{fixed:.1f} s fixed a run', fixed, FIXED)}",
        flush=True,
    )
    pair = daemon_pair(args.namespace, args.pairs)
    print(
        f"daemon pair a point, {args.pairs} points: {pair / args.pairs:.1f} s a point; ratio "
        f"{pair / args.pairs / (seconds / args.points):.1f}"
    )


def daemon_pair(namespace: str, count: int) -> float:
    """Seconds that `count` points take as a DAG of daemon server and client each."""
    view = look_template(namespace)
    image = next(
        template["container"]["image"]
        for template in view["spec"]["templates"]
        if template["name"] == "watchdog-pod"
    ).replace("-base:", "-iperf:")
    patch = view["spec"]["podSpecPatch"]
    secure = {
        "runAsUser": 1000,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    common = {"image": image, "securityContext": secure, "imagePullPolicy": "IfNotPresent"}
    probe = {"tcpSocket": {"port": 5201}, "periodSeconds": 1}
    client = ["-c", "{{inputs.parameters.ip}}", "-t", "1", "-J"]
    body: Object = {
        "apiVersion": ARGO,
        "kind": "Workflow",
        "metadata": {"generateName": "daemon-pair-", "namespace": namespace},
        "spec": {
            "entrypoint": "all",
            "serviceAccountName": "perfdag-measure",
            "templates": [
                {
                    "name": "server",
                    "daemon": True,
                    "podSpecPatch": patch,
                    "container": {
                        **common,
                        "command": ["iperf3"],
                        "args": ["-s"],
                        "readinessProbe": probe,
                    },
                },
                {
                    "name": "client",
                    "podSpecPatch": patch,
                    "inputs": {"parameters": [{"name": "ip"}]},
                    "container": {**common, "command": ["iperf3"], "args": client},
                },
                {
                    "name": "pair",
                    "dag": {
                        "tasks": [
                            {"name": "s", "template": "server"},
                            {
                                "name": "c",
                                "template": "client",
                                "depends": "s",
                                "arguments": {
                                    "parameters": [{"name": "ip", "value": "{{tasks.s.ip}}"}]
                                },
                            },
                        ]
                    },
                },
                {
                    "name": "all",
                    "parallelism": 1,
                    "dag": {
                        "tasks": [
                            {"name": "p", "template": "pair", "withSequence": {"count": str(count)}}
                        ]
                    },
                },
            ],
        },
    }
    workflow = run_with_client(lambda client: client.create(body))
    name = workflow["metadata"]["name"]
    while (view_now := look(name, namespace)).phase not in ("Succeeded", "Failed", "Error"):
        time.sleep(1)
    if view_now.phase != "Succeeded":
        sys.exit(f"daemon pair: {view_now.phase}: {view_now.message}")
    status = view_now.workflow["status"]
    return moment(status["finishedAt"]) - moment(status["startedAt"])


def look_template(namespace: str) -> Object:
    """The installed WorkflowTemplate."""

    async def work(client: Kube) -> Object:
        return await client.get(f"{ARGO}/WorkflowTemplate", "perfdag", namespace)

    return run_with_client(work)


def cost_of_batches(args: argparse.Namespace) -> None:
    """What two further batches cost."""
    _, one = submit(iperf(6), args.namespace)
    _, three = submit(iperf(6, "batch_time: 3s\n"), args.namespace)
    seconds = (three - one) / 2
    print(
        f"6 points in 1 batch: {one:.1f} s; in 3 batches: {three:.1f} s; "
        f"{against(f'{seconds:.1f} s for each further batch', seconds, BATCH)}"
    )


@dataclass
class Seen:
    """What a run makes of objects, looked at every few seconds: uids of pods, bytes of the largest
    object and its kind, and of the largest status of a Workflow, which counts as a part of its
    object unless it is told `apart`.
    """

    namespace: str
    apart: bool = False
    ended: threading.Event = field(default_factory=threading.Event)
    before: set[str] = field(default_factory=set)
    pods: set[str] = field(default_factory=set)
    largest: tuple[int, str] = (0, "none")
    status: int = 0

    def watch(self, every: float = 5.0) -> None:
        """Look until `ended`; what was there before is not counted."""
        self.before = {resource["metadata"]["uid"] for _, resource in run_with_client(self._there)}
        while not self.ended.wait(every):
            self._look()

    async def _there(self, client: Kube) -> list[tuple[str, Object]]:
        kinds = (
            (ARGO, "Workflow"),
            ("v1", "Pod"),
            ("v1", "ConfigMap"),
            (ARGO, "WorkflowTaskResult"),
        )
        return [
            (kind, resource)
            for api, kind in kinds
            for resource in await client.list(f"{api}/{kind}", self.namespace)
        ]

    def _look(self) -> None:
        for kind, resource in run_with_client(self._there):
            uid = resource["metadata"]["uid"]
            if uid in self.before:
                continue
            whole = len(orjson.dumps(resource))
            status = len(orjson.dumps(resource.pop("status", {}))) if kind == "Workflow" else 0
            self.status = max(self.status, status)
            self.largest = max(self.largest, (whole - status if self.apart else whole, kind))
            if kind == "Pod":
                self.pods.add(uid)


def noop(product: Object) -> Object:
    """A suite of points that do nothing."""
    entry = {
        "benchmark": "command",
        "params": {"argv": ["true"]},
        "permutations": {"product": product},
    }
    return {"name": "sweep", "entries": [entry]}


def sweep(args: argparse.Namespace) -> None:
    """Many no-op points, in as few batches as can be or in a given number of them."""
    points = args.batches or args.points
    numbers = (
        [{"N": str(n)} for n in range(points)]
        if args.batches
        else [{"N": str(n)} for n in range(100)]
    )
    product: Object = (
        {"env": numbers}
        if args.batches
        else {"env": numbers, "expected": [0.01 + n / 1e6 for n in range(points // 100)]}
    )
    suite = noop(product) | ({"isolation": "pod"} if args.batches else {})
    seen = Seen(args.namespace, bool(args.batches))
    looking = threading.Thread(target=seen.watch, daemon=True)
    looking.start()
    name, seconds = submit(yaml.safe_dump(suite), args.namespace)
    seen.ended.set()
    looking.join()
    samples = sum(part.status == "ok" for part in parts(look(name, args.namespace)))
    size, kind = seen.largest
    missing = against(
        f"{points - samples:,} of {points:,} points without a result", points - samples, 0
    )
    beside = ", a Workflow's status not counted" if seen.apart else ""
    print(
        f"{missing}, {seconds:.0f} s, {len(seen.pods)} pods, "
        f"{against(f'largest object {size:,} B ({kind}{beside})', size, OBJECT)}, "
        f"status of the Workflow at most {seen.status:,} B, controller at most "
        f"{controller_memory()}"
    )


def controller_memory() -> str:
    """Peak resident memory of a workflow-controller on this machine; on another cluster ask its
    metrics.
    """
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except OSError:
            continue
        if text.startswith("Name:\tworkflow-contro"):
            return next(
                line.split(":")[1].strip() for line in text.splitlines() if line.startswith("VmHWM")
            )
    return "elsewhere"


def render(args: argparse.Namespace) -> None:
    """Plan and render 10,000 points; no cluster."""
    from perfdag.plan import make_plan
    from perfdag.steps.pods.plan import kinds_of
    from perfdag.suite.load import parse_suite
    from perfdag.workflows import dump, runs

    text = (
        "name: big\nentries:\n  - benchmark: command\n    params: {argv: [ls]}\n"
        "    permutations:\n      product:\n"
    )
    text += f"        expected: {list(range(1, 101))}\n        exit_code: {list(range(100))}\n"
    start = time.perf_counter()
    suite = parse_suite(text)
    plan = make_plan(suite)
    kinds_of(plan)
    manifest = dump(
        [
            runs.config_map("bench", "perfdag-suite-big", suite),
            runs.workflow_of_template("bench", "big", {"suite": "perfdag-suite-big"}),
        ]
    )
    seconds = time.perf_counter() - start
    print(
        f"{len(plan.points):,} points "
        f"{against(f'planned and rendered in {seconds:.2f} s', seconds, RENDER)}, "
        f"{len(manifest):,} B of YAML"
    )


REPETITIONS = 10


def steps(args: argparse.Namespace) -> None:
    """Run the steps of a large run, each in a process of its own as in its pod; measure no-ops.

    The API server is one in memory.
    """
    if not args.store:
        sys.exit("name a place with --store s3://bucket/prefix, or a folder")
    root, run_id = f"{args.store.rstrip('/')}/{secrets.token_hex(4)}", new_run_id()
    expected = [0.01 + n / 1e6 for n in range(args.points // 100)]
    suite = noop({"exit_code": [*range(100)], "expected": expected})
    text = yaml.safe_dump(suite | {"repetitions": REPETITIONS})
    samples = args.points * REPETITIONS
    report("plan", in_child(plan_step, root, run_id, text), 0)
    start = time.perf_counter()
    fill(open_store(root), run_id)
    print(f"{samples:,} samples written in {time.perf_counter() - start:.0f} s", flush=True)
    # it looks for damaged samples, which it would measure again
    report("plan of a resumed run", in_child(plan_step, root, run_id, text), samples)
    report("finish, with its site", in_child(finish_step, root, run_id, text), samples)
    report("site", in_child(site_step, root, run_id, text), 0)
    for folder in ("runs", "results", "site"):
        open_store(root).delete(folder)


def report(what: str, figures: tuple[float, float, Counter[str], int, int], samples: int) -> None:
    """Print the figures of a step, which may read so many samples."""
    seconds, memory, reads, size, lists = figures
    of_samples = reads.pop("parts", 0)
    others = reads.total()
    print(
        f"{what}: {seconds:.1f} s, {against(f'{of_samples:,} samples read', of_samples, samples)}, "
        f"{against(f'{others} other objects read', others, OTHER_READS)}, {size / 1e6:.1f} MB in "
        f"all, {lists} listings, {against(f'peak {memory:.0f} MB', memory, STEP_MEMORY)}",
        flush=True,
    )


def in_child(work: Callable[[Store, PodContext, str], Any], *arguments: str) -> Any:
    """What a step reads and needs, in a process of its own, so that its peak memory is its own."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=measure_step, args=(queue, work, *arguments))
    process.start()
    figures = queue.get()
    process.join()
    return figures


def measure_step(
    queue: "multiprocessing.Queue[Any]",
    work: Callable[[Store, PodContext, str], Any],
    root: str,
    run_id: str,
    text: str,
) -> None:
    """Run a step with a store that counts what is read."""
    store, reads, sizes, lists = open_store(root), Counter[str](), [], []
    get, listing = store.get, store.list

    def counted(key: str) -> bytes:
        data = get(key)
        reads["parts" if "/parts/" in key else key] += 1
        sizes.append(len(data))
        return data

    def listed(prefix: str) -> list[str]:
        lists.append(prefix)
        return listing(prefix)

    pod = PodContext(
        run_id, "uid", "r/perfdag-{name}:1", root, workflow="w", trigger="manual",
        namespace="bench", node="node", addresses=("10.0.0.1",),
    )  # fmt: skip
    workflow = {"apiVersion": ARGO, "kind": "Workflow", "spec": {}}
    server = ApiServer(workflow | {"metadata": {"name": "w", "namespace": "bench", "uid": "uid"}})
    with (
        patch.multiple(store, get=counted, list=listed),
        patch("perfdag.kube.client.Kube", server.client),
        patch("perfdag.steps.pods.context.PodContext.open", lambda _: store),
    ):
        start = time.perf_counter()
        work(store, pod, text)
        seconds = time.perf_counter() - start
    memory = getrusage(RUSAGE_SELF).ru_maxrss / 1024
    queue.put((seconds, memory, reads, sum(sizes), len(lists)))


def plan_step(store: Store, pod: PodContext, text: str) -> None:
    """The step that plans a run, or goes on with one."""
    from perfdag.steps.pods import plan

    with tempfile.TemporaryDirectory() as folder:
        suite = Path(folder) / "suite.yaml"
        suite.write_text(text)
        with patch.object(plan, "SUITE_FILES", (suite,)):
            plan.step(pod, Path(folder) / "out", {})


def finish_step(store: Store, pod: PodContext, text: str) -> None:
    """The last step of a run."""
    from perfdag.runs.finish import finish_step as step

    with patch("perfdag.runs.finish.print_now"):
        step(pod, "Succeeded")


def site_step(store: Store, pod: PodContext, text: str) -> None:
    """The site of a store, written again."""
    from perfdag.charts.pages.site import write_site

    write_site(store, "sweep")


def fill(store: Store, run_id: str) -> None:
    """Write all samples of a planned run as leads write them."""
    plan, env = stored_plan(store, run_id), facts.gather()

    def put(position: int) -> None:
        index, repetition = plan.order[position]
        row = {"metric": "wall_time", "stat": "value", "unit": "s", "better": "lower"}
        value = 1e-3 * (1 + position % 97)
        rows = [{**row, "value": value, "headline": True, "coords": {}, "n": 1}]
        record = SampleRecord(
            plan.points[index].id, repetition, "ok", None, now(), now(), rows,
            {"stdout": ""}, [["true"]], "true 9", "1", env=env, nodes=["node"],
        )  # fmt: skip
        store.put(sample_key(run_id, plan.key(position)), record.dump())

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(put, range(len(plan.order))))


def main() -> None:
    """Run one of the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["points", "batches", "sweep", "render", "steps"])
    parser.add_argument("--namespace", "-n", default="perfdag")
    parser.add_argument("--points", type=int)
    parser.add_argument(
        "--batches", type=int, metavar="N", help="sweep: N points, each in pods of its own"
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--store", metavar="ROOT", help="steps: where the run is stored")
    args = parser.parse_args()
    args.points = args.points or (10_000 if args.what in ("sweep", "steps") else 100)
    figures = {
        "points": cost_of_points,
        "batches": cost_of_batches,
        "sweep": sweep,
        "render": render,
        "steps": steps,
    }
    figures[args.what](args)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
