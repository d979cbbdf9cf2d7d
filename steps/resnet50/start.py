"""The program started on a host: argv, environment, the GPU watched meanwhile."""

import contextlib
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfdag.benchmark import Failed, SampleError, Skip, Tool
from perfdag.hosts import Finished, Host
from perfdag.steps import gpu
from perfdag.steps.resnet50 import preload
from perfdag.steps.resnet50.params import Workload

MODULE = "perfdag.steps.resnet50"
TORCH = {"pip": "'perfdag[torch]'"}
SETUP = 90.0
"""Seconds for imports, weights, warm-up and checks, generously."""
_NEEDS = ("torch", "torchvision", "mlperf_loadgen")


def interpreter(params: Workload) -> str:
    """The Python that measures."""
    return params.python or sys.executable


def before(params: Workload) -> list[str]:
    """argv that stands before the program: the wrapper, and behind it the environment, of which kubectl exec or a container runtime would pass
    nothing on."""
    env = (
        ["env", *(f"{name}={value}" for name, value in params.wrapper_env.items())]
        if params.wrapper_env
        else []
    )
    return [*params.wrapper, *env]


def plain(params: Workload, python: str | None = None) -> list[str]:
    """argv of the program without the wrapper, by another interpreter where one is named; the spec comes on standard input."""
    return [python or interpreter(params), "-m", MODULE]


def spec(params: Workload, **more: Any) -> bytes:
    """What the program reads. `more`: `load_seed`, of LoadGen alone in place of `seed`; `expected_rate` (1/s) in place of the warm-up's."""
    return json.dumps(params.spec() | more).encode() + b"\n"


def waiting(folder: str, params: Workload) -> list[str]:
    """argv of a copy with its wrapper: it reads `folder`/spec, makes `ready` there before LoadGen starts, and waits for `go` (see relay)."""
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
    """Python packages that an interpreter of a host lacks (unset: the one that measures), behind the argv with which it will run, and
    libraries that ld.so cannot preload there; the interpreter itself where it does not start, with what it said. `behind` is put after each
    name."""
    python = python or interpreter(params)
    if not wrapped and host.which(python) is None:
        return [Tool(f"{python} (Python){behind}", TORCH)]
    needs = _NEEDS if params.system == "resnet50" else _NEEDS[2:]
    code = "import importlib.util,sys;print(*[n for n in sys.argv[1:] if importlib.util.find_spec(n) is None])"
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
    """The result that a program printed; Failed where it ended without one, with what that means for a kill."""
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
            f"the program was killed, as the kernel does when memory runs out: batch {params.batch} with {params.samples} samples took too much; "
            "lower batch or samples, or raise the memory limit",
            finished.texts(),
        )
    raise Failed(
        f"the program exited {finished.code} without a result: {finished.tail()}", finished.texts()
    )


def _sooner(params: Workload) -> str:
    """What to change where a run takes too long."""
    lasts, queries = params.lasts(params.duration()), params.queries()
    if params.scenario == "find-peak":
        return f"raise timeout, or lower min_duration or search_duration; each trial takes {queries} queries, however long they take to arrive"
    if params.scenario == "offline":
        return f"{queries} samples are asked, and {params.duration():g} s at least: raise timeout, or lower min_queries and min_duration"
    if lasts > params.duration():
        return f"{queries} queries at {params.target_rate:g}/s arrive in {lasts:.0f} s: raise timeout or target_rate, or lower min_queries"
    return (
        "raise timeout" if params.scenario == "accuracy" else "raise timeout or lower min_duration"
    )


def stderr(name: str, finished: Finished) -> dict[str, str]:
    """The end of what a run said on standard error, by the name of its text; nothing where it said nothing."""
    return {f"{name}-stderr": said} if (said := finished.stderr.strip()[-4000:]) else {}


@contextlib.contextmanager
def kept(texts: Mapping[str, str], what: str) -> Iterator[None]:
    """An error in the block, one of many runs, says which it was and keeps what those before it printed."""
    try:
        yield
    except SampleError as error:
        raise type(error)(
            f"{what}: {error}", {**texts, **error.texts}, error.measurements
        ) from error


