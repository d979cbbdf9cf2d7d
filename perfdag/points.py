"""Enumeration: a suite's entries become points, and points become the order in which they are measured.

A point is one benchmark with one set of params on one shape; its id is a hash of just these, so equal points of two entries are one.
The order goes round by round; the points of a round are shuffled from the suite's seed, so that drift hits all alike. Where a shape asks
for pairs of its hosts, each pair is a point, and the disjoint pairs of one round stay together in the order.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson
from pydantic import ValidationError

from perfdag import benchmark as registry
from perfdag import pairs
from perfdag.benchmark import Benchmark
from perfdag.document import BadDocument, Problem, Where, dotted, nearest
from perfdag.explain import explain, place, salvage
from perfdag.ids import canonical, digest
from perfdag.pairs import Pair
from perfdag.permutations import combinations
from perfdag.shape import SHAPE_KEYS, Shape, laid, merge
from perfdag.suite import Loaded, Source, Until

MAX_POINTS = 1_000_000


@dataclass(slots=True)
class Point:
    """What is measured: `shape` indexes the plan's shapes, `seconds` is the expected time of a sample, `label` the varied names."""

    id: str
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

    def sample(self, repetition: int) -> str:
        """What a person calls one sample of it; warm-ups have repetitions below 1."""
        count = f"{repetition}/{self.rounds}" if repetition > 0 else "warm-up"
        return f"{self.entry} {self.label}".strip() + f" ({count})"

    @property
    def rounds(self) -> int:
        """Most measured samples this point may get."""
        return self.until.max_repetitions if self.until else self.repetitions


@dataclass
class Enumerated:
    """All points of a suite, the distinct shapes they use, and how many equal points were merged."""

    points: list[Point] = field(default_factory=list)
    shapes: list[dict[str, Any]] = field(default_factory=list)
    merged: int = 0


def enumerate_points(loaded: Loaded, only: Sequence[str] = ()) -> Enumerated:
    """The points of a loaded suite. `only`: globs on entry names, `entry/label` or point ids; any keeps a point. Raises BadDocument with all problems."""
    collector = _Collector(loaded)
    for source in loaded.sources:
        collector.add(source)
    if collector.problems:
        raise BadDocument(collector.list_problems())
    return _select(collector.made, only) if only else collector.made


def wrong_points(loaded: Loaded) -> list[Problem]:
    """What is wrong with the points of a suite that has other mistakes too, as far as its entries can be read."""
    collector = _Collector(loaded)
    for source in loaded.known():
        collector.add(source)
    return collector.list_problems()


def _select(made: Enumerated, only: Sequence[str]) -> Enumerated:
    from fnmatch import fnmatchcase

    wanted: set[str] = set()
    problems = []
    known = sorted({p.entry for p in made.points})
    for glob in only:
        ids = {
            p.id
            for p in made.points
            if any(fnmatchcase(name, glob) for name in (p.entry, f"{p.entry}/{p.label}", p.id))
        }
        if not ids:
            problems.append(
                Problem(
                    "--only",
                    1,
                    glob,
                    f"matches no point; entries: {', '.join(known)}{nearest(glob, known)}",
                )
            )
        wanted |= ids
    if problems:
        raise BadDocument(problems)
    return Enumerated([p for p in made.points if p.id in wanted], made.shapes, made.merged)


