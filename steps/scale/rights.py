"""May we create and delete what a template holds? Asked of the API server before anything is made."""

from collections.abc import Sequence

from perfdag.kube import Kube, KubeError
from perfdag.steps.scale.templates import Template

_API = "authorization.k8s.io/v1"


async def check(kube: Kube, template: Template, namespaces: Sequence[str]) -> None:
    """Raises KubeError (403, Forbidden) that names the verb, the kind and the namespace. A server that does not tell is no refusal."""
    for document in template.documents:
        resource = await kube.resource(document.api_version, document.kind)
        for namespace in namespaces:
            for verb in ("create", "delete"):
                group = document.api_version.rpartition("/")[0]
                asked = {"verb": verb, "group": group, "resource": resource.plural, "namespace": namespace}
                body = {"apiVersion": _API, "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": asked}}
                try:
                    told = await kube.request("POST", f"/apis/{_API}/selfsubjectaccessreviews", json=body)
                except KubeError as error:
                    if error.status in (403, 404):
                        return
                    raise
                if not told["status"].get("allowed"):
                    text = f"you may not {verb} {resource.plural} in the namespace {namespace}"
                    hint = f"grant it to the user of context {kube.cluster.context!r} with a Role or ClusterRole"
                    raise KubeError(403, "Forbidden", text, hint)
