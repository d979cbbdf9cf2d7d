"""The gate of a run: thresholds, changes of level and absent data."""

import fnmatch
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from textwrap import shorten

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from perfdag.analysis.alerts import (
    POINTS,
    AlertRecord,
    case_alerts,
    mark_known,
    read_records,
    recovered_alerts,
    worse_alerts,
)
from perfdag.analysis.compare import match
from perfdag.analysis.gate_result import Alert, CheckResult, GateResult, Rules, State
from perfdag.analysis.history import (
    Acknowledgement,
    Series,
    of_names,
    series_of,
    suspects,
)
from perfdag.analysis.medians import (
    PointCount,
    RunInfo,
    RunMedians,
    read_run_medians,
)
from perfdag.analysis.pairs import TOO_FEW, matrices
from perfdag.analysis.verdict import Tuning, covers
from perfdag.results.run_store import (
    PARTIAL,
    RunStore,
    SelectionError,
    StoreWithHistory,
    read_checks,
    report_address,
    stored_plan,
    with_history,
)
from perfdag.results.schema import explain_unreadable, is_valid, load_rows
from perfdag.results.selections import baseline, explain_last, select_one
from perfdag.results.summary import SeriesInfo, Summary, summarise
from perfdag.stats.robust import TooFewSamplesError, median, percentile
from perfdag.stats.scale import Array, VerdictKind
from perfdag.store.base import NotStoredError, Store, StoreError, store_option
from perfdag.store.s3 import open_store
from perfdag.suite.document import BadDocument, Document, parse_document, read_document, validated
from perfdag.suite.model import Check
from perfdag.suite.points import Point
from perfdag.units import plural, short

ACKS = "acks.yaml"


