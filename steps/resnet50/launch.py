"""Start the program on a host: argv, environment, and the GPUs watched meanwhile."""

import contextlib
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfdag.benchmark.contract import Tool
from perfdag.hosts import gpu_queries
from perfdag.hosts.base import Finished, Host
from perfdag.outcome import Failed, SampleError, Skip
from perfdag.steps.resnet50 import preload
from perfdag.steps.resnet50.params import Workload

MODULE = "perfdag.steps.resnet50"
TORCH = {"pip": "'perfdag[torch]'"}
SETUP = 90.0
"""Seconds for imports, weights, warm-up and checks, at most."""
_NEEDS = ("torch", "torchvision", "mlperf_loadgen")


def interpreter(params: Workload) -> str:
    """Return the Python that measures."""
    return params.python or sys.executable


def before(params: Workload) -> list[str]:
    """Return the argv before the program: the wrapper, and behind it the environment.

    kubectl exec or a container runtime would not pass the environment on.
    """
    env = (
        ["env", *(f"{name}={value}" for name, value in params.wrapper_env.items())]
        if params.wrapper_env
        else []
    )
    return [*params.wrapper, *env]


def plain(params: Workload, python: str | None = None) -> list[str]:
    """Return the program's argv without the wrapper; the spec comes on standard input."""
    return [python or interpreter(params), "-m", MODULE]


def spec(params: Workload, **more: Any) -> bytes:
    """Return the program's input.

    `more` may set `load_seed`, LoadGen's own `seed`, and `expected_rate` (1/s) for the warm-up's.
    """
    return json.dumps(params.spec() | more).encode() + b"\n"


def waiting(folder: str, params: Workload) -> list[str]:
    """Return the argv of a copy with its wrapper, which coordinates by files in `folder`.

    See relay for the files.
    """
    return [
        sys.executable,
        "-m",
        f"{MODULE}.relay",
        folder,
        *before(params),
        *plain(params),
        "--wait",
    ]


