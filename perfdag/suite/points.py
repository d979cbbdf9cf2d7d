"""The points of a suite: each combination of the values of its entries, with its shape.

A point is one benchmark with one set of params on one shape. Its id is a hash of these, so equal
points of two entries are one.

A pair of hosts of one gang is a point of its own, so it is stored, retried and resumed alone. The
pairs of one shape share the gang's pods. Hosts are numbered in the order of their nodes' names, so
a pair keeps its number while the nodes stay the same; `across-zones` numbers them in the order of
their zones.
"""

import fnmatch
import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import orjson
from pydantic import StringConstraints, ValidationError

from perfdag.benchmark import registry
from perfdag.benchmark.contract import Benchmark, metrics_by_name
from perfdag.redaction import secret_names
from perfdag.shape import ACROSS, SHAPE_KEYS, Problem, Shape, canonical, digest, merge, overlay
from perfdag.suite.document import (
    BadDocument,
    Where,
    choices,
    dotted,
    error_path,
    explain,
    nearest,
)
from perfdag.suite.model import Check, LoadedSuite, Source, Until, matches, setting, setting_text

MAX_COMBINATIONS = 1_000_000
"""Combinations of all entries of a suite, those that `exclude` leaves out too."""
MAX_POINTS = 100_000
_ALL = ("all", ACROSS)
Round = list[tuple[int, int]]
HUNT_MEASUREMENTS = 28
"""Measurements one after the other in a hunt: ten rounds, and one suspect beside the control."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two hosts of a gang, `first` below `second`.

    `of` is the id that all pairs of the same params and shape share, `slot` the position within the
    round.
    """

    first: int
    second: int
    round: int
    slot: int
    of: str
    parallel: int = 1

    @property
    def name(self) -> str:
        """The name of the pair, for example `0-3`."""
        return f"{self.first}-{self.second}"


def rounds(kind: str, hosts: int, seed: int = 0) -> list[Round]:
    """Return the pairs of `hosts` hosts in rounds. No host is twice in a round.

    `hosts` is at least 2. `kind` is `all`, `across-zones` (the same), `ring` or `random N` (N
    distinct pairs). `all` is the 1-factorisation of the complete graph by the circle method:
    hosts - 1 rounds of hosts / 2 pairs. If the number of hosts is odd, there is one round more and
    one host is idle in each.
    `random N` takes the first N of these pairs after a shuffle by `seed`, so it covers hosts
    evenly. Raises ValueError if there are fewer.
    """
    if kind in _ALL:
        return list(_circle(list(range(hosts))))
    if kind == "ring":
        return _ring(hosts)
    wanted, available = int(kind.removeprefix("random ")), hosts * (hosts - 1) // 2
    if wanted > available:
        raise ValueError(
            f"{wanted:,} random pairs were asked for, {hosts} hosts have {available:,}"
        )
    shuffled = list(range(hosts))
    random.Random(f"{seed}:pairs").shuffle(shuffled)
    selected: list[Round] = []
    for pairs in _circle(shuffled):
        selected.append(pairs[:wanted])
        wanted -= len(selected[-1])
        if not wanted:
            break
    return selected


def _circle(hosts: list[int]) -> Iterator[Round]:
    # The first seat is fixed and the others rotate.
    # With an odd number of hosts one seat is empty, and the host opposite is idle.
    seats: list[int | None] = [*hosts, *([None] if len(hosts) % 2 else [])]
    for _ in range(len(seats) - 1):
        facing = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        yield sorted((min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None)
        seats = [seats[0], seats[-1], *seats[1:-1]]


def _ring(hosts: int) -> list[Round]:
    if hosts == 2:
        return [[(0, 1)]]
    around = [(min(i, (i + 1) % hosts), max(i, (i + 1) % hosts)) for i in range(hosts)]
    even, odd = around[0 : hosts - hosts % 2 : 2], around[1::2]
    return [even, odd, around[-1:]] if hosts % 2 else [even, odd]


PointId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]


