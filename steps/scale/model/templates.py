"""Templates of objects: built in by name, or a YAML file with any field.

Placeholders: `${name}` (unique per object), `${index}`, `${namespace}`, `${run}`, `${project}`,
`${workers}`, `${gpus}`, `${image}` and user variables. All documents of a file are created in
order, and the last one is the measured workload. The YAML is parsed once, and rendering replaces
bytes. A document named with `${run}` and without `${name}` is shared: created once for a run.
"""

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson


def new_run() -> str:
    """Return a sortable, unique id that is valid in names of objects and Services."""
    return time.strftime("r%m%d%H%M%S", time.gmtime()) + "-" + secrets.token_hex(3)


POD_TEMPLATES: dict[str, list[tuple[str, ...]]] = {
    "Job": [("spec", "template")],
    "Deployment": [("spec", "template")],
    "StatefulSet": [("spec", "template")],
    "ReplicaSet": [("spec", "template")],
    "DaemonSet": [("spec", "template")],
    "VirtualMachine": [("spec", "template")],
    "VirtualMachineInstanceReplicaSet": [("spec", "template")],
    "PyTorchJob": [
        ("spec", "pytorchReplicaSpecs", "Master", "template"),
        ("spec", "pytorchReplicaSpecs", "Worker", "template"),
    ],
}
_ONE = {
    "Pod",
    "TrainingWorkload",
    "InteractiveWorkload",
    "VirtualMachine",
    "VirtualMachineInstance",
}
_REPLICAS = {
    "Deployment",
    "StatefulSet",
    "ReplicaSet",
    "ReplicationController",
    "VirtualMachineInstanceReplicaSet",
}


def members_of(body: Mapping[str, Any]) -> int | None:
    """Return the pods (or VMIs) of an object; None if its kind does not show the number."""
    kind, spec = body["kind"], body.get("spec") or {}
    if kind in _ONE:
        return 1
    try:
        if kind in _REPLICAS:
            return int(spec.get("replicas", 1))
        if kind == "Job" and body["apiVersion"] == "batch/v1":
            return int(spec.get("completions") or spec.get("parallelism") or 1)
        if kind == "PyTorchJob":
            return sum(
                int(replicas.get("replicas", 1))
                for replicas in spec["pytorchReplicaSpecs"].values()
            )
        if kind == "DistributedWorkload":
            return int(spec["workers"]["value"]) + 1
    except (AttributeError, KeyError, TypeError, ValueError):
        return None  # the API server says what is wrong with it
    return None


def at_once(body: Mapping[str, Any]) -> int | None:
    """Return the members that are created before any of them runs; None if unknown."""
    members, spec = members_of(body), body.get("spec") or {}
    if members is None:
        return None
    if body["kind"] == "Job":
        parallelism = spec.get("parallelism")
        return min(members, parallelism if isinstance(parallelism, int) else 1)
    return (
        min(members, 1)
        if body["kind"] == "StatefulSet" and spec.get("podManagementPolicy") != "Parallel"
        else members
    )


