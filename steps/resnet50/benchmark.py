"""resnet50: ResNet-50 inference under MLCommons LoadGen."""

import contextlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from perfdag import benchmark
from perfdag.benchmark import Benchmark, Gang, Invalid, Measurement, Output, Tool
from perfdag.shape import Shape
from perfdag.steps.resnet50 import result, start
from perfdag.steps.resnet50.params import Workload
from perfdag.steps.resnet50.program import MARGIN
from perfdag.steps.resnet50.seed import documents, seed_json

if TYPE_CHECKING:
    import pyarrow

DRIVER = Tool(
    "the NVIDIA driver (nvidia-smi)",
    {"apt": "nvidia-driver", "dnf": "nvidia-driver", "zypper": "nvidia-driver-G06"},
)


class Resnet50(Benchmark[Workload]):
    """Inference of ResNet-50 under MLCommons LoadGen: Offline, Server, SingleStream, peak rate, accuracy.

    LoadGen makes the load and says VALID or INVALID; its logs are kept verbatim. Server is open loop: Poisson arrivals on a schedule,
    answered by a dynamic batcher. Images are preprocessed before the clock starts (MLPerf's rule); preprocessing, copies and compute are
    reported apart as `phase_time`. Logits are checked against fp32 eager before and after. A run shorter than MLPerf's 600 s is comparable
    with runs of its own kind only.

    Clock: LoadGen's own. It starts when a query was scheduled (Server), or issued (SingleStream, Offline), and stops when the classes
    are in host memory and LoadGen was told; imports, weights, compilation, warm-up and preprocessing are outside.
    """

    name: ClassVar[str] = "resnet50"
    image: ClassVar[str] = "resnet50"
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "memory")
    Params: ClassVar[type[benchmark.Params]] = Workload
    metrics = result.METRICS

    def check(self, params: Workload, shape: Shape) -> list[str]:
        return check(params, shape)

    def seconds(self, params: Workload) -> float:
        return expected(params)

    def least_seconds(self, params: Workload) -> float:
        return shortest(params)

    def missing(self, gang: Gang, params: Workload) -> list[Tool]:
        return missing(gang, params)

    def run(self, gang: Gang, params: Workload) -> Output:
        host, argv = gang.hosts[0], [*start.before(params), *start.plain(params)]
        with start.watched([host], params) as watch:
            finished = host.run(argv, timeout=gang.timeout, stdin=start.spec(params))
            text = watch.ran(host, finished)
        facts = {**said({"result": text}), **watch.facts}
        return Output(
            texts(text, finished.stderr),
            [argv],
            versions(text),
            {**facts, **_read(text, params, facts)},
        )

    def parse(self, output: Output, params: Workload) -> list[Measurement]:
        found = result.read(output.texts.get("result", ""))
        values = result.measurements(
            found, params, timed=result.unsteady(found, params, output.facts) is None
        )
        reason = result.wrong(found, params) or output.facts.get("against")
        if reason:
            raise Invalid(reason, output.texts, values)
        return values

    def series(self, output: Output) -> str:
        """PyTorch's and LoadGen's versions: a figure of another is another figure."""
        return versions(output.texts.get("result", ""))

    def exports(self, rows: "pyarrow.Table") -> Mapping[str, bytes]:
        """resnet50.json, of several devices one file each."""
        found = documents(rows.select(["env", "phase", "point", "repetition"]).to_pylist())
        return {
            name: json.dumps(document, indent=2).encode() + b"\n"
            for name, document in found.items()
        }


def check(params: Workload, shape: Shape) -> list[str]:
    """Why a workload cannot be measured in a shape."""
    wanted = [name for name in shape.resources if "gpu" in name or "mig" in name]
    if wanted and params.device == "cpu" and params.system == "resnet50":
        return [
            f"resources ask for {wanted[0]} but device is cpu: set device: cuda, or leave the resource out"
        ]
    return []


