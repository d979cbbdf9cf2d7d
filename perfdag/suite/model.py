"""The models of a suite file, and what loading one returns.

`perfdag plan --schema` prints the JSON schema.
"""

import fnmatch
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from perfdag.benchmark import registry
from perfdag.problems import Form
from perfdag.shape import Shape, Strict
from perfdag.store.base import check_address
from perfdag.suite.document import (
    Document,
    Problem,
    Where,
    dotted,
    parse_document,
    validated,
)
from perfdag.units import Duration, PositiveDuration, quantity


class Threshold(float):
    """A threshold in base units. `unit` is the unit it was written in, empty for a bare number."""

    unit: str

    def __new__(cls, value: float, unit: str = "") -> "Threshold":
        """Return a float that remembers its unit."""
        threshold = super().__new__(cls, value)
        threshold.unit = unit
        return threshold


def _threshold(value: Any) -> Threshold:
    """Return a number, or text such as `15ms` or `9Gbit/s`, as a threshold. Raises ValueError."""
    if isinstance(value, str):
        return Threshold(*quantity(value))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"must be a number or text such as 15ms, 9Gbit/s, 20k/s, not {value!r}")
    return Threshold(value)


def _share(text: Any) -> Any:
    """Return `5%` as 0.05. Other values pass unchanged."""
    if isinstance(text, str) and text.rstrip().endswith("%"):
        try:
            return float(text.strip()[:-1]) / 100
        except ValueError:
            raise ValueError(f"not a share: {text!r}; write it as 5% or 0.05") from None
    return text


def share(text: str) -> float:
    """Return `5%`, `0.05` or `150%` as a share above zero. Raises ValueError.

    A bare number of 1 or more is refused, because it was probably meant in percent.
    """
    try:
        value = float(_share(text))
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"not a share: {text!r}; write it as 5% or 0.05")
    if value >= 1 and "%" not in text:
        raise ValueError(
            f"{text!r} would be {value * 100:g} %; write 5% or 0.05, and 100% or more with its %"
        )
    return value


_TEXT_OR_NUMBER = WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}]})
Quantity = Annotated[Threshold, PlainValidator(_threshold), _TEXT_OR_NUMBER]
Share = Annotated[float, Field(gt=0), BeforeValidator(_share), _TEXT_OR_NUMBER]


Scalar = bool | int | float | str


class Check(Strict):
    """A rule for a metric: a threshold (`op` with `value` or `ratio`), detector tuning, or both."""

    entry: str | None = Field(
        None, description="entry name or glob; unset: every entry that has the metric"
    )
    metric: str = Field(description="metric name or glob")
    stat: str | None = Field(
        None,
        description="value, mean, p50, p99, max ...; "
        "unset: every one for tuning, value for a threshold",
    )
    where: dict[str, Scalar | list[Scalar]] = Field(
        {},
        description="parameters, dotted shape keys and coordinates: "
        "only series with one of these values of each",
    )
    cluster: str | None = Field(
        None, description="name or glob; only runs of such a cluster (unset: of any, or none)"
    )
    op: Literal["<", "<=", ">", ">="] | None = Field(
        None, description="what must hold: measured OP threshold"
    )
    value: Quantity | None = Field(
        None,
        description="absolute threshold in the metric's base unit, "
        "or as 15ms, 9Gbit/s, 4KiB, 20k/s",
    )
    ratio: float | None = Field(
        None, gt=0, description="threshold as a ratio to the median of `baseline`"
    )
    baseline: str | None = Field(
        None, description="a named baseline; unset: the current level of the history"
    )
    percentile: float | None = Field(
        None,
        gt=0,
        lt=100,
        description="of the run's values, nearest rank; "
        "refused below the samples it needs; unset: the median",
    )
    min_effect: Share | None = Field(
        None,
        description="smallest change worth a verdict, 5% or 0.05; in the metric's unit if absolute",
    )
    absolute: bool = Field(
        False, description="min_effect is in the metric's own unit (a loss of 0 to 1)"
    )
    page: bool | None = Field(
        None, description="whether a change alerts; unset: headline metrics do"
    )
    slow_node: Share | None = Field(
        None,
        description="share by which a node or link of `hosts.pairs` may be slower than the others",
    )

    @model_validator(mode="after")
    def _whole(self) -> "Check":
        of_threshold = (self.value, self.ratio, self.percentile, self.baseline)
        if self.op is None and any(part is not None for part in of_threshold):
            raise PydanticCustomError("no-op", "a threshold needs `op`: one of <, <=, >, >=")
        if {self.op, self.min_effect, self.page, self.slow_node} == {None}:
            raise PydanticCustomError(
                "empty-check",
                "is empty: set `op` with `value` or `ratio`, `min_effect`, `page` or `slow_node`",
            )
        if self.op is not None and self.slow_node is not None:
            raise PydanticCustomError(
                "slow-node-alone",
                "`slow_node` is a limit of its own; write `op` into another check",
            )
        if self.op is not None and (self.value is None) == (self.ratio is None):
            raise PydanticCustomError("one-threshold", "a threshold is either `value` or `ratio`")
        if self.baseline is not None and self.ratio is None:
            raise PydanticCustomError("baseline-alone", "`baseline` goes with `ratio`")
        if self.absolute and self.min_effect is None:
            raise PydanticCustomError("absolute-alone", "`absolute` goes with `min_effect`")
        return self

    def on(self, cluster: str | None) -> bool:
        """Return whether the rule is for runs of this cluster (None: of one machine)."""
        return self.cluster is None or fnmatch.fnmatchcase(cluster or "", self.cluster)

    def selects(self, *settings: Mapping[str, Any]) -> bool:
        """Return whether a series with these coordinates, parameters and shape has all values."""
        return all(
            (value := setting(name, *settings)) is not None and matches(condition, value)
            for name, condition in self.where.items()
        )

    def text(self) -> str:
        """Return the threshold as text, such as `throughput >= 9e+09`."""
        at = "".join(f" {name}={condition}" for name, condition in self.where.items())
        entry = f"{self.entry} " if self.entry else ""
        if self.slow_node is not None:
            return f"{entry}{self.metric}{at} slow_node {self.slow_node:.0%}"
        stat = f" {self.stat}" if self.stat and self.stat != "value" else ""
        percentile = f"p{self.percentile:g} of " if self.percentile else ""
        limit = f"{self.ratio or 0:g} x {self.baseline or 'its level'}"
        if self.value is not None:
            limit = f"{self.value:g}"
        return f"{percentile}{entry}{self.metric}{stat}{at} {self.op} {limit}"


