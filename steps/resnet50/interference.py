"""resnet50-interference: copies of one workload on one device or node, alone and together."""

import contextlib
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from perfdag.benchmark import contract
from perfdag.benchmark.contract import Benchmark, Gang, Metric, Output, Tool
from perfdag.hosts.base import Finished, Host, Server
from perfdag.outcome import Failed, Invalid, Measurement, SampleError
from perfdag.shape import Shape
from perfdag.stats.fairness import jain
from perfdag.steps.resnet50 import launch as start
from perfdag.steps.resnet50 import result
from perfdag.steps.resnet50.benchmark import (
    check,
    expected,
    missing,
    program_facts,
    shortest,
    versions,
)
from perfdag.steps.resnet50.params import InterferenceParams
from perfdag.steps.resnet50.program import MARGIN

OVERLAP = 0.8
"""Least share of the time that all copies must run at once."""
SHARE_SLACK = 0.02


def overlap(spans: Sequence[tuple[float, float]]) -> float:
    """Return the time in which all ran over the time in which any ran, 0 to 1."""
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    both = min(end for _, end in spans) - max(start for start, _ in spans)
    return max(0.0, both) / (last - first) if last > first else 0.0


class Resnet50Interference(Benchmark[InterferenceParams]):
    """Interference between copies of ResNet-50 inference on one device or node.

    It reports solo against co-run, tail inflation and fairness. On one host the copies are
    processes. On several hosts (pods packed on one node, each with a share of the device) they
    run on the hosts in turn. Each runs alone first; then all start together once all are warm.
    Names and uuids prove that they shared a node and, on CUDA, a GPU. The device memory that each
    copy sees is checked against its share.

    Clock: LoadGen's, as in resnet50. It starts at a query's scheduled time and stops when its
    classes are known. All copies start LoadGen when the last one is warm. Each has an order and a
    schedule of its own, the same alone and together. A run is invalid if the copies overlapped
    for less than 80 % of the time.
    """

    name: ClassVar[str] = "resnet50-interference"
    version: ClassVar[int] = 2
    image: ClassVar[str] = "resnet50"
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "memory")
    Params: ClassVar[type[contract.Params]] = InterferenceParams
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "rate_kept",
            "1",
            "higher",
            "samples/s beside the others over samples/s alone, median of the copies;"
            " in Server about 1 up to overload",
            headline=True,
        ),
        Metric(
            "tail_inflation",
            "1",
            "lower",
            "`tail` beside the others over `tail` alone, median of the copies where each has"
            " one; a smoke test of Server has rate_kept alone",
            headline=True,
        ),
        Metric(
            "p99_inflation",
            "1",
            "lower",
            "p99 latency beside the others over p99 alone, median of the copies where each has"
            " one; Offline has none",
        ),
        Metric(
            "fairness",
            "1",
            "higher",
            "Jain's index of what each copy kept of its own rate,"
            " in Server of its tail (alone over together): 1 is equal, 1/n the worst",
        ),
        Metric("aggregate", "1", "higher", "samples/s of all together over samples/s of one alone"),
        Metric("rate", "1/s", "higher", "samples/s of a copy, alone or beside the others"),
        Metric(
            "tail",
            "s",
            "lower",
            "the scenario's own result of a copy: p99 in Server (of 459 queries or more),"
            " p90 in SingleStream (of 44); in Offline seconds a sample",
        ),
        Metric("p99", "s", "lower", "p99 latency of a copy, of 459 queries or more"),
        Metric(
            "valid",
            "1",
            "higher",
            "1: LoadGen says VALID of a copy; 0: INVALID, which beside the others a broken bound"
            " alone may be",
        ),
        Metric("memory_seen", "B", "none", "device memory that a copy sees"),
        Metric("overlap", "1", "higher", "part of the time in which all copies ran"),
    )

    def check(self, params: InterferenceParams, shape: Shape) -> list[str]:
        problems = check(params, shape)
        if shape.hosts.count > params.copies:
            problems.append(
                f"hosts.count is {shape.hosts.count} for {params.copies} copies:"
                f" 1 (processes) or {params.copies} (a pod each)"
            )
        if shape.hosts.count > 1 and shape.hosts.placement != "packed":
            how = "puts" if shape.hosts.placement == "spread" else "may put"
            problems.append(
                f"hosts.placement {shape.hosts.placement} {how} copies on different nodes,"
                " where they cannot interfere: use packed"
            )
        return problems

    def seconds(self, params: InterferenceParams) -> float:
        # in Offline each does beside the others what it did alone
        return (
            params.copies + (params.copies if params.scenario == "offline" else 1.5)
        ) * expected(params)

    def least_seconds(self, params: InterferenceParams) -> float:
        return shortest(params)

    def longest(self, params: InterferenceParams, timeout: float) -> float:
        return (params.copies + 1) * timeout  # each run has the whole timeout

    def missing(self, gang: Gang, params: InterferenceParams) -> list[Tool]:
        return missing(gang, params)

    def run(self, gang: Gang, params: InterferenceParams) -> Output:
        hosts = [gang.hosts[number % len(gang.hosts)] for number in range(params.copies)]
        argv = [*start.before(params), *start.plain(params)]
        texts: dict[str, str] = {}
        with start.watched(hosts, params) as watch:
            for number, host in enumerate(hosts):
                with start.kept(texts, f"copy {number} alone"):
                    finished = host.run(
                        argv, timeout=gang.timeout, stdin=start.spec(params, **own(params, number))
                    )
                    texts |= start.stderr(f"solo-{number}", finished)
                    texts[f"solo-{number}"] = watch.ran(host, finished)
                    result.read(texts[f"solo-{number}"])
            with start.kept(texts, "the copies together"):
                ended = together(hosts, gang, params, size(texts, params))
            collect(hosts, ended, watch, texts)
        placed = {"hosts": [host.name for host in hosts], "devices": watch.used[-params.copies :]}
        return Output(
            texts,
            [argv],
            versions(texts["solo-0"]),
            {**program_facts(texts), **watch.facts, **placed},
        )

    def parse(self, output: Output, params: InterferenceParams) -> list[Measurement]:
        by_phase = {}
        for when in ("solo", "together"):
            by_phase[when] = [
                result.read(output.texts.get(f"{when}-{number}", ""))
                for number in range(params.copies)
            ]
        values = measurements(by_phase["solo"], by_phase["together"], params)
        reasons = [
            *apart(output.facts, params),
            *reasons_against(by_phase["solo"], by_phase["together"], params),
        ]
        if reason := output.facts.get("against"):
            reasons.append(str(reason))
        if reasons:
            raise Invalid("; ".join(reasons[:3]), output.texts, values)
        return values

    def series(self, output: Output) -> str:
        return output.tool


