"""Generator and observer on a real API server, beside kube-burner in the same run where KUBE_BURNER
names its program.

Needs KUBECONFIG and, for all but `create` of pods and `watch`, KWOK with Stages. Prints each figure
with its ratio to kube-burner (rates are read by one neutral watch for both, rounds alternate). What
it makes it deletes. Exit 1 where a limit is not held.

Usage: python -P benchmarks/scale.py [create] [memory] [watch] [jobs] [burst] [truth] [suite]      (default: create memory watch truth)
"""  # noqa: E501

import argparse
import asyncio
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import yaml

from perfdag.kube.client import Kube
from perfdag.steps.scale import cluster as kwok_nodes, vmi, workloads
from perfdag.steps.scale.cluster import own_namespaces
from perfdag.steps.scale.generate import Schedule, api_submitter, generate, plan
from perfdag.steps.scale.objects import Template, load, unix_ns
from perfdag.steps.scale.rows import rank
from perfdag.steps.scale.scenario import Context
from perfdag.steps.scale.watch import Observer, WatchLag
from tests import simulation

KINDS = {"vmi": ("kubevirt.io/v1", "VirtualMachineInstance"), "pod": ("v1", "Pod")}
BURNER = """global: {{gc: false}}
jobs:
- {{name: create, jobIterations: {count}, qps: {pace}, burst: {pace}, namespacedIterations: false, namespace: {namespace},
   waitWhenFinished: false, podWait: false, preLoadImages: false, verifyObjects: false,
   objects: [{{objectTemplate: object.yml, replicas: 1, wait: false}}]}}
"""  # noqa: E501


MEMORY_LIMIT, LAG_LIMIT, TRUTH_LIMIT = 100e6, 0.05, 0.02
"""Bytes at 10,000 objects; seconds at 100 objects/s; seconds between what is measured and what
happened.
"""
SUITE = Path(__file__).parents[1] / "suites/scale.yaml"
JOB_STAGES = ("created", "first_pod_created", "scheduled", "succeeded")
"""What every job must have been seen at."""


def verdict(ok: bool) -> str:
    """In words."""
    return "held" if ok else "NOT HELD"


def small(kind: str) -> str:
    """The object both create: as small as its kind allows, so that the creator is measured."""
    api_version, name = KINDS[kind]
    spec = "  domain:\n    devices: {}\n"
    if kind == "pod":
        spec = (
            "  nodeSelector:\n    nowhere: nowhere\n  automountServiceAccountToken: false\n"
            "  containers:\n  - name: c\n    image: none\n"
        )
    return f"apiVersion: {api_version}\nkind: {name}\nmetadata:\n  name: NAME\nspec:\n{spec}"


def load_template(kind: str, run: str) -> Template:
    """The small object as a template."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(small(kind).replace("NAME", "${name}"))
        file.flush()
        return load(file.name, run)


async def ours(kind: str, count: int, namespace: str) -> None:
    """Create with the generator."""
    async with Kube() as kube:
        template = load_template(kind, "bench")
        batch = plan("bench", count, [namespace], Schedule())
        await generate(await api_submitter(kube, template), template, batch, 50)


async def ours_observed(kind: str, count: int, namespace: str) -> None:
    """Create with the generator while the observer watches, and keep all records to the end."""
    async with Kube() as kube:
        template = load_template(kind, "bench")
        async with Observer(
            kube, "bench", [KINDS[kind]], [namespace], primary=[KINDS[kind][1]]
        ) as observer:
            batch = plan("bench", count, [namespace], Schedule())
            await generate(await api_submitter(kube, template), template, batch, 50)
            await observer.until(lambda: observer.count(KINDS[kind][1], "created") >= count, 120)


def in_process(work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> tuple[float, float]:
    """Run in a fresh interpreter; returns (peak RSS in MiB, CPU seconds)."""
    queue: Any = multiprocessing.get_context("spawn").SimpleQueue()
    process = multiprocessing.get_context("spawn").Process(target=_child, args=(queue, work, args))
    process.start()
    result: tuple[float, float] = queue.get()
    process.join()
    return result


def _child(queue: Any, work: Callable[..., Coroutine[Any, Any, None]], args: Any) -> None:
    asyncio.run(work(*args))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    queue.put((peak_memory(), usage.ru_utime + usage.ru_stime))


def peak_memory(process: int | str = "self") -> float:
    """Return the peak RSS of a process in MiB, 0 if it has ended.

    ru_maxrss of a child process is at least the RSS that its parent had when it started the child.
    """
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def burner(
    program: str, text: str, count: int, namespace: str, pace: int = 5000
) -> tuple[float, float]:
    """Create an object, in which NAME is its name, with kube-burner; returns (peak RSS in MiB,
    CPU seconds). `pace` is in objects a second.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "object.yml").write_text(text.replace("NAME", "kb-{{.Iteration}}"))
        config = BURNER.format(count=count, namespace=namespace, pace=pace)
        Path(folder, "c.yml").write_text(config)
        with Path(folder, "log").open("wb") as log:
            process = subprocess.Popen(
                [program, "init", "-c", "c.yml"], cwd=folder, stdout=log, stderr=log
            )
            peak, ended = 0.0, 0
            while not ended:
                peak = max(peak, peak_memory(process.pid))
                time.sleep(0.02)
                ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        if status:
            raise SystemExit(f"kube-burner failed: {Path(folder, 'log').read_text()[-500:]}")
    return peak, usage.ru_utime + usage.ru_stime


