"""The contract of a benchmark: one class in one module, found through the entry-point group `perfdag.benchmarks`.

A benchmark says what it takes (`Params`), what it needs (`shape`, `tools`), how it is run against hosts (`run`) and how the tool's output
is read (`parse`). `run` and `parse` are apart so that a recorded output of the real tool tests the parser.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from perfdag.hosts.base import Host
from perfdag.outcome import Measurement
from perfdag.shape import Shape

if TYPE_CHECKING:
    import pyarrow

Better = Literal["higher", "lower", "none"]

MIN_TIMEOUT = 60.0

SIMULATED = "simulated nodes"
"""What `Output.tool` says of a sample whose nodes run nothing: its figures are of the control plane alone."""


class Params(BaseModel):
    """Base of every benchmark's parameters: unknown keys are refused, values are fixed once read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


P = TypeVar("P", bound=Params)


@dataclass(frozen=True)
class Metric:
    """A figure that a benchmark yields. `unit` is an SI base unit: s, B, B/s, bit/s, 1/s or 1."""

    name: str
    unit: str
    better: Better
    about: str
    headline: bool = False


@dataclass(frozen=True)
class Tool:
    """A program that must be there, and the packages that bring it (package manager -> package); `advice` where none does so here."""

    program: str
    packages: Mapping[str, str]
    advice: str = ""


@dataclass
class Output:
    """What the tools said in one sample, verbatim: `texts` by role (client, server ...), the argv run, tool and version, facts verified."""

    texts: dict[str, str]
    argv: list[list[str]] = field(default_factory=list)
    tool: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Gang:
    """The hosts of a sample, rank 0 first, and what bounds it.

    `timeout` is in seconds for the whole sample; `scratch` is a folder, empty at start, on every host; `volume` is where shape.volume is
    mounted (None: no volume). `starter` is where the lead runs and from where alone other hosts are reached by `perfdag step rsh`; None:
    the first host. A pair of a larger gang need not hold it.
    """

    hosts: Sequence[Host]
    shape: Shape
    timeout: float
    scratch: str
    volume: str | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    starter: Host | None = None

    @property
    def lead(self) -> Host:
        """Where launchers of several hosts are started."""
        return self.starter or self.hosts[0]


class Benchmark(ABC, Generic[P]):
    """Base class. The docstring of a subclass has a line `Clock:` that says what starts and what stops the clock."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    metrics: ClassVar[tuple[Metric, ...]]
    tools: ClassVar[tuple[Tool, ...]] = ()
    image: ClassVar[str] = "base"
    pairwise: ClassVar[bool] = False
    """Measures between two hosts, so hosts.pairs may run it over the pairs of a gang; `check` and `run` see two hosts."""
    pins: ClassVar[tuple[str, ...]] = ()
    """Sides of hosts.cpus (client, server) that `run` pins; a suite that asks for another is refused."""
    canaries: ClassVar[tuple[str, ...]] = ("cpu",)
    """Canaries (cpu, memory, loopback, disk) of what its figures lean on: where one of them moves as well, the machine changed."""
    api: ClassVar[tuple[dict[str, Any], ...]] = ()
    """Kubernetes RBAC rules a pod of this benchmark needs; none for most."""
    Params: ClassVar[type[Params]]

    def shape(self, params: P) -> dict[str, Any]:
        """Shape keys this benchmark asks for with these params; the suite's own keys are laid over them, but `privileges` are put beside these,
        and only an empty list takes them away.
        """
        return {}

    def uses_api(self, params: P) -> bool:
        """Whether a sample with these params uses the rights of `api`."""
        return bool(self.api)

    def check(self, params: P, shape: Shape) -> list[str]:
        """Why params and shape together cannot be measured (empty: they can). Each text names the allowed values."""
        return []

    @abstractmethod
    def seconds(self, params: P) -> float:
        """Expected wall time of one sample in seconds."""

    def least_seconds(self, params: P) -> float:
        """Seconds that the tool runs by these params on any machine (0: none is sure); a `timeout` not longer fails every sample."""
        return 0.0

    def limit(self, params: P) -> float:
        """Seconds after which a sample is given up where the suite sets no `timeout`: five times what is expected, a minute at least.

        A benchmark whose params say how long it waits says so here, or it would be ended before it may give up by itself.
        """
        return max(MIN_TIMEOUT, 5 * self.seconds(params))

    def longest(self, params: P, timeout: float) -> float:
        """Seconds that one attempt at a sample may take where each command may take `timeout` seconds: one that runs several says so here."""
        return timeout

    def missing(self, gang: Gang, params: P) -> list[Tool]:
        """Tools that are not on the gang's hosts."""
        return [
            tool
            for tool in self.tools
            if any(host.which(tool.program) is None for host in gang.hosts)
        ]

    def prepare(self, gang: Gang, params: P) -> None:
        """Work before a sample that is outside the clock (prefill, mesh). Raises SampleError."""
        return

    @abstractmethod
    def run(self, gang: Gang, params: P) -> Output:
        """Measure once. Raises Failed, Skip, Invalid or Infrastructure; leaves nothing running and no file behind."""

    @abstractmethod
    def parse(self, output: Output, params: P) -> list[Measurement]:
        """Values in base units. Raises Failed where a row that the params imply is absent, Invalid where it is not what was asked."""

    def series(self, output: Output) -> str:
        """What of the tool's version belongs to the series, for example `iperf3 3.12`; empty where versions are comparable."""
        return ""

    def provenance(self, gang: Gang, params: P) -> dict[str, Any]:
        """Facts about what is measured beyond the hosts' own: the file system of a target, a device."""
        return {}

    def exports(self, rows: "pyarrow.Table") -> Mapping[str, bytes]:
        """Files that people expect of this benchmark beside a run's report (name -> content); `rows` are its own of one run, as
        results.SAMPLES has them. Equal rows give equal files.
        """
        return {}

    @classmethod
    def clock(cls) -> str:
        """The docstring's Clock: paragraph."""
        found = re.search(r"Clock:\s*(.+?)(?:\n\s*\n|\Z)", cls.__doc__ or "", re.S)
        return " ".join(found[1].split()) if found else ""

    @classmethod
    def summary(cls) -> str:
        """The docstring's first line."""
        return (cls.__doc__ or "").strip().split("\n")[0]

    def metric(self, name: str) -> Metric:
        """The declared metric of that name. Raises KeyError."""
        return _by_name(type(self))[name]


@cache
def _by_name(cls: type[Benchmark[Any]]) -> dict[str, Metric]:
    return {metric.name: metric for metric in cls.metrics}
