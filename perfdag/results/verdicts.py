"""The verdicts that benchmarks of a run came to themselves, by point and rule."""

from collections.abc import Iterable
from dataclasses import dataclass

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from perfdag.outcome import VERDICT, VERDICT_VALUES, VerdictWord
from perfdag.results.labels import labels_by_point, point_settings

_NAMES = {value: word for word, value in VERDICT_VALUES.items()}
_POINT = ["entry", "point", "params", "shape", "pair"]


@dataclass(frozen=True)
class OwnVerdict:
    """The verdict of a benchmark on a point by one rule: that of its worst sample.

    `where` is the entry with what distinguishes the point and the rule's coordinates in it. `note`
    has the figure that decided.
    """

    entry: str
    point: str
    where: str
    rule: str
    word: VerdictWord
    note: str

    @property
    def name(self) -> str:
        """The point and the rule."""
        return f"{self.where}: {self.rule}"

    @property
    def text(self) -> str:
        """The verdict in words, such as `failed: p99 < 1 s: 1.4 s`."""
        return f"{self.word}: {self.rule}: {self.note}"


def own_verdicts(table: pa.Table) -> list[OwnVerdict]:
    """Return the verdicts in the rows of a run, without warm-up, in their order.

    A sample that is not ok cannot pass, but it can fail.
    """
    is_verdict = pc.and_(pc.equal(table["metric"], VERDICT), pc.equal(table["phase"], "measure"))
    counts = pc.or_(pc.equal(table["status"], "ok"), pc.equal(table["value"], 0.0))
    rows = table.filter(pc.fill_null(pc.and_(is_verdict, counts), False))
    if not rows.num_rows:
        return []
    labels = _labels(table)
    samples: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    columns = ["entry", "point", "coords", "subject", "value", "note"]
    for row in rows.select(columns).to_pylist():
        key = row["point"], row["coords"] or "{}", row["subject"]
        samples.setdefault(key, []).append(row)
    verdicts = []
    for (point, coords, rule), judged in samples.items():
        worst = min(judged, key=lambda row: row["value"])
        same = sum(row["value"] == worst["value"] for row in judged)
        count = f" ({same} of {len(judged)} samples)" if len(judged) > 1 else ""
        at = [f"{name}={value}" for name, value in orjson.loads(coords).items()]
        where = " ".join(filter(None, (worst["entry"], labels[point], *at)))
        word = _NAMES[float(worst["value"])]
        note = f"{worst['note'] or ''}{count}"
        verdicts.append(OwnVerdict(worst["entry"], point, where, rule, word, note))
    return verdicts


def worst_of_points(verdicts: Iterable[OwnVerdict]) -> list[tuple[OwnVerdict, str]]:
    """Return the worst verdict of each point, and how many of its rules share it where several do.

    Failed points come first.
    """
    points: dict[str, list[OwnVerdict]] = {}
    for verdict in verdicts:
        points.setdefault(verdict.point, []).append(verdict)
    lines = []
    for own in points.values():
        worst = min(own, key=lambda verdict: VERDICT_VALUES[verdict.word])
        same = sum(verdict.word == worst.word for verdict in own)
        lines.append((worst, f"{same} of {len(own)} rules {worst.word}" if len(own) > 1 else ""))
    return sorted(lines, key=lambda line: VERDICT_VALUES[line[0].word])


def _labels(table: pa.Table) -> dict[str, str]:
    """Return point -> what distinguishes it within its entry."""
    first: dict[str, int] = {}
    for i, point in enumerate(table["point"].to_pylist()):
        first.setdefault(point, i)
    points = table.select(_POINT).take(pa.array(list(first.values()), pa.int64())).to_pylist()
    return labels_by_point(
        (
            row["entry"],
            row["point"],
            point_settings(
                orjson.loads(row["params"] or "{}"), orjson.loads(row["shape"] or "{}"), row["pair"]
            ),
        )
        for row in points
    )
