"""resnet50-interference: copies of one workload on one device or node, alone and together."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from perfdag.benchmark import contract
from perfdag.benchmark.contract import Gang, Metric, Output, broken
from perfdag.hosts.base import CommandResult, Host
from perfdag.outcome import Invalid, Measurement, SampleError, verdict
from perfdag.shape import Shape
from perfdag.stats.robust import jain
from perfdag.steps.resnet50 import launch, result
from perfdag.steps.resnet50.params import MARGIN, Workload
from perfdag.steps.resnet50.result import MARKS, caveats, is_only_late, result_fault, weights_of
from perfdag.units import short

SETUP_FACTOR, SETUP_MARGIN = 1.5, 2.0
"""Set-up together over the longest set-up alone, and seconds more, until LoadGen starts."""
OVERLAP = 0.8
"""Least share of the time that all copies must run at once."""
SHARE_SLACK = 0.02


class InterferenceParams(Workload):
    """Copies of one workload on one device or node: each alone, then all at once."""

    copies: int = Field(
        2,
        ge=2,
        le=64,
        description="copies at once: on the gang's hosts in turn, or as processes of one host",
    )
    shared: Literal["device", "node"] | None = Field(
        None,
        description="what the copies are proven to share; unset: on cuda one GPU, else the node;"
        " node: GPUs of one node may differ",
    )
    memory_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of the device's memory that a copy may see; more is invalid",
    )
    device_memory: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="bytes of the whole device; memory_share needs it",
    )

    @model_validator(mode="after")
    def _measured(self) -> "InterferenceParams":
        if self.memory_share is not None and self.device_memory is None:
            raise ValueError(
                "memory_share needs device_memory, bytes of the whole device:"
                " a copy cannot tell what was hidden from it"
            )
        return self


class Resnet50Interference(launch.WorkloadBenchmark[InterferenceParams]):
    """Interference between copies of ResNet-50 inference on one device or node.

    It reports solo against co-run, tail inflation and fairness. On one host the copies are
    processes. On several hosts (pods packed on one node, each with a share of the device) they
    run on the hosts in turn. Each runs alone first; then all run together.
    Names and uuids prove that they shared a node and, on CUDA, a GPU. The device memory that each
    copy sees is checked against its share.

    Clock: LoadGen's, as in resnet50. It starts at a query's scheduled time and stops when its
    classes are known. All copies start LoadGen at the same time of day. Each has an order and a
    schedule of its own, the same alone and together. A run is invalid if the copies overlapped
    for less than 80 % of the time.
    """

    name: ClassVar[str] = "resnet50-interference"
    version: ClassVar[int] = 2
    verdict: ClassVar[str] = "every copy holds `latency_bound` beside the others; of Server only"
    Params: ClassVar[type[contract.Params]] = InterferenceParams
    coords: ClassVar[tuple[str, ...]] = ("when", *MARKS)
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "rate_kept",
            "1",
            "higher",
            "samples/s together divided by samples/s alone, median over the copies;"
            " in Server about 1 below overload",
            headline=True,
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
        ),
        Metric("rate", "1/s", "higher", "samples/s of a copy, alone or together"),
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
            "1: LoadGen reports VALID for a copy; 0: INVALID. Together, a copy may be INVALID only"
            " for a broken latency bound",
            highest=1,
        ),
        Metric("memory_seen", "B", "none", "device memory that a copy sees"),
        Metric(
            "overlap",
            "1",
            "higher",
            "share of the time in which all copies ran",
            highest=1,
        ),
    )

    def check(self, params: InterferenceParams, shape: Shape) -> list[str]:
        hosts = shape.hosts
        how = "puts" if hosts.placement == "spread" else "may put"
        return super().check(params, shape) + broken(
            (
                hosts.count > params.copies,
                f"hosts.count is {hosts.count} for {params.copies} copies:"
                f" 1 (processes) or {params.copies} (a pod each)",
            ),
            (
                hosts.count > 1 and hosts.placement != "packed",
                f"hosts.placement {hosts.placement or 'any'} {how} copies on different nodes,"
                " where they cannot interfere: use packed",
            ),
        )

    def seconds(self, params: InterferenceParams) -> float:
        # In Offline, a copy completes together as many samples as it did alone.
        return (
            params.copies + (params.copies if params.scenario == "offline" else 1.5)
        ) * launch.expected(params)

    def measure(self, gang: Gang, params: InterferenceParams) -> Output:
        hosts = [gang.hosts[number % len(gang.hosts)] for number in range(params.copies)]
        argv = [*launch.wrapper_argv(params), *launch.program_argv(params)]
        texts: dict[str, str] = {}
        setup = 0.0
        with launch.watched(hosts, params) as watch:
            for number, host in enumerate(hosts):
                with launch.keeping_texts(texts, f"copy {number} alone"):
                    begun = time.time()
                    finished = host.run(
                        argv,
                        timeout=gang.timeout,
                        stdin=launch.program_input(params, **copy_options(params, number)),
                    )
                    texts |= launch.stderr_text(f"solo-{number}", finished)
                    texts[f"solo-{number}"] = watch.result_text(host, finished)
                    alone = result.read(texts[f"solo-{number}"])
                    setup = max(setup, alone.span[0] - begun)
            rate = offline_rate({name: texts[name] for name in texts if name[5:].isdigit()}, params)
            with launch.keeping_texts(texts, "the copies together"):
                results = run_together(hosts, gang, params, argv, setup, rate)
            collect_results(hosts, results, watch, texts)
        placed = {"hosts": [host.name for host in hosts], "devices": watch.used[-params.copies :]}
        return Output(
            texts,
            [argv],
            launch.versions(texts["solo-0"]),
            {**launch.program_facts(texts), **watch.facts, **placed},
        )

    def run(self, gang: Gang, params: InterferenceParams) -> list[Measurement]:
        gang.output = self.measure(gang, params)
        gang.output.comparable = False
        return self.parse(gang.output, params)

    def parse(self, output: Output, params: InterferenceParams) -> list[Measurement]:
        by_phase = {}
        for when in ("solo", "together"):
            by_phase[when] = [
                result.read(output.texts.get(f"{when}-{number}", ""))
                for number in range(params.copies)
            ]
        values = measurements(by_phase["solo"], by_phase["together"], params)
        reasons = [
            *reasons_against_sharing(output.facts, params),
            *reasons_against(by_phase["solo"], by_phase["together"], params),
        ]
        if reason := output.facts.get("against"):
            reasons.append(str(reason))
        if reasons:
            raise Invalid("; ".join(reasons[:3]), output.texts, values)
        coords = caveats([*by_phase["solo"], *by_phase["together"]], params)
        return [*values, _verdict(by_phase["together"], params, coords)]


def measurements(
    solo: Sequence[result.Result], beside: Sequence[result.Result], params: InterferenceParams
) -> list[Measurement]:
    """Return the values of each copy (subject `copy N`) and over the copies."""
    coords = caveats([*solo, *beside], params)
    rate_shares = [b.rate / a.rate for a, b in zip(solo, beside, strict=True)]
    inflated = [
        b.tail(params.scenario) / a.tail(params.scenario) for a, b in zip(solo, beside, strict=True)
    ]
    p99 = [
        b.p99(params.scenario) / a.p99(params.scenario) for a, b in zip(solo, beside, strict=True)
    ]
    # Server completes what arrives: its schedule sets the rate, and the tail shows the cost.
    server = params.scenario == "server"
    shares = [1 / run for run in inflated] if server else rate_shares
    fairness = jain(shares) if all(map(math.isfinite, shares)) else math.nan
    alone = statistics.fmean(run.rate for run in solo)
    rows = [
        Measurement("rate_kept", _median(rate_shares), "p50", coords, len(rate_shares)),
        Measurement("tail_inflation", _median(inflated), "p50", coords, len(inflated)),
        Measurement("p99_inflation", _median(p99), "p50", coords, len(p99)),
        Measurement("fairness", fairness, coords=coords, n=len(shares)),
        Measurement(
            "aggregate", sum(run.rate for run in beside) / alone, coords=coords, n=len(rate_shares)
        ),
        Measurement(
            "overlap", overlap([run.span for run in beside]), coords=coords, n=len(rate_shares)
        ),
    ]
    if server:
        # A sample's figure is its first headline that has a value.
        rows[:2] = reversed(rows[:2])
    for number in range(params.copies):
        subject = f"copy {number}"
        for name, ratios in (
            ("rate_kept", rate_shares),
            ("tail_inflation", inflated),
            ("p99_inflation", p99),
        ):
            rows.append(Measurement(name, ratios[number], coords=coords, subject=subject))
        for when, run in (("alone", solo[number]), ("together", beside[number])):
            of_copy = {
                "rate": run.rate,
                "tail": run.tail(params.scenario),
                "p99": run.p99(params.scenario),
                "valid": run.tested.valid,
            }
            rows += [
                Measurement(name, value, coords={"when": when, **coords}, subject=subject)
                for name, value in of_copy.items()
            ]
        if memory := beside[number].raw.get("device", {}).get("memory"):
            rows.append(Measurement("memory_seen", float(memory), coords=coords, subject=subject))
    return [run for run in rows if math.isfinite(run.value)]


def _verdict(
    beside: Sequence[result.Result], params: InterferenceParams, coords: Mapping[str, Any]
) -> Measurement:
    """Return whether LoadGen says VALID of every copy: its p99 holds the bound of Server."""
    if params.scenario != "server":
        note = f"{params.scenario} has no latency bound; server has one"
        return verdict("inconclusive", "every copy holds its latency bound", note, coords)
    rule = f"p99 of every copy within {short(params.latency_bound, 's')}"
    slowest = max(range(len(beside)), key=lambda number: beside[number].cost("server"))
    note = f"{short(beside[slowest].cost('server'), 's')} of copy {slowest} beside the others"
    if params.fast:
        return verdict("inconclusive", rule, f"{note}; a smoke test has too few queries", coords)
    late = sum(not run.tested.valid for run in beside)
    note += f"; LoadGen says INVALID of {late} of {len(beside)} copies" if late else ""
    return verdict("failed" if late else "passed", rule, note, coords)


def _median(ratios: Sequence[float]) -> float:
    """Return not-a-number if one value is: the copies without a value got the least done.

    The others alone would look too good.
    """
    return statistics.median(ratios) if all(map(math.isfinite, ratios)) else math.nan


def overlap(spans: Sequence[tuple[float, float]]) -> float:
    """Return the time in which all ran over the time in which any ran, 0 to 1."""
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    both = min(end for _, end in spans) - max(start for start, _ in spans)
    return max(0.0, both) / (last - first) if last > first else 0.0


def reasons_against_sharing(facts: Mapping[str, Any], params: InterferenceParams) -> list[str]:
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
            " nor whether the copies shared one; shared: node does not need it"
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
        if (reason := result_fault(run, params))
    ]
    for number, run in enumerate(beside):
        reason = result_fault(run, params)
        if reason and not is_only_late(run, reason):
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
    if len(weights := {weights_of(run) for run in (*solo, *beside)}) > 1:
        reasons.append(f"the copies ran different weights: {', '.join(sorted(weights))}")
    together_share = overlap([run.span for run in beside])
    if together_share < OVERLAP:
        advice = "raise min_duration"
        if params.scenario == "offline":
            advice = (
                "all complete as many samples, and a faster copy ends before the others;"
                " use server or single-stream"
            )
        reasons.append(
            f"the copies ran at once for {together_share * 100:.0f} % of the time only: {advice}"
        )
    return reasons


def collect_results(
    hosts: Sequence[Host],
    results: Sequence[CommandResult],
    watch: launch.Watch,
    texts: dict[str, str],
) -> None:
    """Store what the copies printed, before any copy is judged.

    Raises the exception of the first copy without a result, with all texts and how many ended
    well.
    """
    for number, finished in enumerate(results):
        texts |= {f"together-{number}": finished.stdout} | launch.stderr_text(
            f"together-{number}", finished
        )
    lost: list[tuple[int, SampleError]] = []
    for number, finished in enumerate(results):
        try:
            texts[f"together-{number}"] = watch.result_text(hosts[number], finished)
            result.read(texts[f"together-{number}"])
        except SampleError as error:
            lost.append((number, error))
    if lost:
        number, first = lost[0]
        well = f"{len(results) - len(lost)} of {len(results)} copies ended well"
        with launch.keeping_texts(texts, f"copy {number} beside the others ({well})"):
            raise first


def copy_options(params: Workload, number: int) -> dict[str, Any]:
    """Return the program's options for a copy.

    With one seed, all copies would send the same queries.
    """
    return {"load_seed": params.seed + number}


def offline_rate(solo: Mapping[str, str], params: Workload) -> dict[str, Any]:
    """Return the rate that sizes Offline's query for all copies, from their solo runs.

    In a warm-up beside the others, each copy would find another rate and end at another time.
    The highest rate and the warm-up's margin ensure that none ends before min_duration.
    """
    if params.scenario != "offline":
        return {}
    return {"expected_rate": MARGIN * max(result.read(text).rate for text in solo.values())}


def run_together(
    hosts: Sequence[Host],
    gang: Gang,
    params: Workload,
    argv: Sequence[str],
    setup: float,
    options: Mapping[str, Any],
) -> list[CommandResult]:
    """Run a copy on each host at the same time and return their ends.

    LoadGen starts in all of them at one time of day, which leaves more than the `setup` seconds
    that a copy took alone. A copy that is late overlaps less, and the result says so.
    """
    start_at = time.time() + SETUP_FACTOR * setup + SETUP_MARGIN

    def run(number: int) -> CommandResult:
        own = copy_options(params, number) | {"start_at": start_at}
        spec = launch.program_input(params, **own, **options)
        return hosts[number].run(list(argv), timeout=gang.timeout, stdin=spec)

    with ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(run, range(len(hosts))))
