"""Objects of a run: what they are created from, the stages of their life, and chains of stages.

A template is built in by name, or a YAML file with any field. Placeholders: `${name}` (unique per
object), `${index}`, `${namespace}`, `${run}`, `${project}`, `${workers}`, `${gpus}`, `${image}` and
user variables. All documents of a file are created in order, and the last one is the measured
workload. A document named with `${run}` and without `${name}` is shared: created once for a run.

An extractor reads stages from an object's state. It yields (stage, API time in Unix ns or 0,
fresh). `fresh` is False if the state only remembers an older phase, so that the receive time means
nothing. Sources: Kubernetes API reference (PodCondition, JobCondition, deletionTimestamp), KubeVirt
api/core/v1 types.go. A record has the stages of one object, and a chain those of every kind of
workload.
"""

import re
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

import orjson

from perfdag.kube.client import Object, status_of

RUN_LABEL = "perfdag/run"
RUNAI_STORAGE = "openebs-lvmpv"
"""Default storage class of claims for Run:ai's kinds, as in Run:ai's scale test tool."""
RUNAI_IMAGE = "gcr.io/run-ai-lab/ubuntu:loop"
SECOND = 1_000_000_000
SET = "VirtualMachineInstanceReplicaSet"
VMI = "VirtualMachineInstance"
CLOCK_NS = time.time_ns() - time.monotonic_ns()
"""Unix time of the monotonic clock's zero, fixed for this process: its times never step."""


def now_ns() -> int:
    """Return Unix time in ns, from the monotonic clock."""
    return time.monotonic_ns() + CLOCK_NS


