"""resnet50: ResNet-50 inference under MLCommons LoadGen.

It starts the program on hosts, reads what it prints, and judges whether that is what it claims.
"""

import json
import math
import re
import sys
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from perfdag.benchmark.contract import (
    Benchmark,
    Failed,
    Gang,
    Invalid,
    Measurement,
    Metric,
    NotInstalled,
    Output,
    SampleError,
    Skip,
    Tool,
)
from perfdag.hosts import gpu_use
from perfdag.hosts.base import CommandResult, Host
from perfdag.shape import Shape
from perfdag.stats.robust import needed
from perfdag.steps import devices
from perfdag.steps.resnet50 import summary
from perfdag.steps.resnet50.params import MARGIN, PROGRAM, Workload

if TYPE_CHECKING:
    import pyarrow

MODULE = "perfdag.steps.resnet50.program"
TORCH = {"pip": "'perfdag[torch]'"}
DRIVER = Tool(
    "the NVIDIA driver (nvidia-smi)",
    {"apt": "nvidia-driver", "dnf": "nvidia-driver", "zypper": "nvidia-driver-G06"},
)
SETUP = 60.0
"""Seconds for imports, weights, warm-up and checks, at most."""
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
TAIL = {"server": "p99", "single-stream": "p90"}
UNUSABLE = {"device", "missing"}
"""Errors of a missing device or package, which skip the sample."""
MARKS = ("fast", "loadgen")
"""Coordinates of `caveats`."""
_REFUSED = re.compile(r"object '([^']*)' from \S+ cannot be preloaded")
W = TypeVar("W", bound=Workload)
METRICS = (
    Metric("throughput", "1/s", "higher", "samples completed per second in Offline", headline=True),
    Metric(
        "tail_latency",
        "s",
        "lower",
        "the scenario's own result: p99 in Server, p90 in SingleStream",
        headline=True,
    ),
    Metric("latency", "s", "lower", "time from the schedule to the answer, by percentile and mean"),
    Metric(
        "estimated_latency",
        "s",
        "lower",
        "SingleStream's p90 at 99 % confidence (early stopping)",
    ),
    Metric("completed_rate", "1/s", "none", "queries completed per second"),
    Metric("scheduled_rate", "1/s", "none", "queries that LoadGen scheduled per second"),
    Metric(
        "target_rate",
        "1/s",
        "none",
        "queries per second that Server asked for, given or by default",
    ),
    Metric("batch_size", "1", "none", "mean samples in a batch of the dynamic batcher"),
    Metric(
        "first_batch",
        "s",
        "lower",
        "time of the first batch: lazy initialisation, compilation, tuning",
    ),
    Metric(
        "compile_time",
        "s",
        "lower",
        "torch.compile: first minus steady batch of a size (coordinate batch), and their total;"
        " without lazy initialisation",
        lowest=-math.inf,
    ),
    Metric(
        "warm_batch", "s", "lower", "median time of a batch at the end of the warm-up, closed loop"
    ),
    Metric(
        "cost_per_million",
        "currency",
        "lower",
        "price of a million samples at this rate; the coordinates name the currency",
    ),
)