class Acks(BaseModel):
    """The content of acks.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    acks: list[Acknowledgement] = []


def read_acks(file: str | None, store: Store) -> tuple[list[Acknowledgement], str]:
    """Return the acknowledgements and the name of their file. Raises BadDocument, StoreError.

    The file is `file`, else ./acks.yaml, else acks.yaml of the store.
    """
    if file is not None or Path(ACKS).exists():
        return _accepted(read_document(file or ACKS)), file or ACKS
    accepted, url = stored_acks(store)
    return accepted, url if accepted else ACKS


def stored_acks(store: Store) -> tuple[list[Acknowledgement], str]:
    """Return the acknowledgements of the store and their URL. Raises BadDocument, StoreError."""
    url = store.url(ACKS)
    try:
        return _accepted(parse_document(store.get(ACKS).decode(errors="replace"), url)), url
    except NotStoredError:
        return [], url


def unattended_rules(store: Store, checks: Sequence[Check]) -> Rules:
    """Return the rules for a scheduled run. Raises StoreError.

    Unreadable acknowledgements of the store count as none. The error becomes an alert of the gate.
    """
    try:
        accepted, file = stored_acks(store)
    except BadDocument as error:
        return Rules(checks, [], store.url(ACKS), acks_wrong=str(error))
    return Rules(checks, accepted, file)


def series_by_cluster(
    store: Store, medians: RunMedians
) -> tuple[Rules, list[tuple[RunMedians, list[Series]]]]:
    """Return the rules of the newest run, and the runs and series of each cluster with verdicts.

    Raises StoreError.
    """
    checks = read_checks(store, medians.run_ids[-1]) if medians.runs else []
    rules = unattended_rules(store, checks)
    clusters = []
    for cluster in dict.fromkeys(run.cluster for run in medians.runs):
        runs = medians.on_cluster(cluster)
        series = series_of(runs, Tuning(rules.checks, cluster), rules.accepted)
        clusters.append((runs, series))
    return rules, clusters


def put_acks(store: Store, file: str) -> list[Acknowledgement]:
    """Validate a file of acknowledgements and store it. Raises BadDocument, StoreError."""
    document = read_document(file)
    accepted = _accepted(document)
    store.put(ACKS, document.text.encode())
    return accepted


def _accepted(document: Document) -> list[Acknowledgement]:
    return validated(document, document.data or {}, Acks).acks


def check(
    run: str = "last",
    store: str | Path | None = None,
    *,
    history: str | Path | None = None,
    suite: str | None = None,
    acks: str | None = None,
) -> GateResult:
    """Judge a stored run, as `perfdag check` does, and write and send nothing.

    `run` is an id, the beginning of one, `last`, `last~N` or `baseline:NAME`. `store` and `history`
    are folders or addresses: the second is only read, for the runs before. `acks` is a file of
    acknowledgements (default: ./acks.yaml, else that of the store). Raises SelectionError where
    there is no such run, BadDocument for wrong acknowledgements, StoreError.
    """
    runs = RunStore(open_store(None if store is None else str(store)))
    run_id, name = select_one(runs, run, suite)
    explain_last(runs, run, run_id)
    read = runs.store
    if history is not None:
        read = with_history(read, str(history), runs.plan_or_rows(run_id))
    accepted, file = read_acks(acks, read)
    return judge_run(read, name, run_id, Rules(read_checks(read, run_id), accepted, file))


def judge_run(
    store: Store, suite: str, run_id: str, rules: Rules, summary: Summary | None = None
) -> GateResult:
    """Judge a run with its rechecks against its history and the checks of its suite.

    `summary` is that of the rows of the run, which are read without it. A recheck stands for the
    run that it repeats. Percentiles and presence come from that run alone, because a recheck has
    suspicious points only. Raises StoreError, SelectionError.
    """
    return _Judge(store, suite, run_id, rules, summary).judge()


class _Judge:
    """One check of a run. `past` has the runs up to it, and `at` is its position.

    `all_runs` has those of all clusters. `series` are those of `past` without canaries.
    """

    def __init__(
        self, store: Store, suite: str, run_id: str, rules: Rules, summary: Summary | None
    ) -> None:
        self.store = store
        self.rules = rules
        self.all_runs = read_run_medians(store, suite)
        rechecks = self.all_runs.rechecks.items()
        if measured := next((run for run, again in rechecks if run_id in again), ""):
            run_id = measured
            summary = None
        damaged: list[str] = []
        self.summary = summary or summarise(
            load_rows(store, suites=[suite], runs=[run_id], damaged=damaged)
        )
        if run_id not in self.all_runs.run_ids:
            reasons = [explain_unreadable(store, key) for key in damaged]
            raise SelectionError("; ".join([f"run {run_id} has no readable rows", *reasons]))
        self.run = self.all_runs.runs[self.all_runs.run_ids.index(run_id)]
        self.past = self.all_runs.select(
            lambda run: run.cluster == self.run.cluster and run.run_id <= run_id
        )
        self.at = self.past.run_ids.index(run_id)
        self.gate = GateResult(
            run_id,
            suite,
            report_address(store, run_id),
            damaged=list(self.all_runs.damaged),
            runs=sum(run.trigger not in PARTIAL for run in self.past.runs if self._shares(run)),
            rechecks=self.all_runs.rechecks.get(run_id, []),
            store=store.root,
            history=store.history.root if isinstance(store, StoreWithHistory) else store.root,
            acks_file=rules.acks_file,
            changed=self._changed(),
            revision=self.run.revision,
        )
        self.tuning = Tuning(rules.checks, self.run.cluster)
        self.baselines: dict[str, dict[tuple[str, ...], float]] = {}
        base = self._of_base()
        series = series_of(self.past, self.tuning, [*rules.accepted, *base])
        self.series = [replace(line, alone=bool(base)) for line in series]
        self.measured = [line for line in self.series if np.isfinite(line.value[self.at])]

    def _of_base(self) -> list[Acknowledgement]:
        """Accept what the runs of a history that is only read have come to.

        A run beside that history, as of a pull request, answers for its own change alone.
        """
        base = [run_id for run_id in self.past.run_ids if run_id < self.run.run_id]
        if not isinstance(self.store, StoreWithHistory) or not base:
            return []
        return [Acknowledgement(series="*", run=base[-1], reason="the level of the base")]

    def _open_of_base(self) -> list[str]:
        """Return the series that were worse in the newest run of a history that is only read."""
        base = self.past.select(lambda run: run.run_id < self.run.run_id)
        return [
            f"{line.label} {line.verdict.size}{line.verdict.since_text}"
            for line in series_of(base, self.tuning, self.rules.accepted)
            if line.verdict.kind == "worse" and line.worsening and self.tuning.alerts(line.info)
        ]

    def _shares(self, other: RunInfo) -> bool:
        """Return whether a run has a point of this one. One without is of another command."""
        return any(point in other.points for point in self.run.points if point != "canary")

    def judge(self) -> GateResult:
        """Return the gate with its verdicts, cases, alerts and suspects."""
        gate = self.gate
        gate.series = [line for line in self.series if line.info.point in self.run.points]
        records = read_records(self.store, gate.suite)
        previous = None
        if self._of_base():
            # What was told of the base was told of another change.
            gate.of_base = self._open_of_base()
        else:
            earlier = [run_id for run_id in self.past.run_ids[: self.at] if run_id in records]
            previous = records[earlier[-1]] if earlier else None
        self._verdicts(previous)
        self._benchmark_verdicts()
        absent = self._absent_series() if self.run.trigger != "recheck" else {}
        self._thresholds(absent)
        self._slow_parts(absent)
        gate.alerts += case_alerts(gate)
        if self.rules.acks_wrong:
            gate.alerts.append(_unreadable_acks(gate, self.rules))
        if not gate.rechecks:
            gate.suspects = suspects(self.tuning, gate.series)
        gate.alerts.sort(key=lambda alert: (not alert.gates, alert.kind))
        earlier_checks = [previous, records.get(gate.run)]
        mark_known(gate.alerts, [record for record in earlier_checks if record])
        return gate

    def _changed(self) -> str:
        """Return the parameters that differ from those of the run before: `x.bs 4096 -> 8192`."""
        before = [at for at in range(self.at) if self.past.runs[at].trigger not in PARTIAL]
        if not before:
            return ""
        sides = [
            list(compress(self.past.series, np.isfinite(self.past.value[:, at])))
            for at in (before[-1], self.at)
        ]
        changed = match(*sides)[1].items()
        text = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in changed)
        return shorten(text, 120, placeholder=" ...")

    def _add(self, result: CheckResult, *, accepted: bool = False) -> bool:
        """Add the result of a check, which passes where it is accepted. Return whether it is."""
        result = replace(result, label=result.label or result.name)
        bad = result.state in ("failed", "absent") or result.group == "slow"
        accepted = bad and (accepted or self._acknowledged(result.label, result.key))
        if accepted:
            result = replace(result, state="ok", text=f"{result.text} (acknowledged)")
        self.gate.cases.append(result)
        return accepted

    def _acknowledged(self, name: str, key: str) -> bool:
        """Return whether a series or rule is acknowledged in this run."""
        accepted = of_names(self.rules.accepted, {line.name for line in self.series})
        return any(ack.holds(name, key, self.gate.run) for ack in accepted)

    def _verdicts(self, previous: AlertRecord | None) -> None:
        """Add the alerts of series that are worse or good again, and the verdict on each."""
        gate = self.gate
        paging = [line for line in gate.series if self.tuning.alerts(line.info)]
        gate.canaries = series_of(self.past, self.tuning, canaries=True)
        gate.alerts += worse_alerts(gate, paging)
        gate.alerts += recovered_alerts(gate, paging, previous)
        states: dict[VerdictKind, State] = {
            "same": "ok",
            "better": "ok",
            "unclear": "unsure",
            "worse": "failed",
        }
        for line in paging:
            if line.verdict.kind in states:  # what was not measured is an absence
                state = states[line.verdict.kind]
                if state == "failed" and line.worsening is None:
                    state = "unsure"  # two runs alone fail no gate
                text = f"{line.verdict.text}; {line.newest_text}"
                gate.cases.append(
                    CheckResult("change", line.name, line.label, state, text, line.info.series_id)
                )

    def _benchmark_verdicts(self) -> None:
        """Add the verdicts of the benchmarks themselves."""
        states: dict[str, State] = {"passed": "ok", "failed": "failed", "inconclusive": "unsure"}
        for verdict in self.summary.verdicts:
            result = CheckResult(
                "verdict",
                verdict.name,
                f"{verdict.title}: {verdict.rule}",
                states[verdict.kind],
                f"{verdict.kind}: {verdict.note}",
                key=verdict.name,
                cause=(verdict.entry, ""),
            )
            self._add(result)

    def _absent_series(self) -> dict[str, bool]:
        """Add the headline series that earlier runs had and this one lacks, and idle points.

        Return the ids of these series, and whether their absence is acknowledged. Only earlier runs
        with the same trigger and a point in common count, and what `--only` left out is not absent.
        """
        run = self.run
        earlier = enumerate(self.past.runs[: self.at])
        alike = [at for at, past in earlier if past.trigger == run.trigger and self._shares(past)]
        # Without the span: a series is not absent if its hosts were on other nodes this time.
        measured = {line.info.key[:-1] for line in self.measured}
        absent: dict[str, bool] = {}
        points = set()
        for line in self.series:
            info = line.info
            left_out = run.trigger == "part" and info.point not in run.points
            if info.key[:-1] in measured or left_out or not self.tuning.alerts(info):
                continue
            if not _expected(np.isfinite(line.value), alike[-MISSED_FOR:]):
                continue
            result = CheckResult(
                "present",
                line.name,
                line.label,
                "absent",
                self._why_absent(info),
                key=info.series_id,
                cause=(info.entry, "series"),
            )
            absent[info.series_id] = self._add(result)
            points.add(info.point)
        self._idle_points(points)
        return absent

    def _why_absent(self, info: SeriesInfo) -> str:
        """Return why the run has no value of a series."""
        count = self.run.points.get(info.point, PointCount())
        if count.ok:
            return "its samples are ok, but have no value of it"
        if count.bad:
            return _no_value(count)
        if self.planned and info.entry not in {point.entry for point in self.planned.values()}:
            return f"the suite has no entry {info.entry} any more"
        return "its point was not measured"

    @cached_property
    def planned(self) -> dict[str, Point]:
        """The points of the run's plan by their ids; none where it was removed."""
        try:
            return {point.id: point for point in stored_plan(self.store, self.run.run_id).points}
        except StoreError:
            return {}

    def _idle_points(self, reported: set[str]) -> None:
        """Add the points none of whose samples is ok, but those that are reported already.

        Optional ones are skipped where the run measured another point.
        """
        counts = self.run.points
        measured = any(count.ok for point, count in counts.items() if point != "canary")
        for key, count in counts.items():
            if count.ok or key in reported:
                continue
            point = self.planned.get(key)
            name = f"{count.entry} {point.label if point else key}".strip()
            title = point.full_title if point else name
            result = CheckResult("present", name, title, "absent", _no_value(count))
            if point and point.optional and measured:
                text = f"{result.text} (optional)"
                self.gate.cases.append(replace(result, state="skipped", text=text))
            else:
                self._add(replace(result, key=key, cause=(count.entry, POINTS)))

    def _thresholds(self, absent: dict[str, bool]) -> None:
        """Check each threshold for each series that it covers."""
        for rule in self.tuning.checks:
            if rule.op is None:
                continue
            covered = [line for line in self.measured if covers(rule, line.info)]
            if not covered:
                self._without_data(rule, absent)
            rule_text = rule.text()
            for line in covered:
                state, text = self._holds(rule, line)
                result = CheckResult(
                    "threshold",
                    f"{line.name}: {rule_text}",
                    line.label,
                    state,
                    text,
                    key=f"{rule_text} {line.info.series_id}",
                    label=line.name,
                    cause=(line.info.entry, rule_text),
                )
                self._add(result, accepted=self._acknowledged(line.name, line.info.series_id))

    def _slow_parts(self, absent: dict[str, bool]) -> None:
        """Add each slow node and link of pairs, and the checks of pairs without one.

        A slow part that no check forbids is unsure: it is told, and fails no gate.
        """
        drawn = list(matrices(self.summary.points))
        rules = [rule for rule in self.tuning.checks if rule.slow_node is not None]
        for rule in rules:
            if not any(covers(rule, matrix.info) for matrix in drawn):
                self._without_data(rule, absent)
        for matrix in drawn:
            judging = [rule for rule in rules if covers(rule, matrix.info)]
            for part in matrix.slow:
                name = matrix.name_of(part)
                broken = [rule for rule in judging if abs(part.effect) >= (rule.slow_node or 0)]
                result = CheckResult(
                    "slow",
                    name,
                    f"{matrix.title}, {part.kind} {part.name}",
                    "failed" if broken else "unsure",
                    f"{100 * part.effect:+.0f} % against the others",
                    key=name,
                    cause=(matrix.info.entry, broken[0].text()) if broken else None,
                )
                self._add(result)
            if judging and not matrix.slow:
                rule_text = judging[0].text()
                names = f"{matrix.name}: {rule_text}", f"{matrix.title}: {rule_text}"
                result = CheckResult("threshold", *names, "unsure", TOO_FEW)
                if matrix.judges:
                    result = replace(result, state="ok", text="no node and no link is slow")
                self.gate.cases.append(result)

    def _without_data(self, rule: Check, absent: dict[str, bool]) -> None:
        """Add a rule that covers no series of the run.

        It is reported with the absent series that explain it: those that it covers, or those of its
        entries where no series of them is left.
        """
        name = rule.text()
        series = [line.info for line in self.series]
        covered = {info.entry for info in series if covers(rule, info)}
        gone = set[str]() if covered & {line.info.entry for line in self.measured} else covered
        losses = [
            absent[info.series_id]
            for info in series
            if info.series_id in absent and (covers(rule, info) or info.entry in gone)
        ]
        result = CheckResult("threshold", name, name, "absent", "the run has no value of it", name)
        points = [p for p in self.summary.points if fnmatch.fnmatchcase(p.entry, rule.entry or "")]
        if points and all(point.statuses.keys() == {"skipped"} for point in points):
            result = replace(result, state="skipped", text=points[0].reasons[0])
        if not losses:
            result = replace(result, cause=(rule.entry or "", name))
        self._add(result, accepted=bool(losses) and all(losses))

    def _holds(self, rule: Check, line: Series) -> tuple[State, str]:
        """Return whether the value of a series, or its percentile, holds a threshold, and why."""
        info = line.info
        value = float(line.value[self.at])
        try:
            limit = self._limit(rule, line)
            if rule.percentile is not None:
                value = percentile(self._values(info), rule.percentile / 100)
        except (TooFewSamplesError, SelectionError) as error:
            # A first run has nothing behind it: the rule will judge the next one.
            first = rule.ratio and not rule.baseline and not self.at
            return "unsure" if first else "absent", str(error)
        holds = bool(OPERATORS[rule.op or ""](value, limit))
        rank = f"p{rule.percentile:g} " if rule.percentile else ""
        figure, allowed = (short(number, info.display_unit) for number in (value, limit))
        text = f"{rank}{figure} {'holds' if holds else 'breaks'} {rule.op} {allowed}"
        return "ok" if holds else "failed", text

    def _values(self, info: SeriesInfo) -> Array:
        """Return the values of a series, of its pods or devices where the metric has them."""
        table = self.summary.table
        same = pc.and_(pc.equal(table["point"], info.point), pc.equal(table["metric"], info.metric))
        same = pc.and_(same, pc.equal(pc.fill_null(table["coords"], ""), info.key[1]))
        rows = table.filter(pc.fill_null(pc.and_(same, is_valid(table)), False))
        of_stat = pc.equal(rows["stat"], info.stat)
        has_subject = pc.is_valid(rows["subject"])
        # A pod or device has one value, whatever statistic of them the series is.
        of_subject = pc.and_(has_subject, pc.equal(rows["stat"], "value"))
        masks = (pc.and_(has_subject, of_stat), of_subject, of_stat)
        chosen = next(part for mask in masks if (part := rows.filter(mask)).num_rows)
        values: Array = chosen["value"].to_numpy().astype(np.float64)
        return values

    def _limit(self, rule: Check, line: Series) -> float:
        """Return the threshold in the unit of the metric. Raises SelectionError without one."""
        if rule.value is not None:
            return rule.value
        ratio = rule.ratio or 1.0
        if rule.baseline is not None:
            values = self._baseline(rule.baseline)
            if line.info.key not in values:
                raise SelectionError(f"baseline {rule.baseline} has no value of it")
            return ratio * values[line.info.key]
        level = line.good_before(self.at)
        if level is None:
            raise SelectionError("no earlier run has a value of it")
        return ratio * level

    def _baseline(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the medians of a baseline by the keys of series. Raises SelectionError."""
        if name not in self.baselines:
            chosen = baseline(self.store, name, self.gate.suite).runs
            medians = self.all_runs.select(lambda run: run.run_id in chosen)
            if not medians.runs:
                raise SelectionError(f"baseline {name} has no readable rows")
            keys = [info.key for info in medians.series]
            self.baselines[name] = dict(zip(keys, map(median, medians.value), strict=True))
        return self.baselines[name]


OPERATORS = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}
PRESENT_OF = 5
"""Runs up to the newest one of a series, of which ..."""
PRESENT = 3
"""... so many have an expected headline series, or both where there are only two, ..."""
MISSED_FOR = 30
"""... and one of so many earlier runs did. A loss is reported until it is acknowledged or old."""


def _no_value(count: PointCount) -> str:
    return f"none of {plural(count.bad, 'sample')} is ok; {count.error}"


def _expected(finite: NDArray[np.bool_], alike: list[int]) -> bool:
    """Return whether runs of this kind had a series often enough, up to the newest that had it.

    So it is missed until it is back or acknowledged, or until none of these runs had it. What one
    run alone had is not missed: an imported history has such series.
    """
    present = np.flatnonzero(finite[alike])
    if not present.size:
        return False
    newest = alike[: present[-1] + 1][-PRESENT_OF:]
    return bool(finite[newest].sum() >= min(PRESENT, max(2, len(alike))))


def _unreadable_acks(gate: GateResult, rules: Rules) -> Alert:
    """Return the alert that the acknowledgements are ignored. It does not fail the gate."""
    title = f"ACKS {gate.suite}: {rules.acks_file} is unreadable and accepts nothing"
    errors = [f"what    {line}"[:300] for line in rules.acks_wrong.splitlines()[:6]]
    do = f"do      correct the file, then: perfdag acks set FILE {store_option(gate.history)}"
    text = "\n".join([title, *errors, do])
    return Alert("acks", title, text, [rules.acks_wrong], gate.run, gates=False)
