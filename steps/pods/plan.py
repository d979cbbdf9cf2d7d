"""The first step of a run on a cluster, and the step that plans rechecks."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError

from perfdag.kube.client import Kube, KubeError, Object, run_with_client
from perfdag.kube.patch import Context, priority_class
from perfdag.plan.plan import Batch, Plan, gated, make_plan, place_hosts, read_plan
from perfdag.results.runs import (
    ROUNDS,
    plan_of_batch,
    put_plan,
    put_rechecks,
    recheck_batches,
    resume_obstacle,
    run_folder,
    stored_plan,
    variants,
    with_learned_times,
)
from perfdag.results.samples import (
    MissingReason,
    delete_damaged_samples,
    forget_reasons,
    stored_samples,
    write_reason,
)
from perfdag.steps.pods.context import PENDING_GRACE, PodContext, begin_clock
from perfdag.steps.pods.credentials import PeerError
from perfdag.steps.pods.kinds import check_own_images, kinds_of, network_of, refuse
from perfdag.steps.pods.objects import (
    Refusals,
    batch_objects,
    cluster_facts,
    cluster_name,
    create,
    create_for_batches,
    has_class,
    secret,
    unmet,
)
from perfdag.store.base import DamagedError, NotStoredError, Store
from perfdag.suite.load import parse_suite
from perfdag.suite.model import checks_of

ITEM_LENGTH = 80
"""Most characters of the text of a batch, which Argo puts into the names of its nodes."""


def item(number: int, plan: Plan, index: int, refusals: Refusals) -> dict[str, str]:
    """Return what Argo fans out over for a batch: its text and its number, which nodes show.

    `index` is that of the batch in `plan`, which is a recheck or the run itself. A batch that the
    cluster refuses has no number, and its text says why.
    """
    batch = plan.batches[index]
    if number in refusals:
        text = f"{plan.kind(batch)[1]}: {refusals[number][1]}"
        return {"benchmark": _plain(text)[:ITEM_LENGTH], "n": ""}
    return {"benchmark": _text_of(plan, batch), "n": str(number)}


def _plain(text: str) -> str:
    """Return a text in one line and without double braces, which Argo would replace."""
    return re.sub(r"\{(?=\{)", "{ ", " ".join(text.split()))


def _text_of(plan: Plan, batch: Batch) -> str:
    """Return what a batch measures: the entry, what varies, where, and which rounds."""
    indices, repetitions = zip(*(plan.order[position] for position in batch.samples), strict=True)
    points = [plan.points[index] for index in sorted({*indices})]
    varied: dict[str, list[str]] = {}
    for point in points:
        for word in point.label.split():
            name, _, value = word.partition("=")
            varied.setdefault(name, []).append(value)
    words = [f"{name}={_span(values)}" for name, values in varied.items()]
    what = " ".join([points[0].entry, *(words if len(points) > 1 else [points[0].label])])
    shape = plan.shapes[batch.shape]
    where = f" on {shape.volume.storage_class or shape.volume.kind}" if shape.volume else ""
    if shape.hosts.count > 1:
        where += f" {network_of(shape)} network"
    rounds = sorted({repetition for repetition in repetitions if repetition > 0})
    which = "warm-up"
    if rounds:
        first, last = rounds[0], rounds[-1]
        which = f"round {first}" if first == last else f"rounds {first} to {last}"
        which += f" of {max(point.rounds for point in points)}"
    end = f"{where}, {which}"
    what = _plain(what)
    return (what[: max(ITEM_LENGTH - len(end), 0)] + end)[:ITEM_LENGTH]


def _span(values: Sequence[str]) -> str:
    """Return the values of a parameter: numbers as the first and the last, else each."""
    distinct = [*dict.fromkeys(values)]
    if len(distinct) > 1 and all(value[:1].isdigit() for value in distinct):
        return f"{distinct[0]}..{distinct[-1]}"
    return ",".join(distinct)


def outputs(plan: Plan, context: PodContext, has_priority: bool = True) -> dict[str, Any]:
    """Return the output parameters by name, without the batches to measure.

    `kindof` has the kind of each batch, and `kinds` what batches of one shape and entry share.
    `has_priority` tells whether the cluster has the PriorityClass of the pods. Raises BadDocument.
    """
    kinds = plan.kinds()
    numbers = [kinds.index(plan.kind(batch)) for batch in plan.batches]
    patch_context = Context(
        plan.run_id,
        context.workflow_uid,
        context.images,
        context.store,
        context.pull_policy,
        priority_class(plan.options.priority) if has_priority else None,
    )
    return {
        "kindof": [str(number) for number in [*numbers, *[*range(len(kinds))] * ROUNDS]],
        "kinds": kinds_of(plan, patch_context, context.allowed),
        "pending": f"{int(plan.options.pending_limit) + PENDING_GRACE}s",
        "run": plan.run_id,
        "suitename": plan.suite,
        "gated": str(gated(plan)).lower(),
    }


def write_outputs(out: Path, values: Mapping[str, Any]) -> None:
    """Write output parameters to files of their names in a folder: texts as they are, else JSON."""
    out.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (out / name).write_text(value if isinstance(value, str) else orjson.dumps(value).decode())


SUITE_FILES = (Path("/tmp/perfdag-suite.yaml"), Path("/perfdag/suite/suite.yaml"))
"""Where the plan step finds a suite that its Workflow carries inside, and that of a ConfigMap."""


@dataclass(frozen=True)
class Options:
    """The values of `--set` and of `--only`."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    settings: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


