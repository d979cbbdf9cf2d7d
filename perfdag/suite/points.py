"""The points of a suite: each combination of the values of its entries, with its shape.

A point is one benchmark with one set of params on one shape. Its id is a hash of these, so equal
points of two entries are one.
"""

import fnmatch
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, cast

from pydantic import BaseModel, StringConstraints, ValidationError

from perfdag.benchmark import registry
from perfdag.benchmark.contract import Benchmark, Metric, Params, metrics_by_name
from perfdag.identity import canonical, digest, merge
from perfdag.problems import Problem
from perfdag.redaction import secret_names
from perfdag.shape import SHAPE_KEYS, Shape, overlay
from perfdag.suite.document import (
    BadDocument,
    Where,
    choices,
    dotted,
    error_path,
    explain,
    nearest,
)
from perfdag.suite.model import (
    Check,
    LoadedSuite,
    Source,
    Suite,
    Until,
    matches,
)
from perfdag.suite.pairs import ALL_PAIRS, HUNT_MEASUREMENTS, Pair, Round, random_pairs, rounds

MAX_COMBINATIONS = 1_000_000
"""Combinations of all entries of a suite, those that `exclude` leaves out too."""


MAX_POINTS = 100_000


PointId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]


@dataclass(slots=True)
class Point:
    """What is measured.

    `shape` indexes the plan's shapes, `label` holds the values that vary within the entry, as
    `--only` has them, and `title` has them for people.

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
    title: str = ""

    def key(self, repetition: int) -> str:
        """Return the name of one sample in the store; a warm-up is `<point>-w<n>`."""
        return f"{self.id}-{repetition if repetition > 0 else f'w{-repetition}'}"

    def sample(self, repetition: int) -> str:
        """Return the name of one sample for people. Repetitions below 1 are warm-ups."""
        count = f"{repetition}/{self.rounds}" if repetition > 0 else "warm-up"
        return f"{self.full_title} ({count})"

    @property
    def full_title(self) -> str:
        """The entry and the title."""
        return ", ".join(filter(None, (self.entry, self.title)))

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
    enumeration = _Enumeration(loaded.suite)
    for source in loaded.sources:
        enumeration.add_entry(source)
    problems = list(_wrong_checks(loaded))
    for problem, count in enumeration.mistakes.items():
        times = f" (in {count:,} permutations)" if count > 1 else ""
        problems.append(replace(problem, text=f"{problem.text}{times}"))
    points = list(enumeration.points.values())
    problems = problems or list(_checks_without_pairs(loaded, points))
    if problems:
        raise BadDocument(problems)
    suite_points = SuitePoints(points, enumeration.shapes, enumeration.merged)
    return _select(suite_points, only) if only else suite_points


def _select(suite_points: SuitePoints, only: Sequence[str]) -> SuitePoints:
    entries = sorted({point.entry for point in suite_points.points})
    selected: set[PointId] = set()
    problems = []
    for glob in only:
        matched = _matching(suite_points.points, glob)
        selected |= matched
        if not matched:
            text = f"matches no point{choices(glob, entries, 'entries:')}"
            problems.append(Problem("no-match", text, glob, "--only"))
    if problems:
        raise BadDocument(problems)
    points = [point for point in suite_points.points if point.id in selected]
    used = sorted({point.shape for point in points})
    for point in points:
        point.shape = used.index(point.shape)
    return SuitePoints(points, [suite_points.shapes[index] for index in used], suite_points.merged)


def _matching(points: Iterable[Point], glob: str) -> set[PointId]:
    """Return the ids of the points of this name, or else of those that it matches as a glob.

    A label may have brackets, which a glob would read as a set of characters.
    """
    names = {point.id: (point.entry, f"{point.entry}/{point.label}", point.id) for point in points}
    exact = {point for point, texts in names.items() if glob in texts}
    return exact or {point for point, texts in names.items() if fnmatch.filter(texts, glob)}


@dataclass(frozen=True)
class _Combination:
    """The values of one combination of an entry. `origin` is the path that a permutation has."""

    source: Source
    benchmark: Benchmark[Any]
    origin: Where
    values: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The values as `--only` has them."""
        return " ".join(f"{name}={_text(value)}" for name, value in self.values.items())

    def title(self, params: Mapping[str, Any]) -> str:
        """Return the values for people, as the rows of the run will have these `params`."""
        values = {name: _text(params.get(name, value)) for name, value in self.values.items()}
        return registry.point_label(self.benchmark.name, values)

    def place(self, path: Where, otherwise: Where) -> Where:
        """Return the path of a value: in `--set`, in the permutation, or `otherwise`."""
        if self.source.is_set(path):
            return path
        if self.origin and dotted(path) in self.values:
            return (*self.origin, dotted(path))
        return otherwise

    def settings(self, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parameters of the entry, and its shape keys, with the values over them."""
        params = dict(params)
        shape_keys = {key: value for key, value in self.source.raw.items() if key in SHAPE_KEYS}
        for name, value in self.values.items():
            first, _, rest = name.partition(".")
            if first not in self.benchmark.Params.model_fields:
                shape_keys = merge(shape_keys, nested(name, value))
            elif rest:
                params = merge(params, nested(name, value))
            else:
                params[name] = value
        return params, shape_keys


@dataclass
class _Enumeration:
    """Points by id in the order of the suite, their distinct shapes, and the mistakes in them.

    A mistake that several combinations of an entry share is listed once, with their number.
    """

    suite: Suite
    points: dict[str, Point] = field(default_factory=dict)
    shapes: list[Shape] = field(default_factory=list)
    merged: int = 0
    mistakes: Counter[Problem] = field(default_factory=Counter)
    _combined: int = 0
    _resolved: dict[str, tuple[int, Shape, str] | None] = field(default_factory=dict)
    _indices: dict[str, int] = field(default_factory=dict)

    def _refuse(self, source: Source, path: Where, code: str, text: str) -> None:
        self.mistakes[source.problem(path, code, text)] += 1

    def add_entry(self, source: Source) -> None:
        """Add the points of an entry, and merge those that equal others."""
        path: Where = ("permutations",)
        products = math.prod(map(len, _axes(source).values()))  # before `exclude`
        self._combined += products + len(source.entry.permutations.explicit)
        if self._combined > MAX_COMBINATIONS:
            self._refuse(
                source,
                path,
                "many-points",
                f"more than {MAX_COMBINATIONS:,} combinations up to this entry; "
                "shorten the lists, or split the suite",
            )
            return
        base = self._base(source)
        for combination in self._combinations(source):
            for point in self._points(combination, base):
                first = self.points.setdefault(point.id, point)
                if first is not point:
                    self.merged += 1
                    first.tighten(point)
            if len(self.points) + self.merged > MAX_POINTS:
                self._refuse(source, path, "many-points", f"more than {MAX_POINTS:,} points")
                return

    def _base(self, source: Source) -> Point:
        """Return what the points of an entry have in common."""
        entry = source.entry
        fields = registry.get(entry.benchmark).Params.model_fields
        for name in entry.params.keys() - fields.keys():
            self._refuse(
                source,
                ("params", name),
                "unknown-name",
                f"{entry.benchmark} has no such parameter{choices(name, fields, 'it has')}",
            )
        repetitions = entry.repetitions or self.suite.repetitions
        if entry.until and entry.until.max_repetitions < repetitions:
            self._refuse(
                source,
                ("until", "max_repetitions"),
                "few-repetitions",
                f"{entry.until.max_repetitions} is less than the {repetitions} repetitions "
                "that every point has; raise it, or lower repetitions",
            )
        return Point(
            id="",
            entry=source.name,
            benchmark=entry.benchmark,
            params={name: value for name, value in entry.params.items() if name in fields},
            shape=0,
            label="",
            repetitions=repetitions,
            seconds=0.0,
            timeout=entry.timeout or self.suite.timeout or 0.0,
            retries=self.suite.retries if entry.retries is None else entry.retries,
            until=entry.until,
            optional=bool(entry.optional),
        )

    def _combinations(self, source: Source) -> Iterator[_Combination]:
        """Yield each combination of `product` and `explicit`.

        What `--set` fixes is no axis, and has its value in each. After a mistake there is none.
        """
        benchmark = registry.get(source.entry.benchmark)
        permutations = source.entry.permutations
        axes = _axes(source)
        before = self.mistakes.total()
        excluded = self._conditions(source, benchmark)
        if self.mistakes.total() > before:
            return
        if axes or not permutations.explicit:
            origin: Where = ("permutations", "product") if axes else ()
            kept = 0
            for indices in itertools.product(*(range(len(axis)) for axis in axes.values())):
                at = dict(zip(axes, indices, strict=True))
                if not any(_meets(at, condition) for condition in excluded):
                    kept += 1
                    values = {name: axes[name][index] for name, index in at.items()}
                    yield _Combination(source, benchmark, origin, values | source.sets)
            if not kept and not permutations.explicit:
                self._refuse(source, ("permutations", "exclude"), "no-point", "leaves no point")
        for index, explicit in enumerate(permutations.explicit):
            origin = ("permutations", "explicit", index)
            yield _Combination(source, benchmark, origin, {**explicit, **source.sets})

    def _conditions(self, source: Source, benchmark: Benchmark[Any]) -> list[dict[str, list[bool]]]:
        """Return the conditions of `exclude`: for each axis of one, whether each value meets it.

        Values compare by meaning: `4KiB` equals 4096. A condition that excludes nothing is a
        mistake, since it would hide a typing error, but not where `--set` fixes what it names.
        Names that cannot be varied are mistakes too.
        """
        axes = _axes(source)
        product = source.entry.permutations.product
        for path, name in _varied_names(source):
            if text := _wrong_name(benchmark, name):
                self._refuse(source, path, "unknown-name", text)
        conditions = []
        for index, condition in enumerate(source.entry.permutations.exclude):
            hits = {
                name: [matches(condition[name], value) for value in axes[name]]
                for name in condition.keys() & axes.keys()
            }
            for name in condition:
                path = ("permutations", "exclude", index, name)
                if name not in product:
                    axis_names = choices(name, sorted(product) or ["none"], "axes:")
                    self._refuse(
                        source, path, "unknown-name", f"is not an axis of this entry{axis_names}"
                    )
                elif name in hits and not any(hits[name]):
                    values = ", ".join(map(str, axes[name]))
                    self._refuse(
                        source,
                        path,
                        "excludes-nothing",
                        f"leaves nothing out: {name} is {values}; correct or remove the condition",
                    )
            # A name that `--set` fixes is on no axis: its condition leaves nothing out.
            if hits.keys() == condition.keys():
                conditions.append(hits)
        return conditions

    def _points(self, combination: _Combination, base: Point) -> Iterator[Point]:
        """Yield the points of one combination: one, or one for each pair of hosts."""
        benchmark = combination.benchmark
        params, shape_keys = combination.settings(base.params)
        model = self._model(combination, params)
        keys = overlay(benchmark.shape(model) if model is not None else {}, shape_keys)
        resolved = self._shape(combination, keys, complete=model is not None)
        if model is None or resolved is None:
            return
        number, shape, shape_text = resolved
        stored = model.model_dump(mode="json")
        origin = combination.origin or ("params",)
        problems = [
            combination.source.problem(origin, problem.code, problem.text)
            for problem in benchmark.check(model, shape.pair() if shape.hosts.pairs else shape)
        ]
        problems += _secrets(combination, stored)
        self.mistakes.update(problems)
        if problems:
            return
        kind = shape.hosts.pairs
        identity = canonical(merge(stored, dict(model.only_in_ids)))
        point = replace(
            base,
            id=digest(benchmark.name, identity, shape_text),
            params=stored,
            shape=number,
            label=combination.label,
            title=combination.title(stored),
            seconds=benchmark.seconds(model) * (HUNT_MEASUREMENTS if kind == "hunt" else 1),
            timeout=base.timeout or benchmark.limit(model),
        )
        if not kind or kind == "hunt":
            yield point
        else:
            yield from _points_of_pairs(
                point, rounds(kind, shape.hosts.count, self.suite.seed), shape.hosts.parallel_pairs
            )

    def _model(self, combination: _Combination, params: dict[str, Any]) -> Params | None:
        """Return the parameters as the benchmark reads them, or None if they are wrong."""
        model = combination.benchmark.Params
        try:
            return cast(Params, model.model_validate(params))
        except ValidationError as invalid:
            self._refuse_invalid(combination, invalid, model, ("params",))
        return None

    def _refuse_invalid(
        self,
        combination: _Combination,
        invalid: ValidationError,
        model: type[BaseModel],
        place: Where,
    ) -> None:
        """Refuse values that a model does not take, which the entry has at `place`."""
        for error in invalid.errors():
            path = error_path(error)
            wrong = explain(combination.source.document, (), error, model)
            at = combination.place(path, (*place, *path))
            self._refuse(combination.source, at, wrong.code, wrong.text)

    def _shape(
        self, combination: _Combination, keys: dict[str, Any], *, complete: bool
    ) -> tuple[int, Shape, str] | None:
        """Return index, shape and canonical text of shape keys, or None if they are wrong.

        Points of equal index can share pods. A wrong shape is reported once for each entry. The
        keys are `complete` where those of the benchmark's own params are among them.
        """
        cache_key = canonical([keys, combination.source.name, complete])
        if cache_key not in self._resolved:
            self._resolved[cache_key] = self._resolve(combination, keys, complete)
        return self._resolved[cache_key]

    def _resolve(
        self, combination: _Combination, keys: dict[str, Any], complete: bool
    ) -> tuple[int, Shape, str] | None:
        source = combination.source
        benchmark = combination.benchmark
        keys = {key: value for key, value in keys.items() if value is not None}
        try:
            shape = Shape.model_validate({"image": "base", **keys})
        except ValidationError as invalid:
            self._refuse_invalid(combination, invalid, Shape, ())
            return None
        problems = list(shape.problems())
        if complete and not problems:
            problems = list(_unfit(benchmark, shape))
        for problem in problems:
            path = tuple(problem.path.split("."))
            self._refuse(source, combination.place(path, path), problem.code, problem.text)
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
        return self._indices[pods], shape, text


def _secrets(combination: _Combination, params: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each value that has the name of a secret."""
    for param, value in params.items():
        key = param.rpartition(".")[2] if "." in param else ""
        for name in secret_names(value, key):
            text = (
                f"{name} is the name of a secret, which a suite does not hold; leave it out: "
                "a command has the variables of perfdag run, and on a cluster those of the "
                "Secret that `secret` names"
            )
            place = combination.place((param,), ("params", param))
            yield combination.source.problem(place, "secret", text)


def _points_of_pairs(point: Point, pairs_of: Iterable[Round], parallel: int) -> Iterator[Point]:
    """Yield a point for each pair of hosts, which all have the id of `point` in common."""
    for number, pairs in enumerate(pairs_of):
        for slot, (first, second) in enumerate(pairs):
            pair = Pair(first, second, number, slot, point.id, parallel)
            label = f"{point.label} pair={pair.name}".strip()
            of_pair = registry.short_form(point.benchmark, "pair", pair.name)
            title = ", ".join(filter(None, (point.title, of_pair)))
            yield replace(
                point, id=digest(point.id, pair.name), label=label, title=title, pair=pair
            )


def _unfit(benchmark: Benchmark[Any], shape: Shape) -> Iterator[Problem]:
    """Yield why the benchmark cannot measure on the shape."""
    hosts = shape.hosts
    name = benchmark.name
    for key in ("pairs", "roles"):
        if getattr(hosts, key) and benchmark.network not in ("pairs", "services"):
            yield Problem(
                "no-pairs",
                f"{name} does not measure between two hosts; leave {key} out",
                f"hosts.{key}",
            )
    if benchmark.network == "services" and hosts.count != 2 and not hosts.pairs:
        yield Problem(
            "two-hosts",
            f"{hosts.count}, and {name} measures 2 hosts, a client and a server, or "
            "more with hosts.pairs (all, ring, `random N`)",
            "hosts.count",
        )
    if shape.network.forwarded and benchmark.network != "services":
        yield Problem("no-service", f"{name} measures no Service; use pod or host", "network.path")
    for side in ("client", "server"):
        if getattr(hosts.cpus, side) and side not in benchmark.pins:
            pins = f"only its {' and '.join(benchmark.pins)}" if benchmark.pins else "nothing"
            yield Problem("unused-pin", f"{name} pins {pins}; leave it out", f"hosts.cpus.{side}")
    possible = hosts.count * (hosts.count - 1) // 2
    requested = random_pairs(hosts.pairs or "")
    if requested > possible:
        yield Problem(
            "few-pairs",
            f"{requested:,} random pairs were asked for, {hosts.count} hosts have {possible:,}",
            "hosts.pairs",
        )
    if hosts.pairs in ALL_PAIRS and possible > MAX_POINTS:
        yield Problem(
            "many-pairs",
            f"{hosts.count} hosts have more than {MAX_POINTS:,} pairs; use ring or `random N`",
            "hosts.count",
        )


def nested(name: str, value: Any) -> dict[str, Any]:
    """Return `{"a": {"b": value}}` for the name `a.b`."""
    for part in reversed(name.split(".")):
        value = {part: value}
    return cast(dict[str, Any], value)


def _axes(source: Source) -> dict[str, list[Any]]:
    product = source.entry.permutations.product
    return {name: axis for name, axis in product.items() if name not in source.sets}


def _varied_names(source: Source) -> Iterator[tuple[Where, str]]:
    """Yield each name that `--set` or a permutation of the entry gives values, with its path."""
    for name in source.sets:
        yield tuple(name.split(".")), name
    for name in source.entry.permutations.product:
        yield ("permutations", "product", name), name
    for index, explicit in enumerate(source.entry.permutations.explicit):
        for name in explicit:
            yield ("permutations", "explicit", index, name), name


def _meets(at: Mapping[str, int], condition: Mapping[str, Sequence[bool]]) -> bool:
    """Return whether the values at these positions of the axes meet a condition of `exclude`."""
    return all(hits[at[name]] for name, hits in condition.items())


def _wrong_name(benchmark: Benchmark[Any], name: str) -> str | None:
    """Return why nothing of that name can be varied, or None if it can."""
    fields = benchmark.Params.model_fields
    first = name.partition(".")[0]
    if first in fields or first in SHAPE_KEYS:
        return None
    return (
        f"{benchmark.name} has no parameter {name!r}"
        f"{nearest(name, [*fields, *SHAPE_KEYS]) or ';'} it has {', '.join(fields)}"
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else canonical(value)


def _checks_without_pairs(loaded: LoadedSuite, points: Iterable[Point]) -> Iterator[Problem]:
    """Yield a problem for each check of slow nodes whose entries measure no pairs of hosts."""
    entries = {point.entry for point in points if point.pair}
    text = "no entry that it covers has hosts.pairs (all, ring, `random N`)"
    for index, check in enumerate(loaded.suite.checks):
        if check.slow_node is not None and not fnmatch.filter(entries, check.entry or "*"):
            yield loaded.document.problem(("checks", index, "slow_node"), "no-pairs", text)


def _wrong_checks(loaded: LoadedSuite) -> Iterator[Problem]:
    """Yield why no metric or no series can meet a check of the suite: the first reason of each."""
    benchmarks = {source.name: registry.get(source.entry.benchmark) for source in loaded.sources}
    metrics = {
        source.name: metrics_by_name(
            benchmarks[source.name], {**source.entry.params, **source.sets}
        )
        for source in loaded.sources
    }
    for index, check in enumerate(loaded.suite.checks):
        entries = fnmatch.filter(metrics, check.entry or "*")
        metrics_of_check = {entry: metrics[entry] for entry in entries}
        reasons = itertools.chain(
            _wrong_metric(check, list(metrics), metrics_of_check),
            _wrong_unit(check, metrics_of_check),
            _wrong_where(check, [benchmarks[entry] for entry in entries]),
        )
        for path, code, text in itertools.islice(reasons, 1):
            yield loaded.document.problem(("checks", index, *path), code, text)


Reason = tuple[Where, str, str]
"""The path below a check, the code and the text of a problem."""


def _wrong_metric(
    check: Check, entries: list[str], metrics: Mapping[str, Mapping[str, Metric]]
) -> Iterator[Reason]:
    """Yield why a check with these metrics, by entry, covers none."""
    if not metrics:
        names = choices(check.entry, entries, "there are")
        yield ("entry",), "unknown-entry", f"no entry matches {check.entry!r}{names}"
    measured = list(dict.fromkeys(itertools.chain.from_iterable(metrics.values())))
    if not fnmatch.filter(measured, check.metric):
        of = f"entry {check.entry}" if check.entry else "the entries"
        names = choices(check.metric, measured, "there are")
        yield ("metric",), "unknown-metric", f"no metric of {of} matches {check.metric!r}{names}"


def _wrong_unit(check: Check, metrics: Mapping[str, Mapping[str, Metric]]) -> Iterator[Reason]:
    """Yield why a threshold has another unit than one of the metrics, by entry."""
    unit = check.value.unit if check.value is not None else ""
    for entry, by_name in metrics.items():
        for name in fnmatch.filter(by_name, check.metric):
            unit_of_metric = by_name[name].unit
            if unit and unit_of_metric != unit:
                yield (
                    ("value",),
                    "other-unit",
                    f"is in {unit}, and {name} of {entry} is in {unit_of_metric}; "
                    f"write it in {unit_of_metric} or as a bare number",
                )


def _wrong_where(check: Check, benchmarks: Iterable[Benchmark[Any]]) -> Iterator[Reason]:
    """Yield why no series of the benchmarks has what a check selects by."""
    # A value that no series has is absent in the gate.
    names = {*SHAPE_KEYS}
    for benchmark in benchmarks:
        names |= {*benchmark.Params.model_fields, *benchmark.coords}
    for name in check.where:
        if name.partition(".")[0] not in names:
            yield (
                ("where", name),
                "unknown-name",
                f"no series has {name}{nearest(name, names) or ';'} "
                "`perfdag benchmarks NAME` lists parameters and coordinates",
            )
