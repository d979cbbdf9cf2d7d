"""Start the program on hosts, and what the benchmarks of it share: checks, estimates, facts."""

import contextlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from perfdag.benchmark.contract import Benchmark, Gang, NotInstalled, Tool
from perfdag.hosts import gpu_use
from perfdag.hosts.base import CommandResult, Host
from perfdag.outcome import Failed, SampleError, Skip
from perfdag.shape import Shape
from perfdag.steps import devices
from perfdag.steps.resnet50 import result
from perfdag.steps.resnet50.params import MARGIN, Workload

MODULE = "perfdag.steps.resnet50.program"
TORCH = {"pip": "'perfdag[torch]'"}
_REFUSED = re.compile(r"object '([^']*)' from \S+ cannot be preloaded")
SETUP = 90.0
"""Seconds for imports, weights, warm-up and checks, at most."""
W = TypeVar("W", bound=Workload)
DRIVER = Tool(
    "the NVIDIA driver (nvidia-smi)",
    {"apt": "nvidia-driver", "dnf": "nvidia-driver", "zypper": "nvidia-driver-G06"},
)


def interpreter(params: Workload) -> str:
    """Return the Python that measures."""
    return params.python or sys.executable


def wrapper_argv(params: Workload) -> list[str]:
    """Return the argv before the program: the wrapper, and behind it the environment.

    kubectl exec or a container runtime would not pass the environment on.
    """
    env = (
        ["env", *(f"{name}={value}" for name, value in params.wrapper_env.items())]
        if params.wrapper_env
        else []
    )
    return [*params.wrapper, *env]


def program_argv(params: Workload, python: str | None = None) -> list[str]:
    """Return the program's argv without the wrapper; the spec comes on standard input."""
    return [python or interpreter(params), "-m", MODULE]


def program_input(params: Workload, **options: Any) -> bytes:
    """Return the program's input.

    `options` may set `load_seed`, LoadGen's own seed, `expected_rate` (1/s) in place of the
    warm-up's, and `start_at`, the time (seconds since the epoch) before which LoadGen waits.
    """
    return json.dumps(params.spec() | options).encode() + b"\n"


def packages(params: Workload) -> list[str]:
    """Return the modules that the program imports."""
    return (
        ["mlperf_loadgen"]
        if params.system == "stub"
        else ["torch", "torchvision", "mlperf_loadgen"]
    )


def missing_packages(
    host: Host,
    params: Workload,
    behind: str,
    python: str | None = None,
    wrapped: Sequence[str] = (),
) -> list[Tool]:
    """Return missing Python packages and LD_PRELOAD libraries, behind the argv of the program.

    If the interpreter does not start, return it with its message. `behind` follows each name.
    """
    python = python or interpreter(params)
    if not wrapped and host.which(python) is None:
        return [Tool(f"{python} (Python){behind}", TORCH)]
    code = (
        "import importlib.util,sys;print(*[n for n in sys.argv[1:] if"
        " importlib.util.find_spec(n) is None])"
    )
    finished = host.run([*wrapped, python, "-c", code, *packages(params)], timeout=60)
    if finished.code == 0:
        layers = refused(finished.stderr, wrapped)
        tools = [
            Tool(f"{entry} (LD_PRELOAD){behind}", {}, f"{host.name} reports: {finished.tail()}")
            for entry in layers
        ]
        return [
            *tools,
            *(Tool(f"{name} (Python){behind}", TORCH) for name in finished.stdout.split()),
        ]
    message = (
        f"{host.name} reports: {finished.tail()}"
        if finished.tail()
        else f"on {host.name} it exited {finished.code} without a message"
    )
    return [Tool(f"{python} (Python){behind}", {}, message)]


def refused(stderr: str, argv: Sequence[str]) -> list[str]:
    """Return the libraries of argv that ld.so could not preload: it starts the program anyway.

    Other libraries come from the environment of perfdag.
    """
    libraries = dict.fromkeys(_REFUSED.findall(stderr))
    return [entry for entry in libraries if any(entry in argument for argument in argv)]


