"""resnet50-interference: copies of one workload on one device or node, alone and together."""

import math
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Literal

from pydantic import Field

from perfdag.benchmark.contract import (
    Gang,
    Host,
    Invalid,
    Measurement,
    Metric,
    Output,
    Problem,
    Shape,
    own_verdict,
    verdict,
)
from perfdag.hosts import gpu_use
from perfdag.steps.resnet50.benchmark import MARKS, WorkloadBenchmark, naming
from perfdag.steps.resnet50.workload import MARGIN, TAIL, Result, Workload, caveats, kept, read
from perfdag.units import short

SETUP_FACTOR, SETUP_MARGIN = 1.5, 2.0
"""Set-up together over the longest set-up alone, and seconds more, until LoadGen starts."""
WHEN = {"solo": "alone", "together": "beside the others"}
OVERLAP = 0.8
"""Least share of the time that all copies must run at once."""


class InterferenceParams(Workload):
    """Copies of one workload on one device or node: each alone, then all at once."""

    retired: ClassVar[Mapping[str, Any]] = {
        **Workload.retired,
        "memory_share": None,
        "device_memory": None,
    }

    copies: int = Field(
        2,
        ge=2,
        le=64,
        description="copies at once: on the gang's hosts in turn, or as processes of one host",
    )
    shared: Literal["device", "node"] | None = Field(
        None,
        description="what the copies are proven to share; unset: on cuda one GPU, else the node;"
        " node: each copy takes a GPU of its own, as far as the node has enough",
    )


class Resnet50Interference(WorkloadBenchmark[InterferenceParams]):
    """Interference between copies of ResNet-50 inference on one device or node.

    It reports solo against co-run, tail inflation and fairness. On one host the copies are
    processes. On several hosts (pods packed on one node, each with a share of the device) they
    run on the hosts in turn. Each runs alone first; then all run together.
    Names and uuids prove that they shared a node and, on CUDA, a GPU.

    Clock: LoadGen's, as in resnet50. It starts at a query's scheduled time and stops when its
    classes are known. All copies start LoadGen at the same time of day. Each has an order and a
    schedule of its own, the same alone and together. A run is invalid if the copies overlapped
    for less than 80 % of the time.
    """

    version: ClassVar[int] = 2
    coords: ClassVar[tuple[str, ...]] = ("when", *MARKS)
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "rate_kept",
            "1",
            "higher",
            "samples/s together divided by samples/s alone, median over the copies;"
            " in Server about 1 below overload",
            headline=True,
            counts="share",
        ),
        Metric(
            "tail_inflation",
            "1",
            "lower",
            "`tail` together divided by `tail` alone, median over the copies if all have one;"
            " a smoke test of Server has only rate_kept",
            headline=True,
        ),
        Metric(
            "p99_inflation",
            "1",
            "lower",
            "p99 latency together divided by p99 alone, median over the copies if all have one;"
            " Offline has none",
        ),
        Metric(
            "fairness",
            "1",
            "higher",
            "Jain's index of what each copy kept of its own rate,"
            " in Server of its tail (alone over together): 1 is equal, 1/n the worst",
            highest=1,
        ),
        Metric(
            "aggregate",
            "1",
            "higher",
            "samples/s of all copies together divided by samples/s of one alone",
            label="speed against one copy",
        ),
        Metric(
            "total_rate",
            "1/s",
            "higher",
            "samples/s of all copies together",
            headline=True,
            counts="samples",
        ),
        Metric("rate", "1/s", "higher", "samples/s of a copy, alone or together", counts="samples"),
        Metric(
            "tail",
            "s",
            "lower",
            "the scenario's own result of a copy: p99 in Server (of 459 queries or more),"
            " p90 in SingleStream (of 44); in Offline seconds a sample",
            label="tail latency",
        ),
        Metric(
            "p99",
            "s",
            "lower",
            "p99 latency of a copy, of 459 queries or more",
            label="p99 latency",
        ),
        Metric(
            "valid",
            "1",
            "higher",
            "1: LoadGen reports VALID for a copy; 0: INVALID. Together, a copy may be INVALID only"
            " for a broken latency bound",
            highest=1,
            label="valid by LoadGen",
        ),
        Metric(
            "memory_seen",
            "B",
            "none",
            "device memory that a copy sees",
            label="device memory",
        ),
        Metric(
            "overlap",
            "1",
            "higher",
            "share of the time in which all copies ran",
            highest=1,
            counts="share",
        ),
        own_verdict("every copy holds `latency_bound` beside the others; of Server only"),
    )

    def check(self, params: InterferenceParams, shape: Shape) -> Iterator[Problem]:
        yield from super().check(params, shape)
        hosts = shape.hosts
        if hosts.count > params.copies:
            yield Problem(
                "many-hosts",
                f"hosts.count is {hosts.count} for {params.copies} copies:"
                f" 1 (processes) or {params.copies} (a pod each)",
            )
        if hosts.count > 1 and hosts.placement != "packed":
            how = "puts" if hosts.placement == "spread" else "may put"
            yield Problem(
                "spread-copies",
                f"hosts.placement {hosts.placement or 'any'} {how} copies on different nodes,"
                " where they cannot interfere: use packed",
            )

    def gpus(self, params: InterferenceParams) -> int:
        return params.copies if params.shared == "node" else 1

    def seconds(self, params: InterferenceParams) -> float:
        # In Offline, a copy completes together as many samples as it did alone.
        together = params.copies if params.scenario == "offline" else 1.5
        return (params.copies + together) * params.seconds()

    def measure(self, gang: Gang, params: InterferenceParams) -> list[tuple[Host, Result]]:
        hosts = [gang.hosts[number % len(gang.hosts)] for number in range(params.copies)]
        argvs = [params.argv(env=env) for env in environments(hosts, params)]
        results: list[Result] = []
        setup = 0.0

        def run(number: int, when: str, **options: float) -> Result:
            # With one seed, all copies would send the same queries.
            spec = params.stdin(load_seed=params.seed + number, **options)
            finished = hosts[number].run(argvs[number], timeout=gang.timeout, stdin=spec)
            with naming(f"copy {number} {WHEN[when]}"):
                return kept(gang.output.texts, f"{when}-{number}", finished, params)

        for number in range(params.copies):
            begun = time.time()
            results.append(run(number, "solo"))
            setup = max(setup, results[-1].span[0] - begun)
        # LoadGen starts in all of them at one time of day, which leaves more than the time that a
        # copy took alone. A copy that is late overlaps less, and the result says so.
        start = time.time() + SETUP_FACTOR * setup + SETUP_MARGIN

        def run_beside(number: int) -> Result:
            # A warm-up beside the others would find another rate.
            load = results[number].load(params)
            if params.scenario == "offline":
                load = {"expected_rate": MARGIN * results[number].rate}
            return run(number, "together", start_at=start, **load)

        with ThreadPoolExecutor(params.copies) as pool:  # a failure waits for the other copies
            results += pool.map(run_beside, range(params.copies))
        gang.output.facts["hosts"] = [host.name for host in hosts]
        return list(zip(hosts * 2, results, strict=True))

    def parse(self, output: Output, params: InterferenceParams) -> list[Measurement]:
        solo = [read(output.texts[f"solo-{n}"]) for n in range(params.copies)]
        beside = [read(output.texts[f"together-{n}"]) for n in range(params.copies)]
        values = measurements(solo, beside, params)
        reasons = reasons_against(solo, beside, params, output.facts)
        if reasons:
            raise Invalid("; ".join(reasons[:3]), output.texts, values)
        return [*values, _verdict(beside, params, caveats([*solo, *beside], params))]


