"""Charts of the stages of many objects."""

import numpy as np
import orjson
import pyarrow as pa

from perfdag.charts import scale as charts
from perfdag.charts.scale import Stage, of_results, workloads


def test_a_total_is_no_moment_of_its_own() -> None:
    """Pods, scheduled after a second and ready 2 later."""

    def stage(name: str, since: str, at: float, seconds: float) -> Stage:
        return Stage(name, since, [0, 1], [at, at], [seconds, seconds])

    totals = [
        stage("submission_to_scheduled", "submitted", 1.0, 1.0),
        stage("submission_to_ready", "submitted", 3.0, 3.0),
    ]
    stages = [
        stage("created", "submitted", 0.5, 0.5),
        stage("scheduled", "created", 1.0, 0.5),
        *totals,
        stage("workload_ready", "created", 3.0, 2.5),
        stage("ready", "scheduled", 3.0, 2.0),
    ]
    rows = charts.timeline(stages)
    labels = [label.get_text() for label in rows.axes[0].get_yticklabels()]
    assert labels == ["ready", "scheduled", "created"]
    assert rows.texts[0].get_text() == "The last object reached ready after 3 s"
    alone = charts.timeline(totals).axes[0].get_yticklabels()
    assert "submission to ready" in [label.get_text() for label in alone], "the only one"


def table(*entries: tuple[str, int, str], tool: str = "perfdag") -> pa.Table:
    """Rows of a result: of each (entry, count, sample) `count` objects, of which the last
    never ran.
    """
    rows = []
    for entry, count, sample in entries:
        named = {
            "run_id": sample,
            "variant": None,
            "point": entry,
            "repetition": 1,
            "phase": "measure",
        }
        shared = {"entry": entry, **named, "tool": tool, "status": "ok", "stat": "value"}
        for i in range(count):
            coords = orjson.dumps({"count": count, "stage": "running", "since": "created"}).decode()
            for metric, value in (
                (("object_latency", 1.0 + i), ("object_time", 2.0 + i))
                if i < count - 1
                else (("object_missing", 99.0),)
            ):
                one = {
                    "subject": f"0101-ab-{i}",
                    "sample_id": f"{sample}-{i}",
                }  # each object's rows have an id of their own
                rows.append({**shared, **one, "metric": metric, "coords": coords, "value": value})
    return pa.Table.from_pylist(rows)


def test_entries_sizes_and_repetitions_are_not_mixed_and_the_missing_are_counted() -> None:
    rows = table(("small", 3, "a"), ("ladder", 4, "b"), ("ladder", 8, "b"), ("ladder", 8, "c"))
    groups = of_results(rows)
    assert [group[:3] for group in groups] == [
        ("small", 3, 1),
        ("ladder", 4, 1),
        ("ladder", 8, 2),
    ]
    for _, count, _, (stage,) in groups:
        assert (len(stage.at), len(stage.seconds), stage.missing) == (count - 1, count - 1, 1)


def test_an_unseen_delta_is_not_drawn_as_nought() -> None:
    decision = "Pod Scheduling Decision"
    rest = {"Job Creation": 0.5, "Total " + decision: 9.0}
    deltas = [{**rest, decision: None if i < 3 else 2.0} for i in range(10)]
    figure = workloads(deltas, 10, (), detailed=True)
    title = f"10 workloads: {decision} (3 never) takes longest, median 2 s"
    assert figure.texts[0].get_text().replace("\n", " ") == title
    (line,) = figure.axes[1].get_lines()
    assert np.asarray(line.get_ydata()).size == 7
