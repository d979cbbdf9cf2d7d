"""The models of a suite file, and what loading one returns.

`perfdag plan --schema` prints the JSON schema.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from perfdag.benchmark import registry
from perfdag.shape import Shape
from perfdag.store.open import check_address
from perfdag.suite.checks import Check
from perfdag.suite.yaml_document import Document, Where
from perfdag.units import Duration, PositiveDuration

SuiteName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
EntryName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?$")
]
Condition = Any


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Until(_Strict):
    """Repeat a point until its headline's median is certain enough.

    `relative_spread` is the half-width of the 95 % interval of the median, as a fraction of the
    median.
    """

    relative_spread: float = Field(
        gt=0,
        lt=1,
        description="half-width of the 95 % interval of the median, as a share of the median",
    )
    max_repetitions: int = Field(
        ge=6, le=1000, description="at least 6: fewer samples give no interval of 95 %"
    )


class Permutations(_Strict):
    """The combinations of values of an entry.

    A name is a parameter, or a shape key with dots (`network.host`).
    """

    product: dict[str, list[Any]] = Field({}, description="every combination of these values")
    zip: dict[str, list[Any]] = Field(
        {}, description="values taken side by side; all lists of one length"
    )
    explicit: list[dict[str, Any]] = Field(
        [], description="added points; alone: exactly these points"
    )
    exclude: list[dict[str, Condition]] = Field(
        [],
        description="points of product and zip to leave out: for each name a value, "
        "a list or {lt|le|gt|ge|ne: value}; all must hold",
    )


Repetitions = Annotated[int, Field(ge=1, le=1000)]


class Settings(Shape):
    """What `defaults` and every entry may set.

    Keys of the shape (network, hosts, resources ...) stand beside `params`.
    """

    params: dict[str, Any] = Field({}, description="parameters of the benchmark")
    repetitions: Repetitions | None = Field(None, description="samples of each point")
    until: Until | None = Field(None, description="repeat a point until it is certain enough")
    timeout: PositiveDuration | None = Field(None, description="of one sample; unset: the suite's")
    retries: Annotated[int, Field(ge=0, le=10)] | None = Field(
        None, description="unset: those of the suite"
    )
    optional: bool | None = Field(
        None,
        description="true: no gate fails because a point was never measured, as its tool is absent",
    )


ENTRY_KEYS = frozenset(Settings.model_fields) - frozenset(Shape.model_fields) - {"params"}


class Entry(Settings):
    """One benchmark with fixed params and permutations."""

    benchmark: str = Field(description="name of the benchmark, as `perfdag benchmarks` lists it")
    name: EntryName | None = Field(None, description="name of the entry; unset: the benchmark's")
    permutations: Permutations = Field(
        Permutations(), description="values to vary; each combination is a point"
    )


class Suite(_Strict):
    """A suite of benchmarks."""

    name: SuiteName = Field(
        description="name of the suite in the store; its history continues under this name"
    )
    description: str = Field("", description="text for the readers of the file")
    store: Annotated[str, AfterValidator(check_address)] | None = Field(
        None,
        description="folder, s3://bucket/prefix or claim://NAME; default ./perfdag-results, "
        "in pods the installation's; `argo submit` does not look at it",
    )
    repetitions: Repetitions = Field(
        1, description="rounds; each one measures every point once, in shuffled order"
    )
    seed: int = Field(0, ge=0, description="seed of the order of the points in each round")
    warmup: int = Field(0, ge=0, le=100, description="rounds measured and stored but not analysed")
    timeout: PositiveDuration | None = Field(
        None, description="of one sample; default: five times its expected time, at least 60 s"
    )
    retries: int = Field(
        1,
        ge=0,
        le=10,
        description="how often a sample is tried again after a fault of the infrastructure",
    )
    budget: PositiveDuration | None = Field(
        None,
        description="wall time after which no further sample starts; "
        "on a cluster it counts from the plan step",
    )
    isolation: Literal["batch", "pod"] = Field(
        "batch", description="pod: every sample in pods of its own"
    )
    rounds_per_batch: int | None = Field(
        None,
        ge=1,
        description="rounds measured in the same pods; "
        "default 1 where the plan has several shapes, else all",
    )
    batch_time: PositiveDuration = Field(
        600.0, description="expected time after which a batch is cut"
    )
    pending_limit: Duration = Field(600.0, description="how long a gang may wait for all its pods")
    priority: int = Field(
        0,
        description="on a cluster, the waiting run with the highest priority starts next; "
        "above 0, its pods preempt pods of lower priority",
    )
    defaults: Settings = Field(Settings(), description="settings of every entry that sets no other")
    include: str | list[str] = Field(
        [], description="suite files whose entries come first, relative to this file"
    )
    entries: list[Entry] = Field([], description="what to measure")
    checks: list[Check] = Field([], description="rules for the results of a run")


@dataclass
class Source:
    """An entry as written, its place, the `defaults` of its own file, and what `--set` fixes.

    `raw` and `raw_defaults` are the mappings as written. `sets` are the parameters and shape keys
    that `--set` fixes, `set_keys` the paths of the entry's other keys that it replaced. `refused`
    names keys of the entry or its defaults that are wrong. They are left out of `entry`, so that
    the rest can be checked and all mistakes are reported at once. A suite with such an entry is
    never measured.
    """

    entry: Entry
    raw: dict[str, Any]
    defaults: Settings
    raw_defaults: dict[str, Any]
    document: Document
    path: Where
    name: str
    sets: dict[str, Any] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    set_keys: set[Where] = field(default_factory=set)

    @property
    def partial(self) -> bool:
        """Whether params or shape keys were refused, which may have held a missing value."""
        return not self.refused <= ENTRY_KEYS | {"name"}

    def is_set(self, path: Where) -> bool:
        """Return whether `--set` gave the value at `path`."""
        return path[:1] in self.set_keys or any(
            tuple(name.split(".")) == path[: name.count(".") + 1] for name in self.sets
        )


@dataclass
class LoadedSuite:
    """A suite file read and checked, with its includes resolved.

    Its entries are not yet enumerated.

    `incomplete` is True if an entry could not be read at all. `notes` are sentences about what is
    valid but may surprise.
    """

    suite: Suite
    document: Document
    sources: list[Source] = field(default_factory=list)
    incomplete: bool = False
    notes: list[str] = field(default_factory=list)

    def known_sources(self) -> list[Source]:
        """Return the entries whose benchmark is installed."""
        return [source for source in self.sources if registry.usable(source.entry.benchmark)]
