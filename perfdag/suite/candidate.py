"""What the stages of enumeration hand on: candidates for points, and problems."""

from dataclasses import dataclass
from typing import Any

from perfdag.benchmark.contract import Benchmark
from perfdag.suite.document import Problem, Where, dotted
from perfdag.suite.host_pairs import Pair
from perfdag.suite.model import Source


@dataclass(slots=True)
class Candidate:
    """A combination of values of an entry. Each stage fills in what it finds out.

    - `expand` gives `origin`, the path in the entry that the combination comes from, `varied`, its
      own values, and `params` and `shape_keys`, all values as written.
    - `validate` gives `model`, the params read. If they have mistakes, `sound` is False and `model`
      is what remains without them.
    - `place` gives `shape_index` in the list of distinct shapes, `params` as they are stored, and
      the point's `id`. It turns a candidate whose shape asks for pairs of hosts into one candidate
      for each `pair`. `measurements` follow one another in a sample.
    """

    source: Source
    benchmark: Benchmark[Any]
    origin: Where
    varied: dict[str, Any]
    params: dict[str, Any]
    shape_keys: dict[str, Any]
    model: Any = None
    sound: bool = True
    shape_index: int = 0
    id: str = ""
    pair: Pair | None = None
    measurements: int = 1

    def path(self, key: Where, otherwise: Where) -> Where:
        """Return the path of a value: in `--set`, in the permutation, or `otherwise`."""
        if self.source.is_set(key):
            return key
        return (*self.origin, dotted(key)) if dotted(key) in self.varied else otherwise


class ProblemCounter:
    """Problems of entries.

    A problem that several combinations share is listed once, with their number.
    """

    def __init__(self) -> None:
        self._counts: dict[Problem, int] = {}

    def add(self, source: Source, path: Where, text: str) -> None:
        """Add a problem at a path of an entry.

        A value that `--set` gave is reported as such, not as a fault of the file.
        """
        if source.is_set(path):
            self.count(Problem("--set", 0, f"{source.name}.{dotted(path)}", text))
        else:
            self.count(source.document.problem((*source.path, *path), text))

    def count(self, problem: Problem) -> None:
        """Add a problem that has its place already."""
        self._counts[problem] = self._counts.get(problem, 0) + 1

    def problems(self) -> list[Problem]:
        """Return the distinct problems with the number of combinations that have each."""
        return [
            problem
            if count == 1
            else Problem(
                problem.file,
                problem.line,
                problem.path,
                f"{problem.text} (in {count:,} permutations)",
            )
            for problem, count in self._counts.items()
        ]
