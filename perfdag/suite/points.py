"""The points of a suite: each combination of the values of its entries, with its shape.

A point is one benchmark with one set of params on one shape. Its id is a hash of these, so equal
points of two entries are one.
"""

import fnmatch
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import StringConstraints, ValidationError

from perfdag.benchmark import registry
from perfdag.benchmark.contract import Benchmark, metrics_by_name
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
from perfdag.suite.pairs import ALL_PAIRS, HUNT_MEASUREMENTS, Pair, random_pairs, rounds

MAX_COMBINATIONS = 1_000_000
"""Combinations of all entries of a suite, those that `exclude` leaves out too."""


MAX_POINTS = 100_000


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
    found = _Enumeration(loaded.suite)
    for source in loaded.sources:
        found.add_entry(source)
    problems = [
        problem
        for index, check in enumerate(loaded.suite.checks)
        if (problem := _wrong_check(loaded, index, check))
    ]
    for problem, count in found.mistakes.items():
        more = f" (in {count:,} permutations)" if count > 1 else ""
        problems.append(replace(problem, text=f"{problem.text}{more}"))
    problems = problems or list(_checks_without_pairs(loaded, found.points.values()))
    if problems:
        raise BadDocument(problems)
    everything = SuitePoints(list(found.points.values()), found.shapes, found.merged)
    return _select(everything, only) if only else everything