@dataclass(frozen=True)
class Result:
    """The program's JSON, and LoadGen's summary of its test."""

    raw: Mapping[str, Any]
    tested: summary.Summary

    @property
    def span(self) -> tuple[float, float]:
        """Return start and end of the test, in epoch seconds of the measuring host."""
        return float(self.raw["test"]["started"]), float(self.raw["test"]["ended"])

    @property
    def rate(self) -> float:
        """Return samples/s: Offline's throughput, Server's completions, a stream's by its mean."""
        return self.tested.rate or (1 / self.tested.mean if self.tested.mean else math.nan)

    @property
    def device(self) -> Mapping[str, Any]:
        device: Mapping[str, Any] = self.raw.get("device", {})
        return device

    def latency(self, stat: str) -> float:
        """Return a percentile in seconds, not-a-number with too few queries for it."""
        p = PERCENTILES[stat]
        return self.tested.percentiles[p] if self.tested.queries >= needed(p) else math.nan

    def cost(self, scenario: str) -> float:
        """Return p99 of Server, p90 of SingleStream, Offline's seconds a sample."""
        if scenario in TAIL:
            return self.tested.percentiles[PERCENTILES[TAIL[scenario]]]
        return 1 / self.rate

    def fault(self, params: Workload) -> str | None:
        """Return why the figures are not what they claim, with LoadGen's reasons, or None."""
        warm, tested = self.raw.get("warmup", {}), self.tested
        if warm.get("stable") is False and not params.fast:
            return (
                "batch times still differed by more than 10 % at the end of the warm-up, or too"
                f" few fitted into it (the last took {warm['steady']:.3g} s): something else uses"
                " the device"
            )
        if not tested.valid and not self._only_short(params):
            text = "LoadGen says INVALID: " + "; ".join(tested.reasons)
            short = tested.met.get("result_min_duration_met") is False
            if params.scenario == "offline" and short:
                text += f"; target_rate is the expected QPS: set it to {self.rate:.4g} or more"
            return text
        if params.scenario == "offline" and tested.queries < params.queries():
            return (
                f"LoadGen requested {tested.queries} samples, fewer than the {params.queries()} of"
                " min_queries"
            )
        return None

    def only_late(self, reason: str) -> bool:
        """Whether LoadGen's latency verdict is the only reason against a run.

        A run that is too short or has too few queries is no effect of its neighbours or wrapper.
        """
        held = [self.tested.met.get(f"result_min_{name}_met") for name in ("duration", "queries")]
        return reason.startswith("LoadGen says INVALID") and False not in held

    def _only_short(self, params: Workload) -> bool:
        """Whether a fast run is INVALID only because it is short, as a smoke test is.

        Its few queries show no percentile, and Offline's one query may end early.
        """
        tested = self.tested
        failed = {name for name, held in tested.met.items() if not held} - {"early_stopping_met"}
        if params.scenario == "offline":
            return params.fast and not failed - {"result_min_duration_met"}
        few = tested.queries < needed(PERCENTILES[TAIL[params.scenario]])
        return params.fast and not failed and few


def read(text: str) -> Result:
    """Read what the program printed.

    Raises Skip if a device or package is missing, Failed if it failed or the text is cut.
    """
    try:
        raw = json.loads(text)
    except ValueError:
        raise Failed("the program printed no result: its output is cut", {"result": text}) from None
    if not isinstance(raw, dict) or raw.get("program") != PROGRAM:
        raise Failed(
            f"the result is not of this program: version {PROGRAM} expected", {"result": text}
        )
    if error := raw.get("error"):
        kind = Skip if error["kind"] in UNUSABLE else Failed
        raise kind(error["text"], {"result": text})
    try:
        return Result(raw, summary.read(raw["test"]["logs"]["detail"]))
    except (KeyError, summary.UnreadableError) as error:
        raise Failed(f"no finished LoadGen test in the result: {error}", {"result": text}) from None


def caveats(results: Sequence[Result], params: Workload) -> dict[str, Any]:
    """Return coordinates that mark figures of a smoke test."""
    if not params.fast:
        return {}
    valid = all(run.tested.valid for run in results)
    return {"fast": "not comparable"} | ({} if valid else {"loadgen": "INVALID"})


def differences(results: Sequence[Result]) -> list[str]:
    """Return why runs differ by more than the treatment: device, versions, threads or weights."""
    known = dict[str, set[str]]()
    for run in results:
        model = run.raw.get("model", {})
        what = {
            "device": " ".join(filter(None, map(run.device.get, ("name", "uuid")))),
            **run.raw.get("versions", {}),
            "LoadGen": run.tested.version.split()[0],
            "threads": model.get("threads"),
            "weights": model.get("weights"),
        }
        for name, value in what.items():
            known.setdefault(name, set()).add(str(value))
    return [
        f"{name} differs between the runs: {' and '.join(sorted(values))}"
        + (": set threads" if name == "threads" else "")
        for name, values in known.items()
        # gVisor, and Linux on ARM, do not name their CPU.
        if len(values - {"CPU: unknown"}) > 1
    ]


