"""A scheduled run on a real cluster: it fires, measures its suspicious points again the same
night, and its gate colours it.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import yaml

from perfdag.kube.client import Kube, Object, run_with_client
from perfdag.plan import make_plan, new_run_id
from perfdag.results.collect import collect
from perfdag.results.run_store import result_key, stored_plan
from perfdag.results.samples import SampleRecord, sample_key, stored_samples
from perfdag.steps.pods.cluster import cluster_facts
from perfdag.store.s3 import open_store
from perfdag.suite.load import load_suite

from .conftest import Namespace

pytestmark = [pytest.mark.argo, pytest.mark.slow]
ARGO = "argoproj.io/v1alpha1"
NIGHTS = 20  # three runs of 23 can be told from chance; of 12 they cannot (220 ways to choose them)


def _suite(folder: Path, name: str, checks: str = "") -> Path:
    path = folder / f"{name}.yaml"
    entries = "".join(
        (
            f"  - {{benchmark: command, name: {entry}, params: {{argv: [sleep, '{wait}'], "
            f"expected: {wait}}}}}\n"
        )
        for entry, wait in (("steady", 2.0), ("slowed", 3.2))
    )
    path.write_text(f"name: {name}\nrepetitions: 2\nentries:\n{entries}{checks}")
    return path


def _past(root: str, suite: Path, usual: dict[str, float]) -> None:
    """Nights before this one, of which only the numbers are made up: wall times in seconds
    around `usual`, by entry.
    """
    store, rng, here = (
        open_store(root),
        np.random.default_rng(1),
        run_with_client(cluster_facts)["cluster"],
    )
    for night in range(NIGHTS, 0, -1):
        plan = make_plan(
            load_suite(str(suite)),
            run_id=new_run_id(datetime.now(UTC) - timedelta(days=night)),
            trigger="cron",
        )
        plan.where = {"cluster": here}
        store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
        for position, (index, repetition) in enumerate(plan.order):
            point = plan.points[index]
            value = usual[point.entry] * float(rng.normal(1, 0.01))
            row = {
                "metric": "wall_time",
                "stat": "value",
                "value": value,
                "unit": "s",
                "better": "lower",
                "headline": True,
            }
            part = SampleRecord(
                point.id, repetition, "ok", rows=[row], benchmark_version="1", order_index=position
            )
            store.put(sample_key(plan.run_id, plan.key(position)), part.dump())
        collect(store, plan)


def _workflow(bench: Namespace, labels: str) -> Object | None:
    return next(iter(bench.objects("Workflow", ARGO, labels)), None)


def test_a_schedule_fires_and_a_step_turns_the_run_red_the_same_night(
    bench: Namespace, tmp_path: Path
) -> None:
    suite = _suite(tmp_path, "stepped")
    _past(bench.store, suite, {"steady": 2.0, "slowed": 1.6})
    rendered = bench.perfdag("render", str(suite), "--schedule", "* * * * *")
    assert rendered.returncode == 0, rendered.stderr

    async def apply(client: Kube) -> None:
        for each in yaml.safe_load_all(rendered.stdout):
            await client.apply(each)

    async def suspend(client: Kube) -> None:
        kind = f"{ARGO}/CronWorkflow"
        await client.patch(kind, "perfdag-stepped", {"spec": {"suspend": True}}, bench.name)

    run_with_client(apply)
    fired = bench.until(
        lambda: _workflow(bench, "perfdag/suite=stepped"), 90, "workflow of the schedule"
    )
    run_with_client(suspend)
    name = fired["metadata"]["name"]
    result = bench.watch(name)
    assert result.returncode == 3, result.stdout + result.stderr
    assert "WORSE stepped/slowed wall time" in result.stdout
    assert "measured again right after it: " in result.stdout
    assert "WORSE stepped/steady" not in result.stdout

    workflow = _workflow(bench, "perfdag/suite=stepped")
    assert workflow is not None
    assert workflow["status"]["phase"] == "Failed"
    run_id, store = bench.run_id(name), open_store(bench.store)
    assert workflow["metadata"]["annotations"]["perfdag/report"] == store.url(
        f"runs/{run_id}/report.html"
    )
    assert b"<html" in store.get(f"runs/{run_id}/report.html")[:1000].lower()
    assert b'failures="1"' in store.get(f"runs/{run_id}/check.xml")
    plan = stored_plan(store, run_id)
    assert plan.trigger == "cron"
    assert len(plan.options.rechecks) == 2
    for each in plan.options.rechecks:
        recheck = stored_plan(store, each)
        assert [point.entry for point in recheck.points] == ["slowed"]
        assert {key for key in stored_samples(store, each) if not key.startswith("canary")} == {
            recheck.key(0),
            recheck.key(1),
        }
        assert store.get(result_key(recheck.suite, recheck.run_id))
    # by hand the morning after: the same answer, and nobody is told a second time
    again = bench.check("last", "--suite", "stepped", "--store", bench.store)
    assert again.returncode == 3
    assert "(reported before)" in again.stdout


def test_a_broken_threshold_is_exit_3_of_submit(bench: Namespace, tmp_path: Path) -> None:
    suite = _suite(
        tmp_path, "held", "checks:\n  - {entry: steady, metric: wall_time, op: '<', value: 1ms}\n"
    )
    result = bench.perfdag("submit", str(suite), "--watch")
    assert result.returncode == 3, result.stdout + result.stderr
    assert "THRESHOLD held/steady wall time" in result.stdout
    workflow = _workflow(bench, "perfdag/suite=held")
    assert workflow is not None
    assert workflow["status"]["phase"] == "Failed"
    plan = stored_plan(open_store(bench.store), bench.run_id(workflow["metadata"]["name"]))
    assert not plan.options.rechecks  # without a past nothing is suspicious
