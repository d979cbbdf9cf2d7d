"""The contract of a benchmark.

A benchmark declares its parameters (`Params`), its metrics and its requirements (`shape`, `tools`).
`run` starts the tool on hosts, keeps what it printed in `gang.output`, and returns the values. They
are read by a plain function of the benchmark's module, `parse(texts, params)`, so that a recorded
output of the real tool tests it.
"""

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar, cast, get_args

from pydantic import model_validator
from pydantic_core import PydanticCustomError

# with what else a benchmark uses: it imports its contract from here
from perfdag.benchmark.declarations import (
    AtMost as AtMost,
    Between as Between,
    Equal as Equal,
    FreeOptions as FreeOptions,
    Identity as Identity,
    Measurement as Measurement,
    Remark as Remark,
)
from perfdag.hosts.base import (
    CommandResult as CommandResult,
    Failed as Failed,
    Host as Host,
    Infrastructure as Infrastructure,
    Invalid as Invalid,
    SampleError as SampleError,
    Skip as Skip,
    install_command,
)
from perfdag.problems import Form as Form, Problem as Problem
from perfdag.shape import RDMA_WANTED as RDMA_WANTED, Shape as Shape, Strict
from perfdag.stats.robust import needed as needed
from perfdag.units import Duration as Duration, PositiveDuration as PositiveDuration, Size as Size

if TYPE_CHECKING:
    import pyarrow

Better = Literal["higher", "lower", "none"]
Network = Literal["none", "spread", "pairs", "services"]
MIN_TIMEOUT = 60.0
CLOCK = re.compile(r"Clock:\s*(.+?)(?:\n\s*\n|\Z)", re.S)
"""The paragraph of a docstring that says what starts and stops the clock."""
SIMULATED = "simulated nodes"
"""`Output.tool` of a sample on simulated nodes, whose figures describe the control plane alone."""


VERDICT = "verdict"
"""The metric of a benchmark's own verdict."""
VerdictWord = Literal["failed", "inconclusive", "passed"]
VERDICT_VALUES: dict[VerdictWord, float] = {"failed": 0.0, "inconclusive": 0.5, "passed": 1.0}


def verdict(
    value: VerdictWord, rule: str, note: str, coords: Mapping[str, Any] | None = None
) -> Measurement:
    """Return the verdict of a benchmark by one of its rules; `note` has the figure that decided."""
    return Measurement(VERDICT, VERDICT_VALUES[value], coords=coords or {}, subject=rule, note=note)


SHARE = "share"
"""What a metric in 1 counts whose values are shares of a whole."""
ShortForm = str | Mapping[str, str]
"""A setting for people: a text with {} for the value (`depth {}`), or the text of each value.

A text that ends in s loses it where the value is 1 (`{} streams`). A value without a text in a
mapping is written as in a suite, as is a setting without a short form.
"""


@dataclass(frozen=True)
class Metric:
    """A figure that a benchmark measures. `unit` is an SI base unit: s, B, B/s, bit/s, 1/s or 1.

    `nominal`: between nodes it is compared with the speed of the NIC. A sample with a value below
    `lowest` or above `highest` is failed. One whose headline the tool knows to less than 1 part in
    `steps` is invalid (`Measurement.step`). `counts` says what a metric in 1/s counts, for people:
    its values are `samples/s` where it is `samples`, and IOPS where it is `I/Os`. A metric in 1
    that counts a `share` of a whole is read in %. A time that is not `elapsed` may exceed the wall
    time of its sample: it is a sum over processes, or estimated. `label` is what people call it
    where the name with spaces is no good English; a coordinate in braces stands for its short form:
    `{direction} IOPS`. `claim` is what a first run says of its best value, and of a share that of
    the longest sweep: `MPI starts in {value}`. `in_table` is a statistic that stands beside the
    headlines in a terminal.
    """

    name: str
    unit: str
    better: Better
    about: str
    headline: bool = False
    nominal: bool = False
    lowest: float = 0.0
    highest: float = math.inf
    steps: int = 100
    counts: str = ""
    elapsed: bool = True
    label: str = ""
    claim: str = ""
    in_table: str = ""