@dataclass(slots=True)
class Record:
    """One object: identity, owner, node, failure message, and two times per stage.

    `stages` has the API's time by the server's clock and the receive time by ours, in Unix ns, 0 if
    unknown. `warning` is that of its last Event. `decided_ns` is when its scheduler decided, by an
    Event, which KAI sends before the pod has its node.
    """

    kind: str
    uid: str
    name: str
    namespace: str
    owner: str
    node: str = ""
    error: str = ""
    warning: str = ""
    decided_ns: int = 0
    stages: dict[str, tuple[int, int]] = field(default_factory=dict)

    def put(self, stage: str, api_ns: int = 0, received_ns: int = 0) -> bool:
        """Note a stage and return whether it is new. Known times stay, unknown ones are set."""
        new = stage not in self.stages
        stored_ns, received_ns = self.stages.get(stage, (0, received_ns))
        # An Event has the microseconds of what a condition has in whole seconds.
        if new or (api_ns and stored_ns in (0, api_ns // SECOND * SECOND)):
            self.stages[stage] = api_ns, received_ns
        return new

    @property
    def message(self) -> str:
        """Its failure and the last warning of its Events, unless it works after all."""
        works = {"running", "ready", "succeeded", "bound"} & self.stages.keys()
        recovered = works and "failed" not in self.stages
        if recovered or not self.warning:
            return self.error
        if not self.error or self.error.partition(": ")[2] == self.warning.partition(": ")[2]:
            return self.error or self.warning
        return f"{self.error[:140]}; {self.warning}"  # a longer message would cut off the warning


def top_owner(records: Mapping[str, Record], record: Record) -> Record:
    """Return the owner at the top of a record's chain of owners, or the record itself.

    An owner that only an Event named is not watched, and so none.
    """
    while record.owner in records and records[record.owner].kind:
        record = records[record.owner]
    return record


StageSeen = tuple[str, int, bool]
VM_PHASES = ("pending", "scheduling", "scheduled", "running", "succeeded", "failed")
EVENT_STAGES = {
    "Scheduled": "scheduled",
    "Preempted": "evicted",
    "Evict": "evicted",
    "Evicted": "evicted",
    "ExternalProvisioning": "requested",
    "Provisioning": "requested",
    "ProvisioningSucceeded": "provisioned",
}
"""Stages of the object of an Event, by the Event's reason."""


def evicted_pod(event: Object) -> tuple[str, str] | None:
    """Return namespace and name of the pod that KAI evicted, else None.

    KAI records the Event on a PodGroup and names the pod in the message (pkg/scheduler/api).
    """
    about = (event.get("involvedObject") or {}).get("kind")
    if about != "PodGroup" or event.get("reason") != "Evict":
        return None
    pod = re.search(r"\bPod ([\w.-]+)/([\w.-]+) was ", event.get("message") or "")
    return (pod[1], pod[2]) if pod else None


@lru_cache(maxsize=4096)
def unix_ns(text: str | None) -> int:
    """Convert an RFC 3339 text to Unix time in ns (of whole us), 0 for none. Raises ValueError."""
    return round(datetime.fromisoformat(text).timestamp() * 1e6) * 1000 if text else 0


def _life(body: Object) -> Iterator[StageSeen]:
    metadata = body["metadata"]
    yield "created", unix_ns(metadata.get("creationTimestamp")), True
    if deleting := metadata.get("deletionTimestamp"):
        # The API sets it to the moment of the request plus the grace period.
        grace = metadata.get("deletionGracePeriodSeconds") or 0
        yield "deleting", unix_ns(deleting) - grace * SECOND, True


def _conditions(body: Object) -> dict[str, Object]:
    """Conditions by type; what has none is not of the form that Kubernetes gives conditions."""
    conditions = status_of(body).get("conditions") or []
    return {
        condition["type"]: condition
        for condition in conditions
        if isinstance(condition, dict) and isinstance(condition.get("type"), str)
    }


def _true(body: Object, stages: Mapping[str, str]) -> Iterator[StageSeen]:
    """Yield the stages of the conditions that are true."""
    for name, condition in _conditions(body).items():
        if name in stages and condition.get("status") == "True":
            yield stages[name], unix_ns(condition.get("lastTransitionTime")), True


def _pod(body: Object) -> Iterator[StageSeen]:
    yield from _life(body)
    status = status_of(body)
    if "PodScheduled" not in _conditions(body) and body.get("spec", {}).get("nodeName"):
        yield "scheduled", 0, True
    names = {
        "PodScheduled": "scheduled",
        "Initialized": "initialized",
        "ContainersReady": "containers_ready",
        "Ready": "ready",
    }
    yield from _true(body, names)
    phase = status.get("phase")
    if phase == "Running":
        yield "running", unix_ns(status.get("startTime")), True
    elif phase in ("Succeeded", "Failed"):
        states = [item.get("state") or {} for item in status.get("containerStatuses") or []]
        ends = [unix_ns((state.get("terminated") or {}).get("finishedAt")) for state in states]
        yield phase.lower(), max(ends, default=0), True


def _vmi(body: Object) -> Iterator[StageSeen]:
    yield from _life(body)
    status = status_of(body)
    phase = status.get("phase")
    for transition in status.get("phaseTransitionTimestamps") or []:
        name = transition["phase"]
        yield name.lower(), unix_ns(transition.get("phaseTransitionTimestamp")), name == phase
    if phase:
        yield phase.lower(), 0, True
    yield from _true(body, {"Ready": "ready", "Paused": "paused"})


def _replica_set(body: Object) -> Iterator[StageSeen]:
    yield from _life(body)
    replicas = (body.get("spec") or {}).get("replicas", 1)
    ready = status_of(body).get("readyReplicas", 0)
    if replicas and ready >= replicas:
        yield "ready", 0, True


def _claim(body: Object) -> Iterator[StageSeen]:
    """Read when the phase of a claim was written: only managedFields has a time of that."""
    yield from _life(body)
    if status_of(body).get("phase") == "Bound":
        writes = [
            unix_ns(field.get("time"))
            for field in body["metadata"].get("managedFields") or []
            if "f:phase" in ((field.get("fieldsV1") or {}).get("f:status") or {})
        ]
        yield "bound", max(writes, default=0), True


def _other(body: Object) -> Iterator[StageSeen]:
    """Any other kind: its life, its phase and its true conditions, in lower case."""
    yield from _life(body)
    phase = status_of(body).get("phase")
    if phase and isinstance(phase, str):
        yield phase.lower(), 0, True
    names = {name: name.lower() for name in _conditions(body)}
    yield from _true(body, names | {"Complete": "succeeded"})


EXTRACTORS: defaultdict[str, Callable[[Object], Iterator[StageSeen]]] = defaultdict(
    lambda: _other,
    {"Pod": _pod, VMI: _vmi, SET: _replica_set, "PersistentVolumeClaim": _claim},
)
"""By kind. An unknown kind gets its life, phase and conditions."""


def _is_failure(name: str, condition: Object) -> bool:
    if condition.get("status") == "True":
        return name.endswith("Failed")
    bad_if_false = name in ("PodScheduled", "Synchronized", "Provisioning")
    gated = condition.get("reason") == "SchedulingGated"
    return condition.get("status") == "False" and bad_if_false and not gated


def failure(body: Object) -> str:
    """Return an object's failure message in one line."""
    status = status_of(body)
    messages = [
        f"{condition.get('reason', name)}: {condition.get('message', '')}"
        for name, condition in _conditions(body).items()
        if _is_failure(name, condition)
    ]
    if status.get("phase") == "Failed":
        messages.append(f"{status.get('reason', 'Failed')}: {status.get('message', '')}")
    return " ".join("; ".join(messages).split())[:500]


def owner_of(metadata: Object) -> str:
    """Return the UID of the object's controller or first owner; empty without owners."""
    owners = metadata.get("ownerReferences") or []
    owners = sorted(owners, key=lambda owner: not owner.get("controller"))
    return str(owners[0]["uid"]) if owners else ""


@dataclass(frozen=True)
class Step:
    """A step of a chain: `stage` of the first or last object of `kind`, after the step `since`.

    Steps that are not optional are in order. If a later step was seen, an earlier unseen one
    happened unobserved.
    """

    name: str
    since: str
    kind: str
    stage: str
    pick: Literal["first", "last"] = "first"
    optional: bool = False


DELETIONS = ("deleting", "vmi_deleting")
"""Steps after which an end is that of a deletion: of the workload, and of its VMI."""
_CLAIM = "PersistentVolumeClaim"


_WORKLOAD = "(workload)"
_JOB = "(job)"
_VMI_BEGIN = "(begin of the VMI)"
"""In the tables of steps: the kind of the workload and of the job that Run:ai makes of it, and the
step with which a VMI begins. `_bind` replaces them."""
_CREATED = (Step("created", "submitted", _WORKLOAD, "created"),)
_VMI_STEPS = (
    Step("pending", _VMI_BEGIN, VMI, "pending"),
    Step("scheduling", "pending", VMI, "scheduling"),
    Step("creation_to_scheduling", "created", VMI, "scheduling"),
    Step("pod_created", _VMI_BEGIN, "Pod", "created"),
    Step("pod_scheduled", "pod_created", "Pod", "scheduled"),
    Step("pod_initialized", "pod_scheduled", "Pod", "initialized", optional=True),
    Step("pod_containers_ready", "pod_scheduled", "Pod", "containers_ready", optional=True),
    Step("pod_ready", "pod_scheduled", "Pod", "ready"),
    Step("scheduled", "scheduling", VMI, "scheduled"),
    Step("creation_to_scheduled", "created", VMI, "scheduled"),
    Step("running", "scheduled", VMI, "running", "last"),
    Step("creation_to_running", "created", VMI, "running", "last"),
    Step("submission_to_running", "submitted", VMI, "running", "last"),
    Step("creation_to_failed", "created", VMI, "failed", optional=True),
    Step("deletion_to_succeeded", "deleting", VMI, "succeeded", "last", optional=True),
    Step("deletion_to_failed", "deleting", VMI, "failed", "last", optional=True),
    Step("deletion", "deleting", _WORKLOAD, "gone", optional=True),
    Step("pod_deletion", "deleting", "Pod", "gone", "last", optional=True),
)
_CONTROLLED = (
    *_CREATED,
    Step("vmi_created", "created", VMI, "created"),
    *_VMI_STEPS,
    Step("vmi_creation_to_running", "vmi_created", VMI, "running", "last"),
    Step("vm_ready", "created", _WORKLOAD, "ready", optional=True),
    Step("vmi_deleting", "deleting", VMI, "deleting", "last", optional=True),
    Step("vmi_deletion_to_succeeded", "vmi_deleting", VMI, "succeeded", "last", optional=True),
    Step("vmi_deletion_to_failed", "vmi_deleting", VMI, "failed", "last", optional=True),
)
"""Steps of the VMIs that a controller creates, for a VM or a replica set."""
_RUNAI_STEPS = (
    Step("workload_created", "submitted", _WORKLOAD, "created"),
    Step("job_created", "workload_created", _JOB, "created"),
    Step("first_pod_created", "job_created", "Pod", "created"),
    Step("last_pod_created", "job_created", "Pod", "created", "last"),
    Step("pod_group_created", "first_pod_created", "PodGroup", "created"),
    Step("scheduled", "pod_group_created", "Pod", "scheduled", "last"),
    Step("submission_to_scheduled", "submitted", "Pod", "scheduled", "last"),
    Step("evicted", "pod_group_created", "Pod", "evicted", optional=True),
    Step("pvc_requested", "pod_group_created", _CLAIM, "requested", optional=True),
    Step("first_pvc_bound", "pvc_requested", _CLAIM, "bound", optional=True),
    Step("pvc_bound", "pvc_requested", _CLAIM, "bound", "last", optional=True),
    Step("ready", "scheduled", "Pod", "ready", "last"),
)
_PODS_STEPS = (
    *_CREATED,
    Step("first_pod_created", "created", "Pod", "created"),
    Step("last_pod_created", "created", "Pod", "created", "last"),
    Step("scheduled", "last_pod_created", "Pod", "scheduled", "last"),
    Step("submission_to_scheduled", "submitted", "Pod", "scheduled", "last"),
    Step("evicted", "created", "Pod", "evicted", optional=True),
    Step("pvc_bound", "created", _CLAIM, "bound", "last", optional=True),
    Step("ready", "scheduled", "Pod", "ready", "last"),
)
_END_STEPS = (
    Step("succeeded", "ready", _WORKLOAD, "succeeded", optional=True),
    Step("submission_to_succeeded", "submitted", _WORKLOAD, "succeeded", optional=True),
)
_GONE = (Step("deletion", "deleting", _WORKLOAD, "gone", optional=True),)
_POD_STEPS = (
    *_CREATED,
    Step("scheduled", "created", "Pod", "scheduled"),
    Step("submission_to_scheduled", "submitted", "Pod", "scheduled"),
    Step("ready", "scheduled", "Pod", "ready"),
    Step("evicted", "created", "Pod", "evicted", optional=True),
    Step("pvc_bound", "created", _CLAIM, "bound", "last", optional=True),
    Step("submission_to_ready", "submitted", "Pod", "ready"),
    *_END_STEPS,
    *_GONE,
)
_UNKNOWN_STEPS = (
    *_PODS_STEPS,
    *_END_STEPS,
    Step("workload_running", "created", _WORKLOAD, "running", optional=True),
    Step("workload_ready", "created", _WORKLOAD, "ready", optional=True),
    *_GONE,
)


def _bind(
    steps: Sequence[Step], workload: str, job: str = "", vmi_begin: str = ""
) -> tuple[Step, ...]:
    """Return the steps of a table for one kind of workload."""
    names = {_WORKLOAD: workload, _JOB: job, _VMI_BEGIN: vmi_begin}
    return tuple(
        replace(
            step,
            kind=names.get(step.kind, step.kind),
            since=names.get(step.since, step.since),
        )
        for step in steps
    )


_REPLICAS = ("Deployment", "StatefulSet", "ReplicaSet", "ReplicationController")
CHAINS: dict[str, tuple[Step, ...]] = {
    VMI: _bind((*_CREATED, *_VMI_STEPS), VMI, vmi_begin="created"),
    "VirtualMachine": _bind(_CONTROLLED, "VirtualMachine", vmi_begin="vmi_created"),
    SET: _bind(_CONTROLLED, SET, vmi_begin="vmi_created"),
    **{kind: _bind(_PODS_STEPS, kind) for kind in (*_REPLICAS, "DaemonSet")},
    "Job": _bind((*_PODS_STEPS, *_END_STEPS), "Job"),
    "PyTorchJob": _bind((*_PODS_STEPS, *_END_STEPS), "PyTorchJob"),
    "TrainingWorkload": _bind(_RUNAI_STEPS, "TrainingWorkload", "RunaiJob"),
    "InteractiveWorkload": _bind(_RUNAI_STEPS, "InteractiveWorkload", "RunaiJob"),
    "DistributedWorkload": _bind(_RUNAI_STEPS, "DistributedWorkload", "PyTorchJob"),
    "Pod": _bind(_POD_STEPS, "Pod"),
}
_BETWEEN = {"Deployment": (("apps/v1", "ReplicaSet"),)}
_ANY = (
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "ReplicaSet"),
    ("batch/v1", "Job"),
)
"""Kinds that may stand between an unknown kind and its pods."""
_API_OF = {"RunaiJob": "run.ai/v1", "PyTorchJob": "kubeflow.org/v1", "Pod": "v1", _CLAIM: "v1"}


@cache
def chain(kind: str) -> tuple[Step, ...]:
    """Return the steps of a workload kind. An unknown kind is assumed to have pods."""
    return CHAINS.get(kind) or _bind(_UNKNOWN_STEPS, kind)


def kinds_of(api_version: str, kind: str) -> list[tuple[str, str]]:
    """(apiVersion, kind) of all that the chain of a workload looks at, the workload first."""
    between = _BETWEEN.get(kind, () if kind in CHAINS else _ANY)
    kinds = [(api_version, kind), *(pair for pair in between if pair[1] != kind)]
    for step in chain(kind):
        if step.kind == "PodGroup":
            groups = ("scheduling.run.ai/v2alpha2", "scheduling.run.ai/v1")
            kinds += [(group, "PodGroup") for group in groups]
        elif step.kind != kind:
            kinds.append((_API_OF.get(step.kind, api_version), step.kind))
    return list(dict.fromkeys(kinds))


def new_run() -> str:
    """Return a sortable, unique id that is valid in names of objects and Services."""
    return time.strftime("r%m%d%H%M%S", time.gmtime()) + "-" + secrets.token_hex(3)


def _pod_templates(node: Any) -> Iterator[dict[str, Any]]:
    """Yield the templates of pods and of VMIs that are anywhere in a document."""
    if isinstance(node, dict):
        template = node.get("template")
        if isinstance(template, dict) and isinstance(template.get("spec"), dict):
            yield template
        for inner in node.values():
            yield from _pod_templates(inner)


ONE = {"Pod", "TrainingWorkload", "InteractiveWorkload", "VirtualMachine", VMI}
"""Kinds of one pod or VMI."""


def members_of(body: Mapping[str, Any]) -> int | None:
    """Return the pods (or VMIs) of an object; None if its kind does not show the number."""
    kind = body["kind"]
    spec = body.get("spec") or {}
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        # The API server says what is wrong with it.
        if kind in ONE:
            return 1
        if kind in (*_REPLICAS, SET):
            return int(spec.get("replicas", 1))
        if kind == "Job":
            return int(spec.get("completions") or spec.get("parallelism") or 1)
        if kind == "PyTorchJob":
            return sum(
                int(role.get("replicas", 1)) for role in spec["pytorchReplicaSpecs"].values()
            )
        if kind == "DistributedWorkload":
            return int(spec["workers"]["value"]) + 1
    return None


_NAME = "perfdag-0name0"
_NAMESPACE = "perfdag-0namespace0"
_INDEX = 918273645
"""Stand in a rendered document for what differs from object to object."""
_RUNAI_NAME = "JOB_NAME_PLACEHOLDER"
_RUNAI_PLACEHOLDERS = {
    _RUNAI_NAME: "${name}",
    "PROJECT_PLACEHOLDER": "${project}",
    "NUM_WORKERS_PLACEHOLDER": "${workers}",
    "NUM_GPUS": "${gpus}",
}
"""Those of the templates of Run:ai's scale test tool. One without the name is of somebody else."""
_RUNAI_CLAIM = {
    "claimName": "",
    "ephemeral": True,
    "existingPvc": False,
    "path": "/path-new",
    "readOnly": False,
    "readOnlyMany": False,
    "readWriteMany": False,
    "readWriteOnce": True,
    "size": "1Mi",
}
"""The claim that `pvc` adds to a workload of Run:ai."""


@dataclass(frozen=True)
class Document:
    """One document as JSON with placeholders for name, namespace and index."""

    api_version: str
    kind: str
    name: str
    body: bytes

    def render(self, name: str, namespace: str, index: int) -> bytes:
        """Return the JSON of object `index`."""
        body = self.body.replace(_NAME.encode(), name.encode())
        body = body.replace(_NAMESPACE.encode(), namespace.encode())
        return body.replace(str(_INDEX).encode(), str(index).encode())

    @property
    def path(self) -> str:
        """Its kind with the version of its API, as the client takes it."""
        return f"{self.api_version}/{self.kind}"

    def name_of(self, name: str) -> str:
        """Return the name of this document's object for the workload `name`."""
        return self.name.replace(_NAME, name)


@dataclass(frozen=True)
class Template:
    """A rendered template: `documents` in the order of creation, the workload last.

    `shared` documents are created once for all workloads, in each namespace.
    """

    documents: tuple[Document, ...]
    shared: tuple[Document, ...] = ()

    @property
    def kind(self) -> str:
        """Kind of the workload that is measured."""
        return self.documents[-1].kind

    @property
    def members(self) -> int | None:
        """Pods (or VMIs) of one workload; None if its kind does not show the number."""
        return members_of(orjson.loads(self.documents[-1].body))


def built_in() -> dict[str, Path]:
    """Name -> file of the templates that come with perfdag."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("templates/*.yaml"))}


def template_text(source: str) -> tuple[str, str]:
    """Return name and text of a template: built in, a file, or YAML. Raises ValueError."""
    if "\n" in source:
        return "the template", source
    path = built_in().get(source) or Path(source)
    try:
        return str(path), path.read_text()
    except (OSError, UnicodeDecodeError):
        raise ValueError(
            f"no template {source!r}: not a file, and built in are {', '.join(built_in())}"
        ) from None


def inlined(source: str) -> str:
    """Return the text of a user's template, or the name of a built-in one. Raises ValueError."""
    return source if source in built_in() else template_text(source)[1].rstrip("\n") + "\n"


def load(
    source: str,
    run: str,
    variables: Mapping[str, Any] | None = None,
    *,
    pvc: bool = False,
    storage_class: str | None = None,
) -> Template:
    """Read a template by built-in name, file path or YAML text.

    `pvc` adds a small ephemeral claim to a workload of Run:ai. Raises ValueError.
    """
    path, text = template_text(source)
    if _RUNAI_NAME in text:
        for runai_placeholder, placeholder in _RUNAI_PLACEHOLDERS.items():
            text = text.replace(runai_placeholder, placeholder)
    values = {
        "run": run,
        "project": "project-0",
        "workers": 1,
        "gpus": 1,
        "image": RUNAI_IMAGE,
        **(variables or {}),
        "name": _NAME,
        "namespace": _NAMESPACE,
        "index": _INDEX,
    }

    def fill(match: re.Match[str]) -> str:
        if match[1] not in values:
            allowed = ", ".join(sorted(values))
            raise ValueError(
                f"{path}: unknown placeholder {match[0]}; there are {allowed}; write its value "
                "into the template, or in a suite under `variables`"
            )
        return str(values[match[1]])

    bodies = _documents(path, re.sub(r"\$\{([A-Za-z_]\w*)\}", fill, text), run)
    documents: list[Document] = []
    shared: list[Document] = []
    for body in bodies:
        _label(body, run)
        if pvc and str(body["apiVersion"]).startswith("run.ai/"):
            claim = _RUNAI_CLAIM | {"storageClass": storage_class or RUNAI_STORAGE}
            body["spec"]["pvcs"] = {"items": {"pvc-new-0": {"value": claim}}}
        elif pvc and body is bodies[-1]:
            raise ValueError(
                f"{path}: pvc is of Run:ai's kinds; write the claim of a {body['kind']} into a "
                "template of your own"
            )
        name = body["metadata"]["name"]
        document = Document(body["apiVersion"], body["kind"], name, orjson.dumps(body))
        (documents if _NAME in name else shared).append(document)
    return Template(tuple(documents), tuple(shared))


def _documents(path: str, text: str, run: str) -> list[dict[str, Any]]:
    import yaml

    try:
        parsed = list(yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    bodies: list[dict[str, Any]] = [body for body in parsed if body is not None]
    if not bodies:
        raise ValueError(f"{path} holds no object")
    for number, body in enumerate(bodies, 1):
        where = f"{path}, document {number}"
        if not isinstance(body, dict) or not body.get("apiVersion") or not body.get("kind"):
            raise ValueError(f"{where} has no apiVersion or no kind")
        metadata = body.get("metadata")
        name = str(metadata.get("name", "")) if isinstance(metadata, dict) else ""
        if _NAME not in name and (run not in name or body is bodies[-1]):
            raise ValueError(f"{where}: metadata.name must contain ${{name}}")
    return bodies


def _label(body: dict[str, Any], run: str) -> None:
    metadata = body["metadata"]
    metadata["namespace"] = _NAMESPACE
    pods = [template.setdefault("metadata", {}) for template in _pod_templates(body)]
    for labelled in (metadata, *pods):
        labelled["labels"] = {**(labelled.get("labels") or {}), RUN_LABEL: run}