@dataclass(slots=True)
class Point:
    """What is measured.

    `shape` indexes the plan's shapes, `label` holds the values that vary within the entry.

    `seconds` is the expected wall time of a sample and `timeout` its limit, both in seconds.
    """

    id: PointId
    entry: str
    benchmark: str
    params: dict[str, Any]
    shape: int
    label: str
    repetitions: int
    seconds: float
    timeout: float
    retries: int
    until: Until | None = None
    pair: Pair | None = None
    optional: bool = False

    def key(self, repetition: int) -> str:
        """Return the name of one sample in the store; a warm-up is `<point>-w<n>`."""
        return f"{self.id}-{repetition if repetition > 0 else f'w{-repetition}'}"

    def sample(self, repetition: int) -> str:
        """Return the name of one sample for people. Repetitions below 1 are warm-ups."""
        count = f"{repetition}/{self.rounds}" if repetition > 0 else "warm-up"
        return f"{self.entry} {self.label}".strip() + f" ({count})"

    @property
    def rounds(self) -> int:
        """The most measured samples that this point may get."""
        return self.until.max_repetitions if self.until else self.repetitions

    def tighten(self, other: "Point") -> None:
        """Adopt the stricter of each setting of an equal point, whichever entry came first."""
        self.repetitions = max(self.repetitions, other.repetitions)
        self.timeout = max(self.timeout, other.timeout)
        self.retries = max(self.retries, other.retries)
        self.optional = self.optional and other.optional
        rules = [point.until for point in (self, other) if point.until]
        if rules:
            limit = max(self.repetitions, *(rule.max_repetitions for rule in rules))
            self.until = Until(
                relative_spread=min(rule.relative_spread for rule in rules), max_repetitions=limit
            )


@dataclass
class SuitePoints:
    """All points of a suite, their distinct shapes, and how many equal points were merged."""

    points: list[Point] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    merged: int = 0


def enumerate_points(loaded: LoadedSuite, only: Sequence[str] = ()) -> SuitePoints:
    """Return the points of a loaded suite.

    `only` are globs on entry names, `entry/label` or point ids. A point that matches any of them is
    kept. Raises BadDocument with all problems.
    """
    found = _Enumeration(loaded.suite.seed)
    combined = 0
    for source in loaded.sources:
        axes, explicit = _axes(source), source.entry.permutations.explicit
        combined += math.prod(map(len, axes.values())) + len(explicit)  # before `exclude`
        if combined > MAX_COMBINATIONS:
            amount = (
                f"10^{math.floor(math.log10(combined))}" if combined >= 10**15 else f"{combined:,}"
            )
            text = f"{amount} combinations up to this entry are more than {MAX_COMBINATIONS:,}"
            text += "; shorten the lists, or split the suite"
            raise BadDocument([source.problem(("permutations",), "many-points", text)])
    for source in loaded.sources:
        found.add_entry(loaded, source)
    problems = [
        problem
        for index, check in enumerate(loaded.suite.checks)
        if (problem := _wrong_check(loaded, index, check, found))
    ]
    for problem, count in found.mistakes.items():
        more = f" (in {count:,} permutations)" if count > 1 else ""
        problems.append(replace(problem, text=f"{problem.text}{more}"))
    if problems:
        raise BadDocument(problems)
    everything = SuitePoints(list(found.points.values()), found.shapes, found.merged)
    return _select(everything, only) if only else everything


def _select(everything: SuitePoints, only: Sequence[str]) -> SuitePoints:
    selected: set[str] = set()
    problems = []
    entries = sorted({point.entry for point in everything.points})
    for glob in only:
        ids = {
            point.id
            for point in everything.points
            for name in (point.entry, f"{point.entry}/{point.label}", point.id)
            if fnmatch.fnmatchcase(name, glob)
        }
        if not ids:
            text = f"matches no point{choices(glob, entries, 'entries:')}"
            problems.append(Problem("no-match", text, glob, "--only"))
        selected |= ids
    if problems:
        raise BadDocument(problems)
    points = [point for point in everything.points if point.id in selected]
    used = sorted({point.shape for point in points})
    for point in points:
        point.shape = used.index(point.shape)
    return SuitePoints(points, [everything.shapes[index] for index in used], everything.merged)


