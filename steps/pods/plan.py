"""The steps that plan: what Argo gets of a run and of its rechecks, and what the cluster gets.

An object of Argo holds 256 KiB. So the plan is in the store, pods read it there, and Argo passes on
numbers of batches; what batches of one entry and shape share stands once, as their kind.
"""

import contextlib
import re
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from perfdag.benchmark.contract import Infrastructure
from perfdag.benchmark.registry import reading_order, short_form
from perfdag.identity import grouped
from perfdag.kube.client import Kube, KubeError, Object, run_with_client
from perfdag.kube.patch import (
    LABEL,
    PRIORITY_CLASSES,
    Context,
    account_of,
    claim_spec,
    image_of,
    own_image,
    patch,
    priority_class,
    service_ports,
    services,
    shared_claim,
    ssh_port,
)
from perfdag.plan import Batch, Plan, gated, make_plan, place_hosts
from perfdag.results.run_store import (
    ROUNDS,
    put_plan,
    put_rechecks,
    recheck_batches,
    resume_obstacle,
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
from perfdag.revision import Revision
from perfdag.shape import Shape
from perfdag.steps.pods.cluster import cluster_facts, cluster_name, has_class, unmet
from perfdag.steps.pods.context import PENDING_GRACE, PodContext, end_clock, refuse
from perfdag.steps.pods.peer import make_keys
from perfdag.store.base import NotStoredError, Store
from perfdag.suite.document import BadDocument
from perfdag.suite.load import parse_suite
from perfdag.suite.model import checks_of

Refusals = dict[int, tuple[str, str]]
"""Batches that cannot be measured: the status of their samples, and why."""
ITEM_LENGTH = 80
"""Most characters of the text of a batch, which Argo puts into the names of its nodes."""
MULTUS = {False: "k8s.v1.cni.cncf.io/networks", True: "v1.multus-cni.io/default-network"}
"""Annotations that name a Multus network, by whether it replaces the pod's default network."""
MAX_BATCHES, MAX_NODES = 1000, 15_000
"""The most batches, and the most nodes of them in the status of the Workflow: each has three nodes
and one for each pod. Argo compresses what is more than 1 MiB to 60 B a node. If that is more than
1 MiB, it ends the Workflow without the last step."""
MAX_KINDS = 75_000
"""Bytes of all kinds as text within JSON.

They stand twice in the Workflow: as outputs of the plan step and of the Workflow. Its templates,
which Argo stores twice too, need the rest of the 256 KiB of an object.
"""
_LONG_IMAGE = "registry.of-a-usual-length.example/benchmarks/perfdag-{name}:1.0"
"""Stands for the images of the installation where these are not known."""


def items(batches: "Batches", refusals: Refusals) -> list[dict[str, str]]:
    """Return what Argo fans out over: the text and the number of each batch, which nodes show.

    A batch that the cluster refuses has no number, and its text says why.
    """
    argo_items = []
    for number, (plan, index) in batches.items():
        batch = plan.batches[index]
        item = {"benchmark": _text_of(plan, batch), "n": str(number)}
        if number in refusals:
            _, entry = plan.kind(batch)
            refusal = _plain(f"{entry}: {refusals[number][1]}")
            item = {"benchmark": refusal[:ITEM_LENGTH], "n": ""}
        argo_items.append(item)
    return argo_items


def _plain(text: str) -> str:
    """Return a text in one line and without double braces, which Argo would replace."""
    return re.sub(r"\{(?=\{)", "{ ", " ".join(text.split()))


def _text_of(plan: Plan, batch: Batch) -> str:
    """Return what a batch measures, for people: the entry, what varies, where, and which rounds.

    Argo shows nothing else that tells the batches of a point apart, so the rounds stay where
    ITEM_LENGTH cuts the text. A long entry or setting loses its middle, so that its ends stay.
    """
    samples = [plan.order[position] for position in batch.samples]
    points = [plan.points[index] for index in sorted({index for index, _ in samples})]
    settings = " ".join(point.label for point in points).split()
    by_name = grouped(settings, key=lambda setting: setting.partition("=")[0])
    benchmark = points[0].benchmark
    parts = [points[0].entry]
    for name in reading_order(benchmark, by_name):
        values = [setting.partition("=")[2] for setting in by_name[name]]
        parts.append(_setting(benchmark, name, values))
    place = ""
    shape = plan.shapes[batch.shape]
    if shape.volume:
        place = f" on {shape.volume.storage_class or shape.volume.kind}"
    if shape.hosts.count > 1 and f"{network_of(shape)} network" not in parts:
        place += f" {network_of(shape)} network"
    end = ", warm-up"
    if rounds := sorted({repetition for _, repetition in samples if repetition > 0}):
        last = max(point.rounds for point in points)
        end = f", round {_span([str(number) for number in rounds])} of {last}"
    length = ITEM_LENGTH - len(end)
    text = ", ".join(parts) + place
    if len(text) > length:
        share = length // len(parts) - len(", ")
        text = ", ".join(_without_middle(part, share) for part in parts) + place
    return text[:length] + end


def _without_middle(text: str, length: int) -> str:
    """Return the two ends of a long text, because values of one setting often differ at the end."""
    if len(text) <= length:
        return text
    half = max((length - len("...")) // 2, 1)
    return f"{text[:half]}...{text[-half:]}"


def _setting(benchmark: str, name: str, values: Sequence[str]) -> str:
    """Return the values of a parameter for people: `1..8 streams`, `random read/random write`."""
    span = _span(values)
    distinct = [span] if ".." in span else dict.fromkeys(values)
    return _plain("/".join(short_form(benchmark, name, value) for value in distinct))


def _span(values: Sequence[str]) -> str:
    """Return the values of a parameter: numbers as the first and the last, else each."""
    distinct = [*dict.fromkeys(values)]
    if len(distinct) > 1 and all(value[:1].isdigit() for value in distinct):
        return f"{distinct[0]}..{distinct[-1]}"
    return ",".join(distinct)


def kinds_of(
    plan: Plan, context: Context | None = None, allowed: Collection[str] = ()
) -> list[Object]:
    """Return what Argo gets of each kind of batches: what its batches and their pods share.

    Without `context` it is about as long as on a cluster. `allowed` names the benchmarks with
    rights of their own, which no other image may have. Raises BadDocument for such an image, if a
    plan has too many batches or kinds, or a wrong shape: a stored plan may come from elsewhere. The
    message names the settings that change this.
    """
    if len(plan.batches) > MAX_BATCHES:
        raise refuse(
            f"{len(plan.batches):,} batches are more than {MAX_BATCHES:,}, which is what one "
            "workflow holds; raise batch_time or rounds_per_batch, use isolation: batch, "
            "or split the suite"
        )
    nodes = sum(3 + plan.shapes[batch.shape].hosts.count for batch in plan.batches)
    if nodes > MAX_NODES:
        raise refuse(
            f"{len(plan.batches):,} batches with all their pods are {nodes:,} nodes of a workflow, "
            f"which holds {MAX_NODES:,}; raise batch_time or rounds_per_batch, or split the suite"
        )
    benchmarks = {point.entry: point.benchmark for point in plan.points}
    usual = Context(plan.run_id, 36 * "0", _LONG_IMAGE, priority_class=PRIORITY_CLASSES[1])
    kinds: list[Object] = []
    size = 0
    for index, entry in plan.kinds():
        benchmark = benchmarks[entry]
        shape = plan.shapes[index]
        for problem in shape.problems():
            raise BadDocument([replace(problem, file="suite")])
        of_pods = context or usual
        if benchmark in allowed:
            if not own_image(shape.image, of_pods.images):
                raise refuse(
                    f"entry {entry}: {benchmark} has rights of its own here, "
                    f"so {shape.image} may not be its image; leave image out"
                )
            of_pods = replace(of_pods, account=account_of(benchmark))
        kinds.append({"entry": entry, "benchmark": benchmark, **_kind(shape, of_pods)})
        size += len(orjson.dumps(orjson.dumps(kinds[-1]).decode()))
        if size > MAX_KINDS:
            raise refuse(
                f"the first {len(kinds)} distinct shapes are too many for one workflow "
                f"({size:,} of {MAX_KINDS:,} bytes); split the suite by shape"
            )
    return kinds


def _kind(shape: Shape, context: Context) -> Object:
    """Return what a kind of batches has of its shape.

    `turn` is the mutex of batches that may overlap: two half-placed gangs would deadlock. Volcano
    places a gang as a whole.
    """
    count = shape.hosts.count
    takes_turns = count > 1 and shape.scheduler != "volcano"
    kind = {
        "image": image_of(shape.image, context.images),
        "pods": str(count),
        "ports": [str(ssh_port(shape, context.run_id, rank)) for rank in range(count)],
        # outside Multus networks the annotation says what is measured
        "netkey": MULTUS[shape.network.default] if shape.network.name else f"{LABEL}/network",
        "network": network_of(shape),
        "turn": "gang" if takes_turns else "",
        "lead": patch(shape, context, 0),
    }
    if count > 1:
        kind["peer"] = patch(shape, context, 1)
    return kind


def network_of(shape: Shape) -> str:
    """Return what a shape measures: the names of Multus networks, host or pod."""
    network = shape.network
    return ",".join(network.attachments) or ("host" if network.host else "pod")


def outputs(plan: Plan, context: PodContext, has_priority: bool = True) -> dict[str, Any]:
    """Return the output parameters by name, without the batches to measure.

    `kindof` has the kind of each batch, and `kinds` what batches of one shape and entry share.
    `has_priority` tells whether the cluster has the PriorityClass of the pods. Raises BadDocument.
    """
    kinds = plan.kinds()
    numbers = [kinds.index(plan.kind(batch)) for batch in plan.batches]
    for _ in range(ROUNDS):  # of rechecks, which have a batch of each kind
        numbers += range(len(kinds))
    priority = priority_class(plan.options.priority) if has_priority else None
    return {
        "kindof": [str(number) for number in numbers],
        "kinds": kinds_of(plan, replace(context, priority_class=priority), context.allowed),
        "pending": f"{int(plan.options.pending_limit) + PENDING_GRACE}s",
        "stall": f"{stall_limit(plan):.0f}s",
        "run": plan.run_id,
        "suitename": plan.suite,
        "gated": str(gated(plan)).lower(),
    }


def stall_limit(plan: Plan) -> float:
    """Return the seconds after which a run that stands still is stopped.

    They are three times its expected time, what its batches may wait for room, and an hour or the
    longest timeout of a sample: a sample that needs all of its timeout is no standstill.
    """
    expected = sum(batch.seconds for batch in plan.batches)
    waits = len(plan.batches) * plan.options.pending_limit
    longest = max((point.timeout for point in plan.points), default=0.0)
    return 3 * expected + waits + max(3600.0, longest)


def write_outputs(out: Path, values: Mapping[str, Any]) -> None:
    """Write output parameters to files of their names in a folder: texts as they are, else JSON."""
    out.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (out / name).write_text(value if isinstance(value, str) else orjson.dumps(value).decode())


# -- the objects of a run -------------------------------------------------------------------------


LEASES = "coordination.k8s.io/v1"
LEASE_NAME = "perfdag-{}"
"""The Lease of a Workflow, with its uid in the name, which owns the objects.

The Workflow owns it. Kubernetes deletes the objects with the Lease, so the last step needs no right
to delete Secrets or claims."""
PORT_ATTEMPTS = 20
"""Attempts to find node ports that no other Service has."""


def _object(api: str, kind: str, name: str, **fields: Any) -> Object:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, **fields}


def secret(context: PodContext) -> Object:
    """Return a Secret with new SSH keys."""
    with tempfile.TemporaryDirectory() as folder:
        keys = make_keys(Path(folder))
    return _object(
        "v1", "Secret", f"perfdag-ssh-{context.workflow_uid}", type="Opaque", stringData=keys
    )


def batch_objects(shape: Shape, context: PodContext, number: int) -> list[Object]:
    """Return the shared claim, the Services and the PodGroup of a batch.

    Most shapes need none.
    """
    uid = context.workflow_uid
    objects = [*services(shape, context.run_id, (context.workflow, uid), number)]
    if shape.volume and shape.volume.batch_claim:
        claim = shared_claim(uid, str(number))
        spec = claim_spec(shape.volume)
        objects.append(_object("v1", "PersistentVolumeClaim", claim, spec=spec))
    if shape.scheduler == "volcano":
        name = f"perfdag-{uid}-b{number}"
        spec = {"minMember": shape.hosts.count}
        objects.append(_object("scheduling.volcano.sh/v1beta1", "PodGroup", name, spec=spec))
    return objects


async def create_for_batches(
    kube: Kube, context: PodContext, store: Store, objects: Mapping[int, list[Object]]
) -> Refusals:
    """Create the objects of batches; return the batches whose objects the API server refuses.

    Raises KubeError if another attempt may succeed, and StoreError.
    """
    refusals: Refusals = {}
    for number, bodies in objects.items():
        try:
            if created := await create(kube, context, bodies):
                store.put(context.services_key(number), orjson.dumps(created))
        except KubeError as error:
            if error.transient or error.status == 401:
                raise
            refusals[number] = ("skipped" if error.reason == "NoKind" else "failed", str(error))
    return refusals


async def create(kube: Kube, context: PodContext, bodies: list[Object]) -> dict[str, Object]:
    """Create objects of the run, owned by its Lease; return the Services by rank.

    Raises KubeError.
    """
    if not bodies:
        return {}
    uid = context.workflow_uid
    lease = _object(
        LEASES, "Lease", LEASE_NAME.format(uid), spec={"holderIdentity": context.run_id}
    )
    workflow = _object("argoproj.io/v1alpha1", "Workflow", context.workflow, uid=uid)
    lease = await _create(kube, context, lease, workflow)
    forwarded = {}
    for body in bodies:
        if body["kind"] == "Service":
            service = await _create_service(kube, context, body, lease)
            rank = body["spec"]["selector"][f"{LABEL}/rank"]
            ports = sorted({port["port"] for port in service["spec"]["ports"]})
            forwarded[rank] = {"address": service["spec"]["clusterIP"], "ports": ports}
        else:
            await _create(kube, context, body, lease)
    return forwarded


async def _create_service(kube: Kube, context: PodContext, body: Object, owner: Object) -> Object:
    """Create a Service with other ports until the API server has them free; return it.

    Raises KubeError, with the reason NoKind if the cluster cannot have a Service of this type.
    """
    spec = body["spec"]
    attempt = 0
    while True:
        try:
            return await _create(kube, context, body, owner)
        except KubeError as error:
            if "already allocated" not in error.message or attempt == PORT_ATTEMPTS:
                if error.status != 422 and "allocate a serviceIP" not in error.message:
                    raise
                raise KubeError(
                    422,
                    "NoKind",
                    f"the cluster has no Service of type {spec['type']} for network.path: "
                    f"{error.message}; let it have one, or measure network.path: pod or host",
                ) from None
        seed = f"{body['metadata']['name']} {attempt}"
        attempt += 1
        spec["ports"] = service_ports(seed, spec["type"] == "NodePort")


async def _create(kube: Kube, context: PodContext, body: Object, owner: Object) -> Object:
    """Create an object, unless an earlier attempt of this step did; return a Lease or Service."""
    fields = owner | owner["metadata"]
    of = {key: fields[key] for key in ("apiVersion", "kind", "name", "uid")}
    body["metadata"] |= {"ownerReferences": [of], "labels": {"perfdag/run": context.run_id}}
    try:
        return await kube.create(body, context.namespace)
    except KubeError as error:
        if error.reason != "AlreadyExists":
            raise
        if body["kind"] not in ("Lease", "Service"):  # no step may read Secrets
            return body
        kind = f"{body['apiVersion']}/{body['kind']}"
        return await kube.get(kind, body["metadata"]["name"], context.namespace)


def release(context: PodContext, plan: Plan) -> None:
    """Delete what a run that succeeded no longer needs, of all of its Workflows.

    `argo retry` of another one needs its claims and its key pair, and creates no object: they go
    with the Workflow. So does what the API server refuses to delete; print that.
    """

    async def work(kube: Kube) -> None:
        for uid in (context.workflow_uid, *plan.where.get("before", {})):
            await kube.delete(f"{LEASES}/Lease", LEASE_NAME.format(uid), context.namespace)

    try:
        run_with_client(work)
    except KubeError as error:
        text = "claims, PodGroups and the key pair of this run stay until its workflow is deleted"
        print(f"{text}: {error}", file=sys.stderr)  # noqa: T201


# -- the steps ------------------------------------------------------------------------------------


SUITE_FILES = (Path("/tmp/perfdag-suite.yaml"), Path("/perfdag/suite/suite.yaml"))
"""Where the plan step finds a suite that its Workflow carries inside, and that of a ConfigMap."""


class Options(BaseModel):
    """What `perfdag submit` was told beside the suite.

    `settings` are those of `--set`, `only` those of `--only`. `revision` is of what the submitter
    measures.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    settings: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    revision: str = ""


def suite_text(environment: Mapping[str, str]) -> str:
    """Return the text of the suite in the first of SUITE_FILES that exists. Raises BadDocument."""
    for file in SUITE_FILES:
        if file.is_file():
            return file.read_text()
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
        return Options.model_validate_json(text)
    except ValidationError as invalid:
        error = invalid.errors()[0]
        place = ".".join(["the parameter options", *map(str, error["loc"])])
        example = '{"settings": ["repetitions=5"], "only": ["iperf*"]}'
        raise refuse(f"{place}: {error['msg']}; write {example}") from None


def plan_of(context: PodContext, store: Store, environment: Mapping[str, str]) -> Plan:
    """Return the stored plan of the run, or make one from the suite.

    A run that was submitted or is resumed has a stored plan. Raises BadDocument, StoreError.
    """
    with contextlib.suppress(NotStoredError):
        return stored_plan(store, context.run_id)
    chosen = options(environment)
    suite = parse_suite(suite_text(environment), settings=chosen.settings)
    plan = make_plan(suite, only=chosen.only, run_id=context.run_id, trigger=context.trigger)
    if chosen.revision:
        entries = (point.entry for point in plan.points)
        plan.revisions = dict.fromkeys(entries, Revision(chosen.revision))
    return place_hosts(plan)


def step(context: PodContext, out: Path, environment: Mapping[str, str]) -> Plan:
    """Run the step: make the plan, create objects, and write the output parameters below `out`.

    Where the cluster refuses the run as a whole, its rows say why. Raises BadDocument, StoreError,
    KubeError, Infrastructure.
    """
    store = context.open()
    plan = plan_of(context, store, environment)
    plans = variants(store, plan)
    if any(stored_samples(store, variant.run_id) for variant in plans):
        obstacle = resume_obstacle(plan, run_with_client(cluster_name), context.store)
        if obstacle:
            raise refuse(obstacle)  # before anything of that run is changed
    # the API server refuses a pod that names a PriorityClass which is not there
    class_name = priority_class(plan.options.priority)
    has_priority = run_with_client(lambda kube: has_class(kube, class_name))
    parameters = outputs(plan, context, has_priority)
    for variant in plans:
        forget_reasons(store, variant.run_id)
        put_plan(store, variant)  # before the cluster may refuse: then rows say why
    end_clock(store, plan.run_id)
    batches = [
        (index, variant, index) for variant in plans for index in range(len(variant.batches))
    ]
    missing = missing_batches(store, batches)
    try:
        facts, infeasible = run_with_client(lambda kube: _prepare(kube, context, plan))
        refusals: Refusals = {
            number: ("skipped", infeasible[shape])
            for number in missing
            if (shape := plan.batches[number].shape) in infeasible
        }
        parameters["batches"] = fan_out(context, store, missing, refusals)
    except (KubeError, Infrastructure) as error:
        for variant in plans:
            write_reason(store, variant.run_id, MissingReason("plan", "failed", str(error)))
        raise
    for variant in plans:
        variant.where = facts_of_run(facts, variant.where)
        variant.points = with_learned_times(store, variant, facts["cluster"]).points
        put_plan(store, variant)
    write_outputs(out, parameters)
    return plan


async def _prepare(kube: Kube, context: PodContext, plan: Plan) -> tuple[Object, dict[int, str]]:
    """Create the key pair; return the facts of the run's cluster, and the shapes it cannot run."""
    await create(kube, context, [secret(context)])
    facts = {
        **await cluster_facts(kube),
        "network_policy": context.network_policy,
        "workflow": context.workflow,
        "workflow_uid": context.workflow_uid,
        "namespace": context.namespace,
    }
    return facts, await unmet(kube, plan.shapes, context.namespace)


def facts_of_run(now: Object, before: Object) -> Object:
    """Return the facts of a run that goes on, `before` those of its plan until now.

    The facts of earlier Workflows stay, by uid, for the samples that these measured. So does the
    name of a cluster that may not be read any more.
    """
    now = {**now, "cluster": now["cluster"] or before.get("cluster")}
    earlier = dict(before.get("before", {}))
    uid = before.get("workflow_uid")
    if uid and uid != now["workflow_uid"]:
        earlier[uid] = {name: value for name, value in before.items() if name != "before"}
    return {**now, "before": earlier} if earlier else now


Batches = dict[int, tuple[Plan, int]]
"""Batches by number: the plan of the run or of a recheck, and the index there."""


def missing_batches(store: Store, batches: Iterable[tuple[int, Plan, int]]) -> Batches:
    """Return the batches with missing samples, of (number, plan, index there).

    Variants have the same numbers. Removes damaged samples. Raises StoreError.
    """
    stored = dict[str, set[str]]()
    missing: Batches = {}
    for number, plan, index in batches:
        if plan.run_id not in stored:
            delete_damaged_samples(store, plan.run_id)
            stored[plan.run_id] = stored_samples(store, plan.run_id)
        names = {plan.key(position) for position in plan.batches[index].samples}
        if not names <= stored[plan.run_id]:
            missing.setdefault(number, (plan, index))
    return dict(sorted(missing.items()))


def fan_out(
    context: PodContext, store: Store, batches: Batches, refusals: Refusals
) -> list[dict[str, str]]:
    """Create the objects of batches, and return what Argo fans out over.

    Batches in `refusals` have no objects; why they and others are refused becomes the reason of
    their samples. Raises StoreError, KubeError.
    """
    objects = {
        number: batch_objects(plan.shape_of(index), context, number)
        for number, (plan, index) in batches.items()
        if number not in refusals
    }
    refusals = refusals | run_with_client(
        lambda kube: create_for_batches(kube, context, store, objects)
    )
    for number, (status, text) in refusals.items():
        plan, index = batches[number]
        for variant in variants(store, plan):
            write_reason(store, variant.run_id, MissingReason("batch", status, text, index))
    return items(batches, refusals)


def recheck(context: PodContext, out: Path) -> list[str]:
    """Collect the run and plan rechecks of its suspicious points; return those points.

    Writes what Argo fans out over below `out`. Points are named by entry and label. Raises
    BadDocument, StoreError, KubeError.
    """
    # numpy and pyarrow, for which the plan step of a run does not wait
    from perfdag.analysis.gate import judge_run, unattended_rules
    from perfdag.results.collect import collect

    store = context.open()
    plan = stored_plan(store, context.run_id)
    if not plan.options.rechecks:  # a resumed run keeps its plan
        collect(store, plan)
        rules = unattended_rules(store, checks_of(plan.suite_text))
        suspects = judge_run(store, plan.suite, plan.run_id, rules).suspects
        points = {line.info.point for line in suspects}
        if points:
            put_rechecks(store, plan, points)
    rechecks = resumed(store, plan)
    missing = missing_batches(store, recheck_batches(plan, rechecks))
    write_outputs(out, {"batches": fan_out(context, store, missing, {})})
    points_again = rechecks[0].points if rechecks else []
    return [point.full_title for point in points_again]


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