class _Collector:
    def __init__(self, loaded: Loaded) -> None:
        self.loaded, self.made = loaded, Enumerated()
        self.problems: dict[Problem, int] = {}
        self._by_id: dict[str, Point] = {}
        self._shapes: dict[bytes, tuple[int, Shape, str] | None] = {}
        self._shape_index: dict[str, int] = {}

    def list_problems(self) -> list[Problem]:
        """Problems of the entries; one that several permutations share is said once, with their number."""
        return [
            problem
            if count == 1
            else Problem(
                problem.file,
                problem.line,
                problem.path,
                f"{problem.text} (in {count:,} permutations)",
            )
            for problem, count in self.problems.items()
        ]

    def problem(self, source: Source, path: Where, text: str) -> None:
        """A problem of an entry; what `--set` gave is none of its file."""
        if _is_set(source, path):
            found = Problem("--set", 1, f"{source.name}.{dotted(path)}", text)
        else:
            found = source.document.problem((*source.path, *path), text)
        self._count(found)

    def _count(self, found: Problem) -> None:
        self.problems[found] = self.problems.get(found, 0) + 1

    def add(self, source: Source) -> None:
        benchmark = registry.get(source.entry.benchmark)
        fields = benchmark.Params.model_fields
        for name in source.entry.params:
            if name not in fields:
                self.problem(
                    source,
                    ("params", name),
                    f"{source.entry.benchmark} has no such parameter; it has {', '.join(fields)}{nearest(name, fields)}",
                )
        repetitions, until = self._times(source)
        if until is not None and until.max_repetitions < repetitions:
            text = f"{until.max_repetitions} is less than the {repetitions} repetitions that every point has; raise it, or lower repetitions"
            self.problem(source, ("until", "max_repetitions"), text)
        axes = combinations(source, benchmark, partial(self.problem, source))
        defaults = {name: value for name, value in source.defaults.params.items() if name in fields}
        params = {**defaults, **source.entry.params}
        shape = merge(_shape_keys(source.raw_defaults), _shape_keys(source.raw))
        for where, combination in axes:
            if len(self._by_id) > MAX_POINTS:
                self.problem(source, ("permutations",), f"more than {MAX_POINTS:,} points")
                return
            self._point(source, benchmark, where, {**combination, **source.sets}, params, shape)

    def _point(
        self,
        source: Source,
        benchmark: Benchmark[Any],
        where: Where,
        varied: Mapping[str, Any],
        params: dict[str, Any],
        shape: dict[str, Any],
    ) -> None:
        fields = benchmark.Params.model_fields
        own, asked = dict(params), shape
        for name, value in varied.items():
            first, _, rest = name.partition(".")
            if first in fields:
                own = merge(own, _nested(name, value)) if rest else {**own, name: value}
            else:
                asked = merge(asked, _nested(name, value))
        try:
            model = benchmark.Params.model_validate(own)
        except ValidationError as error:
            for each in error.errors():
                if source.partial and (each["type"] == "missing" or not each["loc"]):
                    continue  # it may stand in what could not be read
                if (
                    each["type"] == "extra_forbidden"
                    and len(each["loc"]) == 1
                    and each["loc"][0] in source.entry.params
                ):
                    continue  # `add` has said it, with or without a point
                loc = place(each)
                path = _written(source, where, varied, loc, ("params", *loc))
                self.problem(
                    source, path, explain(source.document, (), each, benchmark.Params).text
                )
            if source.partial:
                return
            sound, _ = salvage(source.document, (), own, benchmark.Params, [])
            if sound is not None:  # what is wrong with the pods is said at once, too
                self._shape(source, laid(benchmark.shape(sound), asked), benchmark, where, varied)
            return
        if source.partial:
            return
        placed = self._shape(source, laid(benchmark.shape(model), asked), benchmark, where, varied)
        if placed is None:
            return
        index, shape_model, shape_text = placed
        if shape_model.hosts.pairs:
            self._pairs(source, benchmark, model, (index, shape_model, shape_text), where, varied)
            return
        problems = benchmark.check(model, shape_model)
        for text in problems:
            self.problem(source, where or ("params",), text)
        if not problems:
            dumped = model.model_dump(mode="json")
            self._keep(
                source,
                benchmark,
                model,
                dumped,
                index,
                digest(benchmark.name, canonical(dumped), shape_text),
                varied,
            )

    def _pairs(
        self,
        source: Source,
        benchmark: Benchmark[Any],
        model: Any,
        placed: tuple[int, Shape, str],
        where: Where,
        varied: Mapping[str, Any],
    ) -> None:
        index, shape, text = placed
        hosts = shape.hosts
        if not benchmark.pairwise:
            self.problem(
                source,
                ("hosts", "pairs"),
                f"{benchmark.name} does not measure between two hosts; leave hosts.pairs out",
            )
            return
        problems = benchmark.check(model, shape.pair())
        for problem in problems:
            self.problem(source, where or ("params",), problem)
        if hosts.count * (hosts.count - 1) // 2 > MAX_POINTS:
            problems.append(f"{hosts.count} hosts have more than {MAX_POINTS:,} pairs")
            self.problem(source, ("hosts", "count"), problems[-1])
        if problems:
            return
        dumped = model.model_dump(mode="json")
        of = digest(benchmark.name, canonical(dumped), text)
        try:
            for pair in pairs.made(
                str(hosts.pairs), hosts.count, self.loaded.suite.seed, of, hosts.parallel_pairs
            ):
                self._keep(
                    source,
                    benchmark,
                    model,
                    dumped,
                    index,
                    digest(of, pair.name),
                    {**varied, "pair": pair.name},
                    pair,
                )
        except ValueError as error:
            self.problem(source, ("hosts", "pairs"), str(error))

    def _shape(
        self,
        source: Source,
        asked: dict[str, Any],
        benchmark: Benchmark[Any],
        where: Where,
        varied: Mapping[str, Any],
    ) -> tuple[int, Shape, str] | None:
        key = orjson.dumps([asked, benchmark.image, benchmark.name, source.name])
        if key not in self._shapes:
            self._shapes[key] = None
            try:
                shape = Shape.model_validate(
                    {"image": benchmark.image, **{k: v for k, v in asked.items() if v is not None}}
                )
            except ValidationError as error:
                for each in error.errors():
                    loc = place(each)
                    self.problem(
                        source,
                        _written(source, where, varied, loc, loc),
                        explain(source.document, (), each, Shape).text,
                    )
                return None
            wrong = [*shape.problems(), *_unpinned(benchmark, shape)]
            for name, text in wrong:
                loc = tuple(name.split("."))
                self.problem(source, _written(source, where, varied, loc, loc), text)
            if wrong:
                return None
            data = shape.model_dump(mode="json", exclude_defaults=True)
            text = canonical(data)
            pods = (
                f"{benchmark.name} {text}" if benchmark.api else text
            )  # rights are not lent to what shares the pods
            if pods not in self._shape_index:
                self._shape_index[pods] = len(self.made.shapes)
                self.made.shapes.append(data)
            self._shapes[key] = (self._shape_index[pods], shape, text)
        return self._shapes[key]

    def _times(self, source: Source) -> tuple[int, Until | None]:
        entry, defaults = source.entry, source.defaults
        return (
            entry.repetitions or defaults.repetitions or self.loaded.suite.repetitions,
            entry.until or defaults.until,
        )

    def _timeout(self, source: Source, benchmark: Benchmark[Any], model: Any) -> float | None:
        """The `timeout` set for a point, in seconds, which must leave the tool the time that its params ask for; None: none is set."""
        suite, entry, defaults = self.loaded.suite, source.entry, source.defaults
        timeout, least = (
            entry.timeout or defaults.timeout or suite.timeout,
            benchmark.least_seconds(model),
        )
        if timeout is None or timeout > least or "timeout" in source.refused:
            return timeout
        text = (
            f"{timeout:g} s would end every sample: {benchmark.name} is expected to take {round(benchmark.seconds(model), 1):g} s; "
            f"give more than {least:g} s, or leave timeout out (then it is {benchmark.limit(model):g} s)"
        )
        if entry.timeout:
            self.problem(source, ("timeout",), text)
        elif defaults.timeout:
            self._count(source.document.problem(("defaults", "timeout"), text))
        else:
            self._count(self.loaded.document.problem(("timeout",), text))
        return timeout

    def _keep(
        self,
        source: Source,
        benchmark: Benchmark[Any],
        model: Any,
        params: dict[str, Any],
        shape: int,
        identity: str,
        varied: Mapping[str, Any],
        pair: Pair | None = None,
    ) -> None:
        suite, entry, defaults = self.loaded.suite, source.entry, source.defaults
        repetitions, until = self._times(source)
        seconds = benchmark.seconds(model)
        timeout = self._timeout(source, benchmark, model) or benchmark.limit(model)
        retries = next(r for r in (entry.retries, defaults.retries, suite.retries) if r is not None)
        label = " ".join(f"{name}={_brief(value)}" for name, value in varied.items())
        point = Point(
            identity,
            source.name,
            benchmark.name,
            params,
            shape,
            label,
            repetitions,
            seconds,
            timeout,
            retries,
            until,
            pair,
        )
        known = self._by_id.setdefault(identity, point)
        if known is point:
            self.made.points.append(point)
        else:
            self.made.merged += 1
            _stricter(known, point)