@dataclass
class Watch:
    """The GPUs of the hosts while programs run there. `facts`: those of the first host (`gpus`; of the others under `peers` by gpu.by_name), and
    after the block what they did meanwhile and `against`, why the figures are not the devices' own; empty where the device is a CPU.

    `used` holds the uuid of the GPU that each program used, None where that is not known."""

    params: Workload
    facts: dict[str, Any] = field(default_factory=dict)
    used: list[str | None] = field(default_factory=list)
    _gpus: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    _spans: dict[int, list[gpu.Span]] = field(default_factory=dict)

    def ran(self, host: Host, finished: Finished) -> str:
        """As `ran`, with a note of the GPU that the program used on the host, and when."""
        text = ran(finished, self.params)
        self._spans.setdefault(id(host), []).extend(_spans(text))
        found = gpu.used(self._gpus.get(id(host), []), {_uuid(text)})
        # a MIG slice has a uuid of its own: a pod that sees one GPU used that one
        self.used.append(found[0].get("uuid") if len(found) == 1 else None)
        return text


def _uuid(text: str) -> str:
    try:
        return str(json.loads(text)["device"]["uuid"])
    except (ValueError, KeyError, TypeError):
        return ""


def _spans(text: str) -> list[gpu.Span]:
    """When LoadGen's tests of a result ran; of a search for the peak the full trials, which decide it."""
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
    """Watch the GPUs of the hosts in the block; nothing where the device is a CPU. Raises Skip where a host has none."""
    watch = Watch(params)
    if params.device != "cuda":
        yield watch
        return
    distinct = list(
        {id(host): host for host in hosts}.values()
    )  # copies may share a host, and pods a node's name
    one_each = gpu.by_name(distinct)
    found: list[dict[str, Any]] = []
    for host in distinct:
        if reason := gpu.problem(host):
            raise Skip(f"device cuda: {reason}")
        found.append({"gpus": gpu.facts(host)})
        watch._gpus[id(host)] = found[-1]["gpus"]
    with contextlib.ExitStack() as stack:
        seen = [
            stack.enter_context(gpu.watched(host, watch._spans.setdefault(id(host), [])))
            for host in distinct
        ]
        watch.facts |= found[0]
        yield watch
    reasons, uuids = [], {each for each in watch.used if each}
    for (name, host), here, during in zip(one_each.items(), found, seen, strict=True):
        own = {each["index"] for each in gpu.used(here["gpus"], uuids) if "index" in each} or {
            each["index"] for each in during["during"]
        }
        here |= during | {
            "slowed": gpu.slowed([each for each in during["during"] if each["index"] in own])
        }
        if reason := against(here, gpu.facts(host), own, timed=params.scenario != "accuracy"):
            reasons.append(f"{name}: {reason}" if len(one_each) > 1 else reason)
    watch.facts |= found[0]
    if len(one_each) > 1:
        watch.facts["peers"] = dict(list(zip(one_each, found, strict=True))[1:])
    watch.facts |= {"against": "; ".join(reasons) or None, "used": sorted(uuids)}


def against(
    found: dict[str, Any], after: Sequence[dict[str, Any]], own: Collection[int], timed: bool = True
) -> str | None:
    """Why figures of those of a host's GPUs (by index) that were used are not the devices' own: slowed or not seen at all (where the figures
    are `timed`), or with memory errors since `gpus` was read."""
    if timed and found.get("slowed"):
        return str(found["slowed"])
    if timed and not any(each["index"] in own for each in found.get("during", ())):
        return f"what the GPU's clocks did is not known: {found.get('error', 'no samples')}"
    before = {each.get("index"): each.get("ecc_uncorrected", 0) for each in found["gpus"]}
    for each in after:
        index = each.get("index")
        if index in own and (grown := each.get("ecc_uncorrected", 0) - before.get(index, 0)) > 0:
            return f"GPU {index} had {grown} uncorrected memory error(s) meanwhile: its memory is broken"
    return None