def own_verdict(about: str) -> Metric:
    """Return the metric of a benchmark's own verdict, for benchmarks whose values have a `verdict`.

    `about` says what it means, such as `every gate holds`.
    """
    return Metric(VERDICT, "1", "higher", about, highest=1)


class Params(Strict):
    """Base of every benchmark's parameters. Unknown keys are refused, and values are immutable."""

    retired: ClassVar[Mapping[str, Any]] = {}
    """Removed parameters with their defaults, which stay in the ids of points: history goes on."""

    def problems(self) -> Iterator[Problem]:
        """Yield the parameters that contradict one another: one `if` and one text for each rule."""
        yield from ()

    @model_validator(mode="after")
    def _without_problems(self) -> Self:
        for problem in self.problems():
            raise PydanticCustomError(problem.code, "{text}", {"text": problem.text})
        return self

    @property
    def only_in_ids(self) -> Mapping[str, Any]:
        """What is no parameter but stays in the id of a point: by default what is retired."""
        return self.retired

    @property
    def directions(self) -> int:
        """In how many directions at once the data of a `nominal` metric flows."""
        return 1

    @property
    def uses_api(self) -> bool:
        """Whether a sample uses the Kubernetes rights that its benchmark declares."""
        return True

    @classmethod
    def declared(cls, params: Mapping[str, Any]) -> tuple[Metric, ...]:
        """Return the metrics that params of a suite declare; they replace others of their name."""
        return ()


P = TypeVar("P", bound=Params)


@dataclass(frozen=True)
class Tool:
    """A program that a benchmark needs, and its packages by package manager.

    `advice` tells how to install a program that no package contains.
    """

    program: str
    packages: Mapping[str, str]
    advice: str = ""

    @property
    def remedy(self) -> str:
        """How to install it here."""
        return self.advice or install_command(self.packages)


@dataclass
class Output:
    """The output of the tools in one sample.

    `texts` holds the verbatim output by role (client, server ...), and what else `parse` needs.
    `argv` has the commands, `tool` the tool and its version, `facts` what the benchmark verified.
    Where `comparable` is false, another `tool` begins another series. `notes` are lines that a
    reader of the figures should know.
    """

    texts: dict[str, str] = field(default_factory=dict)
    argv: list[list[str]] = field(default_factory=list)
    tool: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    comparable: bool = True
    notes: list[str] = field(default_factory=list)


@dataclass
class Gang:
    """The hosts of a sample, rank 0 first, and the limits of the sample.

    `timeout` is in seconds for the whole sample. `volume` is the mount point of shape.volume, or
    None. `starter` is the host of the lead, the only one that reaches others by `perfdag step rsh`.
    None stands for the first host. A pair of a larger gang may not contain it. `output` is what
    `run` has of the tools so far: it is stored with the sample, a failed one too.
    """

    hosts: Sequence[Host]
    shape: Shape
    timeout: float
    folder: str
    volume: str | None = None
    output: Output = field(default_factory=Output)
    starter: Host | None = None
    used_scratch: bool = False

    @property
    def scratch(self) -> str:
        """A folder on every host that is empty at the start, and removed at the end if used."""
        self.used_scratch = True
        return self.folder

    @property
    def lead(self) -> Host:
        """The host that starts programs which span several hosts."""
        return self.starter or self.hosts[0]