async def appearances(kube: Kube, kind: str, namespace: str, count: int) -> float:
    """Objects a second that appear on a neutral watch of a namespace."""
    seen: list[int] = []
    async for change, _, received_ns in kube.watch(kind, namespace):
        if change == "ADDED":
            seen.append(received_ns)
        if len(seen) >= count:
            break
    return (count - 1) / ((max(seen) - min(seen)) / 1e9)


async def deletions(
    kube: Kube, kind: str, namespace: str, count: int, done: threading.Event
) -> None:
    """Set `done` when so many objects of a namespace were deleted."""
    seen = 0
    async for change, _, _ in kube.watch(kind, namespace):
        seen += change == "DELETED"
        if seen >= count:
            break
    done.set()


async def rate(
    kind: str, count: int, work: Callable[[str], tuple[float, float]]
) -> tuple[float, float, float]:
    """Objects a second that appear on a neutral watch while `work(namespace)` creates them, its
    peak RSS and CPU seconds.
    """
    namespace = f"perfdag-bench-{time.time_ns() % 10**9}"
    async with Kube(timeout=120) as kube, own_namespaces(kube, [namespace], "bench"):
        served = "/".join(KINDS[kind])
        watching = asyncio.create_task(appearances(kube, served, namespace, count))
        await asyncio.sleep(0.5)
        memory, cpu = await asyncio.to_thread(work, namespace)
        created = await asyncio.wait_for(watching, 120)
        path = await kube.path(served, namespace)
        await kube.request("DELETE", path, json={"gracePeriodSeconds": 0})
        return created, memory, cpu


async def create(rounds: int) -> bool:
    """Creation rate of 1,000 VMI objects and 2,000 pods, in turn with kube-burner, which must
    not be the faster one.
    """
    ok = True
    program = os.environ.get("KUBE_BURNER")
    if not program:
        print("kube-burner absent: NOT compared; name its program with KUBE_BURNER")
    async with Kube() as kube:  # the kind alone, with no Stage that reacts to it
        await simulation.install(kube, "kubevirt")
        stages = "kwok.x-k8s.io/v1alpha1/Stage"
        for item in await kube.list(stages, labels=f"{kwok_nodes.SIMULATED_LABEL}=kubevirt"):
            await kube.delete(stages, item["metadata"]["name"])
    for kind, count in (("vmi", 1000), ("pod", 2000)):
        figures: dict[str, list[tuple[float, float, float]]] = {"perfdag": [], "kube-burner": []}
        for turn in range(rounds):
            order = ["perfdag", "kube-burner"] if turn % 2 == 0 else ["kube-burner", "perfdag"]
            for who in order:
                if who == "perfdag":
                    figures[who].append(
                        await rate(kind, count, partial(in_process, ours, kind, count))
                    )
                elif program:
                    figures[who].append(
                        await rate(kind, count, partial(burner, program, small(kind), count))
                    )
        for who, result in figures.items():
            if result:
                rates = sorted(figure[0] for figure in result)
                middle = [statistics.median(figure[i] for figure in result) for i in range(3)]
                spread = f"{rates[0]:.0f} to {rates[-1]:.0f}"
                print(
                    f"create {count} {kind}: {who} {middle[0]:.0f}/s ({spread}, "
                    f"n={len(result)}), {middle[1]:.0f} MiB, {middle[2]:.2f} s CPU"
                )
        if figures["kube-burner"]:
            ratio = statistics.median(
                a[0] / b[0] for a, b in zip(figures["perfdag"], figures["kube-burner"], strict=True)
            )
            print(
                f"create {count} {kind}: ratio perfdag / kube-burner {ratio:.2f} (limit 1: "
                f"{verdict(ratio >= 1)})"
            )
            ok = ok and ratio >= 1
    async with Kube() as kube:
        await simulation.install(kube, "kubevirt")
    return ok