def setting(name: str, *settings: Mapping[str, Any]) -> Any:
    """Return the value of a dotted name in the first mapping that has it, else None."""
    for mapping in settings:
        if name in mapping:
            return mapping[name]
        first, _, rest = name.partition(".")
        if rest and isinstance(inner := mapping.get(first), Mapping):
            return setting(rest, inner)
    return None


def matches(condition: Any, value: Any) -> bool:
    """Return whether a value is the condition, or is one of its list.

    Quantities compare by meaning: 4KiB equals 4096.
    """
    alternatives = condition if isinstance(condition, list) else [condition]
    return _meaning(value) in map(_meaning, alternatives)


def _meaning(value: Any) -> Any:
    try:
        return str(value).lower() if isinstance(value, bool) else quantity(str(value))[0]
    except ValueError:
        return value


@lru_cache(maxsize=64)
def checks_of(suite_text: str) -> tuple[Check, ...]:
    """Return the `checks` in the text of a suite. Raises BadDocument. Entries are not read.

    The end of a run asks for them several times, and the site once for each compared run.
    """
    document = parse_document(suite_text or "{}", "suite.yaml")
    raw = document.data.get("checks", []) if isinstance(document.data, dict) else []
    return tuple(
        validated(document, check, Check, ("checks", number))
        for number, check in enumerate(raw or [])
    )


SuiteName = Annotated[
    str,
    Form(
        "a suite name: 1 to 40 of a-z, 0-9 and -, beginning and ending with a letter or digit",
        r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$",
    ),
]
EntryName = Annotated[
    str,
    Form(
        "an entry name: 1 to 63 letters, digits, - and _, a letter or digit at both ends",
        r"^[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?$",
    ),
]


class Until(Strict):
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


class Permutations(Strict):
    """The combinations of values of an entry.

    A name is a parameter, or a shape key with dots (`network.host`).
    """

    product: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        {}, description="every combination of these values"
    )
    explicit: list[dict[str, Any]] = Field(
        [], min_length=1, description="added points; alone: exactly these points"
    )
    exclude: list[Annotated[dict[str, Any], Field(min_length=1)]] = Field(
        [],
        description="points of product to leave out: for each name a value or a list, all met",
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


class Suite(Strict):
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
        "on a cluster it counts from the first pods that measure",
    )
    isolation: Literal["batch", "point", "pod"] = Field(
        "batch", description="point: all rounds of a point in pods of their own; pod: each sample"
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
    entries: Annotated[list[Entry], Field(min_length=1)] = Field(description="what to measure")
    checks: list[Check] = Field([], description="rules for the results of a run")


@dataclass
class Source:
    """An entry with the `defaults` of its suite, its place, and what `--set` fixes.

    `raw` is the mapping that the entry was read from. `sets` are the parameters and shape keys that
    `--set` fixes, `set_keys` the names of the entry's other keys that it replaced.
    """

    entry: Entry
    raw: dict[str, Any]
    document: Document
    path: Where
    sets: dict[str, Any] = field(default_factory=dict)
    set_keys: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The name of the entry, by default that of its benchmark."""
        return self.entry.name or self.entry.benchmark

    def is_set(self, path: Where) -> bool:
        """Return whether `--set` gave the value at `path`."""
        if path and path[0] in self.set_keys:
            return True
        names = (tuple(name.split(".")) for name in self.sets)
        return any(path[: len(name)] == name for name in names)

    def problem(self, path: Where, code: str, text: str) -> Problem:
        """Return a problem at a path of the entry, or of what `--set` put there."""
        if self.is_set(path):
            return Problem(code, text, f"{self.name}.{dotted(path)}", "--set")
        return self.document.problem((*self.path, *path), code, text)


@dataclass
class LoadedSuite:
    """A suite file that was read, with its entries not yet enumerated."""

    suite: Suite
    document: Document
    sources: list[Source] = field(default_factory=list)


def json_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of suite files, with the params of all benchmarks."""
    schema = Suite.model_json_schema()
    definitions = schema["$defs"]
    rules = []
    for name in registry.working():
        model = registry.get(name).Params
        params = model.model_json_schema(ref_template=f"#/$defs/{name}-{{model}}")
        for inner, definition in params.pop("$defs", {}).items():
            definitions[f"{name}-{inner}"] = definition
        params.pop("required", None)  # a permutation may give it
        definitions[f"{name}-params"] = params
        chosen = {"properties": {"benchmark": {"const": name}}, "required": ["benchmark"]}
        rules.append(
            {"if": chosen, "then": {"properties": {"params": {"$ref": f"#/$defs/{name}-params"}}}}
        )
    definitions["Entry"]["allOf"] = rules
    definitions["Entry"]["properties"]["benchmark"]["enum"] = list(registry.working())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://perfdag.dev/suite.schema.json",
        **schema,
    }