def result_text(finished: CommandResult, params: Workload) -> str:
    """Return the result that a program printed. Raises Failed if there is none."""
    if without := refused(finished.stderr, finished.argv):
        raise Failed(
            f"LD_PRELOAD {without[0]} was not loaded into the program: correct its path as the"
            " program sees it, or build it for the libc there",
            finished.texts(),
        )
    text = finished.stdout.lstrip()
    if text.startswith("{"):
        return text
    if finished.timed_out:
        raise Failed(
            f"the program did not end within {finished.seconds:.0f} s: {_timeout_advice(params)}",
            finished.texts(),
        )
    if finished.code in (-9, 137):
        raise Failed(
            "the program was killed, as the kernel does when memory runs out:"
            f" batch {params.batch} with {params.samples} samples took too much; "
            "lower batch or samples, or raise the memory limit",
            finished.texts(),
        )
    raise Failed(
        f"the program exited {finished.code} without a result: {finished.tail()}", finished.texts()
    )


def _timeout_advice(params: Workload) -> str:
    """Return what to change if a run takes too long."""
    lasts, queries = params.lasts(params.duration()), params.queries()
    if params.scenario == "offline":
        return (
            f"{queries} samples and {params.duration():g} s at least were requested: raise timeout,"
            " or lower min_queries and min_duration"
        )
    if lasts > params.duration():
        return (
            f"{queries} queries at {params.target_rate:g}/s arrive in {lasts:.0f} s:"
            " raise timeout or target_rate, or lower min_queries"
        )
    return "raise timeout or lower min_duration"


def stderr_text(name: str, finished: CommandResult) -> dict[str, str]:
    """Return the end of a run's standard error by the name of its text, if there is any."""
    return {f"{name}-stderr": text} if (text := finished.stderr.strip()[-4000:]) else {}


@contextlib.contextmanager
def keeping_texts(texts: Mapping[str, str], run: str) -> Iterator[None]:
    """Name the run of an error in the block, and keep the texts of the runs before it."""
    try:
        yield
    except SampleError as error:
        raise type(error)(
            f"{run}: {error}", {**texts, **error.texts}, error.measurements
        ) from error


@dataclass
class Watch:
    """The GPUs that the programs of a sample use.

    After the block of watched(), `facts` has the first host's `gpus` and what they did. It has
    the other hosts' under `peers`. `against` is why the figures are not the devices' own. It is
    empty on a CPU. `used` has the uuid of the GPU that each program used, or None if unknown.
    """

    params: Workload
    facts: dict[str, Any] = field(default_factory=dict)
    used: list[str | None] = field(default_factory=list)
    gpus: devices.Watch = field(default_factory=devices.Watch)
    names: Mapping[int, str] = field(default_factory=dict)

    def result_text(self, host: Host, finished: CommandResult) -> str:
        """Return the result of a run, and note which GPU of the host it used, and when."""
        text = result_text(finished, self.params)
        name = self.names.get(id(host), host.name)
        self.gpus.spans[name].extend(measured_spans(text))
        gpus = gpu_use.used(self.gpus.hosts.get(name, {}).get("gpus", []), {_uuid(text)})
        # A MIG slice has a uuid of its own. A pod that sees one GPU used that one.
        self.used.append(gpus[0].get("uuid") if len(gpus) == 1 else None)
        return text


def _uuid(text: str) -> str:
    try:
        return str(json.loads(text)["device"]["uuid"])
    except (ValueError, KeyError, TypeError):
        return ""


def measured_spans(text: str) -> list[gpu_use.Span]:
    """Return when LoadGen's test ran."""
    try:
        test = json.loads(text)["test"]
        return [(float(test["started"]), float(test["ended"]))]
    except (ValueError, KeyError, TypeError):
        return []


def require(hosts: Iterable[Host], params: Workload) -> None:
    """Raise Skip if the params ask for a GPU and a host has none."""
    for host in hosts if params.device == "cuda" else ():
        if reason := gpu_use.problem(host):
            raise Skip(f"device cuda: {reason}")