@dataclass
class _Enumeration:
    """Points by id in the order of the suite, their distinct shapes, and the mistakes in them.

    A mistake that several combinations of an entry share is listed once, with their number.
    """

    seed: int
    points: dict[str, Point] = field(default_factory=dict)
    shapes: list[Shape] = field(default_factory=list)
    merged: int = 0
    mistakes: dict[Problem, int] = field(default_factory=dict)
    _read: dict[bytes, tuple[int, Shape, str] | None] = field(default_factory=dict)
    _indices: dict[str, int] = field(default_factory=dict)

    def _refuse(self, problem: Problem) -> None:
        self.mistakes[problem] = self.mistakes.get(problem, 0) + 1

    def add_entry(self, loaded: LoadedSuite, source: Source) -> None:
        """Add the points of an entry, and merge those that equal others."""
        suite, entry, defaults = loaded.suite, source.entry, source.defaults
        benchmark = registry.get(entry.benchmark)
        repetitions = entry.repetitions or defaults.repetitions or suite.repetitions
        until = entry.until or defaults.until
        if until is not None and until.max_repetitions < repetitions:
            text = (
                f"{until.max_repetitions} is less than the {repetitions} repetitions "
                "that every point has; raise it, or lower repetitions"
            )
            self._refuse(source.problem(("until", "max_repetitions"), "few-repetitions", text))
        timeout = entry.timeout or defaults.timeout or suite.timeout
        retries = next(
            each for each in (entry.retries, defaults.retries, suite.retries) if each is not None
        )
        optional = bool(defaults.optional if entry.optional is None else entry.optional)
        fields = benchmark.Params.model_fields
        for name in entry.params.keys() - fields.keys():
            text = f"{benchmark.name} has no such parameter{choices(name, fields, 'it has')}"
            self._refuse(source.problem(("params", name), "unknown-name", text))
        params = {**defaults.params, **entry.params}
        fixed = {name: value for name, value in params.items() if name in fields}
        below, above = (
            {key: value for key, value in raw.items() if key in SHAPE_KEYS}
            for raw in (source.raw_defaults, source.raw)
        )
        shape_keys = merge(below, above)
        for origin, varied in self._combinations(source, benchmark):
            measured = self._combine(source, benchmark, origin, varied, fixed, shape_keys)
            if measured is None:
                continue
            ident, model, params, (number, shape, _) = measured
            label = " ".join(f"{name}={_label_value(value)}" for name, value in varied.items())
            kind = shape.hosts.pairs
            pairs: list[Pair | None] = [None]
            if kind and kind != "hunt":
                try:
                    pairs = [
                        Pair(first, second, round, slot, ident, shape.hosts.parallel_pairs)
                        for round, each in enumerate(rounds(kind, shape.hosts.count, self.seed))
                        for slot, (first, second) in enumerate(each)
                    ]
                except ValueError as error:
                    self._refuse(source.problem(("hosts", "pairs"), "few-pairs", str(error)))
            for pair in pairs:
                point = Point(
                    id=digest(ident, pair.name) if pair else ident,
                    entry=source.name,
                    benchmark=benchmark.name,
                    params=params,
                    shape=number,
                    label=f"{label} pair={pair.name}".strip() if pair else label,
                    repetitions=repetitions,
                    seconds=benchmark.seconds(model) * (HUNT_MEASUREMENTS if kind == "hunt" else 1),
                    timeout=timeout or benchmark.limit(model),
                    retries=retries,
                    until=until,
                    pair=pair,
                    optional=optional,
                )
                known = self.points.setdefault(point.id, point)
                if known is not point:
                    self.merged += 1
                    known.tighten(point)
                if len(self.points) + self.merged > MAX_POINTS:
                    text = f"more than {MAX_POINTS:,} points"
                    self._refuse(source.problem(("permutations",), "many-points", text))
                    return

    def _combinations(
        self, source: Source, benchmark: Benchmark[Any]
    ) -> Iterator[tuple[Where, dict[str, Any]]]:
        """Yield (path in the entry, values) of each combination of `product` and `explicit`.

        What `--set` fixes is no axis, and has its value in each. After a mistake there is none.
        """
        permutations, axes = source.entry.permutations, _axes(source)
        before = sum(self.mistakes.values())
        excluded = self._conditions(source, benchmark)
        if sum(self.mistakes.values()) > before:
            return
        if axes or not permutations.explicit:
            origin: Where = ("permutations", "product") if axes else ()
            left = 0
            for indices in itertools.product(*(range(len(axis)) for axis in axes.values())):
                at = dict(zip(axes, indices, strict=True))
                if not any(all(hits[at[name]] for name, hits in each.items()) for each in excluded):
                    left += 1
                    yield origin, {name: axes[name][i] for name, i in at.items()} | source.sets
            if not left and not permutations.explicit:
                path = ("permutations", "exclude")
                self._refuse(source.problem(path, "no-point", "leaves no point"))
        for index, explicit in enumerate(permutations.explicit):
            yield ("permutations", "explicit", index), {**explicit, **source.sets}

    def _conditions(self, source: Source, benchmark: Benchmark[Any]) -> list[dict[str, list[bool]]]:
        """Return the conditions of `exclude`: for each axis of one, whether each value meets it.

        Values compare by meaning: `4KiB` equals 4096. A condition that excludes nothing is a
        mistake, since it would hide a typing error, but not where `--set` fixes what it names.
        Names that cannot be varied and empty lists are mistakes too.
        """
        axes, permutations = _axes(source), source.entry.permutations
        empty = "an empty list gives no point; give at least one"
        named: list[tuple[Where, str]] = [(tuple(name.split(".")), name) for name in source.sets]
        for name, values in permutations.product.items():
            named.append((("permutations", "product", name), name))
            if not values:
                self._refuse(
                    source.problem(named[-1][0], "empty-list", f"{empty} value or remove it")
                )
        for index, values_of in enumerate(permutations.explicit):
            named += [(("permutations", "explicit", index, name), name) for name in values_of]
        path: Where = ("permutations", "explicit")
        if not permutations.explicit and "explicit" in permutations.model_fields_set:
            self._refuse(source.problem(path, "empty-list", f"{empty} or remove it"))
        for path, name in named:
            if text := _wrong_name(benchmark, name):
                self._refuse(source.problem(path, "unknown-name", text))
        conditions = []
        for index, condition in enumerate(permutations.exclude):
            path = ("permutations", "exclude", index)
            if not condition:
                text = "an empty condition would leave out every point"
                self._refuse(source.problem(path, "no-condition", text))
            for name in condition.keys() - permutations.product.keys():
                known = choices(name, sorted(permutations.product) or ["none"], "axes:")
                text = f"is not an axis of this entry{known}"
                self._refuse(source.problem((*path, name), "unknown-name", text))
            hits = {
                name: [matches(condition[name], value) for value in axes[name]]
                for name in condition.keys() & axes.keys()
            }
            never = [name for name in axes if name in hits and axes[name] and not any(hits[name])]
            if never:
                text = "; ".join(f"{name} is {_listed(axes[name])}" for name in never)
                text = f"leaves nothing out: {text}; correct or remove the condition"
                self._refuse(source.problem((*path, never[0]), "excludes-nothing", text))
            if hits.keys() == condition.keys():
                conditions.append(hits)
        return conditions

    def _combine(
        self,
        source: Source,
        benchmark: Benchmark[Any],
        origin: Where,
        varied: Mapping[str, Any],
        params: dict[str, Any],
        shape_keys: dict[str, Any],
    ) -> tuple[str, Any, dict[str, Any], tuple[int, Shape, str]] | None:
        """Return id, params as a model and as stored, and shape, or None after a mistake."""
        params = dict(params)
        for name, value in varied.items():
            first, _, rest = name.partition(".")
            if first not in benchmark.Params.model_fields:
                shape_keys = merge(shape_keys, nested(name, value))
            elif rest:
                params = merge(params, nested(name, value))
            else:
                params[name] = value

        def place(path: Where, otherwise: Where) -> Where:
            """Return the path of a value: in `--set`, in the permutation, or `otherwise`."""
            if not origin or dotted(path) not in varied or source.is_set(path):
                return path if source.is_set(path) else otherwise
            return (*origin, dotted(path))

        model = None
        try:
            model = benchmark.Params.model_validate(params)
        except ValidationError as errors:
            for error in errors.errors():
                path = error_path(error)
                wrong = explain(source.document, (), error, benchmark.Params)
                where = place(path, ("params", *path))
                self._refuse(source.problem(where, wrong.code, wrong.text))
        own = benchmark.shape(model) if model is not None else {}
        shaped = self._shape(source, benchmark, overlay(own, shape_keys), place)
        if (
            model is None
            or shaped is None
            or self._refused(source, origin, benchmark, model, shaped[1])
        ):
            return None
        stored = model.model_dump(mode="json")
        for param, value in stored.items():
            for name in secret_names(value, param.rpartition(".")[2] if "." in param else ""):
                text = (
                    f"{name} is the name of a secret, which a suite does not hold; leave it out: "
                    "a command has the variables of perfdag run, and on a cluster those of the "
                    "Secret that `secret` names"
                )
                self._refuse(source.problem(place((param,), ("params", param)), "secret", text))
        # A parameter that was removed stays in the id with its default: the history goes on.
        identity = canonical(merge(stored, dict(model.retired)))
        return digest(benchmark.name, identity, shaped[2]), model, stored, shaped

    def _shape(
        self, source: Source, benchmark: Benchmark[Any], keys: dict[str, Any], place: Any
    ) -> tuple[int, Shape, str] | None:
        """Return index, shape and canonical text of shape keys, or None if they are wrong.

        Points of equal index can share pods. A wrong shape is reported once for each entry.
        """
        cache_key = orjson.dumps([keys, benchmark.name, source.name])
        if cache_key in self._read:
            return self._read[cache_key]
        self._read[cache_key] = None  # so that a wrong shape is reported once
        given = {key: value for key, value in keys.items() if value is not None}
        try:
            shape = Shape.model_validate({"image": "base", **given})
        except ValidationError as errors:
            for error in errors.errors():
                path = error_path(error)
                wrong = explain(source.document, (), error, Shape)
                self._refuse(source.problem(place(path, path), wrong.code, wrong.text))
            return None
        pins = f"only its {' and '.join(benchmark.pins)}" if benchmark.pins else "nothing"
        problems = [
            *shape.problems(),
            *(
                Problem(
                    "unused-pin",
                    f"{benchmark.name} pins {pins}; leave it out",
                    f"hosts.cpus.{side}",
                )
                for side in ("client", "server")
                if getattr(shape.hosts.cpus, side) and side not in benchmark.pins
            ),
        ]
        for problem in problems:
            path = tuple(problem.path.split("."))
            self._refuse(source.problem(place(path, path), problem.code, problem.text))
        if problems:
            return None
        text = canonical(shape.data())
        # A benchmark with rights at the API server shares no pods with one that has none.
        pods = f"{benchmark.name} {text}" if benchmark.api.named else text
        if shape.hosts.count > 1:  # nor do benchmarks that a cluster places otherwise
            pods = f"{benchmark.network == 'none'} {pods}"
        if pods not in self._indices:
            self._indices[pods] = len(self.shapes)
            self.shapes.append(shape)
        self._read[cache_key] = self._indices[pods], shape, text
        return self._read[cache_key]

    def _refused(
        self, source: Source, origin: Where, benchmark: Benchmark[Any], model: Any, shape: Shape
    ) -> bool:
        """Report why params and shape cannot be measured together. Return whether there is one."""
        hosts, before = shape.hosts, sum(self.mistakes.values())
        if benchmark.network not in ("pairs", "services"):
            for key in ("pairs", "roles"):
                if getattr(hosts, key):
                    text = f"{benchmark.name} does not measure between two hosts; leave {key} out"
                    self._refuse(source.problem(("hosts", key), "no-pairs", text))
                    return True
        if benchmark.network == "services" and hosts.count != 2 and not hosts.pairs:
            text = (
                f"{hosts.count}, and {benchmark.name} measures 2 hosts, a client and a server, or "
                "more with hosts.pairs (all, ring, `random N`)"
            )
            self._refuse(source.problem(("hosts", "count"), "two-hosts", text))
            return True
        if shape.network.forwarded and benchmark.network != "services":
            text = f"{benchmark.name} measures no Service; use pod or host"
            self._refuse(source.problem(("network", "path"), "no-service", text))
            return True
        for own in benchmark.check(model, shape.pair() if hosts.pairs else shape):
            self._refuse(source.problem(origin or ("params",), own.code, own.text))
        if hosts.pairs in _ALL and hosts.count * (hosts.count - 1) // 2 > MAX_POINTS:
            text = (
                f"{hosts.count} hosts have more than {MAX_POINTS:,} pairs; use ring or `random N`"
            )
            self._refuse(source.problem(("hosts", "count"), "many-pairs", text))
        return sum(self.mistakes.values()) > before