def collect(
    hosts: Sequence[Host], ended: Sequence[Finished], watch: start.Watch, texts: dict[str, str]
) -> None:
    """Store what the copies printed, before any copy is judged.

    Raises the exception of the first copy without a result, with all texts and how many ended
    well.
    """
    for number, finished in enumerate(ended):
        texts |= {f"together-{number}": finished.stdout} | start.stderr(
            f"together-{number}", finished
        )
    lost: list[tuple[int, SampleError]] = []
    for number, finished in enumerate(ended):
        try:
            texts[f"together-{number}"] = watch.ran(hosts[number], finished)
            result.read(texts[f"together-{number}"])
        except SampleError as error:
            lost.append((number, error))
    if lost:
        number, first = lost[0]
        well = f"{len(ended) - len(lost)} of {len(ended)} copies ended well"
        with start.kept(texts, f"copy {number} beside the others ({well})"):
            raise first


def own(params: InterferenceParams, number: int) -> dict[str, Any]:
    """Return a copy's own options. With one seed, all copies would send the same queries."""
    return {"load_seed": params.seed + number}


def size(solo: Mapping[str, str], params: InterferenceParams) -> dict[str, Any]:
    """Return the rate that sizes Offline's query for all copies, from their solo runs.

    In a warm-up beside the others, each copy would find another rate and end at another time.
    The highest rate and the warm-up's margin ensure that none ends before min_duration.
    """
    if params.scenario != "offline":
        return {}
    return {"expected_rate": MARGIN * max(result.read(text).rate for text in solo.values())}