def _is_set(source: Source, path: Where) -> bool:
    """Whether `--set` gave what is at that path."""
    return path[:1] in source.given or any(
        tuple(name.split(".")) == path[: name.count(".") + 1] for name in source.sets
    )


def _written(
    source: Source, where: Where, varied: Mapping[str, Any], path: Where, otherwise: Where
) -> Where:
    """Where a value of a point is written: in a `--set`, in the permutation `where`, or `otherwise` in the entry."""
    if _is_set(source, path):
        return path
    return (*where, dotted(path)) if dotted(path) in varied else otherwise


def _unpinned(benchmark: Benchmark[Any], shape: Shape) -> list[tuple[str, str]]:
    """(dotted key, text) of CPUs that are asked for and that the benchmark would not use."""
    pins = f"only its {' and '.join(benchmark.pins)}" if benchmark.pins else "nothing"
    sides = [
        side
        for side in ("client", "server")
        if getattr(shape.hosts.cpus, side) and side not in benchmark.pins
    ]
    return [(f"hosts.cpus.{side}", f"{benchmark.name} pins {pins}; leave it out") for side in sides]


def _stricter(known: Point, other: Point) -> None:
    """Make `known` serve for an equal point too: the stricter of each pair of settings holds, whichever came first."""
    known.repetitions = max(known.repetitions, other.repetitions)
    known.timeout = max(known.timeout, other.timeout)
    known.retries = max(known.retries, other.retries)
    both = [each.until for each in (known, other) if each.until]
    if both:
        most = max(known.repetitions, *(each.max_repetitions for each in both))
        known.until = Until(
            relative_spread=min(each.relative_spread for each in both), max_repetitions=most
        )