@contextlib.contextmanager
def watched(hosts: Sequence[Host], params: Workload) -> Iterator[Watch]:
    """Watch the GPUs of the hosts in the block. Raises Skip if a host has none."""
    # Copies may share a host, and pods a node's name.
    distinct = list({id(host): host for host in hosts}.values())
    names = {id(host): name for name, host in gpu_use.by_name(distinct).items()}
    watch = Watch(params, names=names)
    if params.device != "cuda":
        yield watch
        return
    require(distinct, params)
    with devices.watched(distinct) as watch.gpus:
        yield watch
        watch.gpus.used |= {uuid for uuid in watch.used if uuid}
    (_, first), *peers = watch.gpus.hosts.items()
    watch.facts |= first | ({"peers": dict(peers)} if peers else {})
    watch.facts |= {"against": watch.gpus.against, "used": sorted(watch.gpus.used)}


class WorkloadBenchmark(Benchmark[W], Generic[W]):
    """The base of the benchmarks of a workload; each starts the program in its own way."""

    image: ClassVar[str] = "resnet50"
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "memory")

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

    def missing(self, gang: Gang, params: W) -> list[Tool]:
        return missing(gang, params)

    def require(self, gang: Gang, params: W) -> None:
        if tools := self.missing(gang, params):
            raise NotInstalled(tools)
        require(gang.hosts, params)


def expected(params: Workload) -> float:
    """Return the seconds of one measurement: set-up, warm-up, LoadGen."""
    # Without target_rate, Offline's query is sized by the warm-up's rate and a margin.
    margin = (
        MARGIN
        if params.scenario == "offline" and params.target_rate is None and not params.fast
        else 1.0
    )
    setup = 5.0 if params.system == "stub" else 60.0 if params.fast else SETUP
    return setup + 1.2 * params.lasts(params.duration()) * margin


def missing(gang: Gang, params: Workload, wrapped: bool = True) -> list[Tool]:
    """Return what is missing: the wrapper's program, Python packages, the driver.

    Packages are searched behind the wrapper and in its environment if the program is `wrapped`.
    """
    if params.wrapper and (
        without := [host.name for host in gang.hosts if host.which(params.wrapper[0]) is None]
    ):
        return [
            Tool(
                params.wrapper[0],
                {},
                f"`wrapper` begins with it: install it on {without[0]}, or correct its path",
            )
        ]
    before = wrapper_argv(params) if wrapped else []
    behind = f" behind {params.wrapper[0]}" if wrapped and params.wrapper else ""
    lacking = {
        tool.program: tool
        for host in gang.hosts
        for tool in missing_packages(host, params, behind, wrapped=before)
    }
    tools = [lacking[name] for name in sorted(lacking)]
    if params.device == "cuda" and any(host.which("nvidia-smi") is None for host in gang.hosts):
        tools.append(DRIVER)
    return tools


def texts_of(result_text: str, stderr: str) -> dict[str, str]:
    """Return the texts to keep: the program's JSON, and LoadGen's logs."""
    texts_by_name = {"result": result_text, "stderr": stderr[-4000:]}
    with contextlib.suppress(ValueError, KeyError, TypeError):
        logs = json.loads(result_text)["test"]["logs"]
        texts_by_name |= {f"mlperf_log_{name}": text for name, text in logs.items()}
    return texts_by_name


def program_facts(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return what the first program of a sample reports of its model, device and versions."""
    for text in texts.values():
        with contextlib.suppress(ValueError):
            raw = json.loads(text)
            if isinstance(raw, dict):
                return {key: raw[key] for key in ("model", "device", "versions") if key in raw}
    return {}


def versions(text: str) -> str:
    """Return `torch 2.9.0, LoadGen 6.0.17` of a result, or an empty string."""
    try:
        measured = result.read(text)
    except SampleError:
        return ""
    loadgen = measured.tested.version.split()[0]
    versions = {"torch": measured.raw.get("versions", {}).get("torch"), "LoadGen": loadgen}
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)
