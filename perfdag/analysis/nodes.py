"""Noise of each series in recent runs, and the nodes whose values differ from the others."""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from perfdag.analysis.history import series_names
from perfdag.analysis.medians import RunMedians, codes, is_measured
from perfdag.analysis.verdict import Tuning
from perfdag.results.labels import difference, facts_of_nodes
from perfdag.results.schema import load_rows
from perfdag.stats.levels import side_word
from perfdag.stats.nodes import Outlier, confirming, lone_gate, outliers
from perfdag.stats.robust import Array, Variability, median, variability_of
from perfdag.store.base import Store

NEWEST = 60
"""Runs whose rows tell the noise and the nodes."""
_COLUMNS = [
    "series_id",
    "run_id",
    "status",
    "phase",
    "subject",
    "value",
    "variant",
    "nodes",
    "repetition",
    "env",
]


@dataclass(frozen=True)
class NodeOutlier:
    """A node that differs from the others in one series. `word` is worse or better.

    `differs` has the facts in which it differs from most of the others.
    """

    series: str
    word: str
    outlier: Outlier
    differs: str = ""


def recent_rows(store: Store, medians: RunMedians, newest: int = NEWEST) -> pa.Table:
    """Return the measured rows of the newest runs. Raises StoreError."""
    runs = [run.run_id for run in medians.runs[-newest:]]
    table = load_rows(store, suites=[medians.suite], runs=runs, columns=_COLUMNS, damaged=[])
    return table.filter(is_measured(table))


def noise_report(medians: RunMedians, table: pa.Table) -> list[tuple[str, Variability]]:
    """Return the noise of each series over recent rows, the noisiest between runs first."""
    split = _split(table)
    report = []
    for i, name in enumerate(series_names(medians)):
        rows = split.get(medians.series[i].series_id)
        if rows is None or medians.series[i].canary:
            continue
        runs = [rows[0][rows[1] == run] for run in np.unique(rows[1])]
        report.append((name, variability_of(runs, _by_node(*rows))))
    return sorted(report, key=lambda row: -(row[1].between or 0))


def node_outliers(medians: RunMedians, table: pa.Table, tuning: Tuning) -> list[NodeOutlier]:
    """Return the nodes that differ from the others in headline series over recent rows.

    Many series would name a node by chance. A node is named where several points agree, or where
    one is very sure. Series of one point come from the same samples and count once.
    """
    split = _split(table)
    suspected: list[tuple[str, NodeOutlier]] = []
    points: set[str] = set()
    nodes: set[str] = set()
    for i, name in enumerate(series_names(medians)):
        info = medians.series[i]
        rows = split.get(info.series_id)
        if rows is None or not tuning.pages(info):
            continue
        min_effect, absolute = tuning.effect(info, rows[0])
        if absolute:
            continue
        values = _by_node(*rows)
        points.add(info.point)
        nodes |= values.keys()
        for outlier in outliers(values, min_effect=min_effect):
            word = side_word(outlier.effect, info.better)
            suspected.append((info.point, NodeOutlier(name, word, outlier)))
    agreeing: dict[tuple[str, str], set[str]] = {}
    for point, suspect in suspected:
        agreeing.setdefault((suspect.outlier.node, suspect.word), set()).add(point)
    enough = confirming(len(points), len(nodes)) if suspected else 0
    sure = lone_gate(len(points))
    suspects = [
        suspect
        for _, suspect in suspected
        if len(agreeing[suspect.outlier.node, suspect.word]) >= enough
        or suspect.outlier.sigmas >= sure
    ]
    facts = facts_of_nodes(table) if suspects else {}
    explained = [
        replace(suspect, differs=difference(facts, suspect.outlier.node)) for suspect in suspects
    ]
    return sorted(explained, key=lambda node: (node.word != "worse", -abs(node.outlier.effect)))


_Rows = tuple[Array, NDArray[np.int64], list[tuple[str, ...]]]


def _split(table: pa.Table) -> dict[str, _Rows]:
    """Split rows by series into values, runs as numbers (oldest first) and nodes."""
    which, ids = codes(table["series_id"])
    run, run_ids = codes(table["run_id"])
    rank = np.argsort(np.argsort(run_ids)) if run_ids else np.array([], dtype=np.int64)
    values = table["value"].to_numpy().astype(np.float64)
    nodes = [tuple(names or ()) for names in table["nodes"].to_pylist()]
    order = np.argsort(which, kind="stable")
    groups, starts = np.unique(which[order], return_index=True)
    split: dict[str, _Rows] = {}
    for group, rows in zip(groups, np.split(order, starts[1:]), strict=True):
        split[ids[group]] = (values[rows], rank[run[rows]], [nodes[k] for k in rows])
    return split


def _by_node(
    values: Array, runs: NDArray[np.int64], nodes: list[tuple[str, ...]]
) -> dict[str, list[float]]:
    """Return one value per node and run: the median of the samples the node took part in."""
    samples: dict[str, dict[int, list[float]]] = {}
    for value, run, names in zip(values, runs, nodes, strict=True):
        for node in names:
            samples.setdefault(node, {}).setdefault(int(run), []).append(float(value))
    return {
        node: [median(by_run[run]) for run in sorted(by_run)] for node, by_run in samples.items()
    }
