"""`hosts.pairs: hunt`: the slow hosts of a gang, found by measuring pairs of them at once.

`Hunt` decides which pairs are next, and which hosts are slow.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from perfdag.benchmark.contract import (
    Measurement,
    Metric,
    Shape,
    VerdictWord,
    own_verdict,
    verdict,
)
from perfdag.identity import canonical, grouped
from perfdag.results.labels import difference
from perfdag.results.samples import SampleRecord, as_row, now
from perfdag.stats.robust import SIGMA_OF_MAD, median, ordered

Pair = tuple[int, int]

MIN_EFFECT = -math.log(0.9)
EFFECT_SIGMAS = 2.5
"""The slowness that is looked for, as a logarithm: the larger of both, in sigmas of the noise."""
CLEAR, SUSPECT = -7.0, 8.0
"""Scores that settle a host. A slow host is cleared with a chance of e^-7."""
ROUNDS, FEWEST_PAIRS = 10, 20
"""Most rounds before open hosts are suspects, and pairs without which no host is settled."""
TURNS, MOST_SUSPECTS, FEWEST_TURNS = 9, 20, 5
"""Pairs that confirm a suspect, suspects that are confirmed, and values that decide."""
CONFIRM_SIGMAS = 4.0
"""Standard errors by which a suspect is slower than the control."""
_ERROR_OF_MEDIAN = _SIGMA_OF_MEAN = math.sqrt(math.pi / 2)
"""Of normal noise: the error of a median against that of a mean, and sigma over mean deviation."""
LEAST_SIGMA = 0.002


class Hunt:
    """The state of a hunt over `hosts` hosts, which are numbers from 0.

    Measure `pairs()` at once and hand the speeds to `record`, until `pairs` is empty. `slow` and
    `unknown` then hold the confirmed hosts with the part (0.2 is 20 %) of the control's speed that
    they lack, the slowest first, and those without enough values.
    """

    def __init__(self, hosts: int, seed: object = 0) -> None:
        self.rounds = 0
        self.slow: dict[int, float] = {}
        self.unknown: list[int] = []
        self._random = random.Random(f"{seed}:hunt")
        self._worse: list[list[float]] = [[] for _ in range(hosts)]
        self._residuals: list[float] = []
        self._open = set(range(hosts))
        self._cleared: list[int] = []
        self._suspects: list[int] = []
        self._alone: list[Pair] = []
        self._control: list[float] = []
        self._values: dict[int, list[float]] = {}

    def pairs(self) -> list[Pair]:
        """Return the pairs to measure at once next, or none at the end."""
        if not self._open:
            return self._alone[:1]
        unsettled = self._shuffled(self._open)
        others = self._shuffled(self._cleared) + self._shuffled(self._suspects)
        # A cleared partner shows the speed of an open host alone. Two open ones share the blame.
        partners = [others.pop(0) for _ in unsettled[: len(others)]]
        rest = unsettled[len(partners) :] + others
        matched = list(zip(unsettled, partners, strict=False))
        return matched + list(zip(rest[::2], rest[1::2], strict=False))

    def record(self, pairs: Sequence[Pair], speeds: Sequence[float | None]) -> None:
        """Take the speeds of pairs, higher is better, None where a pair has none."""
        logs = [-math.log(speed) if speed else math.nan for speed in speeds]
        if self._open:
            self._record_round(pairs, logs)
        else:
            self._alone.pop(0)
            self._values.get(pairs[0][0], self._control).append(logs[0])
            if not self._alone:
                self._conclude()

    def slowness(self, host: int) -> float:
        """Return the part of the typical speed that the pairs of a host lack."""
        worse = self._worse[host]
        return 1 - math.exp(-sum(worse) / max(len(worse), 1))

    def _shuffled(self, hosts: "set[int] | list[int]") -> list[int]:
        return self._random.sample(sorted(hosts), len(hosts))

    def _record_round(self, pairs: Sequence[Pair], logs: Sequence[float]) -> None:
        self.rounds += 1
        level = median(logs)
        for pair, log in zip(pairs, logs, strict=True):
            if math.isfinite(log):
                for host in pair:
                    self._worse[host].append(log - level)
                self._residuals.append(log - level)
        last = self.rounds >= ROUNDS
        if last or len(self._residuals) >= FEWEST_PAIRS:
            self._settle(last)

    def _settle(self, last: bool) -> None:
        """Clear or suspect hosts by their scores. In the last round every open one is suspected."""
        # Slow hosts lie on one side of the level. The other side shows the noise.
        better = [-off for off in self._residuals if off < 0]
        sigma = max(SIGMA_OF_MAD * median(better) if better else 0.0, LEAST_SIGMA)
        effect = max(MIN_EFFECT, EFFECT_SIGMAS * sigma)
        # the logarithm of how much likelier a host is slow by the effect than not slow at all
        scores = [
            effect * (sum(worse) - len(worse) * effect / 2) / sigma**2 for worse in self._worse
        ]
        for host in sorted(self._open):
            if last and not self._worse[host]:
                self.unknown.append(host)
            elif scores[host] > SUSPECT or (last and scores[host] > CLEAR):
                self._suspects.append(host)
            elif scores[host] < CLEAR:
                self._cleared.append(host)
            else:
                continue
            self._open.remove(host)
        if not self._open:
            self._suspects.sort(key=lambda host: -scores[host])
            self._plan_confirmation()

    def _plan_confirmation(self) -> None:
        if len(self._cleared) < 2:
            self.unknown += self._suspects
            return
        self.unknown += self._suspects[MOST_SUSPECTS:]
        suspects = self._suspects[:MOST_SUSPECTS]
        for _ in range(TURNS if suspects else 0):
            self._alone.append(tuple(self._random.sample(self._cleared, 2)))  # type: ignore[arg-type]
            self._alone += [(host, self._random.choice(self._cleared)) for host in suspects]
        self._values = {host: [] for host in suspects}

    def _conclude(self) -> None:
        groups = {host: ordered(values) for host, values in self._values.items()}
        control = ordered(self._control)
        enough = [
            host for host, group in groups.items() if min(len(group), len(control)) >= FEWEST_TURNS
        ]
        self.unknown += sorted(groups.keys() - set(enough))
        if not enough:
            return
        samples = [control, *(groups[host] for host in enough)]
        off = [abs(value - median(group)) for group in samples for value in group]
        # Medians of few values lie close to them: as many degrees of freedom are lost.
        mean_off = fmean(off) * math.sqrt(len(off) / (len(off) - len(samples)))
        sigma = max(_SIGMA_OF_MEAN * mean_off, LEAST_SIGMA)
        for host in enough:
            worse = median(groups[host]) - median(control)
            error = sigma * _ERROR_OF_MEDIAN * math.sqrt(1 / len(groups[host]) + 1 / len(control))
            if worse > max(MIN_EFFECT / 2, CONFIRM_SIGMAS * error):
                self.slow[host] = 1 - math.exp(-worse)
        self.slow = dict(sorted(self.slow.items(), key=lambda item: -item[1]))


RULE = "no slow host"
SLOWNESS = Metric("slowness", "1", "lower", "part of the typical speed that the pairs of it lack")
EXPLAINED = 200
"""Characters of the facts in which a slow host differs from the others."""
Measured = tuple[str, int, int, SampleRecord]
"""A pair by its hosts' names, its round (0: alone), the pairs at once, and its record."""