@dataclass
class Copy:
    """A copy that waits for the start: its host, its folder there, its process."""

    host: Host
    folder: str
    server: Server


def together(
    hosts: Sequence[Host], gang: Gang, params: InterferenceParams, more: Mapping[str, Any]
) -> list[Finished]:
    """Start a copy on each host, let all begin when the last is warm, return their ends.

    `more` holds the options of each program beside the workload. No process or file remains.
    """
    copies: list[Copy] = []
    deadline = time.monotonic() + gang.timeout
    with contextlib.ExitStack() as stack:
        for number, host in enumerate(hosts):
            folder = f"{gang.scratch}/copy-{number}"
            stack.callback(host.remove, folder)
            host.put(f"{folder}/spec", start.spec(params, **own(params, number), **more))
            copies.append(
                Copy(host, folder, stack.enter_context(host.serve(start.waiting(folder, params))))
            )
        for number, copy in enumerate(copies):
            _await(copy, number, deadline, params)
        for copy in copies:
            copy.host.put(f"{copy.folder}/go", b"")
        return [copy.server.wait(max(1.0, deadline - time.monotonic())) for copy in copies]


def _await(copy: Copy, number: int, deadline: float, params: InterferenceParams) -> None:
    while time.monotonic() < deadline:
        with contextlib.suppress(SampleError):
            copy.host.get(f"{copy.folder}/ready")
            return
        alive = getattr(copy.server, "alive", None)
        if alive is not None and not alive():
            result.read(start.ran(copy.server.stop(0), params))
            raise Failed(f"copy {number} ended before it was ready")
        time.sleep(0.02)
    message = copy.server.stop(0).tail()
    if params.wrapper and not message:
        message = (
            "it said nothing, and says by standard error that it is ready:"
            f" {params.wrapper[0]} has to pass that on as it is"
        )
    raise Failed(f"copy {number} was not ready in time: {message}")


def measurements(
    solo: Sequence[result.Result], beside: Sequence[result.Result], params: InterferenceParams
) -> list[Measurement]:
    """Return the values of each copy (subject `copy N`) and over the copies."""
    marks = result.marks([*solo, *beside], params)
    kept = [b.rate / a.rate for a, b in zip(solo, beside, strict=True)]
    inflated = [
        b.tail(params.scenario) / a.tail(params.scenario) for a, b in zip(solo, beside, strict=True)
    ]
    p99 = [
        b.p99(params.scenario) / a.p99(params.scenario) for a, b in zip(solo, beside, strict=True)
    ]
    # Server completes what arrives: its schedule sets the rate, and the tail shows the cost.
    server = params.scenario == "server"
    shares = [1 / run for run in inflated] if server else kept
    fairness = jain(shares) if all(map(math.isfinite, shares)) else math.nan
    alone = statistics.fmean(run.rate for run in solo)
    rows = [
        Measurement("rate_kept", _median(kept), "p50", marks, len(kept)),
        Measurement("tail_inflation", _median(inflated), "p50", marks, len(inflated)),
        Measurement("p99_inflation", _median(p99), "p50", marks, len(p99)),
        Measurement("fairness", fairness, coords=marks, n=len(shares)),
        Measurement(
            "aggregate", sum(run.rate for run in beside) / alone, coords=marks, n=len(kept)
        ),
        Measurement("overlap", overlap([run.span for run in beside]), coords=marks, n=len(kept)),
    ]
    if server:
        rows[:2] = reversed(rows[:2])  # the first headline that has a value is a sample's figure
    for number in range(params.copies):
        subject = f"copy {number}"
        for name, ratios in (
            ("rate_kept", kept),
            ("tail_inflation", inflated),
            ("p99_inflation", p99),
        ):
            rows.append(Measurement(name, ratios[number], coords=marks, subject=subject))
        for when, run in (("alone", solo[number]), ("together", beside[number])):
            of_copy = {
                "rate": run.rate,
                "tail": run.tail(params.scenario),
                "p99": run.p99(params.scenario),
                "valid": run.valid,
            }
            rows += [
                Measurement(name, value, coords={"when": when, **marks}, subject=subject)
                for name, value in of_copy.items()
            ]
        if memory := beside[number].raw.get("device", {}).get("memory"):
            rows.append(Measurement("memory_seen", float(memory), coords=marks, subject=subject))
    return [run for run in rows if math.isfinite(run.value)]