def _brief(value: Any) -> str:
    return value if isinstance(value, str) else canonical(value)


def _shape_keys(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key in SHAPE_KEYS}


def _nested(name: str, value: Any) -> dict[str, Any]:
    for part in reversed(name.split(".")):
        value = {part: value}
    nested: dict[str, Any] = value
    return nested


def order(points: list[Point], seed: int, warmup: int = 0) -> list[tuple[int, int]]:
    """(point index, repetition) of every sample in the order of measuring; repetitions count from 1, warm-up rounds are -1, -2, ...

    Round by round; within a round the points are shuffled by a generator seeded from `seed` and the round, so one round's order
    does not depend on how many rounds there are. Disjoint pairs of hosts that form a round of pairs are shuffled as one.
    """
    whole: dict[object, list[int]] = {}
    for index, point in enumerate(points):
        whole.setdefault((point.pair.of, point.pair.round) if point.pair else index, []).append(
            index
        )
    made: list[tuple[int, int]] = []
    rounds = max((point.rounds for point in points), default=0)
    for repetition in [*range(-1, -warmup - 1, -1), *range(1, rounds + 1)]:
        units = [unit for unit in whole.values() if points[unit[0]].rounds >= repetition]
        random.Random(f"{seed}:{repetition}").shuffle(units)
        made += [(index, repetition) for unit in units for index in unit]
    return made
