"""Reading from an API server: kinds, lists in pages, watches over reconnects, logs."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson

from perfdag.kube.config import Cluster
from perfdag.kube.errors import KubeError
from perfdag.kube.resources import Event, Object, Resource
from perfdag.kube.transport import MAX_BACKOFF, Transport

PAGE = 500

WATCH_SECONDS = 290


class Reader(Transport):
    """The reading half of a client. Its options are those of Transport."""

    def __init__(self, cluster: Cluster | None = None, **options: Any) -> None:
        super().__init__(cluster, **options)
        self._resources: dict[tuple[str, str], Resource] = {}

    async def resource(self, api_version: str, kind: str) -> Resource:
        """Return where `kind` of `api_version` is served. The answer is cached.

        Raises KubeError (404, `NoKind`) if the cluster does not serve it.
        """
        if resource := self._resources.get((api_version, kind)):
            return resource
        root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        try:
            served = (await self.request("GET", root))["resources"]
        except KubeError as error:
            if error.status != 404:
                raise
            hint = (
                "install its CustomResourceDefinition first"
                if "." in api_version
                else "check apiVersion"
            )
            raise KubeError(
                404, "NoKind", f"the cluster does not serve {api_version} ({kind})", hint
            ) from None
        for entry in served:
            if "/" not in entry["name"]:
                self._resources[api_version, entry["kind"]] = Resource(
                    api_version, entry["kind"], entry["name"], entry["namespaced"]
                )
        if (api_version, kind) not in self._resources:
            kinds = ", ".join(
                sorted({entry["kind"] for entry in served if "/" not in entry["name"]})
            )
            raise KubeError(
                404,
                "NoKind",
                f"the cluster has no kind {kind!r} in {api_version}",
                f"it has: {kinds}",
            )
        return self._resources[api_version, kind]

    async def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        size: int = PAGE,
    ) -> AsyncIterator[tuple[list[Object], str]]:
        """Yield a collection in pages of `size`, as items and resourceVersion.

        Without a namespace it covers all namespaces. Raises KubeError.
        """
        params = {"limit": str(size)} | selectors(labels, fields)
        while True:
            _, _, data = await self.raw("GET", resource.path(namespace), params=params)
            page = orjson.loads(data)
            # Items of a list lack both, and consumers need them.
            for item in page.get("items") or []:
                item.setdefault("apiVersion", resource.api_version)
                item.setdefault("kind", resource.kind)
            yield page.get("items") or [], page["metadata"].get("resourceVersion", "")
            if not (more := page["metadata"].get("continue")):
                return
            params["continue"] = more

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
    ) -> "list[Object]":
        """Return the objects of a collection, over all namespaces by default. Raises KubeError."""
        return [
            item
            async for items, _ in self.pages(resource, namespace, labels=labels, fields=fields)
            for item in items
        ]

    async def logs(
        self,
        pod: str,
        namespace: str | None = None,
        *,
        container: str | None = None,
        tail: int | None = None,
    ) -> AsyncIterator[str]:
        """Yield the lines of a container's log. Raises KubeError."""
        params = {"container": container} if container else {}
        params |= {"tailLines": str(tail)} if tail is not None else {}
        path = f"/api/v1/namespaces/{namespace or self.namespace}/pods/{pod}/log"
        async for line, _ in self.lines(path, params, None, None):
            yield line.decode(errors="replace")

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str | None = None,
        known: Mapping[str, tuple[str, str]] | None = None,
        patience: float | None = None,
    ) -> AsyncIterator[Event]:
        """Yield the present objects (`listed`), then every change, across reconnects.

        With `resource_version` the watch continues from there without a list. `known` are the
        objects at that version, as UID to namespace and name. After a 410 the objects are listed
        again, and those that disappeared are DELETED with their metadata only. Changes from before
        a reconnect are `replayed`: their arrival does not tell when they happened. Without a
        namespace it covers all namespaces. Raises KubeError for a permanent error, and after
        `patience` seconds of consecutive failures (None: after as many as a request has retries).
        """
        seen = dict(known or {})
        version, failures, since, away, behind = resource_version, 0, 0.0, False, 0
        while True:
            listing = version is None
            try:
                if version is None:
                    present: dict[str, tuple[str, str]] = {}
                    async for items, at in self.pages(
                        resource, namespace, labels=labels, fields=fields
                    ):
                        now, version = time.monotonic_ns(), at
                        for item in items:
                            present[item["metadata"]["uid"]] = _namespaced_name(item)
                            yield Event("ADDED", item, now, listed=True)
                    for uid in seen.keys() - present.keys():
                        yield Event(
                            "DELETED",
                            _deleted(resource, uid, *seen[uid]),
                            time.monotonic_ns(),
                            listed=True,
                        )
                    seen = present
                    self.counts["lists"] += 1
                    failures, listing, behind = 0, False, 0
                elif away:
                    behind = await self._newest(resource, namespace)
                async for event in self._follow(resource, namespace, labels, fields, version or ""):
                    version, failures = event.object["metadata"]["resourceVersion"], 0
                    if int(version or 0) <= behind and event.type != "BOOKMARK":
                        event.replayed = True
                        self.counts["replayed changes"] += 1
                    if event.type == "DELETED":
                        seen.pop(event.object["metadata"].get("uid", ""), None)
                    elif event.type == "ADDED":
                        seen[event.object["metadata"]["uid"]] = _namespaced_name(event.object)
                    yield event
                failures, away = 0, True
            except KubeError as error:
                away = True
                # If one page of a list fails, the list starts over.
                version = None if listing else version
                if error.status == 410:
                    version = None
                    self.counts["relist 410"] += 1
                    self.counts["watch reconnects"] += 1
                    continue
                since = since if failures else time.monotonic()
                failures += 1
                transient = error.status in (0, 401, 429) or error.status >= 500
                if patience is None:
                    enough = listing or failures > max(self._retries, 1)
                else:
                    enough = time.monotonic() - since >= patience
                if not transient or enough:
                    raise
                await asyncio.sleep(min(MAX_BACKOFF, 0.1 * 2**failures))
            self.counts["watch reconnects"] += 1

    async def _newest(self, resource: Resource, namespace: str | None) -> int:
        """Return the server's resource version now, from an empty list. Raises KubeError."""
        params = {"limit": "1"} | selectors("", "metadata.name=perfdag")
        _, _, data = await self.raw("GET", resource.path(namespace), params=params)
        return int(orjson.loads(data)["metadata"].get("resourceVersion") or 0)

    async def _follow(
        self,
        resource: Resource,
        namespace: str | None,
        labels: str,
        fields: str,
        version: str,
    ) -> AsyncIterator[Event]:
        """Yield the events of one watch connection until the server ends it.

        Raises KubeError (410 if `version` is too old).
        """
        life = random.randint(WATCH_SECONDS - 50, WATCH_SECONDS)
        params = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(life),
        }
        async for line, received in self.lines(
            resource.path(namespace), params | selectors(labels, fields), None, life + 30.0
        ):
            change = orjson.loads(line)
            if change["type"] == "ERROR":
                status = change["object"]
                raise KubeError(
                    status.get("code", 500),
                    status.get("reason", "Watch"),
                    str(status.get("message", "the watch failed")),
                    "",
                    status,
                )
            yield Event(change["type"], change["object"], received)


def selectors(labels: str, fields: str) -> dict[str, str]:
    """Return the query parameters of label and field selectors."""
    return ({"labelSelector": labels} if labels else {}) | (
        {"fieldSelector": fields} if fields else {}
    )


def _namespaced_name(item: Object) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _deleted(resource: Resource, uid: str, namespace: str, name: str) -> Object:
    metadata = {"uid": uid, "name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
