"""The `place` stage: a candidate gets the shape of its pods, or becomes one for each host pair."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import orjson
from pydantic import ValidationError

from perfdag.benchmark.contract import Benchmark
from perfdag.digest import canonical, digest
from perfdag.shape import Hosts, Shape, overlay
from perfdag.suite.candidate import Candidate, ProblemCounter
from perfdag.suite.document import error_path, explain
from perfdag.suite.host_pairs import HUNT_MEASUREMENTS, count_pairs, host_pairs

MAX_POINTS = 100_000
MAX_PARAMS = 32 << 20
"""Characters of the params and shapes of all points, as JSON."""


class Placer:
    """Gives candidates their shapes.

    `shapes` are the distinct ones; a wrong shape is reported once for each entry.
    """

    def __init__(self, seed: int, problems: ProblemCounter) -> None:
        self.shapes: list[dict[str, Any]] = []
        self._seed, self._problems = seed, problems
        self._cache: dict[bytes, tuple[int, Shape, str] | None] = {}
        self._indices: dict[str, int] = {}
        self._length = 0

    def place(self, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
        """Yield the candidates that can be measured, each with its shape and its id."""
        for candidate in candidates:
            placement = self._shape_of(candidate)
            if placement is None or not candidate.sound:
                continue
            candidate.shape_index, shape, text = placement
            if self._refused(candidate, shape):
                continue
            candidate.params = candidate.model.model_dump(mode="json")
            params = canonical(candidate.params | dict(candidate.model.retired))
            self._length += len(params) + len(text)
            if self._length > MAX_PARAMS:
                problem = (
                    f"params and shapes of all points have more than {MAX_PARAMS:,} characters"
                )
                self._problems.add(candidate.source, ("permutations",), problem)
                return
            candidate.id = digest(candidate.benchmark.name, params, text)
            if shape.hosts.pairs == "hunt":
                candidate.measurements = HUNT_MEASUREMENTS
                yield candidate
            elif shape.hosts.pairs:
                yield from self._pairs(candidate, shape.hosts)
            else:
                yield candidate

    def _refused(self, candidate: Candidate, shape: Shape) -> bool:
        """Report why params and shape cannot be measured together.

        Return whether there is a reason.
        """
        benchmark, hosts = candidate.benchmark, shape.hosts
        for key in ("pairs", "roles"):
            if getattr(hosts, key) and benchmark.network not in ("pairs", "services"):
                text = f"{benchmark.name} does not measure between two hosts; leave {key} out"
                self._problems.add(candidate.source, ("hosts", key), text)
                return True
        if shape.network.forwarded and benchmark.network != "services":
            text = f"{benchmark.name} measures no Service; use pod or host"
            self._problems.add(candidate.source, ("network", "path"), text)
            return True
        texts = benchmark.check(candidate.model, shape.pair() if hosts.pairs else shape)
        for text in texts:
            self._problems.add(candidate.source, candidate.origin or ("params",), text)
        too_many = bool(hosts.pairs) and count_pairs(str(hosts.pairs), hosts.count) > MAX_POINTS
        if too_many:
            self._problems.add(
                candidate.source,
                ("hosts", "count"),
                f"{hosts.count} hosts have more than {MAX_POINTS:,} pairs; use ring or `random N`",
            )
        return bool(texts) or too_many

    def _pairs(self, candidate: Candidate, hosts: Hosts) -> Iterator[Candidate]:
        """Yield a copy of the candidate for each pair of hosts."""
        try:
            for pair in host_pairs(
                str(hosts.pairs), hosts.count, self._seed, candidate.id, hosts.parallel_pairs
            ):
                varied = {**candidate.varied, "pair": pair.name}
                yield replace(
                    candidate, id=digest(candidate.id, pair.name), varied=varied, pair=pair
                )
        except ValueError as error:
            self._problems.add(candidate.source, ("hosts", "pairs"), str(error))

    def _shape_of(self, candidate: Candidate) -> tuple[int, Shape, str] | None:
        """Return (index, shape, canonical text), or None if the shape is wrong."""
        benchmark = candidate.benchmark
        keys = overlay(benchmark.shape(candidate.model), candidate.shape_keys)
        cache_key = orjson.dumps([keys, benchmark.image, benchmark.name, candidate.source.name])
        if cache_key not in self._cache:
            shape = self._read(candidate, keys)
            self._cache[cache_key] = None if shape is None else self._register(benchmark, shape)
        return self._cache[cache_key]

    def _read(self, candidate: Candidate, keys: dict[str, Any]) -> Shape | None:
        """Return the shape of these keys, or report what is wrong with it."""
        source, benchmark = candidate.source, candidate.benchmark
        try:
            shape = Shape.model_validate(
                {
                    "image": benchmark.image,
                    **{key: value for key, value in keys.items() if value is not None},
                }
            )
        except ValidationError as errors:
            for error in errors.errors():
                path = error_path(error)
                self._problems.add(
                    source,
                    candidate.path(path, path),
                    explain(source.document, (), error, Shape).text,
                )
            return None
        problems = [*shape.problems(), *_unpinned_cpus(benchmark, shape)]
        for key, text in problems:
            path = tuple(key.split("."))
            self._problems.add(source, candidate.path(path, path), text)
        return None if problems else shape

    def _register(self, benchmark: Benchmark[Any], shape: Shape) -> tuple[int, Shape, str]:
        """Return the shape with its index among the distinct shapes and its canonical text."""
        data = shape.model_dump(mode="json", exclude_defaults=True)
        text = canonical(data)
        # A benchmark with rights at the API server shares no pods with one that has none.
        pods = f"{benchmark.name} {text}" if benchmark.api.named else text
        if shape.hosts.count > 1:  # nor do benchmarks that a cluster places otherwise
            pods = f"{benchmark.placement} {pods}"
        if pods not in self._indices:
            self._indices[pods] = len(self.shapes)
            self.shapes.append(data)
        return self._indices[pods], shape, text


def _unpinned_cpus(benchmark: Benchmark[Any], shape: Shape) -> list[tuple[str, str]]:
    """Return (dotted key, text) of CPU lists that the benchmark does not use."""
    pins = f"only its {' and '.join(benchmark.pins)}" if benchmark.pins else "nothing"
    sides = [
        side
        for side in ("client", "server")
        if getattr(shape.hosts.cpus, side) and side not in benchmark.pins
    ]
    return [(f"hosts.cpus.{side}", f"{benchmark.name} pins {pins}; leave it out") for side in sides]