def environments(hosts: Sequence[Host], params: InterferenceParams) -> list[dict[str, str]]:
    """Return the variables of each copy: of several GPUs of a node, it sees the least used one."""
    if params.device != "cuda" or params.shared != "node":
        return [{} for _ in hosts]
    copies = Counter[str]()
    variables = list[dict[str, str]]()
    for host in hosts:
        gpus = gpu_use.visible(host)
        least_used = min(gpus, key=copies.__getitem__, default="")
        copies[least_used] += 1
        variables.append({"CUDA_VISIBLE_DEVICES": least_used} if len(gpus) > 1 else {})
    return variables


def _figures(run: Result, params: Workload) -> dict[str, float]:
    """Return the rate, tail and p99 of a copy, not-a-number where it has too few queries."""
    tail = TAIL.get(params.scenario)
    return {
        "rate": run.rate,
        "tail": run.latency(tail) if tail else 1 / run.rate,
        "p99": run.latency("p99") if tail else math.nan,
    }


def measurements(
    solo: Sequence[Result], beside: Sequence[Result], params: InterferenceParams
) -> list[Measurement]:
    """Return the values of each copy (subject `copy N`) and over the copies."""
    n = len(solo)
    coords = caveats([*solo, *beside], params)
    alone = [_figures(run, params) for run in solo]
    together = [_figures(run, params) for run in beside]
    pairs = list(zip(alone, together, strict=True))
    ratios = {
        "rate_kept": [b["rate"] / a["rate"] for a, b in pairs],
        "tail_inflation": [b["tail"] / a["tail"] for a, b in pairs],
        "p99_inflation": [b["p99"] / a["p99"] for a, b in pairs],
    }
    # Server completes what arrives: its schedule sets the rate, and the tail shows the cost.
    server = params.scenario == "server"
    shares = [1 / ratio for ratio in ratios["tail_inflation"]] if server else ratios["rate_kept"]
    # Jain's index (Jain, Chiu, Hawe 1984): 1 for equal shares, 1/n where one takes all.
    fairness = sum(shares) ** 2 / (n * sum(share**2 for share in shares))
    total = sum(run.rate for run in beside) / statistics.fmean(run.rate for run in solo)
    rows = [
        Measurement(metric, _median(values), "p50", coords, n) for metric, values in ratios.items()
    ]
    if server:
        # A sample's figure is its first headline that has a value.
        rows[:2] = reversed(rows[:2])
    rows += [
        Measurement("fairness", fairness, coords=coords, n=n),
        Measurement("aggregate", total, coords=coords, n=n),
        Measurement("total_rate", sum(run.rate for run in beside), coords=coords, n=n),
        Measurement("overlap", overlap([run.span for run in beside]), coords=coords, n=n),
    ]
    for number in range(n):
        subject = f"copy {number}"
        rows += [
            Measurement(metric, values[number], coords=coords, subject=subject)
            for metric, values in ratios.items()
        ]
        for when, run, figures in (
            ("alone", solo[number], alone[number]),
            ("together", beside[number], together[number]),
        ):
            at = {"when": when, **coords}
            rows += [
                Measurement(name, value, coords=at, subject=subject)
                for name, value in (figures | {"valid": float(run.valid)}).items()
            ]
        if memory := beside[number].device.get("memory"):
            rows.append(Measurement("memory_seen", float(memory), coords=coords, subject=subject))
    return [row for row in rows if math.isfinite(row.value)]