def hunt(
    nodes: Sequence[str],
    facts: Mapping[str, Mapping[str, Any]],
    shape: Shape,
    seed: str,
    measure: Callable[[Sequence[tuple[int, int]]], list[SampleRecord]],
) -> SampleRecord:
    """Return the record of a hunt, with a row for each pair and host, and a verdict.

    `nodes` are those of the hosts by number, `facts` gets theirs while `measure` returns the
    records of pairs that it measures at once. If no pair of the first round can be measured, return
    the record of one.
    """
    distinct = len(set(nodes)) == len(nodes)
    names = [node if distinct else f"{number} ({node})" for number, node in enumerate(nodes)]
    state = Hunt(len(nodes), seed)
    measured: list[Measured] = []
    while pairs := state.pairs():
        limit = shape.hosts.parallel_pairs if shape.hosts.parallel_pairs > 1 else len(pairs)
        number = 0 if len(pairs) == 1 else state.rounds + 1
        speeds: list[float | None] = []
        for start in range(0, len(pairs), limit):
            group = pairs[start : start + limit]
            for (a, b), record in zip(group, measure(group), strict=True):
                speeds.append(_speed(record))
                measured.append((f"{names[a]} - {names[b]}", number, len(group), record))
        if not any(record.status == "ok" for *_, record in measured):
            return measured[0][-1]
        state.record(pairs, speeds)
    record = _merged(measured)
    record.rows += [
        as_row(SLOWNESS, Measurement(SLOWNESS.name, state.slowness(at), subject=name))
        for at, name in enumerate(names)
    ]
    by_name = {name: facts.get(node, {}) for name, node in zip(names, nodes, strict=True)}
    record.rows.append(as_row(own_verdict(RULE), _verdict(state, names, by_name)))
    return record