def suite_text(environment: Mapping[str, str]) -> str:
    """Return the text of the suite in the first of SUITE_FILES that exists. Raises BadDocument."""
    if found := next((file for file in SUITE_FILES if file.is_file()), None):
        return found.read_text()
    if name := environment.get("PERFDAG_CONFIGMAP"):
        raise refuse(f"no ConfigMap {name} here has a key suite.yaml")
    raise refuse(
        "no suite: give -p suite=CONFIGMAP (with a key suite.yaml), -p run=ID of a run to resume, "
        "or an artifact suite"
    )


def options(environment: Mapping[str, str]) -> Options:
    """Return the parameter options: a JSON object with lists of texts. Raises BadDocument."""
    text = environment.get("PERFDAG_OPTIONS") or "{}"
    try:
        return TypeAdapter(Options).validate_json(text)
    except ValidationError as invalid:
        error = invalid.errors()[0]
        place = ".".join(["the parameter options", *map(str, error["loc"])])
        example = '{"settings": ["repetitions=5"], "only": ["iperf*"]}'
        raise refuse(f"{place}: {error['msg']}; write {example}") from None


def plan_of(context: PodContext, store: Store, environment: Mapping[str, str]) -> Plan:
    """Return the stored plan of the run, or make one from the suite.

    A run that was submitted or is resumed has a stored plan. Raises BadDocument, StoreError.
    """
    try:
        return read_plan(store.get(f"{run_folder(context.run_id)}/plan.json"))
    except NotStoredError:
        pass
    except ValueError as error:
        raise DamagedError(f"plan.json of {context.run_id} is damaged: {error}") from None
    chosen = options(environment)
    suite = parse_suite(suite_text(environment), settings=chosen.settings)
    plan = make_plan(suite, only=chosen.only, run_id=context.run_id, trigger=context.trigger)
    return place_hosts(plan)


def step(context: PodContext, out: Path, environment: Mapping[str, str]) -> Plan:
    """Run the step: make the plan, create objects, and write the output parameters below `out`.

    Where the cluster refuses the run as a whole, its rows say why. Raises BadDocument, StoreError,
    KubeError, PeerError.
    """
    store = context.open()
    plan = plan_of(context, store, environment)
    plans = variants(store, plan)
    for variant in plans:
        check_own_images(variant, context.images, context.allowed)
    if any(stored_samples(store, variant.run_id) for variant in plans) and (
        why := resume_obstacle(plan, run_with_client(cluster_name), context.store)
    ):
        raise refuse(why)  # before anything of that run is changed
    for variant in plans:
        forget_reasons(store, variant.run_id)
    # the API server refuses a pod that names a PriorityClass which is not there
    priority = priority_class(plan.options.priority)
    has_priority = run_with_client(lambda kube: has_class(kube, priority))
    parameters, left = outputs(plan, context, has_priority), batches_left(store, plans)
    _put(store, plans)  # before the cluster may refuse: then rows say why
    begin_clock(store, plan.run_id)
    try:
        facts, refusals = run_with_client(lambda kube: _prepare(kube, context, store, plan, left))
    except (KubeError, PeerError) as error:
        for variant in plans:
            reason = MissingReason("plan", "failed", str(error))
            write_reason(store, variant.run_id, reason)
        raise
    for variant in plans:
        variant.where = where(facts, variant.where)
        variant.points = with_learned_times(store, variant, facts["cluster"]).points
        for number, (status, text) in refusals.items():
            reason = MissingReason("batch", status, text, number)
            write_reason(store, variant.run_id, reason)
    _put(store, plans)
    parameters["batches"] = [item(each, plan, each, refusals) for each in left]
    write_outputs(out, parameters)
    return plan


