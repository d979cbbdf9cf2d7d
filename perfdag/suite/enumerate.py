"""Enumeration: a pipeline turns the entries of a suite into points.

`expand` yields a candidate for each combination of values, `validate` reads its params, `place`
gives it a shape, and `keep` makes it a point and merges equal points. Each stage reports problems
and drops what cannot be measured.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from pydantic import ValidationError

from perfdag.benchmark import registry
from perfdag.digest import canonical
from perfdag.redaction import secret_names
from perfdag.suite.candidate import Candidate, ProblemCounter
from perfdag.suite.document import (
    BadDocument,
    Problem,
    choices,
    error_path,
    explain,
    validate_partially,
)
from perfdag.suite.model import LoadedSuite, PointSettings, Source, Until, unmet_where
from perfdag.suite.permutations import count_combinations, expand
from perfdag.suite.placement import MAX_POINTS, Placer
from perfdag.suite.point import Point, SuitePoints

MAX_COMBINATIONS = 1_000_000
"""Combinations of all entries of a suite, those that `exclude` leaves out too."""


def enumerate_points(loaded: LoadedSuite, only: Sequence[str] = ()) -> SuitePoints:
    """Return the points of a loaded suite.

    `only` are globs on entry names, `entry/label` or point ids. A point that matches any of them is
    kept. Raises BadDocument with all problems.
    """
    problems = ProblemCounter()
    enumerated = _enumerate(loaded, loaded.sources, problems)
    if mistakes := problems.problems():
        raise BadDocument(mistakes)
    settings: dict[str, list[PointSettings]] = {}
    for point in enumerated.points:
        own = point.params, enumerated.shapes[point.shape]
        settings.setdefault(point.entry, []).append(own)
    coords = {
        source.name: registry.get(source.entry.benchmark).coords
        for source in loaded.known_sources()
    }
    for index, check in enumerate(loaded.suite.checks):
        if unmet := unmet_where(check, settings, coords):
            name, text = unmet
            problems.count(loaded.document.problem(("checks", index, "where", name), text))
    if mistakes := problems.problems():
        raise BadDocument(mistakes)
    return _select(enumerated, only) if only else enumerated


def point_problems(loaded: LoadedSuite) -> list[Problem]:
    """Return the mistakes in the points of a suite that has other mistakes too."""
    problems = ProblemCounter()
    _enumerate(loaded, loaded.known_sources(), problems)
    return problems.problems()


def _enumerate(
    loaded: LoadedSuite, sources: Iterable[Source], problems: ProblemCounter
) -> SuitePoints:
    sources, combinations = list(sources), 0
    for source in sources:
        combinations += count_combinations(source)
        if combinations > MAX_COMBINATIONS:
            text = (
                f"{_amount(combinations)} combinations up to this entry are more than "
                f"{MAX_COMBINATIONS:,}; shorten the lists, or split the suite"
            )
            problems.add(source, ("permutations",), text)
            return SuitePoints([], [], 0)
    placer = Placer(loaded.suite.seed, problems)
    keeper = Keeper(loaded, problems)
    for source in sources:
        keeper.keep(source, placer.place(validate(expand(source, problems), problems)))
    return SuitePoints(list(keeper.points.values()), placer.shapes, keeper.merged)


def _amount(number: int) -> str:
    return f"{number:,}" if number < 10**15 else f"10^{math.floor(math.log10(number))}"


def _select(enumerated: SuitePoints, only: Sequence[str]) -> SuitePoints:
    selected: set[str] = set()
    problems = []
    entries = sorted({point.entry for point in enumerated.points})
    for glob in only:
        ids = {
            point.id
            for point in enumerated.points
            if any(
                fnmatchcase(name, glob)
                for name in (point.entry, f"{point.entry}/{point.label}", point.id)
            )
        }
        if not ids:
            problems.append(
                Problem(
                    "--only",
                    0,
                    glob,
                    f"matches no point{choices(glob, entries, 'entries:')}",
                )
            )
        selected |= ids
    if problems:
        raise BadDocument(problems)
    points = [point for point in enumerated.points if point.id in selected]
    used = sorted({point.shape for point in points})
    for point in points:
        point.shape = used.index(point.shape)
    return SuitePoints(points, [enumerated.shapes[index] for index in used], enumerated.merged)


def validate(candidates: Iterable[Candidate], problems: ProblemCounter) -> Iterator[Candidate]:
    """Read the params of each candidate.

    A candidate with mistakes is handed on with the params that remain, so that mistakes of its
    shape are reported at once.
    """
    for candidate in candidates:
        model = candidate.benchmark.Params
        try:
            candidate.model = model.model_validate(candidate.params)
        except ValidationError as errors:
            candidate.sound = False
            _report(candidate, errors, problems)
            if not candidate.source.partial:
                candidate.model, _ = validate_partially(
                    candidate.source.document, (), candidate.params, model, []
                )
        if candidate.model is not None and not candidate.source.partial:
            yield candidate


def _report(candidate: Candidate, errors: ValidationError, problems: ProblemCounter) -> None:
    source = candidate.source
    for error in errors.errors():
        if source.partial and (error["type"] == "missing" or not error["loc"]):
            continue  # the missing value may be in what was refused
        if (
            error["type"] == "extra_forbidden"
            and len(error["loc"]) == 1
            and error["loc"][0] in source.entry.params
        ):
            continue  # `expand` reported it once for the entry
        key = error_path(error)
        text = explain(source.document, (), error, candidate.benchmark.Params).text
        problems.add(source, candidate.path(key, ("params", *key)), text)


class Keeper:
    """The `keep` stage: candidates become points.

    `points` holds them by id in the order of the suite.
    """

    def __init__(self, loaded: LoadedSuite, problems: ProblemCounter) -> None:
        self.points: dict[str, Point] = {}
        self.merged = 0
        self._loaded, self._suite, self._problems = loaded, loaded.suite, problems

    def keep(self, source: Source, candidates: Iterable[Candidate]) -> None:
        """Make points of the candidates of an entry and merge equal ones."""
        entry, defaults = source.entry, source.defaults
        repetitions, until = self._repetitions(source)
        retries = next(
            value
            for value in (entry.retries, defaults.retries, self._suite.retries)
            if value is not None
        )
        timeout = entry.timeout or defaults.timeout or self._suite.timeout
        optional = defaults.optional if entry.optional is None else entry.optional
        for candidate in candidates:
            benchmark, model = candidate.benchmark, candidate.model
            self._refuse_secrets(candidate)
            point = Point(
                id=candidate.id,
                entry=source.name,
                benchmark=benchmark.name,
                params=candidate.params,
                shape=candidate.shape_index,
                label=" ".join(
                    f"{name}={_label_value(value)}" for name, value in candidate.varied.items()
                ),
                repetitions=repetitions,
                seconds=benchmark.seconds(model) * candidate.measurements,
                timeout=timeout or benchmark.limit(model),
                retries=retries,
                until=until,
                pair=candidate.pair,
                optional=bool(optional),
            )
            known = self.points.setdefault(point.id, point)
            if known is not point:
                self.merged += 1
                known.tighten(point)
            if len(self.points) + self.merged > MAX_POINTS:
                self._problems.add(source, ("permutations",), f"more than {MAX_POINTS:,} points")
                return

    def _refuse_secrets(self, candidate: Candidate) -> None:
        for param, value in candidate.params.items():
            for name in secret_names(value, param.rpartition(".")[2] if "." in param else ""):
                text = (
                    f"{name} is the name of a secret, which a suite does not hold; leave it out: "
                    "a command has the variables of perfdag run, and on a cluster those of the "
                    "Secret that `secret` names"
                )
                self._problems.add(
                    candidate.source, candidate.path((param,), ("params", param)), text
                )

    def _repetitions(self, source: Source) -> tuple[int, Until | None]:
        """Return the repetitions of an entry and its `until`, which must allow at least as many."""
        repetitions = (
            source.entry.repetitions or source.defaults.repetitions or self._suite.repetitions
        )
        until = source.entry.until or source.defaults.until
        if until is not None and until.max_repetitions < repetitions:
            text = (
                f"{until.max_repetitions} is less than the {repetitions} repetitions "
                "that every point has; "
                "raise it, or lower repetitions"
            )
            self._problems.add(source, ("until", "max_repetitions"), text)
        return repetitions, until


def _label_value(value: Any) -> str:
    return value if isinstance(value, str) else canonical(value)