def program_argv(params: Workload, python: str | None = None, wrapped: bool = True) -> list[str]:
    """Return the program's argv behind its wrapper; the spec comes on standard input.

    The environment is set behind the wrapper: kubectl exec or a container runtime would not pass
    it on.
    """
    env = [f"{name}={value}" for name, value in params.wrapper_env.items()]
    wrapper = [*params.wrapper, *(["env", *env] if env else [])] if wrapped else []
    return [*wrapper, python or params.python or sys.executable, "-m", MODULE]


def program_input(params: Workload, **options: Any) -> bytes:
    """Return the program's input.

    `options` may set `load_seed`, LoadGen's own seed, `expected_rate` (1/s) in place of the
    warm-up's, and `start_at`, the time (seconds since the epoch) before which LoadGen waits.
    """
    return json.dumps(params.spec() | options).encode() + b"\n"


def missing(host: Host, params: Workload, argv: Sequence[str]) -> list[Tool]:
    """Return what a host lacks to run the program's argv: its interpreter, or Python packages."""
    wanted = ["mlperf_loadgen", *(["torch", "torchvision"] if params.system != "stub" else [])]
    code = (
        "import importlib.util,sys;print(*[n for n in sys.argv[1:] if"
        " importlib.util.find_spec(n) is None])"
    )
    finished = host.run([*argv[:-2], "-c", code, *wanted], timeout=60)
    behind = f" behind {argv[0]}" if len(argv) > 3 else ""
    if finished.code == 0:
        return [Tool(f"{name} (Python){behind}", TORCH) for name in finished.stdout.split()]
    advice = f"{host.name} reports: {finished.tail() or f'exit code {finished.code}'}"
    return [Tool(f"{argv[-3]} (Python){behind}", {}, advice)]


def result_text(finished: CommandResult, params: Workload) -> str:
    """Return the result that a program printed. Raises Failed if there is none."""
    # ld.so starts a program without a library that it cannot preload. Libraries that argv does not
    # name come from the environment of perfdag.
    for library in _REFUSED.findall(finished.stderr):
        if any(library in argument for argument in finished.argv):
            raise Failed(
                f"LD_PRELOAD {library} was not loaded into the program: correct its path as the"
                " program sees it, or build it for the libc there",
                finished.texts(),
            )
    text = finished.stdout.lstrip()
    if text.startswith("{"):
        return text
    if finished.timed_out:
        reason = (
            f"the program did not end within {finished.seconds:.0f} s: raise timeout, or lower"
            " min_duration and min_queries (Server: raise target_rate)"
        )
    elif finished.code in (-9, 137):
        reason = (
            "the program was killed, as the kernel does when memory runs out:"
            f" batch {params.batch} with {params.samples} samples took too much; "
            "lower batch or samples, or raise the memory limit"
        )
    else:
        reason = f"the program exited {finished.code} without a result: {finished.tail()}"
    raise Failed(reason, finished.texts())


@contextmanager
def keeping_texts(texts: Mapping[str, str], run: str) -> Iterator[None]:
    """Name the run of an error in the block, and keep the texts of the runs before it."""
    try:
        yield
    except SampleError as error:
        raise type(error)(
            f"{run}: {error}", {**texts, **error.texts}, error.measurements
        ) from error


def kept(texts: dict[str, str], name: str, finished: CommandResult, params: Workload) -> Result:
    """Keep what a run printed in the texts under a name, and read it."""
    if stderr := finished.stderr.strip()[-4000:]:
        texts[f"{name}-stderr"] = stderr
    texts[name] = result_text(finished, params)
    return read(texts[name])


