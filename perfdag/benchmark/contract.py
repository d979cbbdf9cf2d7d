"""The contract of a benchmark.

A benchmark declares its parameters (`Params`) and requirements (`shape`, `tools`). It runs the tool
on hosts (`run`) and reads the tool's output (`parse`). `run` and `parse` are separate, so that a
recorded output of the real tool tests the parser.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from perfdag.hosts.base import Host
from perfdag.outcome import VERDICT, Measurement
from perfdag.shape import Placement, Shape

Rule = tuple[object, str]
"""A condition and the message if it is true."""


def broken(*rules: Rule) -> list[str]:
    """Return the messages of the rules whose condition is true."""
    return [message for condition, message in rules if condition]


def refuse(*rules: Rule) -> None:
    """Raise ValueError with the message of the first rule whose condition is true."""
    for message in broken(*rules):
        raise ValueError(message)


if TYPE_CHECKING:
    import pyarrow

Better = Literal["higher", "lower", "none"]
MIN_TIMEOUT = 60.0
SIMULATED = "simulated nodes"
"""`Output.tool` of a sample on simulated nodes, whose figures describe the control plane alone."""


class Params(BaseModel):
    """Base of every benchmark's parameters. Unknown keys are refused, and values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    retired: ClassVar[Mapping[str, Any]] = {}
    """Removed parameters with their defaults, which stay in the ids of points: history goes on."""


P = TypeVar("P", bound=Params)


@dataclass(frozen=True)
class Metric:
    """A figure that a benchmark measures. `unit` is an SI base unit: s, B, B/s, bit/s, 1/s or 1.

    `nominal`: between nodes it is compared with the speed of the NIC. A sample with a value below
    `lowest` or above `highest` is failed.
    """

    name: str
    unit: str
    better: Better
    about: str
    headline: bool = False
    nominal: bool = False
    lowest: float = 0.0
    highest: float = math.inf


@dataclass(frozen=True)
class Tool:
    """A program that a benchmark needs, and its packages by package manager.

    `advice` tells how to install a program that no package contains.
    """

    program: str
    packages: Mapping[str, str]
    advice: str = ""


@dataclass
class Output:
    """The output of the tools in one sample.

    `texts` holds the verbatim output by role (client, server ...), `argv` the commands, `tool` the
    tool and its version, `facts` what the benchmark verified.
    """

    texts: dict[str, str]
    argv: list[list[str]] = field(default_factory=list)
    tool: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Gang:
    """The hosts of a sample, rank 0 first, and the limits of the sample.

    `timeout` is in seconds for the whole sample. `scratch` is a folder on every host that is empty
    at the start. `volume` is the mount point of shape.volume, or None. `starter` is the host of the
    lead, the only one that reaches others by `perfdag step rsh`. None stands for the first host. A
    pair of a larger gang may not contain it. `journal` keeps a file (FOLDER/NAME) in the store
    until the sample is stored, so that a killed benchmark loses nothing.
    """

    hosts: Sequence[Host]
    shape: Shape
    timeout: float
    scratch: str
    volume: str | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    starter: Host | None = None
    journal: Callable[[str, bytes], None] | None = None

    @property
    def lead(self) -> Host:
        """The host that starts programs which span several hosts."""
        return self.starter or self.hosts[0]


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