def where(now: Object, before: Object) -> Object:
    """Return the facts of a run that goes on, `before` those of its plan until now.

    The facts of earlier Workflows stay, by uid, for the samples that these measured. A Workflow
    that is retried may find other nodes: the earlier nodes stay too. So does the name of a cluster
    that may not be read any more.
    """
    earlier, uid = dict(before.get("before", {})), before.get("workflow_uid")
    now = {**now, "cluster": now["cluster"] or before.get("cluster")}
    if uid == now["workflow_uid"] and before.get("nodes") and now.get("nodes"):
        now = {**now, "nodes": {**before["nodes"], **now["nodes"]}}
    elif uid and uid != now["workflow_uid"]:
        earlier[uid] = {name: value for name, value in before.items() if name != "before"}
    return {**now, "before": earlier} if earlier else now


def _put(store: Store, plans: list[Plan]) -> None:
    for plan in plans:
        put_plan(store, plan)


def batches_left(store: Store, plans: list[Plan]) -> list[int]:
    """Return the batches with missing samples, and remove damaged samples. Raises StoreError."""
    left = set[int]()
    for plan in plans:
        delete_damaged_samples(store, plan.run_id)
        stored = stored_samples(store, plan.run_id)
        left |= {
            number
            for number, batch in enumerate(plan.batches)
            if any(plan.key(position) not in stored for position in batch.samples)
        }
    return sorted(left)


async def _prepare(
    kube: Kube, context: PodContext, store: Store, plan: Plan, batches: list[int]
) -> tuple[Object, Refusals]:
    """Create the objects of the batches `left`; return facts of the cluster and what it refuses."""
    await create(kube, context, [secret(context)])
    shapes = plan.shapes
    infeasible = await unmet(kube, shapes, context.namespace)
    refusals: Refusals = {
        number: ("skipped", infeasible[shape])
        for number in batches
        if (shape := plan.batches[number].shape) in infeasible
    }
    objects = {
        number: batch_objects(plan.shape_of(number), context, number)
        for number in batches
        if number not in refusals
    }
    refusals |= await create_for_batches(kube, context, store, objects)
    facts = {**await cluster_facts(kube), "network_policy": context.network_policy}
    return {
        **facts,
        "workflow": context.workflow,
        "workflow_uid": context.workflow_uid,
        "namespace": context.namespace,
    }, refusals


def recheck(context: PodContext, out: Path) -> list[str]:
    """Collect the run and plan rechecks of its suspicious points; return those points.

    Writes what Argo fans out over below `out`. Points are named by entry and label. Raises
    BadDocument, StoreError, KubeError.
    """
    # numpy and pyarrow, for which the plan step of a run does not wait
    from perfdag.analysis.gate import check, unattended_rules
    from perfdag.results.collect import collect

    store = context.open()
    plan = stored_plan(store, context.run_id)
    if plan.options.rechecks:  # a resumed run keeps its plan
        rechecks = resumed(store, plan)
    else:
        collect(store, plan)
        rules = unattended_rules(store, checks_of(plan.suite_text))
        suspects = check(store, plan.suite, plan.run_id, rules).suspects
        points = {line.info.point for line in suspects}
        rechecks = put_rechecks(store, plan, points) if points else []
    left = rechecks_left(store, plan, rechecks)
    objects = {
        number: batch_objects(again.shape_of(index), context, number)
        for number, again, index in left
    }
    refusals = run_with_client(lambda kube: create_for_batches(kube, context, store, objects))
    for number, (status, text) in refusals.items():
        member, index = plan_of_batch(store, plan, number)
        write_reason(store, member.run_id, MissingReason("batch", status, text, index))
    batches = [item(number, again, index, refusals) for number, again, index in left]
    write_outputs(out, {"batches": batches})
    points_again = rechecks[0].points if rechecks else []
    return [f"{point.entry} {point.label}".strip() for point in points_again]


def resumed(store: Store, plan: Plan) -> list[Plan]:
    """Return the rechecks of a resumed run, without earlier reasons and in its Workflow.

    Raises StoreError.
    """
    rechecks = [stored_plan(store, run_id) for run_id in plan.options.rechecks]
    for member in rechecks:
        member.where = plan.where
        forget_reasons(store, member.run_id)
        put_plan(store, member)
    return rechecks


def rechecks_left(store: Store, plan: Plan, rechecks: list[Plan]) -> list[tuple[int, Plan, int]]:
    """Return (number, recheck, index there) of the batches of rechecks with missing samples."""
    stored = {member.run_id: stored_samples(store, member.run_id) for member in rechecks}
    return [
        (number, member, index)
        for number, member, index in recheck_batches(plan, rechecks)
        if any(
            member.key(position) not in stored[member.run_id]
            for position in member.batches[index].samples
        )
    ]
