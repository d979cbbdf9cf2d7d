"""Run a VMI scenario for a benchmark, and turn its output into measurements."""

import time
from dataclasses import asdict
from typing import Any

import orjson

from perfdag import signals
from perfdag.benchmark import Failed, Invalid, Measurement, Output
from perfdag.kube import Kube, KubeError
from perfdag.steps.scale import measured, run_vmi, vmi
from perfdag.steps.scale.generator import connections
from perfdag.steps.scale.rows import Row
from perfdag.steps.scale.summary import Summary
from perfdag.steps.scale.vmi_params import API_RULES, VmiParams


def run_scenario(name: str, params: VmiParams, ask: run_vmi.Ask, timeout: float) -> Output:
    """Measure for benchmark `name` on the cluster we reach. After `timeout` seconds nothing is waited for any more but deletion: what
    has not come by then is censored.

    Raises Skip (no cluster, no KubeVirt), Failed (a bad request), Infrastructure."""
    try:
        spec = params.spec()
        spec.deadline, spec.tell = time.monotonic() + timeout, run_vmi.say
        outcome = signals.run(_measure(spec, ask))
    except ValueError as error:
        raise Failed(str(error)) from None
    except KubeError as error:
        raise measured.explained(error, name, API_RULES) from None
    results = [asdict(each) for each in outcome.results]
    simulated = any(each.facts["simulated"] for each in outcome.results)
    facts = {"simulated": simulated, "runs": [each.facts for each in outcome.results]}
    passed = asdict(outcome.capacity) if outcome.capacity else None
    texts = {"results": orjson.dumps({"capacity": passed, "results": results}).decode()}
    version = outcome.results[-1].facts["kubevirt_version"]
    return Output(texts, tool=measured.tool(f"KubeVirt {version}" if version else "perfdag", simulated), facts=facts)


async def _measure(spec: vmi.Spec, ask: run_vmi.Ask) -> run_vmi.Outcome:
    async with Kube(connections=connections(spec.parallel)) as kube:
        return await run_vmi.measure(kube, spec, ask)


def parse_results(output: Output, headline: str) -> list[Measurement]:
    """Measurements of all results. Of a search for capacity what ended it is its answer, and no fault, unless nothing passed or a gate
    had no data.

    Raises Invalid where VMIs never ran, objects were left behind, a size was not measured, an open loop was not held or another run was
    beside this one; what was seen of every size is kept.
    """
    raw = orjson.loads(output.texts["results"])
    search = raw["capacity"]
    passed = search["passed"] if search else 0
    found: list[Measurement] = []
    notes: list[str] = []
    rows: list[Row] = []
    late: list[str] = []
    for each in raw["results"]:
        each_rows = [Row(**row) for row in each["rows"]]
        stages = [Summary(**stage) for stage in each["stages"]]
        coords, figures = {"count": each["count"]}, each["figures"]
        found += _headline(stages, headline, coords)
        vms = each["count"] * (each["facts"].get("members") or 1)
        found += measured.of_stages(stages, coords) + measured.of_figures(figures, coords, vms)
        found += measured.of_calls(each["calls"], coords) + measured.of_objects(each_rows, coords)
        ended_it = passed and not search["no_data"] and each["count"] > passed
        held = [verdict for verdict in each["verdicts"] if verdict["passed"] or not ended_it]
        found += measured.of_gates(held, coords) + measured.of_messages(each_rows, coords)
        notes += each["facts"]["notes"]
        rows += each_rows
        if figures["left_behind"]:
            notes.append(f"{figures['left_behind']:g} objects were left behind")
        if not each["error"] and (figures["success_ratio"] or 0) < 1:
            notes.append(f"{1 - (figures['success_ratio'] or 0):.1%} of {each['count']} never ran")
        if not ended_it and any(made["held"] is False for made in each["facts"]["generator"]):
            late.append(str(each["count"]))
    if search:
        found.append(Measurement("capacity", float(passed)))
        notes += [f"capacity is a lower bound: {search['stopped']}"] if search["stopped"] else []
    said = measured.failure_text(rows, notes)
    if disturbed := next((each["disturbed"] for each in raw["results"] if each["disturbed"]), ""):
        raise Invalid(f"{disturbed}; {said}".rstrip("; "), output.texts, found)
    if not any(each.metric == headline for each in found) and not search:
        raise Invalid(f"no VMI ran: {said}", output.texts, found)
    bad = [each for each in raw["results"] if (each["figures"]["success_ratio"] or 0) < 1 or each["figures"]["left_behind"]]
    if bad and not passed:  # kept, but not comparable with a run where all ran
        raise Invalid(said, output.texts, found)
    if late:
        raise Invalid(f"the open loop did not hold its rate of {', '.join(late)} VMIs; {said}".rstrip("; "), output.texts, found)
    output.facts["notes"] = said
    return found


def _headline(stages: list[Summary], headline: str, coords: dict[str, Any]) -> list[Measurement]:
    wanted = next((each for each in stages if each.stage == headline), None)
    if wanted is None:
        return []
    values = {"p50": wanted.p50, "p95": wanted.p95, "p99": wanted.p99}
    n = wanted.ok + wanted.censored
    return [Measurement(headline, value, stat, coords, n) for stat, value in values.items() if value is not None]