def absent(
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
    needs = _NEEDS if params.system == "resnet50" else _NEEDS[2:]
    code = (
        "import importlib.util,sys;print(*[n for n in sys.argv[1:] if"
        " importlib.util.find_spec(n) is None])"
    )
    finished = host.run([*wrapped, python, "-c", code, *needs], timeout=60)
    if finished.code == 0:
        layers = preload.refused(finished.stderr, wrapped)
        tools = [
            Tool(f"{entry} (LD_PRELOAD){behind}", {}, f"{host.name} says: {finished.tail()}")
            for entry in layers
        ]
        return [
            *tools,
            *(Tool(f"{name} (Python){behind}", TORCH) for name in finished.stdout.split()),
        ]
    said = (
        f"{host.name} says: {finished.tail()}"
        if finished.tail()
        else f"on {host.name} it exited {finished.code} without a word"
    )
    return [Tool(f"{python} (Python){behind}", {}, said)]


def ran(finished: Finished, params: Workload) -> str:
    """Return the result that a program printed. Raises Failed if there is none."""
    trials, rest = 0, finished.stdout.lstrip()
    while rest.startswith('{"test"') and "\n" in rest:
        trials, rest = trials + 1, rest.partition("\n")[2]
    if rest.startswith("{") and not rest.startswith('{"test"'):
        return rest
    if finished.timed_out:
        kept = f" ({trials} finished trials are kept with the sample)" if trials else ""
        raise Failed(
            f"the program did not end within {finished.seconds:.0f} s{kept}: {_sooner(params)}",
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


def _sooner(params: Workload) -> str:
    """Return what to change if a run takes too long."""
    lasts, queries = params.lasts(params.duration()), params.queries()
    if params.scenario == "find-peak":
        return (
            "raise timeout, or lower min_duration or search_duration;"
            f" each trial takes {queries} queries, however long they take to arrive"
        )
    if params.scenario == "offline":
        return (
            f"{queries} samples are asked, and {params.duration():g} s at least: raise timeout,"
            " or lower min_queries and min_duration"
        )
    if lasts > params.duration():
        return (
            f"{queries} queries at {params.target_rate:g}/s arrive in {lasts:.0f} s:"
            " raise timeout or target_rate, or lower min_queries"
        )
    return (
        "raise timeout" if params.scenario == "accuracy" else "raise timeout or lower min_duration"
    )


def stderr(name: str, finished: Finished) -> dict[str, str]:
    """Return the end of a run's standard error by the name of its text, if there is any."""
    return {f"{name}-stderr": said} if (said := finished.stderr.strip()[-4000:]) else {}


@contextlib.contextmanager
def kept(texts: Mapping[str, str], what: str) -> Iterator[None]:
    """Name the run of an error in the block, and keep the texts of the runs before it."""
    try:
        yield
    except SampleError as error:
        raise type(error)(
            f"{what}: {error}", {**texts, **error.texts}, error.measurements
        ) from error


@dataclass
class Watch:
    """The GPUs of the hosts while programs run there.

    `facts` has the first host's `gpus`, and the others' under `peers`. After the block it has
    what they did, and `against`: why the figures are not the devices' own. It is empty on a CPU.
    `used` has the uuid of the GPU that each program used, or None if unknown.
    """

    params: Workload
    facts: dict[str, Any] = field(default_factory=dict)
    used: list[str | None] = field(default_factory=list)
    _gpus: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    _spans: dict[int, list[gpu_queries.Span]] = field(default_factory=dict)

    def ran(self, host: Host, finished: Finished) -> str:
        """As `ran`, with a note of the GPU that the program used on the host, and when."""
        text = ran(finished, self.params)
        self._spans.setdefault(id(host), []).extend(_spans(text))
        found = gpu_queries.used(self._gpus.get(id(host), []), {_uuid(text)})
        # a MIG slice has a uuid of its own: a pod that sees one GPU used that one
        self.used.append(found[0].get("uuid") if len(found) == 1 else None)
        return text


def _uuid(text: str) -> str:
    try:
        return str(json.loads(text)["device"]["uuid"])
    except (ValueError, KeyError, TypeError):
        return ""


def _spans(text: str) -> list[gpu_queries.Span]:
    """Return when LoadGen's tests ran; of a peak search the full trials, which decide it."""
    try:
        raw = json.loads(text)
        full = (
            [validation for _, _, validation in raw["peak"]["probes"]]
            if "peak" in raw
            else [True] * len(raw["tests"])
        )
        return [
            (float(each["started"]), float(each["ended"]))
            for each, counts in zip(raw["tests"], full, strict=True)
            if counts
        ]
    except (ValueError, KeyError, TypeError):
        return []


@contextlib.contextmanager
def watched(hosts: Sequence[Host], params: Workload) -> Iterator[Watch]:
    """Watch the GPUs of the hosts in the block. Raises Skip if a host has none."""
    watch = Watch(params)
    if params.device != "cuda":
        yield watch
        return
    distinct = list(
        {id(host): host for host in hosts}.values()
    )  # copies may share a host, and pods a node's name
    one_each = gpu_queries.by_name(distinct)
    found: list[dict[str, Any]] = []
    for host in distinct:
        if reason := gpu_queries.problem(host):
            raise Skip(f"device cuda: {reason}")
        found.append({"gpus": gpu_queries.facts(host)})
        watch._gpus[id(host)] = found[-1]["gpus"]
    with contextlib.ExitStack() as stack:
        seen = [
            stack.enter_context(gpu_queries.watched(host, watch._spans.setdefault(id(host), [])))
            for host in distinct
        ]
        watch.facts |= found[0]
        yield watch
    reasons, uuids = [], {each for each in watch.used if each}
    for (name, host), here, during in zip(one_each.items(), found, seen, strict=True):
        own = {
            each["index"] for each in gpu_queries.used(here["gpus"], uuids) if "index" in each
        } or {each["index"] for each in during["during"]}
        here |= during | {
            "slowed": gpu_queries.slowed(
                [each for each in during["during"] if each["index"] in own]
            )
        }
        if reason := against(
            here, gpu_queries.facts(host), own, timed=params.scenario != "accuracy"
        ):
            reasons.append(f"{name}: {reason}" if len(one_each) > 1 else reason)
    watch.facts |= found[0]
    if len(one_each) > 1:
        watch.facts["peers"] = dict(list(zip(one_each, found, strict=True))[1:])
    watch.facts |= {"against": "; ".join(reasons) or None, "used": sorted(uuids)}


def against(
    found: dict[str, Any], after: Sequence[dict[str, Any]], own: Collection[int], timed: bool = True
) -> str | None:
    """Return why figures of the used GPUs (by index) are not the devices' own, or None.

    They were slowed or not observed (if figures are `timed`), or had memory errors meanwhile.
    """
    if timed and found.get("slowed"):
        return str(found["slowed"])
    if timed and not any(each["index"] in own for each in found.get("during", ())):
        return f"what the GPU's clocks did is not known: {found.get('error', 'no samples')}"
    before = {each.get("index"): each.get("ecc_uncorrected", 0) for each in found["gpus"]}
    for each in after:
        index = each.get("index")
        if index in own and (grown := each.get("ecc_uncorrected", 0) - before.get(index, 0)) > 0:
            return (
                f"GPU {index} had {grown} uncorrected memory error(s) meanwhile:"
                " its memory is broken"
            )
    return None