def nested(name: str, value: Any) -> dict[str, Any]:
    """Return `{"a": {"b": value}}` for the name `a.b`."""
    for part in reversed(name.split(".")):
        value = {part: value}
    mapping: dict[str, Any] = value
    return mapping


def _axes(source: Source) -> dict[str, list[Any]]:
    product = source.entry.permutations.product
    return {name: axis for name, axis in product.items() if name not in source.sets}


def _wrong_name(benchmark: Benchmark[Any], name: str) -> str | None:
    """Return why nothing of that name can be varied, or None if it can."""
    fields = benchmark.Params.model_fields
    first, _, rest = name.partition(".")
    if first in fields:
        return None
    if first not in SHAPE_KEYS:
        return (
            f"{benchmark.name} has no parameter {name!r}"
            f"{nearest(name, [*fields, *SHAPE_KEYS]) or ';'} it has {', '.join(fields)}"
        )
    model: Any = Shape.model_fields[first].annotation
    inner = getattr(model, "model_fields", None)
    if not rest or inner is None or rest.split(".")[0] in inner:
        return None
    if model.model_config.get("extra") == "allow":
        return None
    return f"{first} has no key {rest!r}{choices(rest, inner, 'it has')}"


def _listed(values: Sequence[Any], limit: int = 8) -> str:
    text = ", ".join(str(value) for value in values[:limit])
    return text + (f" ... ({len(values)} values)" if len(values) > limit else "")


