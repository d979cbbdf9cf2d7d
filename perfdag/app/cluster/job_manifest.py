"""Plain Kubernetes Jobs that run a suite, for a cluster without Argo Workflows.

Each Job has one pod, which runs `perfdag run` and has what the shape of its entries asks for.
"""

from perfdag.app.errors import CommandError
from perfdag.app.local_run import PROVIDED
from perfdag.kube.labels import LABEL
from perfdag.kube.pod_patch import STORE, Context, patch
from perfdag.kube.resources import Object
from perfdag.plan.plan import Plan, make_plan
from perfdag.shape import Shape
from perfdag.store.open import on_cluster
from perfdag.suite.load import load_suite
from perfdag.suite.text import suite_text
from perfdag.workflows.containers import Installation

SUITE = "/perfdag/suite"


def job_manifests(file: str, installation: Installation) -> list[Object]:
    """Return a ConfigMap with the suite, and a Job for each shape of its points.

    The store is `claim://NAME` or `s3://`, whose credentials are in the Secret of the installation.
    Raises CommandError for a suite that one pod cannot measure, and BadDocument.
    """
    loaded = load_suite(file)
    plan = make_plan(loaded)
    store = installation.store or loaded.suite.store or ""
    if not on_cluster(store):
        raise CommandError(
            "a Job's pod is gone after its run: give --store claim://NAME, a claim of the"
            " namespace, or s3://bucket/prefix"
        )
    name = f"perfdag-{loaded.suite.name}"
    labels = {"app.kubernetes.io/name": "perfdag", f"{LABEL}/suite": loaded.suite.name}
    suite: Object = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": installation.namespace, "labels": labels},
        "data": {"suite.yaml": suite_text(loaded)},
    }
    jobs = []
    shapes = entries_by_shape(plan)
    for number, (index, entries) in enumerate(shapes.items(), 1):
        shape = Shape.model_validate(plan.shapes[index])
        job_name = name if len(shapes) == 1 else f"{name}-{number}"
        spec = _pod(shape, installation, store, name, [] if len(shapes) == 1 else entries)
        jobs.append(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {**suite["metadata"], "name": job_name},
                "spec": {
                    # A second attempt would be another run: `perfdag run --resume` is a choice.
                    "backoffLimit": 0,
                    "activeDeadlineSeconds": installation.deadline,
                    "ttlSecondsAfterFinished": installation.keep,
                    "template": {"metadata": {"labels": labels}, "spec": spec},
                },
            }
        )
    return [suite, *jobs]


def entries_by_shape(plan: Plan) -> dict[int, list[str]]:
    """Return the entries of each shape. Raises CommandError if one pod cannot measure an entry."""
    shapes_of: dict[str, set[int]] = {}
    for point in plan.points:
        shapes_of.setdefault(point.entry, set()).add(point.shape)
        hosts = Shape.model_validate(plan.shapes[point.shape]).hosts.count
        if hosts > 1:
            raise CommandError(
                f"entry {point.entry} needs {hosts} hosts, and a Job has one pod:"
                " use `perfdag submit` with Argo Workflows"
            )
    several = [entry for entry, shapes in shapes_of.items() if len(shapes) > 1]
    if several:
        raise CommandError(
            f"entry {several[0]} has points of {len(shapes_of[several[0]])} shapes, and a Job has"
            " one pod: make an entry of each shape"
        )
    entries: dict[int, list[str]] = {}
    for entry, (shape,) in shapes_of.items():
        entries.setdefault(shape, []).append(entry)
    return entries


def _pod(
    shape: Shape, installation: Installation, store: str, suite: str, entries: list[str]
) -> Object:
    """Return the pod of a shape, which runs the entries, or without any the whole suite."""
    claim = store.removeprefix("claim://") if store.startswith("claim://") else None
    context = Context("job", "job", installation.images, pull_policy=installation.pull_policy)
    spec = patch(shape, context)
    main = next(part for part in spec["containers"] if part["name"] == "main")
    only = [word for entry in entries for word in ("--only", entry)]
    main["command"] = ["perfdag", "run", f"{SUITE}/suite.yaml", "--no-report", *only]
    main["command"] += ["--store", STORE if claim else store]
    main["imagePullPolicy"] = installation.pull_policy
    main["env"] = [
        *main.get("env", ()),
        {"name": "HOME", "value": "/tmp"},
        {"name": PROVIDED, "value": "1"},
    ]
    mounts, volumes = main.setdefault("volumeMounts", []), spec.setdefault("volumes", [])
    mounts.append({"name": "suite", "mountPath": SUITE, "readOnly": True})
    volumes.append({"name": "suite", "configMap": {"name": suite}})
    if claim:
        mounts.append({"name": "store", "mountPath": STORE})
        volumes.append({"name": "store", "persistentVolumeClaim": {"claimName": claim}})
    else:
        main["envFrom"] = [{"secretRef": {"name": installation.store_secret, "optional": True}}]
    if installation.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in installation.pull_secrets]
    # Argo's own containers are not there.
    spec.pop("initContainers", None)
    return spec | {
        "containers": [main],
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
    }