def expected(params: Workload) -> float:
    """Return the seconds of one measurement: set-up, warm-up, LoadGen."""
    # Without target_rate, Offline's query is sized by the warm-up's rate and a margin.
    sized = params.scenario == "offline" and params.target_rate is None and not params.fast
    setup = 5.0 if params.system == "stub" else SETUP
    return setup + 1.2 * params.lasts(params.duration()) * (MARGIN if sized else 1.0)


class WorkloadBenchmark(Benchmark[W], Generic[W]):
    """The base of the benchmarks of a workload; each starts the program in its own way."""

    canaries: ClassVar[tuple[str, ...]] = ("cpu", "memory")

    def shape(self, params: W) -> dict[str, Any]:
        return {"image": "resnet50"}

    def check(self, params: W, shape: Shape) -> list[str]:
        wanted = [name for name in shape.resources.both if "gpu" in name or "mig" in name]
        if wanted and params.device == "cpu" and params.system == "resnet50":
            return [
                f"resources ask for {wanted[0]} but device is cpu:"
                " set device: cuda, or leave the resource out"
            ]
        return []

    def seconds(self, params: W) -> float:
        return expected(params)

    def argvs(self, params: W) -> list[list[str]]:
        """Return the command lines of the program, each once."""
        return [program_argv(params)]

    def require(self, gang: Gang, params: W) -> None:
        hosts, argvs = {id(host): host for host in gang.hosts}.values(), self.argvs(params)
        tools = [
            Tool(program, {}, f"install it on {host.name}, or correct its path")
            for host in hosts
            for program in sorted({argv[0] for argv in argvs})
            if host.which(program) is None
        ]
        tools = tools or [
            t for host in hosts for argv in argvs for t in missing(host, params, argv)
        ]
        lacking = list({tool.program: tool for tool in tools}.values())
        if params.device == "cuda" and any(host.which("nvidia-smi") is None for host in gang.hosts):
            lacking.append(DRIVER)
        if lacking:
            raise NotInstalled(lacking)
        for host in gang.hosts if params.device == "cuda" else ():
            if reason := gpu_use.problem(host):
                raise Skip(f"device cuda: {reason}")

    def run(self, gang: Gang, params: W) -> list[Measurement]:
        hosts = list({id(host): host for host in gang.hosts}.values())  # copies may share one
        names = {id(host): name for name, host in gpu_use.by_name(hosts).items()}
        cuda, used = params.device == "cuda", list[str | None]()
        with devices.watched(hosts) if cuda else nullcontext(devices.Watch()) as watch:
            runs = self.measure(gang, params)
            for host, result in runs:
                at, uuid = names[id(host)], str(result.device.get("uuid", ""))
                watch.spans[at].append(result.span)
                gpus = gpu_use.used(watch.hosts.get(at, {}).get("gpus", []), {uuid})
                # A MIG slice has a uuid of its own. A pod that sees one GPU used that one.
                used.append(gpus[0].get("uuid") if len(gpus) == 1 else None)
            watch.used |= set(filter(None, used))
        (_, first), output = runs[0], gang.output
        versions = {
            "torch": first.raw.get("versions", {}).get("torch"),
            "LoadGen": first.tested.version.split()[0],
        }
        output.tool = ", ".join(
            f"{name} {version}" for name, version in versions.items() if version
        )
        output.argv, output.comparable = self.argvs(params), False
        program = {
            key: first.raw[key] for key in ("model", "device", "versions") if key in first.raw
        }
        output.facts |= {**program, "span": first.span, "devices": used}
        if cuda:
            (_, lead), *peers = watch.hosts.items()
            output.facts |= lead | ({"peers": dict(peers)} if peers else {})
            output.facts |= {"against": watch.against, "used": sorted(watch.used)}
        return self.parse(output, params)

    @abstractmethod
    def measure(self, gang: Gang, params: W) -> list[tuple[Host, Result]]:
        """Run the programs; keep what they print in the texts of `gang.output`."""

    @abstractmethod
    def parse(self, output: Output, params: W) -> list[Measurement]:
        """Return the values of the texts. Raises Failed, Invalid."""