async def memory() -> bool:
    """Peak memory of generator and observer together at 10,000 objects."""
    namespace = f"perfdag-bench-{time.time_ns() % 10**9}"
    async with Kube(timeout=300) as kube, own_namespaces(kube, [namespace], "bench"):
        await simulation.install(kube, "kubevirt", {"vmi-pending": (600_000, 600_000)})
        peak, cpu = await asyncio.to_thread(in_process, ours_observed, "vmi", 10_000, namespace)
        ok = peak * 2**20 < MEMORY_LIMIT
        print(
            f"generator and observer at 10,000 objects: {peak:.0f} MiB peak, {cpu:.1f} s CPU "
            f"(limit 100 MB: {verdict(ok)})"
        )
        path = await kube.path("/".join(KINDS["vmi"]), namespace)
        await kube.request("DELETE", path, json={"gracePeriodSeconds": 0})
        await simulation.install(kube, "kubevirt")
        return ok


async def watch() -> bool:
    """Lag of the watch while 100 objects are created each second for 15 s."""
    namespace = f"perfdag-bench-{time.time_ns() % 10**9}"
    async with Kube() as kube, own_namespaces(kube, [namespace], "bench"):
        template = load_template("pod", "bench")
        probe = WatchLag()
        async with Observer(kube, "bench", [KINDS["pod"]], [namespace], primary=["Pod"]):
            await probe.start(kube, "bench", namespace)
            batch = plan("bench", 1500, [namespace], Schedule("constant", 100))
            await generate(await api_submitter(kube, template), template, batch, 50)
            await probe.stop()
        rates, lags = batch.summary(), sorted(probe.lags)
        p99 = probe.summary()["p99_s"]
        if p99 is None:
            raise SystemExit("no change came back")
        print(
            f"watch lag at 100 objects/s (the server's write included): p99 {1e3 * p99:.1f} ms, "
            f"median {1e3 * statistics.median(lags):.1f} ms, n={len(lags)} (limit p99 50 ms: "
            f"{verdict(p99 < LAG_LIMIT)}); rate {rates['rate_share']:.1%} "
            f"({verdict(rates['held'])})"
        )
        return bool(p99 < LAG_LIMIT and rates["held"])


async def jobs(count: int, nodes: int) -> bool:
    """Jobs on simulated nodes: every stage of every job has a row."""
    async with Kube() as kube:
        await kwok_nodes.make_nodes(kube, nodes, 8)
        await kwok_nodes.ready_nodes(kube, nodes, 120)
        params = workloads.ScaleParams(count=count, parallel=20, goal="succeeded", timeout=900)
        start = time.monotonic()
        (result,) = await workloads.Scale().measure(kube, params, Context())
        stages = {row.stage for row in result.rows}
        counts = {
            status: sum(row.status == status for row in result.rows)
            for status in ("ok", "unobserved", "censored", "failed")
        }
        took = time.monotonic() - start
        print(
            f"{count} jobs on {nodes} nodes: {took:.0f} s, {len(result.rows)} rows = {count} "
            f"x {len(stages)}: {counts}"
        )
        totals = {
            name: sum(row.status == "ok" for row in result.rows if row.stage == name)
            for name in JOB_STAGES
        }
        ok = (
            counts["ok"] + counts["unobserved"] == count * len(stages)
            and not result.figures["left_behind"]
        )
        ok = ok and all(number == count for number in totals.values())
        print(
            f"  seen: {', '.join(f'{name} {number}' for name, number in totals.items())} "
            f"(limit {count} each: {verdict(ok)})"
        )
        print(
            f"  scheduled {result.figures['throughput_mean']:.0f}/s mean, left behind "
            f"{result.figures['left_behind']:.0f} ({verdict(ok)})"
        )
        peak = peak_memory()
        small_enough = peak * 2**20 < MEMORY_LIMIT
        print(f"  {peak:.0f} MiB peak (limit 100 MB: {verdict(small_enough)})")
        ok = ok and small_enough
        await kwok_nodes.remove_nodes(kube)
        return ok