def rbac_rule(groups: str, resources: str, verbs: str, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return a rule of Kubernetes' RBAC, whose texts have several values separated by a space.

    The core group is the empty text. `names` are those of the only objects that it is about.
    """
    rule: dict[str, Any] = {"apiGroups": groups.split(" "), "resources": resources.split(" ")}
    if names:
        rule["resourceNames"] = [*names]
    return {**rule, "verbs": verbs.split(" ")}


@dataclass(frozen=True)
class Rights:
    """Kubernetes RBAC rules of the pods of a benchmark, by where they hold."""

    named: tuple[dict[str, Any], ...] = ()
    """In the namespaces that `install --allow NAME=NAMESPACES` names."""
    default: tuple[dict[str, Any], ...] = ()
    """In the namespace `default`."""
    cluster: tuple[dict[str, Any], ...] = ()
    """In the whole cluster: reads, and kinds without a namespace."""

    @property
    def creates(self) -> bool:
        """Whether the pods create objects in the named namespaces."""
        return any(
            "create" in rule["verbs"] and any("/" not in name for name in rule["resources"])
            for rule in self.named
        )


class NotInstalled(Skip):
    """A host lacks `tools`. The message says how to install each."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        reasons = (f"{tool.program} is not installed ({tool.remedy})" for tool in tools)
        super().__init__("; ".join(reasons))
        self.tools = tools


def need_tools(hosts: Sequence[Host], tools: Sequence[Tool]) -> None:
    """Raise NotInstalled if a host lacks one of the tools."""
    missing = [tool for tool in tools if any(host.which(tool.program) is None for host in hosts)]
    if missing:
        raise NotInstalled(missing)


class Benchmark(ABC, Generic[P]):
    """Base class of benchmarks: `class Iperf(Benchmark[IperfParams])`.

    The docstring of a subclass has a paragraph `Clock:` that says what starts and stops the clock.
    """

    name: str = ""
    """That of its entry point, which is set where it is loaded."""
    Params: type[P]
    """The class in brackets: parameters that a suite gives."""
    metrics: ClassVar[tuple[Metric, ...]]
    version: ClassVar[int] = 1
    """A higher one begins new series, as the figures are no longer comparable."""
    coords: ClassVar[tuple[str, ...]] = ()
    """Names of the coordinates that its values have, which a check can select by."""
    sizes: ClassVar[tuple[str, ...]] = ()
    """The coordinates that are sizes in bytes. A parameter that is one is annotated `Size`."""
    short_forms: ClassVar[Mapping[str, ShortForm]] = {}
    """Parameters and coordinates for people, in the order in which they are read.

    `metric_label` and `point_label` of perfdag.benchmark.registry make the texts of every surface.
    """
    tools: ClassVar[tuple[Tool, ...]] = ()
    remarks: ClassVar[tuple[Remark, ...]] = ()
    """Lines of its tools that spoil a sample or explain it, although the figures are whole."""
    network: ClassVar[Network] = "none"
    """What it uses of the network between its hosts, each more than the one before.

    `spread`: a cluster puts several hosts on different nodes if the suite does not say where.
    `pairs`: it measures between two hosts, so hosts.pairs may run it over the pairs of a gang;
    `check` and `run` then get two hosts. `services`: a client and a server, two hosts, and a
    Service may be between them, as `network.path` says; `run` then binds the server to
    `host.address` at a port of `host.free_port`, and connects to `host.target`.
    """
    pins: ClassVar[tuple[str, ...]] = ()
    """Roles in hosts.cpus (client, server) that `run` pins. Other roles in a suite are refused."""
    canaries: ClassVar[tuple[str, ...]] = ("cpu",)
    """Canaries (cpu, memory, loopback, disk) that its figures depend on.

    If one of them changes with a figure, the machine changed.
    """
    api: ClassVar[Rights] = Rights()
    """Kubernetes rights that a pod of this benchmark needs."""

    def __init_subclass__(cls) -> None:
        for base in vars(cls).get("__orig_bases__", ()):
            for argument in get_args(base):
                if isinstance(argument, type) and issubclass(argument, Params):
                    cls.Params = cast("type[P]", argument)

    def shape(self, params: P) -> dict[str, Any]:
        """Return the shape keys that this benchmark needs with these params, such as its `image`.

        The suite's keys override them, except `privileges`, which are added to these. An empty list
        of privileges in the suite removes them.
        """
        return {}

    def check(self, params: P, shape: Shape) -> Iterable[Problem]:
        """Yield why params and shape cannot be measured together. Each text names what is allowed.

        What concerns the params alone is said by their `problems`.
        """
        if shape.network.forwarded and getattr(params, "port", None):
            yield Problem("own-port", "port: a Service forwards ports of its own; leave port out")

    def identities(self, params: P) -> Iterable[Identity]:
        """Return relations that the figures of a sample with these params always have.

        A sample that breaks one is invalid, because its tool contradicts itself.
        """
        return ()

    def gpus(self, params: P) -> int | None:
        """Return how many GPUs of a host a sample can use; None if as many as the host has."""
        return None

    @abstractmethod
    def seconds(self, params: P) -> float:
        """Return the expected wall time of one sample in seconds."""

    def limit(self, params: P) -> float:
        """Return the timeout in seconds of a sample for which the suite sets none.

        The default is five times the expected time, at least a minute. A benchmark with waiting
        times in its params overrides this, so that it can reach its own limits first.
        """
        return max(MIN_TIMEOUT, 5 * self.seconds(params))

    def require(self, gang: Gang, params: P) -> None:
        """Check quickly that the hosts can measure the params. Raises Skip, which says what to do.

        Each sample begins with it. Without an override the hosts need the `tools`. It may name in
        `gang.output.tool` which one of several programs the benchmark takes, for `perfdag doctor`.
        """
        need_tools(gang.hosts, self.tools)

    @abstractmethod
    def run(self, gang: Gang, params: P) -> list[Measurement]:
        """Measure once, and return the values in base units.

        `gang.output` has the output of the tools before they are read. No process and no file
        remains. Raises Failed if a value that the params imply is missing, Invalid if the tool
        measured something else than the params say, Skip or Infrastructure.
        """

    def exports(self, rows: "pyarrow.Table") -> Mapping[str, bytes]:
        """Return further result files of this benchmark for a run, as name to content.

        `rows` are its rows of the run in the columns of results.schema.SAMPLES. Equal rows give
        equal files.
        """
        return {}

    @classmethod
    def clock(cls) -> str:
        """Return the docstring's Clock: paragraph."""
        clock = CLOCK.search(cls.__doc__ or "")
        return " ".join(clock[1].split()) if clock else ""

    @classmethod
    def summary(cls) -> str:
        """Return the docstring's first line."""
        return (cls.__doc__ or "").strip().split("\n")[0]


def metrics_by_name(
    benchmark: Benchmark[Any], params: Mapping[str, Any] | None = None
) -> dict[str, Metric]:
    """Return the metrics of a benchmark with params as a suite has them."""
    declared = benchmark.Params.declared(params or {})
    return {metric.name: metric for metric in (*benchmark.metrics, *declared)}


_START = re.compile(r"(?:\A\ufeff?\s*|^)([{\[])", re.M)
_END = re.compile(r"[^\S\n]*$", re.M)


def argv_of(options: Mapping[str, object]) -> list[str]:
    """Return the options of a command that have a value; True is an option without one.

    What is None or False is left out.
    """
    argv = []
    for option, value in options.items():
        if value is True:
            argv.append(option)
        elif value is not None and value is not False:  # 0 is a value
            argv += [option, str(value)]
    return argv


def read_report(tool: str, text: str) -> Any:
    """Return the JSON object, or the list, that has whole lines of `text` for itself.

    A line such as `[WARN] ...` is text. Raises Failed where no report is whole, and where there are
    several.
    """
    reports = []
    problem = "no { or [ begins a line"
    at = 0
    while start := _START.search(text, at):
        at = start.end()
        try:
            report, end = json.JSONDecoder().raw_decode(text, start.start(1))
        except (ValueError, RecursionError) as error:
            problem = str(error)
        else:
            problem = "text follows it on its line"
            if _END.match(text, end):
                reports.append(report)
                at = end
                continue
        if start[1] == "{":  # what is behind its cut or garbled part may look like a report
            break
    else:
        if len(reports) == 1:
            return reports[0]
        problem = f"{len(reports)} reports, and not one" if reports else problem
    raise Failed(f"{tool} printed no JSON ({problem}): {text[-200:].strip() or 'nothing at all'}")


def bins(metric: str, coordinate: str, durations: Sequence[float], limit: int) -> list[Measurement]:
    """Return the mean of `durations` (s) in at most `limit` bins, in their order.

    They show drift and outliers that a total hides. The coordinate is the number of the last value
    of a bin, from 1.
    """
    count = min(limit, len(durations))
    bounds = [len(durations) * number // count for number in range(count + 1)] if count else []
    return [
        Measurement(metric, sum(durations[a:b]) / (b - a), "mean", {coordinate: b}, n=b - a)
        for a, b in pairwise(bounds)
    ]
