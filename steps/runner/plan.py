"""The first step of a run on a cluster: the suite becomes a stored plan, the run's key pair and claims, and the
integers that Argo fans out over.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from perfdag.kube.client import Kube, KubeError, run_with_client
from perfdag.kube.labels import LABEL
from perfdag.kube.objects import Object
from perfdag.kube.podspec import (
    Context,
    account_of,
    claim_spec,
    patch,
    priority_class,
    shared_claim,
    shares,
    ssh_port,
)
from perfdag.plan.gated import gated
from perfdag.plan.plan import Plan, make_plan, read_plan
from perfdag.results import missing_reason
from perfdag.results.confirming import ROUNDS
from perfdag.results.missing_reason import MissingReason
from perfdag.results.runs import resume_obstacle, variants
from perfdag.results.samples import delete_damaged_samples, run_folder, stored_samples
from perfdag.shape import Shape
from perfdag.steps.runner import budget
from perfdag.steps.runner.cluster_facts import cluster_facts, cluster_name
from perfdag.steps.runner.feasibility import has_class, unmet
from perfdag.steps.runner.limits import check_shapes, check_size, refuse
from perfdag.steps.runner.parameters import SUITE_FILE, options, suite_text
from perfdag.steps.runner.peer import PeerError, make_keys
from perfdag.steps.runner.pod_context import PENDING_GRACE, PodContext
from perfdag.store.base import NotStoredError, Store, StoreError

FANS = ("batches", "duels")

NETWORK = f"{LABEL}/network"
"""Annotation of a pod that Multus gives no network: whose network it is on."""

MULTUS = {False: "k8s.v1.cni.cncf.io/networks", True: "v1.multus-cni.io/default-network"}


def plan_of(
    here: PodContext, store: Store, environment: Mapping[str, str], mounted: Path = SUITE_FILE
) -> Plan:
    """The run's plan: the stored one where the run has one (a submit, a resume), else made from the suite.

    Raises BadDocument, StoreError.
    """
    from perfdag.suite.load import parse_suite

    try:
        return read_plan(store.get(f"{run_folder(here.run_id)}/plan.json"))
    except NotStoredError:
        pass
    except ValueError as error:
        raise StoreError(str(error)) from None
    given = options(environment)
    loaded = parse_suite(suite_text(environment, store, mounted), settings=given.settings)
    return make_plan(loaded, only=given.only, run_id=here.run_id, trigger=here.trigger or "manual")


def outputs(
    plan: Plan, here: PodContext, stored: set[str], other: Plan | None = None
) -> dict[str, Any]:
    """What Argo gets: the batches that still miss a sample in the plan's order, the shape of each, the distinct shapes.

    `other`: the second variant of a plan of two; `stored` then holds the samples that both have. Raises BadDocument.
    """
    check_size(plan)
    shapes = [Shape.model_validate(each) for each in plan.shapes]
    left = [
        number
        for number, batch in enumerate(plan.batches)
        if any(plan.key(position) not in stored for position in batch.samples)
    ]
    accounts = {
        point.shape: account_of(point.benchmark)
        for point in plan.points
        if point.benchmark in here.allowed
    }
    if other:
        described, shapeof = _side_by_side(plan, other, here)
    else:
        described = [
            _described(shape, plan, here, accounts.get(number))
            for number, shape in enumerate(shapes)
        ]
        placed = [batch.shape for batch in plan.batches] + [
            *range(len(shapes))
        ] * ROUNDS  # those of perfdag.regress.confirm.numbers
        counts = [shapes[shape].hosts.count for shape in placed]
        shapeof = [
            {"s": str(shape), "n": str(n), "turn": _turn(shapes[shape], n, number)}
            for number, (shape, n) in enumerate(zip(placed, counts, strict=True))
        ]
    check_shapes(described)
    return {
        "batches": [] if other else left,
        "duels": left if other else [],
        "shapeof": shapeof,
        "shapes": described,
        "pending": f"{int(plan.options.get('pending_limit', 600)) + PENDING_GRACE}s",
        "run": plan.run_id,
        "suitename": plan.suite,
        "gated": str(gated(plan)).lower(),
    }


def _turn(shape: Shape, pods: int, number: int) -> str:
    """Batches of one turn are never measured at once, even where batches may overlap: two gangs could each hold the half of the nodes that
    both need. Volcano places a gang as a whole or not at all.
    """
    return "gang" if pods > 1 and shape.scheduler != "volcano" else str(number)


def _side_by_side(a: Plan, b: Plan, here: PodContext) -> tuple[list[Object], list[Object]]:
    """The shapes of two variants and, for each batch, which of them each side has and how many pods (`n`, as many on both)."""
    described, shapeof = [], []
    for plan, first in ((a, 0), (b, 1)):
        accounts = {
            point.shape: account_of(point.benchmark)
            for point in plan.points
            if point.benchmark in here.allowed
        }
        for number, raw in enumerate(plan.shapes):
            shape = Shape.model_validate(raw)
            n = shape.hosts.count
            ranks = range(first * n, (first + 1) * n)
            described.append(_described(shape, a, here, accounts.get(number), ranks))
    for number, (left, right) in enumerate(zip(a.batches, b.batches, strict=True)):
        first_shape = Shape.model_validate(a.shapes[left.shape])
        n = first_shape.hosts.count
        turn = _turn(first_shape, 2 * n, number)
        shapeof.append(
            {"s": str(left.shape), "t": str(len(a.shapes) + right.shape), "n": str(n), "turn": turn}
        )
    return described, shapeof


def _described(
    shape: Shape, plan: Plan, here: PodContext, account: str | None, ranks: range | None = None
) -> Object:
    priority = priority_class(plan.options.get("priority", 0))
    context = Context(
        plan.run_id,
        here.workflow_uid,
        here.images,
        here.store,
        here.pull_policy,
        priority,
        account,
        ranks,
    )
    ports = [ssh_port(shape, plan.run_id, rank) for rank in (0, 1)]
    named = shape.network.name
    return {
        "patch": patch(shape, context),
        "port": str(ports[0]),
        "step": str(ports[1] - ports[0]),
        "netkey": MULTUS[shape.network.default] if named else NETWORK,
        "network": named or ("host" if shape.network.host else "pod"),
    }


def step(here: PodContext, out: Path, environment: Mapping[str, str]) -> Plan:
    """The whole step; writes the output parameters as files below `out`. Raises BadDocument, StoreError, KubeError, PeerError.

    What the cluster refuses as a whole is noted for the rows before it is raised.
    """
    store = here.open()
    plan = plan_of(here, store, environment)
    plans = variants(store, plan)
    if any(stored_samples(store, each.run_id) for each in plans) and (
        why := resume_obstacle(plan, run_with_client(cluster_name), here.store)
    ):
        raise refuse(why)  # before anything of that run is changed
    for each in plans:
        missing_reason.forget_all(store, each.run_id)
    made = outputs(plan, here, kept(store, plans), *plans[1:])
    _put(store, plans)  # first of all: whatever the cluster refuses, there are rows that say so
    budget.begin(store, plan.run_id)
    try:
        facts, unable = run_with_client(
            lambda kube: _prepare(
                kube, here, plans, [number for name in FANS for number in made[name]]
            )
        )
        classed = run_with_client(
            lambda kube: has_class(kube, priority_class(plan.options.get("priority", 0)))
        )
    except (KubeError, PeerError) as error:
        for each in plans:
            missing_reason.write(store, each.run_id, MissingReason("plan", "failed", str(error)))
        raise
    for each in plans:
        each.where = where(facts, each.where)
        for number, (status, reason) in unable.items():
            missing_reason.write(store, each.run_id, MissingReason("batch", status, reason, number))
    _put(store, plans)
    if not classed:
        for shape in made["shapes"]:
            del shape["patch"][
                "priorityClassName"
            ]  # a pod that names a class which is not there is refused
    made |= {name: [number for number in made[name] if number not in unable] for name in FANS}
    out.mkdir(parents=True, exist_ok=True)
    for name, value in made.items():
        (out / name).write_text(value if isinstance(value, str) else orjson.dumps(value).decode())
    return plan


def where(now: Object, before: Object) -> Object:
    """The facts of a run that goes on: those of its earlier Workflows stay, by uid, for the samples that these measured.

    A Workflow that is tried again may find other nodes: those of its samples until now stay too. So does the name of the cluster where it
    may not be read any more.
    """
    earlier, uid = dict(before.get("before", {})), before.get("workflow_uid")
    now = {**now, "cluster": now["cluster"] or before.get("cluster")}
    if uid == now["workflow_uid"] and before.get("nodes") and now.get("nodes"):
        now = {**now, "nodes": {**before["nodes"], **now["nodes"]}}
    elif uid and uid != now["workflow_uid"]:
        earlier[uid] = {name: value for name, value in before.items() if name != "before"}
    return {**now, "before": earlier} if earlier else now


def _put(store: Store, plans: list[Plan]) -> None:
    for each in plans:
        store.put(f"{run_folder(each.run_id)}/plan.json", each.dump())


def kept(store: Store, plans: list[Plan]) -> set[str]:
    """The samples of the first plan that need not be measured; of two variants those of rounds that both have.

    Parts that cannot be read are removed. Raises StoreError.
    """
    if len(plans) == 1:
        delete_damaged_samples(store, plans[0].run_id)
        return stored_samples(store, plans[0].run_id)
    from perfdag.steps.runner.duet import forget_unmarked

    done = []
    for plan in plans:
        forget_unmarked(store, plan, range(len(plan.order)))
        stored = stored_samples(store, plan.run_id)
        done.append(
            {
                number
                for number, batch in enumerate(plan.batches)
                if all(plan.key(each) in stored for each in batch.samples)
            }
        )
    a = plans[0]
    return {
        a.key(position) for number in done[0] & done[1] for position in a.batches[number].samples
    }


Unable = dict[int, tuple[str, str]]
"""Batches that cannot be measured: the status of their samples, and why."""


async def _prepare(
    kube: Kube, here: PodContext, plans: list[Plan], left: list[int]
) -> tuple[Object, Unable]:
    """Make the objects that the batches left need, owned by the run's Workflow, and read what the cluster is and lacks."""
    plan = plans[0]
    await create(kube, here, plan, [secret(here)])
    unable: Unable = {}
    for each in plans:
        absent = await unmet(
            kube, [Shape.model_validate(shape) for shape in each.shapes], here.namespace
        )
        unable |= {
            number: ("skipped", absent[shape])
            for number in left
            if (shape := each.batches[number].shape) in absent
        }
    wanted = {
        number: batch_objects(plan.shape_of(number), here, plan, number)
        for number in left
        if number not in unable
    }
    unable |= await create_each(kube, here, plan, wanted)
    facts = {**await cluster_facts(kube), "network_policy": here.network_policy}
    return {
        **facts,
        "workflow": here.workflow,
        "workflow_uid": here.workflow_uid,
        "namespace": here.namespace,
    }, unable