def _verdict(
    beside: Sequence[Result], params: InterferenceParams, coords: Mapping[str, Any]
) -> Measurement:
    """Return whether LoadGen says VALID of every copy: its p99 holds the bound of Server.

    The note names the slowest copy and its GPU.
    """
    slowest = max(range(len(beside)), key=lambda number: beside[number].cost(params.scenario))
    name = f"copy {slowest}"
    run = beside[slowest]
    if uuid := run.device.get("uuid"):
        name += f" on {uuid}"
    if params.scenario != "server":
        note = f"{params.scenario} has no latency bound; the slowest is {name}, {run.rate:.4g}/s"
        return verdict("inconclusive", "every copy holds its latency bound", note, coords)
    rule = f"p99 of every copy within {short(params.latency_bound, 's')}"
    note = f"{short(run.cost('server'), 's')} of {name} beside the others"
    if params.fast:
        return verdict("inconclusive", rule, f"{note}; a smoke test has too few queries", coords)
    late = sum(not run.valid for run in beside)
    note += f"; LoadGen says INVALID of {late} of {len(beside)} copies" if late else ""
    return verdict("failed" if late else "passed", rule, note, coords)


def _median(ratios: Sequence[float]) -> float:
    """Return not-a-number if one value is: the copies without a value got the least done.

    The others alone would look too good.
    """
    return statistics.median(ratios) if all(map(math.isfinite, ratios)) else math.nan


def overlap(spans: Sequence[tuple[float, float]]) -> float:
    """Return the time in which all ran over the time in which any ran, 0 to 1."""
    starts, ends = zip(*spans, strict=True)
    any_ran = max(ends) - min(starts)
    all_ran = max(0.0, min(ends) - max(starts))
    return all_ran / any_ran if any_ran > 0 else 0.0


def reasons_against(
    solo: Sequence[Result],
    beside: Sequence[Result],
    params: InterferenceParams,
    facts: Mapping[str, Any],
) -> list[str]:
    """Return why the figures are not what they claim, or the copies did not share what they should.

    A latency bound that breaks beside others is the result, so it is no reason. `facts` has the
    `hosts` by name, the uuids of the GPUs that the copies used, None if unknown, and what is
    `against` them.
    """
    reasons = list(filter(None, [facts.get("against")]))
    nodes = sorted(set(facts.get("hosts", ())))
    gpus = sorted({uuid or "unknown" for uuid in facts.get("devices", [])[-params.copies :]})
    if len(nodes) > 1:
        reasons.append(
            f"the copies ran on {len(nodes)} nodes ({', '.join(nodes)}) and share none:"
            " hosts.placement: packed"
        )
    elif (
        params.device == "cuda" and params.shared != "node" and (len(gpus) > 1 or "unknown" in gpus)
    ):
        reasons.append(
            f"the copies used the GPUs {', '.join(gpus)}, which is not one that they shared: ask"
            " for a share of one as the resource (MIG, time slicing, vGPU), or set shared: node"
            " for what GPUs of one node do to each other"
        )
    for when, runs in zip(WHEN.values(), (solo, beside), strict=True):
        for number, run in enumerate(runs):
            reason = run.fault(params)
            if reason and not (runs is beside and run.only_late(reason)):
                reasons.append(f"copy {number} {when}: {reason}")
    if (share := overlap([run.span for run in beside])) < OVERLAP:
        advice = "raise min_duration"
        if params.scenario == "offline":
            advice = (
                "each completes as many samples as it did alone, and one that loses less ends"
                " before the others; use server or single-stream"
            )
        reasons.append(f"the copies ran at once for {share * 100:.0f} % of the time only: {advice}")
    return reasons