def expected(params: Workload) -> float:
    """Seconds of one measurement: set-up, warm-up, LoadGen."""
    if params.scenario == "find-peak":
        search = min(params.search_duration, params.duration())
        return start.SETUP + 14 * 1.3 * params.lasts(search) + 4 * params.lasts(params.duration())
    # without target_rate Offline's query is sized by the warm-up's rate and a margin
    margin = (
        MARGIN
        if params.scenario == "offline" and params.target_rate is None and not params.fast
        else 1.0
    )
    setup = 5.0 if params.system == "stub" else 60.0 if params.fast else start.SETUP
    return setup + 1.2 * params.lasts(params.duration()) * margin


def shortest(params: Workload) -> float:
    """Seconds that LoadGen runs on any machine, or in Offline has to; 0 where a number of queries may end it."""
    if (
        params.max_queries is not None
        or params.scenario == "accuracy"
        or (params.fast and params.scenario == "offline")
    ):
        return 0.0
    if params.scenario == "offline":
        return params.duration()  # a faster device than target_rate is done with its samples sooner
    # a peak is a rate that a full trial held and one above it that a full trial did not
    return (
        2 * params.duration() if params.scenario == "find-peak" else params.lasts(params.duration())
    )


def missing(gang: Gang, params: Workload, wrapped: bool = True) -> list[Tool]:
    """The wrapper's program, Python packages (behind the wrapper and in its environment, where the program is started `wrapped`) and the
    driver that are not there."""
    if params.wrapper and (
        without := [host.name for host in gang.hosts if host.which(params.wrapper[0]) is None]
    ):
        return [
            Tool(
                params.wrapper[0],
                {},
                f"`wrapper` begins with it: install it on {without[0]}, or mend its path",
            )
        ]
    before = start.before(params) if wrapped else []
    behind = f" behind {params.wrapper[0]}" if wrapped and params.wrapper else ""
    lacking = {
        tool.program: tool
        for host in gang.hosts
        for tool in start.absent(host, params, behind, wrapped=before)
    }
    tools = [lacking[name] for name in sorted(lacking)]
    if params.device == "cuda" and any(host.which("nvidia-smi") is None for host in gang.hosts):
        tools.append(DRIVER)
    return tools


def texts(result_text: str, stderr: str) -> dict[str, str]:
    """The parts of a sample that are kept: the program's JSON, and LoadGen's logs of the test that counts as it wrote them."""
    kept = {"result": result_text, "stderr": stderr[-4000:]}
    try:
        raw = json.loads(result_text)
        tests, answer = raw["tests"], raw.get("answer", -1)
        kept |= {f"mlperf_log_{name}": text for name, text in tests[answer]["logs"].items()}
    except (ValueError, KeyError, IndexError, TypeError):
        pass
    return kept


def said(texts: Mapping[str, str]) -> dict[str, Any]:
    """What programs of one sample found out, without logs: the first's, and of several the logits' check of each."""
    found = {}
    for name, text in texts.items():
        with contextlib.suppress(ValueError):
            raw = json.loads(text)
            if isinstance(raw, dict):
                found[name] = {
                    key: raw[key]
                    for key in (
                        "model",
                        "device",
                        "versions",
                        "logits",
                        "clock",
                        "peak",
                        "accuracy",
                    )
                    if key in raw
                }
    first: dict[str, Any] = next(iter(found.values()), {})
    return (
        first
        if len(found) < 2
        else {**first, "logits": {name: each.get("logits") for name, each in found.items()}}
    )


def _read(text: str, params: Workload, facts: dict[str, Any]) -> dict[str, Any]:
    """Of a result that can be read: its element of the JSON document, and why times were left out where they were."""
    try:
        found = result.read(text)
    except benchmark.SampleError:
        return {}
    reason = result.unsteady(found, params, facts)
    return {"seed_json": seed_json(found, params, facts)} | (
        {"times_left_out": reason} if reason else {}
    )


def versions(text: str) -> str:
    """`torch 2.9.0, LoadGen 6.0.17` of a result; empty where there is none."""
    try:
        found = result.read(text)
    except benchmark.SampleError:
        return ""
    torch = found.raw.get("versions", {}).get("torch")
    loadgen = found.tested.version.split()[0] if found.tested else ""
    return ", ".join(
        f"{name} {version}" for name, version in (("torch", torch), ("LoadGen", loadgen)) if version
    )