async def create_each(
    kube: Kube, here: PodContext, plan: Plan, wanted: Mapping[int, list[Object]]
) -> Unable:
    """Make the objects of each batch; those that the cluster refuses, and why. Raises KubeError where another try may do."""
    unable: Unable = {}
    for number, bodies in wanted.items():
        try:
            await create(kube, here, plan, bodies)
        except KubeError as error:
            if error.status in (0, 401, 429) or error.status >= 500:
                raise
            unable[number] = ("skipped" if error.reason == "NoKind" else "failed", str(error))
    return unable


async def create(kube: Kube, here: PodContext, plan: Plan, bodies: list[Object]) -> None:
    """Make objects that the run's Workflow owns. Raises KubeError."""
    owner = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "name": here.workflow,
        "uid": here.workflow_uid,
    }
    for body in bodies:
        body["metadata"] |= {"ownerReferences": [owner], "labels": {"perfdag/run": plan.run_id}}
        try:
            await kube.create(body, here.namespace)
        except KubeError as error:
            if error.reason != "AlreadyExists":  # an earlier attempt of this step made it
                raise


def secret_name(workflow_uid: str) -> str:
    """Name of the Secret of a Workflow's key pair."""
    return f"perfdag-ssh-{workflow_uid}"


def secret(here: PodContext) -> Object:
    """The run's Secret: its key pair."""
    with tempfile.TemporaryDirectory() as folder:
        keys = make_keys(Path(folder))
    meta = {"name": secret_name(here.workflow_uid)}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": meta,
        "type": "Opaque",
        "stringData": keys,
    }


def shape_of(plan: Plan, number: int) -> Shape:
    """The shape of a batch of the run, or of one that confirms it, as perfdag.regress.confirm.numbers counts them on."""
    first = len(plan.batches)
    return (
        plan.shape_of(number)
        if number < first
        else Shape.model_validate(plan.shapes[(number - first) % len(plan.shapes)])
    )


def batch_objects(shape: Shape, here: PodContext, plan: Plan, number: int) -> list[Object]:
    """The claim that the pods of a batch share, and its PodGroup; none for most shapes."""
    made: list[Object] = []
    if shape.volume and shares(shape.volume):
        name = shared_claim(here.workflow_uid, str(number))
        made.append(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name},
                "spec": claim_spec(shape.volume),
            }
        )
    if shape.scheduler == "volcano":
        pods = shape.hosts.count * (2 if plan.trigger == "ab" else 1)
        group = {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "spec": {"minMember": pods},
        }
        made.append({**group, "metadata": {"name": f"perfdag-{here.workflow_uid}-b{number}"}})
    return made