class Resnet50(WorkloadBenchmark[Workload]):
    """ResNet-50 inference under LoadGen: Offline, Server, SingleStream.

    LoadGen makes the load and says VALID or INVALID; its logs are kept verbatim. Server is open
    loop: a dynamic batcher answers Poisson arrivals. Images are preprocessed before the clock
    starts (MLPerf's rule).
    A run shorter than MLPerf's 600 s compares only with runs of its kind.

    Clock: LoadGen's own. It starts when a query was scheduled (Server) or issued (SingleStream,
    Offline). It stops when the classes are in host memory and LoadGen has them. Imports, weights,
    compilation, warm-up and preprocessing are outside.
    """

    coords: ClassVar[tuple[str, ...]] = ("batch", "currency", *MARKS)
    metrics = METRICS

    def measure(self, gang: Gang, params: Workload) -> list[tuple[Host, Result]]:
        host, texts = gang.hosts[0], gang.output.texts
        spec = program_input(params)
        finished = host.run(program_argv(params), timeout=gang.timeout, stdin=spec)
        result = kept(texts, "result", finished, params)
        texts |= {f"mlperf_log_{name}": text for name, text in result.raw["test"]["logs"].items()}
        return [(host, result)]

    def parse(self, output: Output, params: Workload) -> list[Measurement]:
        result = read(output.texts.get("result", ""))
        values = measurements(result, params)
        if reason := result.fault(params) or output.facts.get("against"):
            raise Invalid(reason, output.texts, values)
        return values

    def exports(self, rows: "pyarrow.Table") -> Mapping[str, bytes]:
        """Return resnet50.json; several devices have one file each."""
        files = documents(rows.select(DOCUMENTED).to_pylist())
        return {
            name: json.dumps(document, indent=2).encode() + b"\n"
            for name, document in files.items()
        }


def measurements(result: Result, params: Workload) -> list[Measurement]:
    """Return all values, with the caveats in the coordinates."""
    marked = caveats([result], params)
    return [
        replace(row, coords={**row.coords, **marked})
        for row in (*_of_test(result, params), *_of_batches(result.raw, params))
        if math.isfinite(row.value)
    ]


def _of_test(result: Result, params: Workload) -> Iterator[Measurement]:
    tested, test, n = result.tested, result.raw["test"], result.tested.queries
    if params.scenario == "offline":
        yield Measurement("throughput", result.rate, n=n)
    else:
        tail = TAIL[params.scenario]
        yield Measurement("tail_latency", result.latency(tail), tail, n=n)
        for stat in PERCENTILES:
            yield Measurement("latency", result.latency(stat), stat, n=n)
        for metric, value, stat in (
            ("latency", tested.mean, "mean"),
            ("estimated_latency", tested.estimate, tail),
            ("completed_rate", tested.rate, "value"),
            ("scheduled_rate", tested.scheduled_rate, "value"),
        ):
            if value is not None:
                yield Measurement(metric, value, stat, n=n)
    if params.scenario == "server":
        yield Measurement("target_rate", float(test["rate"]))
        sizes = {int(size): count for size, count in test["batches"].items()}
        if batches := sum(sizes.values()):
            mean = sum(size * count for size, count in sizes.items()) / batches
            yield Measurement("batch_size", mean, "mean", n=batches)
    if params.price_per_hour is not None:
        cost, currency = cost_per_million(params.price_per_hour, result.rate), params.currency
        yield Measurement("cost_per_million", cost, coords={"currency": currency})


