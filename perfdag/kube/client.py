"""The Kubernetes client of perfdag: asynchronous, raw JSON, one pooled session.

    async with Kube() as kube:
        pods = await kube.resource("v1", "Pod")
        async for event in kube.watch(pods, "default", labels="app=web"):
            ...

Synchronous code calls `run_with_client(work)`. Every failure is a KubeError of one line.
API conventions: https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import orjson

from perfdag.kube.errors import KubeError
from perfdag.kube.reader import Reader
from perfdag.kube.resources import Event, Object, Resource

__all__ = ["Event", "Kube", "KubeError", "Object", "Resource", "run_with_client"]

T = TypeVar("T")

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
FIELD_MANAGER = "perfdag"


class Kube(Reader):
    """A client of one API server, as an async context manager with the options of Transport."""

    async def _path(self, body: Object, namespace: str | None, *, named: bool) -> str:
        """Return the path of the object that `body` describes."""
        metadata = body.get("metadata") or {}
        name = metadata.get("name")
        if "apiVersion" not in body or "kind" not in body:
            raise KubeError(
                0,
                "Config",
                f"the object {name or '?'} has no apiVersion or no kind",
                "add them to the manifest",
            )
        if not name and (named or not metadata.get("generateName")):
            raise KubeError(
                0, "Config", f"the {body['kind']} has no metadata.name", "add it to the manifest"
            )
        resource = await self.resource(body["apiVersion"], body["kind"])
        return resource.path(
            namespace or metadata.get("namespace") or self.namespace, name if named else None
        )

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """Return one object. Raises KubeError (404 if it does not exist)."""
        return await self.request("GET", resource.path(namespace or self.namespace, name))

    async def create(self, body: Object, namespace: str | None = None) -> Object:
        """Create the object and return it.

        Raises KubeError (409, AlreadyExists). If the answer to an earlier try was lost, the object
        that this try finds is returned.
        """
        path = await self._path(body, namespace, named=False)
        tally: Counter[str] = Counter()
        params = {"fieldManager": FIELD_MANAGER}
        try:
            _, _, data = await self.raw(
                "POST", path, params=params, body=orjson.dumps(body), tally=tally
            )
        except KubeError as error:
            if error.reason != "AlreadyExists" or not tally:
                raise
            existing = await self.request("GET", f"{path}/{body['metadata']['name']}")
            if any(
                entry.get("manager") == FIELD_MANAGER
                for entry in existing["metadata"].get("managedFields") or []
            ):
                return existing
            raise
        created: Object = orjson.loads(data)
        return created

    async def apply(
        self, body: Object, namespace: str | None = None, *, dry_run: bool = False
    ) -> Object:
        """Apply the object on the server, as field manager `perfdag`. Raises KubeError.

        A field that another manager owns becomes its own. With `dry_run` nothing changes.
        """
        path = await self._path(body, namespace, named=True)
        params = {"fieldManager": FIELD_MANAGER, "force": "true"}
        params |= {"dryRun": "All"} if dry_run else {}
        return await self.request("PATCH", path, json=body, params=params, content_type=APPLY_PATCH)

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Any,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        content_type: str = MERGE_PATCH,
    ) -> Object:
        """Patch an object or its subresource and return it. Raises KubeError."""
        path = resource.path(namespace or self.namespace, name, subresource)
        return await self.request(
            "PATCH",
            path,
            json=patch,
            params={"fieldManager": FIELD_MANAGER},
            content_type=content_type,
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        grace: int | None = None,
    ) -> bool:
        """Delete an object and return whether it existed. Does not wait until it is removed.

        `grace` is in seconds. Raises KubeError.
        """
        try:
            await self.request(
                "DELETE",
                resource.path(namespace or self.namespace, name),
                json=_delete_options(grace),
            )
        except KubeError as error:
            if error.status == 404:
                return False
            raise
        return True

    async def scale(
        self, resource: Resource, name: str, replicas: int, namespace: str | None = None
    ) -> Object:
        """Set `replicas` through the scale subresource. Raises KubeError."""
        return await self.patch(
            resource, name, {"spec": {"replicas": replicas}}, namespace, subresource="scale"
        )


def _delete_options(grace: int | None) -> Object:
    body: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
    return body if grace is None else body | {"gracePeriodSeconds": grace}


def run_with_client(work: Callable[[Kube], Awaitable[T]], **options: Any) -> T:
    """Open a client with `options`, await `work(kube)` and close the client.

    Raises KubeError and what `work` raises.
    """

    async def main() -> T:
        async with Kube(**options) as kube:
            return await work(kube)

    return asyncio.run(main())