def _headline(record: SampleRecord) -> dict[str, Any] | None:
    return next((row for row in record.rows if row["headline"]), None)


def _speed(record: SampleRecord) -> float | None:
    """Return a value whose higher is better: that of a latency is inverted."""
    row = _headline(record)
    if record.status != "ok" or row is None or not row["value"] > 0:
        return None
    return float(row["value"] if row["better"] == "higher" else 1 / row["value"])


def _merged(measured: Sequence[Measured]) -> SampleRecord:
    """Return one record of all pairs: their medians at once, then the headline of each pair."""
    good = [pair for pair in measured if pair[-1].status == "ok"]
    failed = [f"{name}: {record.error}" for name, *_, record in measured if record.status != "ok"]
    first = good[0][-1]
    noise = [record.noise for *_, record in measured if record.noise]
    of_rounds = [row for _, number, _, record in good if number for row in record.rows]
    series = grouped(
        of_rounds, key=lambda row: canonical([row["metric"], row["stat"], row.get("coords")])
    )
    rows: list[dict[str, Any]] = []
    for name, number, together, record in good:
        if (row := _headline(record)) is not None:
            coords = {**row.get("coords", {}), "round": number, "pairs_at_once": together}
            rows.append({**row, "coords": coords, "subject": name, "headline": False})
    medians = [
        {**group[0], "value": median([row["value"] for row in group]), "n": len(group)}
        for group in series.values()
        if group[0].get("subject") is None
    ]
    return replace(
        first,
        rows=[*medians, *rows],
        texts={},
        facts={**first.facts, "pairs": len(measured), "failed_pairs": failed[:20]},
        noise=f"{noise[0]} ({len(noise)} of {len(measured)} pairs)" if noise else None,
        finished_at=now(),
    )


def _verdict(state: Hunt, names: Sequence[str], facts: Mapping[str, Any]) -> Measurement:
    """Return the verdict, whose note names the slow hosts and the facts in which each differs."""
    notes = []
    for host, slowness in state.slow.items():
        differs = difference(facts, names[host], EXPLAINED)
        cause = f" ({differs})" if differs else ""
        notes.append(f"{names[host]} is {100 * slowness:.0f} % slow{cause}")
    if state.unknown:
        notes.append(f"too few values: {', '.join(names[host] for host in state.unknown[:6])}")
    value: VerdictWord = "failed" if state.slow else "inconclusive" if state.unknown else "passed"
    cleared = f"{len(names)} hosts cleared in {state.rounds} rounds"
    return verdict(value, RULE, "; ".join(notes) or cleared)
