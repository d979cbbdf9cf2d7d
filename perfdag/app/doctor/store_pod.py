"""Check a store from a pod, as the steps of a run reach it."""

import asyncio
import time

from perfdag.app.doctor.finding import Finding
from perfdag.kube.client import Kube, Object
from perfdag.kube.pod_patch import STORE, claim_patch
from perfdag.kube.pod_security import hardened, helper, pod_security
from perfdag.kube.pods import read_pod, with_events
from perfdag.store.base import AddressError
from perfdag.store.open import check_cluster_address

POD_TIMEOUT = 60.0
"""Seconds that the pod may take to start and to end."""


async def check_store(
    client: Kube, namespace: str, root: str, template: Object, install: str
) -> Finding:
    """Start a pod that writes and removes an object in the store; return how it ended.

    `template` is the spec of the installed WorkflowTemplate, `install` the command that repairs
    the installation. Raises KubeError.
    """
    try:
        check_cluster_address(root)
    except AddressError as error:
        what, _, do = str(error).rpartition(": ")
        return Finding("missing", what, do)
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "perfdag-doctor-"},
        "spec": _pod_spec(root, template),
    }
    pod = await client.create(body, namespace)
    name = pod["metadata"]["name"]
    try:
        return await _wait(client, name, namespace, root, install)
    finally:
        await client.delete(await client.resource("v1", "Pod"), name, namespace, grace=0)


def _pod_spec(root: str, template: Object) -> Object:
    """Return the spec of a pod with the image, variables and rights of a step."""
    step = next(item for item in template["templates"] if item["name"] == "watchdog-pod")
    container = step["container"]
    main = {
        "name": "main",
        "image": container["image"],
        "imagePullPolicy": container.get("imagePullPolicy"),
        "command": ["perfdag", "step", "reach"],
        "env": [{"name": "PERFDAG_STORE", "value": root}, {"name": "HOME", "value": "/tmp"}],
        "envFrom": container.get("envFrom"),
        "securityContext": hardened(),
        "resources": helper(),
    }
    spec: Object = {
        "restartPolicy": "Never",
        "serviceAccountName": "perfdag-run",
        "imagePullSecrets": template.get("imagePullSecrets") or [],
        "securityContext": pod_security(),
        "containers": [main],
        "automountServiceAccountToken": False,
    }
    if root.startswith("claim://"):
        spec["volumes"] = claim_patch(root.removeprefix("claim://"))["volumes"]
        main["volumeMounts"] = [{"name": "store", "mountPath": STORE}]
    return spec


async def _wait(client: Kube, name: str, namespace: str, root: str, install: str) -> Finding:
    resource = await client.resource("v1", "Pod")
    deadline = time.monotonic() + POD_TIMEOUT
    while True:
        [pod] = await with_events(
            client, namespace, [read_pod(await client.get(resource, name, namespace))]
        )
        if pod.phase == "Succeeded":
            return Finding("ok", f"a pod can write and read store {root}")
        if pod.phase == "Failed":
            log = " ".join([line async for line in client.logs(name, namespace)])[-300:]
            return Finding(
                "missing",
                f"store {root} from a pod: {log}",
                f"repair the store or its Secret ({install})",
            )
        if pod.unrecoverable or time.monotonic() > deadline:
            text = f"a pod in {namespace} did not start within {POD_TIMEOUT:g} s"
            trouble = pod.trouble or pod.phase
            return Finding("missing", f"{text}: {trouble}", "correct what this message names")
        await asyncio.sleep(0.5)