def pod_specs(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pod specs inside a document; VM kinds have none."""
    if body["kind"] == "Pod":
        return [body.setdefault("spec", {})]
    if body["kind"].startswith("VirtualMachine"):
        return []
    specs = []
    for path in POD_TEMPLATES.get(body["kind"], []):
        inner: Any = body
        for key in (*path, "spec"):
            inner = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            specs.append(inner)
    return specs


FOLDER = Path(__file__).parent / "templates"
RUN_LABEL, INDEX_LABEL, SUBMIT_ANNOTATION = "perfdag/run", "perfdag/index", "perfdag/intended"
RUNAI_STORAGE = "openebs-lvmpv"
"""Default storage class of claims for Run:ai's kinds, as in Run:ai's scale test tool."""
PROBE = "watch-lag"
"""Suffix of the label of the object that measures the lag of the watch."""
HOLD = "perfdag/hold"
"""The scheduling gate of pods that are released together."""
_NAME, _NAMESPACE, _INDEX, _INTENDED = (
    "perfdag-0name0",
    "perfdag-0namespace0",
    918273645,
    "perfdag-0intended0",
)
_PLACEHOLDER = re.compile(r"\$\{([A-Za-z_]\w*)\}")


class TemplateError(ValueError):
    """A template that cannot be used: which file, what is wrong, what to do."""


@dataclass(frozen=True)
class Document:
    """One document as JSON with placeholders for name, namespace, index and due time."""

    api_version: str
    kind: str
    body: bytes

    def render(self, name: str, namespace: str, index: int, intended: str = "") -> bytes:
        """Return the JSON of object `index`; `intended` is its scheduled time (RFC 3339)."""
        return (
            self.body.replace(_NAME.encode(), name.encode())
            .replace(_NAMESPACE.encode(), namespace.encode())
            .replace(str(_INDEX).encode(), str(index).encode())
            .replace(_INTENDED.encode(), intended.encode())
        )

    def name_of(self, name: str) -> str:
        """Return the name of this document's object for the workload `name`."""
        return self._name.replace(_NAME, name)

    @cached_property
    def _name(self) -> str:
        name: str = orjson.loads(self.body)["metadata"]["name"]
        return name


@dataclass(frozen=True)
class Template:
    """A rendered template: `documents` in the order of creation, the workload last.

    `shared` documents are created once for all workloads, in each namespace.
    """

    source: str
    documents: tuple[Document, ...]
    shared: tuple[Document, ...] = ()

    @property
    def everything(self) -> tuple[Document, ...]:
        """All documents, the workload last."""
        return (*self.shared, *self.documents)

    @property
    def kind(self) -> str:
        """Kind of the workload that is measured."""
        return self.documents[-1].kind

    @property
    def members(self) -> int | None:
        """Pods (or VMIs) of one workload; None if its kind does not show the number."""
        return members_of(orjson.loads(self.documents[-1].body))

    @property
    def at_once(self) -> int | None:
        """Members that are created before any of them runs; None if unknown."""
        return at_once(orjson.loads(self.documents[-1].body))

    @property
    def has_pods(self) -> bool:
        """Whether the workload has a pod spec that can get a gate, a claim or a priority."""
        return bool(pod_specs(orjson.loads(self.documents[-1].body)))


def built_in() -> dict[str, Path]:
    """Name -> file of the templates that come with perfdag."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml")) if path.stem != "pvc"}


def load(
    source: str,
    run: str,
    variables: Mapping[str, Any] | None = None,
    *,
    pvc: bool = False,
    storage_class: str | None = None,
    gated: bool = False,
) -> Template:
    """Read a template by built-in name, file path or YAML text.

    `pvc` adds a small ephemeral claim, and `gated` a scheduling gate to every pod. Raises
    TemplateError.
    """
    path, text = _text_of(source)
    values = {
        "run": run,
        "project": "project-0",
        "workers": 1,
        "gpus": 1,
        "image": "gcr.io/run-ai-lab/ubuntu:loop",
    }
    values |= dict(variables or {}) | {"name": _NAME, "namespace": _NAMESPACE, "index": _INDEX}

    def fill(match: re.Match[str]) -> str:
        if match[1] not in values:
            allowed = ", ".join(sorted(values))
            raise TemplateError(
                f"{path}: unknown placeholder {match[0]}; there are {allowed}; set it with --var"
            )
        return str(values[match[1]])

    parsed = _documents(path, _PLACEHOLDER.sub(fill, text), run)
    documents, shared = list[Document](), list[Document]()
    for body in parsed:
        _label(body, run)
        for spec in pod_specs(body):
            if pvc:
                _add_claim(spec, storage_class)
            if gated:
                spec["schedulingGates"] = [*(spec.get("schedulingGates") or []), {"name": HOLD}]
        if pvc and str(body["apiVersion"]).startswith("run.ai/"):
            body["spec"]["pvcs"] = {"items": {"pvc-new-0": {"value": _runai_claim(storage_class)}}}
        elif pvc and body is parsed[-1] and not pod_specs(body):
            raise TemplateError(
                f"{path}: a {body['kind']} has no pod spec to add a claim to; write the claim into "
                "the template"
            )
        document = Document(body["apiVersion"], body["kind"], orjson.dumps(body))
        (documents if _NAME in body["metadata"]["name"] else shared).append(document)
    return Template(source, tuple(documents), tuple(shared))


def _text_of(source: str) -> tuple[str, str]:
    """Return a template's name in messages, and its text. Raises TemplateError."""
    if "\n" in source:
        return "the template", source
    path = built_in().get(source) or Path(source)
    try:
        return str(path), path.read_text()
    except (OSError, UnicodeDecodeError):
        raise TemplateError(
            f"no template {source!r}: not a file, and built in are {', '.join(built_in())}"
        ) from None


def inlined(source: str) -> str:
    """Return the text of a user's template, or the name of a built-in one. Raises TemplateError."""
    return source if source in built_in() else _text_of(source)[1].rstrip("\n") + "\n"


def _documents(path: str, text: str, run: str) -> list[dict[str, Any]]:
    import yaml

    try:
        parsed = [
            body
            for body in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            if body is not None
        ]
    except yaml.YAMLError as error:
        raise TemplateError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not parsed:
        raise TemplateError(f"{path} holds no object")
    for number, body in enumerate(parsed, 1):
        where = f"{path}, document {number}"
        if not isinstance(body, dict) or not body.get("apiVersion") or not body.get("kind"):
            raise TemplateError(f"{where} has no apiVersion or no kind")
        metadata = body.get("metadata") or {}
        name = str(metadata.get("name", "")) if isinstance(metadata, dict) else ""
        if _NAME not in name and (run not in name or body is parsed[-1]):
            raise TemplateError(
                f"{where} ({body['kind']}): metadata.name must contain ${{name}}, or objects would "
                "collide"
            )
        body.pop("status", None)
        if isinstance(body.get("spec"), dict) is False and "spec" in body:
            raise TemplateError(f"{where}: spec is not a mapping")
    return parsed


def _label(body: dict[str, Any], run: str) -> None:
    metadata = body["metadata"]
    metadata.pop("creationTimestamp", None)
    metadata["namespace"] = _NAMESPACE
    metadata["labels"] = {
        **(metadata.get("labels") or {}),
        RUN_LABEL: run,
        INDEX_LABEL: str(_INDEX),
    }
    metadata["annotations"] = {**(metadata.get("annotations") or {}), SUBMIT_ANNOTATION: _INTENDED}
    for path in POD_TEMPLATES.get(body["kind"], []):
        inner: Any = body
        for key in path:
            inner = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            labels = inner.setdefault("metadata", {})
            labels["labels"] = {**(labels.get("labels") or {}), RUN_LABEL: run}


def _add_claim(spec: dict[str, Any], storage_class: str | None) -> None:
    """Add a generic ephemeral volume of 1 MiB, whose claim is owned by the pod."""
    claim: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Mi"}},
    }
    if storage_class:
        claim["storageClassName"] = storage_class
    spec.setdefault("volumes", []).append(
        {"name": "perfdag", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}}
    )
    for container in spec.get("containers") or []:
        container.setdefault("volumeMounts", []).append(
            {"name": "perfdag", "mountPath": "/path-new"}
        )


def _runai_claim(storage_class: str | None) -> dict[str, Any]:
    return {
        "claimName": "",
        "ephemeral": True,
        "existingPvc": False,
        "path": "/path-new",
        "readOnly": False,
        "readOnlyMany": False,
        "readWriteMany": False,
        "readWriteOnce": True,
        "size": "1Mi",
        "storageClass": storage_class or RUNAI_STORAGE,
    }