async def burst() -> bool:
    """800 VMIs burst, run, deleted; nothing left."""
    async with Kube() as kube:
        await kwok_nodes.make_nodes(kube, 20, 8)
        await simulation.install(kube, "kubevirt")
        start = time.monotonic()
        (result,) = await vmi.VmiBurst().measure(kube, vmi.VmiBurstParams(counts=[800]), Context())
        figures = result.figures
        ok = figures["success_ratio"] == 1.0 and not figures["left_behind"]
        text = (
            f"success {figures['success_ratio']}, left behind {figures['left_behind']:.0f} "
            f"({verdict(ok)})"
        )
        print(f"800 VMIs: {time.monotonic() - start:.0f} s, {text}")
        quantiles = ", ".join(
            f"{p} {figures[f'creation_to_running_{p}']:.2f} s" for p in ("p50", "p95", "p99")
        )
        print(
            f"  creation to Running: {quantiles}; Running {figures['throughput_mean']:.1f}/s "
            f"mean, {figures['throughput_best_5s']:.1f}/s best 5 s"
        )
        return ok


async def truth() -> bool:
    """Measured latencies of 100 VMs beside what the simulated KubeVirt stamps, in nanoseconds,
    into each VMI as it plays its phases.
    """
    namespace, stamps = f"perfdag-bench-{time.time_ns() % 10**9}", {}
    async with Kube() as kube, own_namespaces(kube, [namespace], "bench"):
        await kwok_nodes.make_nodes(kube, 20, 8)
        await simulation.install(kube, "kubevirt", {"vmi-scheduling": (800, 3300)})

        async def look() -> None:
            async for _, body, _ in kube.watch("/".join(KINDS["vmi"]), namespace):
                phases = body.get("status", {}).get("phaseTransitionTimestamps", [])
                at = {
                    phase["phase"]: unix_ns(phase["phaseTransitionTimestamp"]) / 1e9
                    for phase in phases
                }
                if "Scheduling" in at:
                    stamps[body["metadata"]["name"]] = at["Scheduling"] - at["Pending"]

        looking = asyncio.create_task(look())
        result = await vmi.burst(
            kube,
            vmi.VmiBurstParams(
                template="vm",
                namespace=namespace,
                # KWOK stamps a phase early and writes it late where it has many to play at once
                arrival="constant",
                rate=10,
                primer=False,
                timeout=120,
            ),
            Context(),
            100,
        )
        looking.cancel()
        await simulation.install(kube, "kubevirt")
    latencies = sorted(
        row.seconds
        for row in result.rows
        if row.stage == "scheduling" and row.status == "ok" and row.seconds is not None
    )
    real = sorted(stamps.values())
    apart = {p: abs((rank(latencies, p) or 0.0) - (rank(real, p) or 0.0)) for p in (0.5, 0.95)}
    ok = len(latencies) == len(real) == 100 and max(apart.values()) <= TRUTH_LIMIT
    text = ", ".join(f"p{100 * p:g} {1e3 * value:.1f} ms" for p, value in apart.items())
    lag = 1e3 * (result.figures["watch_lag_p99"] or 0.0)
    print(
        f"measured against played, 0.8 to 3.3 s, n={len(latencies)}: {text} apart (limit 20 "
        f"ms: {verdict(ok)}); watch lag p99 {lag:.1f} ms"
    )
    return ok


