"""Check a store, and the benchmarks of the image, from a pod, as the steps of a run see them."""

import asyncio
import time
from collections.abc import Collection

from perfdag.app.doctor.finding import Finding
from perfdag.kube.client import Kube, Object
from perfdag.kube.patch import STORE, hardened, helper, pod_security, store_volume
from perfdag.kube.pods import read_pod, with_events
from perfdag.store.base import AddressError
from perfdag.store.open import check_cluster_address

POD_TIMEOUT = 60.0
"""Seconds that the pod may take to start and to end."""


async def check_store(
    client: Kube,
    namespace: str,
    root: str,
    template: Object,
    install: str,
    benchmarks: Collection[str] = (),
) -> list[Finding]:
    """Start a pod that writes and removes an object in the store; return how it ended.

    `template` is the spec of the installed WorkflowTemplate, `install` the command that repairs
    the installation. The image must have `benchmarks`. Raises KubeError.
    """
    try:
        check_cluster_address(root)
    except AddressError as error:
        what, _, do = str(error).rpartition(": ")
        return [Finding("missing", what, do)]
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "perfdag-doctor-"},
        "spec": _pod_spec(root, template),
    }
    pod = await client.create(body, namespace)
    name = pod["metadata"]["name"]
    try:
        return await _wait(client, name, namespace, root, install, benchmarks)
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
        "volumeMounts": [{"name": "store", "mountPath": STORE}],
    }
    spec: Object = {
        "restartPolicy": "Never",
        "serviceAccountName": "perfdag-run",
        "imagePullSecrets": template.get("imagePullSecrets") or [],
        "securityContext": pod_security(),
        "containers": [main],
        "automountServiceAccountToken": False,
        "volumes": [store_volume(root)],
    }
    return spec


async def _wait(
    client: Kube, name: str, namespace: str, root: str, install: str, benchmarks: Collection[str]
) -> list[Finding]:
    resource = await client.resource("v1", "Pod")
    deadline = time.monotonic() + POD_TIMEOUT
    while True:
        [pod] = await with_events(
            client, namespace, [read_pod(await client.get(resource, name, namespace))]
        )
        if pod.phase == "Succeeded":
            lines = [line async for line in client.logs(name, namespace)]
            store = Finding("ok", f"a pod can write and read store {root}")
            return [store, *image_findings("\n".join(lines), benchmarks)]
        if pod.phase == "Failed":
            log = " ".join([line async for line in client.logs(name, namespace)])[-300:]
            what, advice = f"store {root} from a pod: {log}", "repair the store or its Secret"
            return [Finding("missing", what, f"{advice} ({install})")]
        if pod.unrecoverable or time.monotonic() > deadline:
            text = f"a pod in {namespace} did not start within {POD_TIMEOUT:g} s"
            trouble = pod.trouble or pod.phase
            advice = "correct what this message names"
            return [Finding("missing", f"{text}: {trouble}", advice)]
        await asyncio.sleep(0.5)


def image_findings(log: str, benchmarks: Collection[str]) -> list[Finding]:
    """Return the findings of the benchmarks that the image of the steps has, from a pod's log.

    An image of an older perfdag prints no line of them: nothing is known.
    """
    line = next((line for line in log.splitlines() if line.startswith("benchmarks: ")), None)
    if line is None:
        return []
    absent = sorted(set(benchmarks) - set(line.split()[1:]))
    advice = "build them with its package: images/build --with WHEEL_OR_PATH"
    lacking = [
        Finding("missing", f"the images have no benchmark {name}", advice) for name in absent
    ]
    return lacking or [Finding("ok", "the images have the benchmarks of the suite")]
