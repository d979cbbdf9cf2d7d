"""What the cluster tests share: how much is left, and an admission policy that refuses."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator

import pytest

from perfdag.kube.client import Kube, KubeError
from perfdag.steps.scale.model.stages import VMI
from perfdag.steps.scale.model.templates import INDEX_LABEL


async def left(kube: Kube, api_version: str, kind: str, namespace: str) -> int:
    return len(await kube.list(await kube.resource(api_version, kind), namespace))


@contextlib.asynccontextmanager
async def refusing(kube: Kube, namespace: str, resource: str, allowed: str) -> AsyncIterator[None]:
    """An admission policy that refuses creations of a resource in the namespace unless the CEL
    expression `allowed` holds.
    """
    name, group, _, plural = f"perfdag-test-{uuid.uuid4().hex[:8]}", *resource.rpartition("/")
    api = "admissionregistration.k8s.io/v1"
    rule = {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": [plural],
    }
    # KWOK's `apply` tries a creation without labels first, which is none of the run's
    ours = {
        "name": "ours",
        "expression": f"has(object.metadata.labels) && '{INDEX_LABEL}' in object.metadata.labels",
    }
    binding = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "resourceRules": [rule],
    }
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": binding,
        "matchConditions": [ours],
        "validations": [{"expression": allowed, "message": "no more today"}],
    }
    await kube.create(
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": spec,
        }
    )
    binding = {"policyName": name, "validationActions": ["Deny"]}
    await kube.create(
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": binding,
        }
    )
    try:
        kind = {"pods": ("v1", "Pod"), "virtualmachineinstances": ("kubevirt.io/v1", VMI)}[plural]
        probe = {
            "apiVersion": kind[0],
            "kind": kind[1],
            "metadata": {"name": "probe", "labels": {INDEX_LABEL: "999980"}},
        }
        probe["spec"] = {"containers": [{"name": "c", "image": "none"}]} if plural == "pods" else {}
        path = (await kube.resource(*kind)).path(namespace)
        for _ in range(150):  # the API server takes up a policy within seconds
            try:
                await kube.request("POST", path, json=probe, params={"dryRun": "All"})
            except KubeError as error:
                if "no more today" in str(error):
                    break
                raise
            await asyncio.sleep(0.2)
        else:
            pytest.fail("the policy is not in force after 30 s")
        yield
    finally:
        for kind_name in ("ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"):
            await kube.delete(await kube.resource(api, kind_name), name)
