"""Templates of what is created: built in by name, or any YAML file of the user with any field.

Placeholders: `${name}` (unique, of the object), `${index}` (0, 1, ...), `${namespace}`, `${run}`, `${project}`, `${workers}`, `${gpus}`,
`${image}` and the user's own variables. A file may hold several documents; all are created in order and the last is the
workload that is measured. Rendering is one byte replacement an object: the YAML is read once.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

FOLDER = Path(__file__).parent / "templates"
RUN_LABEL, INDEX_LABEL, SUBMIT_ANNOTATION = "perfdag/run", "perfdag/index", "perfdag/intended"
RUNAI_STORAGE = "openebs-lvmpv"
"""The storage class that Run:ai's scale test tool asks for, of claims of Run:ai's workloads where no other is given."""
HOLD = "perfdag/hold"
"""The scheduling gate of pods that are released together."""
_NAME, _NAMESPACE, _INDEX, _INTENDED = (
    "perfdag-0name0",
    "perfdag-0namespace0",
    918273645,
    "perfdag-0intended0",
)
_PLACEHOLDER = re.compile(r"\$\{([A-Za-z_]\w*)\}")
_POD_TEMPLATES: dict[str, list[tuple[str, ...]]] = {
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


class TemplateError(ValueError):
    """A template that cannot be used: which file, what is wrong, what to do."""


@dataclass(frozen=True)
class Document:
    """One document of a template as JSON with marks for name, namespace, index and intended time."""

    api_version: str
    kind: str
    body: bytes

    def render(self, name: str, namespace: str, index: int, intended: str = "") -> bytes:
        """The JSON of object `index`; `intended` is its scheduled submit time (RFC 3339)."""
        return (
            self.body.replace(_NAME.encode(), name.encode())
            .replace(_NAMESPACE.encode(), namespace.encode())
            .replace(str(_INDEX).encode(), str(index).encode())
            .replace(_INTENDED.encode(), intended.encode())
        )

    def name_of(self, name: str) -> str:
        """What this document's object is called where the workload's `${name}` is `name`."""
        return self._name.replace(_NAME, name)

    @cached_property
    def _name(self) -> str:
        name: str = orjson.loads(self.body)["metadata"]["name"]
        return name


@dataclass(frozen=True)
class Template:
    """A rendered template: `documents` in the order of creation, the workload last."""

    source: str
    documents: tuple[Document, ...]

    @property
    def kind(self) -> str:
        """Kind of the workload that is measured."""
        return self.documents[-1].kind

    @property
    def members(self) -> int | None:
        """Pods (of VM kinds: VMIs) that one workload brings up; None where its kind does not tell."""
        return members_of(orjson.loads(self.documents[-1].body))

    @property
    def at_once(self) -> int | None:
        """How many of the members are made while none of them runs; None where its kind does not tell."""
        return _at_once(orjson.loads(self.documents[-1].body))

    @property
    def has_pods(self) -> bool:
        """Whether the workload holds the pods' own spec, which can be gated, given a claim or a priority."""
        return bool(_pod_specs(orjson.loads(self.documents[-1].body)))


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
    """Pods (of VM kinds: VMIs) that an object brings up; None where its kind does not tell."""
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
                int(each.get("replicas", 1)) for each in spec["pytorchReplicaSpecs"].values()
            )
        if kind == "DistributedWorkload":
            return int(spec["workers"]["value"]) + 1
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
    ):  # the API server says what is wrong with it
        pass
    return None


def _at_once(body: Mapping[str, Any]) -> int | None:
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
    """Read a template by built-in name or file path, or the text of one (YAML of more than one line).

    `pvc` adds a small ephemeral claim to each pod (Run:ai kinds: the claim of the workload), `gated` a scheduling gate to each pod.
    Raises TemplateError, also where there is no pod in it to add one to.
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

    def fill(found: re.Match[str]) -> str:
        if found[1] not in values:
            allowed = ", ".join(sorted(values))
            raise TemplateError(
                f"{path}: unknown placeholder {found[0]}; there are {allowed}; set it with --var"
            )
        return str(values[found[1]])

    parsed = _documents(path, _PLACEHOLDER.sub(fill, text))
    documents = []
    for body in parsed:
        _label(body, run)
        for spec in _pod_specs(body):
            if pvc:
                _add_claim(spec, storage_class)
            if gated:
                spec["schedulingGates"] = [*(spec.get("schedulingGates") or []), {"name": HOLD}]
        if pvc and str(body["apiVersion"]).startswith("run.ai/"):
            body["spec"]["pvcs"] = {"items": {"pvc-new-0": {"value": _runai_claim(storage_class)}}}
        elif pvc and body is parsed[-1] and not _pod_specs(body):
            raise TemplateError(
                f"{path}: a {body['kind']} has no pods of its own to add a claim to; write it into the template"
            )
        documents.append(Document(body["apiVersion"], body["kind"], orjson.dumps(body)))
    return Template(source, tuple(documents))


def _text_of(source: str) -> tuple[str, str]:
    """What to call a template in messages, and its text. Raises TemplateError."""
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
    """The text of a user's template, so that it can go where its file is not; a built-in one stays a name. Raises TemplateError."""
    return source if source in built_in() else _text_of(source)[1].rstrip("\n") + "\n"


def _documents(path: str, text: str) -> list[dict[str, Any]]:
    import yaml

    try:
        parsed = [
            each
            for each in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            if each is not None
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
        if not isinstance(metadata, dict) or _NAME not in str(metadata.get("name", "")):
            raise TemplateError(
                f"{where} ({body['kind']}) needs metadata.name with ${{name}} in it, or objects would collide"
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
    for path in _POD_TEMPLATES.get(body["kind"], []):
        inner: Any = body
        for key in path:
            inner = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            labels = inner.setdefault("metadata", {})
            labels["labels"] = {**(labels.get("labels") or {}), RUN_LABEL: run}


def _pod_specs(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Pod specs inside a document; VM kinds have none."""
    if body["kind"] == "Pod":
        return [body.setdefault("spec", {})]
    if body["kind"].startswith("VirtualMachine"):
        return []
    found = []
    for path in _POD_TEMPLATES.get(body["kind"], []):
        inner: Any = body
        for key in (*path, "spec"):
            inner = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            found.append(inner)
    return found


def _add_claim(spec: dict[str, Any], storage_class: str | None) -> None:
    """A generic ephemeral volume of 1 MiB: its claim is owned by the pod, so it joins by UID and goes with it."""
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