def _median(ratios: Sequence[float]) -> float:
    """Return not-a-number if one value is: the copies without a value got the least done.

    The others alone would look too good.
    """
    return statistics.median(ratios) if all(map(math.isfinite, ratios)) else math.nan


def apart(facts: Mapping[str, Any], params: InterferenceParams) -> list[str]:
    """Return why copies did not share a node or GPU, by node names and the GPUs' uuids."""
    nodes, devices = sorted(set(facts.get("hosts", ()))), facts.get("devices", ())
    if len(nodes) > 1:
        return [
            f"the copies ran on {len(nodes)} nodes ({', '.join(nodes)}) and share none:"
            " hosts.placement: packed"
        ]
    if params.device != "cuda" or params.system == "stub" or params.shared == "node":
        return []
    if unknown := [str(number) for number, uuid in enumerate(devices) if uuid is None]:
        return [
            f"which GPU copy {', '.join(unknown)} used is not known,"
            " nor whether the copies shared one; shared: node does not ask"
        ]
    if len(set(devices)) > 1:
        return [
            f"the copies used {len(set(devices))} GPUs ({', '.join(sorted(set(devices)))}) and"
            " share none: ask for a share of one as the "
            "resource (MIG, time slicing, vGPU), or set shared:"
            " node for what GPUs of one node do to each other"
        ]
    return []


def reasons_against(
    solo: Sequence[result.Result], beside: Sequence[result.Result], params: InterferenceParams
) -> list[str]:
    """Return why the figures are not what they claim.

    A latency bound that breaks beside others is the result, so it is no reason.
    """
    reasons = [
        f"copy {number} alone: {reason}"
        for number, run in enumerate(solo)
        if (reason := result.wrong(run, params))
    ]
    for number, run in enumerate(beside):
        reason = result.wrong(run, params)
        if reason and not result.merely_late(run, reason):
            reasons.append(f"copy {number} beside the others: {reason}")
        if params.memory_share is not None and params.device_memory is not None:
            seen, share = (
                run.raw.get("device", {}).get("memory"),
                params.device_memory * params.memory_share,
            )
            if seen is None:
                reasons.append(
                    f"copy {number} does not say how much device memory it sees:"
                    " its memory_share was not verified"
                )
            elif seen > share * (1 + SHARE_SLACK):
                reasons.append(
                    f"copy {number} sees {seen / 1e9:.2f} GB of device memory,"
                    f" its share is {share / 1e9:.2f} GB"
                )
    if len(weights := {result.weights(run) for run in (*solo, *beside)}) > 1:
        reasons.append(f"the copies ran different weights: {', '.join(sorted(weights))}")
    together_share = overlap([run.span for run in beside])
    if together_share < OVERLAP:
        advice = "raise min_duration"
        if params.scenario == "offline":
            advice = (
                "each does as many samples, and one that gets more done is done before the"
                " others: server or single-stream compares those"
            )
        reasons.append(
            f"the copies ran at once for {together_share * 100:.0f} % of the time only: {advice}"
        )
    return reasons