def _select(everything: SuitePoints, only: Sequence[str]) -> SuitePoints:
    names = [
        (name, point.id)
        for point in everything.points
        for name in (point.entry, f"{point.entry}/{point.label}", point.id)
    ]
    matched = {}
    for glob in only:
        own = {point for name, point in names if name == glob}
        matched[glob] = own or {point for name, point in names if fnmatch.fnmatchcase(name, glob)}
    entries = sorted({point.entry for point in everything.points})
    if missed := [glob for glob, ids in matched.items() if not ids]:
        raise BadDocument(
            Problem("no-match", f"matches no point{choices(g, entries, 'entries:')}", g, "--only")
            for g in missed
        )
    selected = set().union(*matched.values())
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

    suite: Suite
    points: dict[str, Point] = field(default_factory=dict)
    shapes: list[Shape] = field(default_factory=list)
    merged: int = 0
    mistakes: dict[Problem, int] = field(default_factory=dict)
    _combined: int = 0
    _read: dict[str, tuple[int, Shape, str] | None] = field(default_factory=dict)
    _indices: dict[str, int] = field(default_factory=dict)

    def _refuse(self, problem: Problem) -> None:
        self.mistakes[problem] = self.mistakes.get(problem, 0) + 1

    def add_entry(self, source: Source) -> None:
        """Add the points of an entry, and merge those that equal others."""
        suite, entry, path = self.suite, source.entry, ("permutations",)
        self._combined += math.prod(map(len, _axes(source).values()))  # before `exclude`
        self._combined += len(entry.permutations.explicit)
        if self._combined > MAX_COMBINATIONS:
            text = f"more than {MAX_COMBINATIONS:,} combinations up to this entry; "
            text += "shorten the lists, or split the suite"
            self._refuse(source.problem(path, "many-points", text))
            return
        benchmark = registry.get(entry.benchmark)
        fields = benchmark.Params.model_fields
        for name in entry.params.keys() - fields.keys():
            text = f"{benchmark.name} has no such parameter{choices(name, fields, 'it has')}"
            self._refuse(source.problem(("params", name), "unknown-name", text))
        base = Point(
            id="",
            entry=source.name,
            benchmark=benchmark.name,
            params={name: value for name, value in entry.params.items() if name in fields},
            shape=0,
            label="",
            repetitions=entry.repetitions or suite.repetitions,
            seconds=0.0,
            timeout=entry.timeout or suite.timeout or 0.0,
            retries=suite.retries if entry.retries is None else entry.retries,
            until=entry.until,
            optional=bool(entry.optional),
        )
        if entry.until and entry.until.max_repetitions < base.repetitions:
            text = (
                f"{entry.until.max_repetitions} is less than the {base.repetitions} repetitions "
                "that every point has; raise it, or lower repetitions"
            )
            self._refuse(source.problem(("until", "max_repetitions"), "few-repetitions", text))
        for origin, varied in self._combinations(source, benchmark):
            for point in self._points(source, benchmark, base, origin, varied):
                known = self.points.setdefault(point.id, point)
                if known is not point:
                    self.merged += 1
                    known.tighten(point)
            if len(self.points) + self.merged > MAX_POINTS:
                text = f"more than {MAX_POINTS:,} points"
                self._refuse(source.problem(path, "many-points", text))
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
        Names that cannot be varied are mistakes too.
        """
        axes, permutations = _axes(source), source.entry.permutations
        named: list[tuple[Where, str]] = [(tuple(name.split(".")), name) for name in source.sets]
        named += [(("permutations", "product", name), name) for name in permutations.product]
        for index, explicit in enumerate(permutations.explicit):
            named += [(("permutations", "explicit", index, name), name) for name in explicit]
        for path, name in named:
            if text := _wrong_name(benchmark, name):
                self._refuse(source.problem(path, "unknown-name", text))
        conditions = []
        for index, condition in enumerate(permutations.exclude):
            hits = {
                name: [matches(condition[name], value) for value in axes[name]]
                for name in condition.keys() & axes.keys()
            }
            for name in condition:
                if name not in permutations.product:
                    known = choices(name, sorted(permutations.product) or ["none"], "axes:")
                    code, text = "unknown-name", f"is not an axis of this entry{known}"
                elif not any(hits.get(name, [True])):
                    values = ", ".join(map(str, axes[name]))
                    code = "excludes-nothing"
                    text = (
                        f"leaves nothing out: {name} is {values}; correct or remove the condition"
                    )
                else:
                    continue
                path = ("permutations", "exclude", index, name)
                self._refuse(source.problem(path, code, text))
            if hits.keys() == condition.keys():
                conditions.append(hits)
        return conditions

    def _points(
        self,
        source: Source,
        benchmark: Benchmark[Any],
        base: Point,
        origin: Where,
        varied: Mapping[str, Any],
    ) -> Iterator[Point]:
        """Yield the points of one combination: one, or one for each pair of hosts."""
        params = dict(base.params)
        shape_keys = {key: value for key, value in source.raw.items() if key in SHAPE_KEYS}
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
            if source.is_set(path):
                return path
            return (*origin, dotted(path)) if origin and dotted(path) in varied else otherwise

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
        shaped = self._shape(source, benchmark, overlay(own, shape_keys), place, model is not None)
        if model is None or shaped is None:
            return
        number, shape, shape_text = shaped
        mistakes = [
            source.problem(origin or ("params",), own.code, own.text)
            for own in benchmark.check(model, shape.pair() if shape.hosts.pairs else shape)
        ]
        stored = model.model_dump(mode="json")
        for param, value in stored.items():
            for name in secret_names(value, param.rpartition(".")[2] if "." in param else ""):
                text = (
                    f"{name} is the name of a secret, which a suite does not hold; leave it out: "
                    "a command has the variables of perfdag run, and on a cluster those of the "
                    "Secret that `secret` names"
                )
                path = place((param,), ("params", param))
                mistakes.append(source.problem(path, "secret", text))
        for problem in mistakes:
            self._refuse(problem)
        if mistakes:
            return
        # A parameter that was removed stays in the id with its default: the history goes on.
        identity = canonical(merge(stored, dict(model.retired)))
        kind, seconds = shape.hosts.pairs, benchmark.seconds(model)
        whole = replace(
            base,
            id=digest(benchmark.name, identity, shape_text),
            params=stored,
            shape=number,
            label=" ".join(f"{name}={_label_value(value)}" for name, value in varied.items()),
            seconds=seconds * (HUNT_MEASUREMENTS if kind == "hunt" else 1),
            timeout=base.timeout or benchmark.limit(model),
        )
        if not kind or kind == "hunt":
            yield whole
            return
        for round, pairs in enumerate(rounds(kind, shape.hosts.count, self.suite.seed)):
            for slot, (first_host, second) in enumerate(pairs):
                parallel = shape.hosts.parallel_pairs
                pair = Pair(first_host, second, round, slot, whole.id, parallel)
                label = f"{whole.label} pair={pair.name}".strip()
                yield replace(whole, id=digest(whole.id, pair.name), label=label, pair=pair)

    def _shape(
        self,
        source: Source,
        benchmark: Benchmark[Any],
        keys: dict[str, Any],
        place: Any,
        whole: bool,
    ) -> tuple[int, Shape, str] | None:
        """Return index, shape and canonical text of shape keys, or None if they are wrong.

        Points of equal index can share pods. A wrong shape is reported once for each entry. The
        keys are `whole` where those of the benchmark's own params are among them.
        """
        cache_key = canonical([keys, benchmark.name, source.name, whole])
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
        problems = shape.problems() or (_unfit(benchmark, shape) if whole else [])
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


def _unfit(benchmark: Benchmark[Any], shape: Shape) -> list[Problem]:
    """Return why the benchmark cannot measure on the shape, or an empty list."""
    hosts, name = shape.hosts, benchmark.name
    pairs, wanted = hosts.count * (hosts.count - 1) // 2, random_pairs(hosts.pairs or "")
    pins = f"only its {' and '.join(benchmark.pins)}" if benchmark.pins else "nothing"
    rules: tuple[tuple[object, str, str, str], ...] = (
        *(
            (
                getattr(hosts, key) and benchmark.network not in ("pairs", "services"),
                f"hosts.{key}",
                "no-pairs",
                f"{name} does not measure between two hosts; leave {key} out",
            )
            for key in ("pairs", "roles")
        ),
        (
            benchmark.network == "services" and hosts.count != 2 and not hosts.pairs,
            "hosts.count",
            "two-hosts",
            f"{hosts.count}, and {name} measures 2 hosts, a client and a server, or "
            "more with hosts.pairs (all, ring, `random N`)",
        ),
        (
            shape.network.forwarded and benchmark.network != "services",
            "network.path",
            "no-service",
            f"{name} measures no Service; use pod or host",
        ),
        *(
            (
                getattr(hosts.cpus, side) and side not in benchmark.pins,
                f"hosts.cpus.{side}",
                "unused-pin",
                f"{name} pins {pins}; leave it out",
            )
            for side in ("client", "server")
        ),
        (
            wanted > pairs,
            "hosts.pairs",
            "few-pairs",
            f"{wanted:,} random pairs were asked for, {hosts.count} hosts have {pairs:,}",
        ),
        (
            hosts.pairs in ALL_PAIRS and pairs > MAX_POINTS,
            "hosts.count",
            "many-pairs",
            f"{hosts.count} hosts have more than {MAX_POINTS:,} pairs; use ring or `random N`",
        ),
    )
    return [Problem(code, text, path) for broken, path, code, text in rules if broken]


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
    first = name.partition(".")[0]
    if first in fields or first in SHAPE_KEYS:
        return None
    return (
        f"{benchmark.name} has no parameter {name!r}"
        f"{nearest(name, [*fields, *SHAPE_KEYS]) or ';'} it has {', '.join(fields)}"
    )


def _label_value(value: Any) -> str:
    return value if isinstance(value, str) else canonical(value)


def _checks_without_pairs(loaded: LoadedSuite, points: Iterable[Point]) -> Iterator[Problem]:
    """Yield a problem for each check of slow nodes whose entries measure no pairs of hosts."""
    entries = {point.entry for point in points if point.pair}
    text = "no entry that it covers has hosts.pairs (all, ring, `random N`)"
    for index, check in enumerate(loaded.suite.checks):
        if check.slow_node is not None and not fnmatch.filter(entries, check.entry or "*"):
            yield loaded.document.problem(("checks", index, "slow_node"), "no-pairs", text)


def _wrong_check(loaded: LoadedSuite, index: int, check: Check) -> Problem | None:
    """Return why no metric or no series can meet a check of the suite, or None."""

    def wrong(path: Where, code: str, text: str) -> Problem:
        return loaded.document.problem(("checks", index, *path), code, text)

    benchmarks = {source.name: registry.get(source.entry.benchmark) for source in loaded.sources}
    metrics = {
        source.name: metrics_by_name(
            benchmarks[source.name], {**source.entry.params, **source.sets}
        )
        for source in loaded.sources
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
    # A value that no series has is absent in the gate.
    of_series = {*SHAPE_KEYS}
    for entry in entries:
        of_series |= {*benchmarks[entry].Params.model_fields, *benchmarks[entry].coords}
    for name in check.where:
        if name.partition(".")[0] not in of_series:
            text = (
                f"no series has {name}{nearest(name, of_series) or ';'} "
                "`perfdag benchmarks NAME` lists parameters and coordinates"
            )
            return wrong(("where", name), "unknown-name", text)
    return None