def measured_suite(store: str, deleted: threading.Event) -> tuple[float, float]:
    """Run the entry `training` of the suite; returns the peak RSS of `perfdag run` in MiB until all
    objects are `deleted`, and at its end.
    """
    words = ["run", str(SUITE), "--only", "training", "--no-report", "--store", store]
    process = subprocess.Popen([sys.executable, "-m", "perfdag", *words])
    until_deleted = peak = 0.0
    while process.poll() is None:
        peak = max(peak, peak_memory(process.pid))
        if not deleted.is_set():
            until_deleted = peak
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"perfdag run ended with {process.returncode}")
    return until_deleted, peak


async def suite(nodes: int) -> bool:
    """The training jobs of suites/scale.yaml, and as many by kube-burner at the same time."""
    program = os.environ.get("KUBE_BURNER")
    if not program:
        raise SystemExit("name the program of kube-burner with KUBE_BURNER")
    params = yaml.safe_load(SUITE.read_text())["entries"][0]["params"]
    count, namespace = params["count"], f"perfdag-bench-{time.time_ns() % 10**9}"
    async with Kube(timeout=120) as kube, own_namespaces(kube, [namespace], "bench"):
        await kwok_nodes.make_nodes(kube, nodes, 8)
        await kwok_nodes.ready_nodes(kube, nodes, 300)
        await simulation.install(kube, "runai")
        document = load(params["template"], "bench").documents[-1]
        kind = f"{document.api_version}/{document.kind}"
        watches = [
            asyncio.create_task(appearances(kube, kind, where, count))
            for where in ("runai-project-0", namespace)
        ]
        deleted = threading.Event()
        ending = asyncio.create_task(deletions(kube, kind, "runai-project-0", count, deleted))
        text = yaml.safe_dump(orjson.loads(document.render("NAME", namespace, 0)))
        with tempfile.TemporaryDirectory() as store:
            (measuring, peak), (theirs, _) = await asyncio.gather(
                asyncio.to_thread(measured_suite, store, deleted),
                asyncio.to_thread(burner, program, text, count, namespace, params["parallel"]),
            )
        rates = [await watch for watch in watches]
        await ending
        path = await kube.path(kind, namespace)
        await kube.request("DELETE", path, json={"gracePeriodSeconds": 0})
        await kwok_nodes.remove_nodes(kube)
    ratio, ok = rates[0] / rates[1], measuring * 2**20 < MEMORY_LIMIT
    print(
        f"suites/scale.yaml, {count} jobs on {nodes} nodes: perfdag {rates[0]:.2f}/s, kube-burner "
        f"{rates[1]:.2f}/s, ratio {ratio:.3f} (limit 0.99: {verdict(ratio >= 0.99)})"
    )
    print(
        f"  perfdag run {measuring:.0f} MiB until all jobs are deleted (limit 100 MB: "
        f"{verdict(ok)}), {peak:.0f} MiB at its end; kube-burner {theirs:.0f} MiB"
    )
    return ok and ratio >= 0.99


def main() -> int:
    """Run what is named; 1 where a limit was not held."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what",
        nargs="*",
        default=["create", "memory", "watch", "truth"],
        help="create, memory, watch, jobs, burst, truth, suite",
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="alternating rounds of create (default: 5)"
    )
    parser.add_argument("--jobs", type=int, default=2000, help="jobs of `jobs` (default: 2000)")
    parser.add_argument(
        "--nodes", type=int, default=1000, help="nodes of `jobs` and `suite` (default: 1000)"
    )
    args = parser.parse_args()
    all_held = True
    for name in args.what:
        work: Callable[[], Coroutine[Any, Any, bool]] = {
            "create": lambda: create(args.rounds),
            "memory": memory,
            "watch": watch,
            "jobs": lambda: jobs(args.jobs, args.nodes),
            "burst": burst,
            "truth": truth,
            "suite": lambda: suite(args.nodes),
        }[name]
        all_held = asyncio.run(work()) and all_held
    return 0 if all_held else 1


if __name__ == "__main__":
    raise SystemExit(main())