def _of_batches(raw: Mapping[str, Any], params: Workload) -> Iterator[Measurement]:
    warm = raw.get("warmup")
    if not warm:
        return
    yield Measurement("first_batch", warm["first"], n=1)
    yield Measurement("warm_batch", warm["steady"], "p50", {"batch": params.batch})
    if params.backend == "compile" and params.system != "stub":
        extra = {int(k): max(0.0, first - steady) for k, (first, steady) in warm["by_size"].items()}
        for size, seconds in sorted(extra.items()):
            yield Measurement("compile_time", seconds, coords={"batch": size}, n=1)
        yield Measurement("compile_time", sum(extra.values()), "total", n=len(extra))


def cost_per_million(price_per_hour: float, rate: float) -> float:
    """Return the price of a million samples: price / 3600 s / rate * 10^6."""
    return price_per_hour / 3600 / rate * 1e6


DOCUMENTED = [
    *("phase", "point", "repetition", "params", "coords", "metric", "stat", "value"),
    *("status", "error", "env"),
]
"""Columns that a document needs."""


def documents(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the documents of a run by file name, one a device; empty without samples.

    `rows` have the columns DOCUMENTED. Valid and invalid samples appear once (`valid` says which);
    warm-ups do not. As the field names say, times are in ms, rates in 1/s, memory in 10^9 bytes.
    """
    samples: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["phase"] == "measure":
            samples.setdefault((row["point"], row["repetition"]), []).append(row)
    measured = [
        (facts, sample)
        for sample in samples.values()
        if "span" in (facts := json.loads(sample[0]["env"] or "{}").get("sample", {}))
    ]
    whole: dict[str, dict[str, Any]] = {}
    for facts, sample in sorted(measured, key=lambda pair: float(pair[0]["span"][0])):
        gpu = gpu_info(facts)
        started = datetime.fromtimestamp(facts["span"][0], UTC).isoformat(timespec="seconds")
        first = {"timestamp": started, "gpu_info": gpu, "benchmarks": []}
        document = whole.setdefault(gpu["name"], first)
        document["benchmarks"].append(entry(sample, facts["span"]))
    several = len(whole) > 1
    return {
        f"resnet50{f'-{number}' if several else ''}.json": document
        for number, document in enumerate(whole.values(), 1)
    }


def gpu_info(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the device of a sample; on a CPU, that."""
    device = facts.get("device", {})
    gpus = gpu_use.used(facts.get("gpus") or [{}], {str(device.get("uuid"))})
    memory = device.get("memory")
    return {
        "name": device.get("name", "unknown"),
        "cuda_version": device.get("cuda"),
        "total_memory_gb": round(memory / 1e9, 1) if memory else None,
        "driver": gpus[0].get("driver"),
    }


def entry(rows: Sequence[Mapping[str, Any]], span: Sequence[float]) -> dict[str, Any]:
    """Return the element of `benchmarks` for the rows of a sample and the time of its test."""
    params = Workload.model_validate_json(rows[0]["params"])
    values = {(row["metric"], row["stat"]): row["value"] for row in rows}
    coords = json.loads(rows[0]["coords"] or "{}")
    invalid = "LoadGen says INVALID of a smoke test" if "loadgen" in coords else None
    reason = rows[0]["error"] or invalid
    element: dict[str, Any] = {
        "scenario": params.scenario.replace("-", "_"),
        "batch_size": params.batch,
        "duration_sec": round(span[1] - span[0], 3),
        "valid": reason is None,
        "reason": reason,
        "precision": params.precision,
        "backend": params.backend,
        "fast": params.fast,
    }
    if params.scenario == "server":
        element["target_qps"] = values["target_rate", "value"]
        element["latency_bound_ms"] = round(params.latency_bound * 1e3, 4)
    rate = {"offline": "throughput", "server": "completed_rate"}.get(params.scenario)
    if rate:
        element["throughput_samples_per_sec"] = round(values[rate, "value"], 3)
    element |= {
        f"latency_{stat}_ms": round(values["latency", stat] * 1e3, 4)
        for stat in PERCENTILES
        if ("latency", stat) in values
    }
    return element