def _label_value(value: Any) -> str:
    return value if isinstance(value, str) else canonical(value)


def _wrong_check(
    loaded: LoadedSuite, index: int, check: Check, found: _Enumeration
) -> Problem | None:
    """Return why no metric or no series can meet a check of the suite, or None."""
    sources = loaded.sources

    def wrong(path: Where, code: str, text: str) -> Problem:
        return loaded.document.problem(("checks", index, *path), code, text)

    metrics = {
        source.name: metrics_by_name(
            registry.get(source.entry.benchmark),
            {**source.defaults.params, **source.entry.params, **source.sets},
        )
        for source in sources
    }
    entries = fnmatch.filter(metrics, check.entry or "*")
    if not entries:
        names = choices(check.entry, metrics, "there are")
        return wrong(("entry",), "unknown-entry", f"no entry matches {check.entry!r}{names}")
    known = {name: None for entry in entries for name in metrics[entry]}
    if not fnmatch.filter(known, check.metric):
        of = f"entry {check.entry}" if check.entry else "the entries"
        names = choices(check.metric, known, "there are")
        text = f"no metric of {of} matches {check.metric!r}{names}"
        return wrong(("metric",), "unknown-metric", text)
    unit = check.value.unit if check.value is not None else ""
    for entry in entries:
        for metric in metrics[entry].values():
            if unit and fnmatch.fnmatchcase(metric.name, check.metric) and metric.unit != unit:
                text = (
                    f"is in {unit}, and {metric.name} of {entry} is in {metric.unit}; "
                    f"write it in {metric.unit} or as a bare number"
                )
                return wrong(("value",), "other-unit", text)
    points = [point for point in found.points.values() if check.where and point.entry in entries]
    shapes = [shape.data() for shape in found.shapes] if points else []
    named = [(point.params, shapes[point.shape]) for point in points]
    used = {source.entry.benchmark for source in sources if source.name in entries}
    # the values of coordinates are known after the run
    coords = {name for benchmark in used for name in registry.get(benchmark).coords}
    left = named
    for name, wanted in check.where.items() if not found.mistakes and named else ():
        values = {setting_text(setting(name, *settings)): None for settings in named}
        if name in coords:
            continue
        if values.keys() <= {"None"}:
            names = nearest(name, {key for params, _ in named for key in params} | coords) or ";"
            text = (
                f"no series has {name}{names} "
                "`perfdag benchmarks NAME` lists parameters and coordinates"
            )
            return wrong(("where", name), "unknown-name", text)
        left = [settings for settings in left if matches(wanted, setting(name, *settings))]
        if not left:
            others = any(matches(wanted, setting(name, *settings)) for settings in named)
            also = " with the other values" if others else ""
            there = ", ".join(value for value in values if value != "None")
            text = f"no point has {name} {setting_text(wanted)}{also}; there are {there}"
            return wrong(("where", name), "no-point", text)
    return None