class Benchmark(ABC, Generic[P]):
    """Base class of benchmarks.

    The docstring of a subclass has a paragraph `Clock:` that says what starts and stops the clock.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    metrics: ClassVar[tuple[Metric, ...]]
    coords: ClassVar[tuple[str, ...]] = ()
    """Names of the coordinates that `parse` gives to rows, which a check can select by."""
    tools: ClassVar[tuple[Tool, ...]] = ()
    image: ClassVar[str] = "base"
    pairwise: ClassVar[bool] = False
    """Measures between two hosts, so hosts.pairs may run it over the pairs of a gang.

    `check` and `run` then get two hosts.
    """
    forwardable: ClassVar[bool] = False
    """Whether a Service may be between client and server, as `network.path` says.

    `run` then binds the server to `host.address` at a port of `host.free_port`, and connects to
    `host.target`.
    """
    placement: ClassVar[Placement] = "any"
    """Where a cluster puts several hosts if the suite does not say.

    A benchmark that measures the network between hosts has `spread`.
    """
    pins: ClassVar[tuple[str, ...]] = ()
    """Roles in hosts.cpus (client, server) that `run` pins. Other roles in a suite are refused."""
    canaries: ClassVar[tuple[str, ...]] = ("cpu",)
    """Canaries (cpu, memory, loopback, disk) that its figures depend on.

    If one of them changes with a figure, the machine changed.
    """
    verdict: ClassVar[str] = ""
    """What the benchmark's own verdict says, where it has one, such as `every gate holds`.

    `parse` then returns `outcome.verdict` for each rule.
    """
    api: ClassVar[Rights] = Rights()
    """Kubernetes rights that a pod of this benchmark needs."""
    Params: ClassVar[type[Params]]

    def shape(self, params: P) -> dict[str, Any]:
        """Return the shape keys that this benchmark needs with these params.

        The suite's keys override them, except `privileges`, which are added to these. An empty list
        of privileges in the suite removes them.
        """
        return {}

    def uses_api(self, params: P) -> bool:
        """Return whether a sample with these params uses the rights of `api`."""
        return bool(self.api.named)

    def check(self, params: P, shape: Shape) -> list[str]:
        """Return why params and shape cannot be measured together, or an empty list.

        Each text names the allowed values.
        """
        return []

    @abstractmethod
    def seconds(self, params: P) -> float:
        """Return the expected wall time of one sample in seconds."""

    def least_seconds(self, params: P) -> float:
        """Return the seconds that the tool runs at least with these params; 0 if unknown.

        A `timeout` that is not longer would fail every sample.
        """
        return 0.0

    def limit(self, params: P) -> float:
        """Return the timeout in seconds of a sample for which the suite sets none.

        The default is five times the expected time, at least a minute. A benchmark with waiting
        times in its params overrides this, so that it can reach its own limits first.
        """
        return max(MIN_TIMEOUT, 5 * self.seconds(params))

    def missing(self, gang: Gang, params: P) -> list[Tool]:
        """Return the tools that a host of the gang lacks."""
        return [
            tool
            for tool in self.tools
            if any(host.which(tool.program) is None for host in gang.hosts)
        ]

    def require(self, gang: Gang, params: P) -> None:
        """Check quickly that the hosts can measure the params; the tools are there.

        `prepare` or `run` checks the same. Raises Skip, which says what to do.
        """

    def prepare(self, gang: Gang, params: P) -> None:
        """Do the work before a sample that is not timed (prefill, mesh). Raises SampleError."""

    @abstractmethod
    def run(self, gang: Gang, params: P) -> Output:
        """Measure once. Raises Failed, Skip, Invalid or Infrastructure.

        No process and no file remains.
        """

    @abstractmethod
    def parse(self, output: Output, params: P) -> list[Measurement]:
        """Return the values in base units.

        Raises Failed if a row that the params imply is missing, Invalid if the tool measured
        something else than the params say.
        """

    def directions(self, params: P) -> int:
        """Return in how many directions at once the data of a `nominal` metric flows."""
        return 1

    def series(self, output: Output) -> str:
        """Return the part of the tool's version that identifies the series, such as `iperf3 3.12`.

        Empty if versions are comparable.
        """
        return ""

    def provenance(self, gang: Gang, params: P) -> dict[str, Any]:
        """Return facts beyond those of the hosts: the file system of a target, a device."""
        return {}

    def exports(self, rows: "pyarrow.Table") -> Mapping[str, bytes]:
        """Return further result files of this benchmark for a run, as name to content.

        `rows` are its rows of the run in the columns of results.schema.SAMPLES. Equal rows give
        equal files.
        """
        return {}

    @classmethod
    def clock(cls) -> str:
        """Return the docstring's Clock: paragraph."""
        clock = re.search(r"Clock:\s*(.+?)(?:\n\s*\n|\Z)", cls.__doc__ or "", re.S)
        return " ".join(clock[1].split()) if clock else ""

    @classmethod
    def summary(cls) -> str:
        """Return the docstring's first line."""
        return (cls.__doc__ or "").strip().split("\n")[0]

    def declared_metrics(self, params: Mapping[str, Any] | None = None) -> Mapping[str, Metric]:
        """Return the declared metrics by name, with that of the benchmark's own verdict.

        A benchmark whose params declare metrics overrides this. `params` are as a suite has them.
        """
        return _by_name(type(self))


@cache
def _by_name(cls: type[Benchmark[Any]]) -> dict[str, Metric]:
    own = (Metric(VERDICT, "1", "higher", cls.verdict, highest=1),) if cls.verdict else ()
    return {metric.name: metric for metric in (*cls.metrics, *own)}
