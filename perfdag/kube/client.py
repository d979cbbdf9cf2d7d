"""The Kubernetes client of perfdag: asynchronous, raw JSON, one pooled session.

    async with Kube() as kube:
        pods = await kube.resource("v1", "Pod")
        async for event in kube.watch(pods, "default", labels="app=web"):
            ...

Synchronous code calls `run_with_client(work)`. Every failure is a KubeError of one line.
API conventions: https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

import orjson

from perfdag.kube.config import Cluster, KubeError, load_config

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Event", "Kube", "KubeError", "Object", "Resource", "run_with_client"]

T = TypeVar("T")
Object = dict[str, Any]
"""A Kubernetes object, or a part of one, as its JSON."""
Objects = list[Object]
JSON = "application/json"


@dataclass(frozen=True)
class Resource:
    """The path of a kind of objects on the API server."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool

    def path(
        self, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """Return the URL path of the collection, or of one object.

        Without a namespace it is the collection over all namespaces.
        """
        where = ("namespaces", namespace) if self.namespaced and namespace else ()
        parts = (_root(self.api_version), *where, self.plural, name, subresource)
        return "/".join(part for part in parts if part)


def _root(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


@dataclass(slots=True)
class Event:
    """A change of an object.

    `type` is ADDED, MODIFIED, DELETED or BOOKMARK. `received_ns` is time.monotonic_ns() at arrival,
    which does not tell when a `late` change happened: it comes from a list, or is from before the
    watch reconnected.
    """

    type: str
    object: Object
    received_ns: int
    late: bool = False


@contextmanager
def ignore_status(*statuses: int) -> Iterator[None]:
    """Suppress a KubeError with one of these HTTP statuses, as contextlib.suppress does."""
    try:
        yield
    except KubeError as error:
        if error.status not in statuses:
            raise


class Kube:
    """A client of one API server, as an async context manager.

    `connections` limits the requests in flight, apart from watches and logs. `timeout` is in
    seconds for one request. `retries` is the number of retries after 429, 5xx, a timeout or a
    broken connection. `counts` counts retries by cause, and what happened to watches.
    """

    def __init__(
        self,
        cluster: Cluster | None = None,
        *,
        connections: int = 100,
        timeout: float = 30.0,
        retries: int = 6,
    ) -> None:
        global aiohttp  # its import takes 0.1 s, and most commands open no client
        import aiohttp

        self.cluster = cluster or load_config()
        self.namespace = self.cluster.namespace
        self.counts: Counter[str] = Counter()
        self._slots = asyncio.Semaphore(connections)
        self._timeout, self._retries = timeout, retries
        self._session: aiohttp.ClientSession
        self._resources: dict[tuple[str, str], Resource] = {}

    async def __aenter__(self) -> Self:
        # An exec plugin may return the client certificate that tls() loads.
        await self.cluster.credentials.header()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self.cluster.tls(), limit=0),
            headers={"User-Agent": "perfdag", "Accept": JSON, "Accept-Encoding": "identity"},
            timeout=aiohttp.ClientTimeout(),  # `raw` has one for the whole request
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def raw(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Mapping[str, str], bytes]:
        """Send a request with a JSON body, and return headers and body of a 2xx answer.

        429, 5xx, a timeout and a broken connection are retried, after the Retry-After of the
        server. `headers` are added, and the API server's proxy forwards them. Raises KubeError for
        any other answer.
        """
        body = None if json is None else orjson.dumps(json)
        headers = {"Content-Type": JSON, **(headers or {})}
        tries, lost = 0, False
        while True:
            after = ""
            try:
                async with self._slots, asyncio.timeout(self._timeout):
                    status, answered, data = await self._once(method, path, params, body, headers)
                if status < 300:
                    return answered, data
                error = _refused(status, f"{method} {path}", data)
                after = answered.get("Retry-After", "")
            except (aiohttp.ClientError, OSError) as broken:
                error = self._unreachable(broken)
            renewed = error.status == 401 and not tries
            if tries >= self._retries or not (error.transient or renewed):
                error.repeated = lost
                raise error
            if renewed:
                self.cluster.credentials.expires = 0.0
            self.counts[f"retry {error.status or error.reason}"] += 1
            wait = min(10.0, 0.2 * 2**tries) * random.uniform(0.5, 1.0)
            tries, lost = tries + 1, lost or error.status not in (401, 429)
            await asyncio.sleep(max(wait, min(60.0, float(after)) if after.isdecimal() else 0.0))

    async def _once(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> tuple[int, Mapping[str, str], bytes]:
        async with await self._send(method, path, headers, params=params, data=body) as response:
            return response.status, response.headers, await response.read()

    async def _send(
        self, method: str, path: str, headers: Mapping[str, str], **options: Any
    ) -> "AbstractAsyncContextManager[aiohttp.ClientResponse]":
        return self._session.request(
            method,
            self.cluster.server + path,
            headers={**await self.cluster.credentials.header(), **headers},
            proxy=self.cluster.proxy,
            server_hostname=self.cluster.server_name,
            **options,
        )

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Object:
        """Return the JSON of an answer, as `raw` does. Raises KubeError."""
        _, data = await self.raw(method, path, json=json, params=params, headers=headers)
        answer: Object = orjson.loads(data)
        return answer

    def _unreachable(self, error: Exception) -> KubeError:
        reason = "Timeout" if isinstance(error, TimeoutError) else "Unreachable"
        if isinstance(error, aiohttp.ClientSSLError):
            reason = "Certificate"
        why = str(error) or f"none in {self._timeout:g} s"
        hint = f"is the cluster up, and is context {self.cluster.context!r} the right one?"
        return KubeError(0, reason, f"no answer from {self.cluster.server}: {why}", hint)

    async def lines(
        self, path: str, params: Mapping[str, str] | None = None, silence: float = 60.0
    ) -> AsyncIterator[tuple[bytes, int]]:
        """Yield the lines of an answer as they arrive, with the monotonic time of arrival in ns.

        `silence` is in seconds: how long the server may send nothing. Raises KubeError.
        """
        patience = aiohttp.ClientTimeout(sock_connect=self._timeout, sock_read=silence)
        options = {"params": params, "timeout": patience, "read_bufsize": 2**20}
        try:
            async with await self._send("GET", path, {}, **options) as answer:
                if answer.status >= 300:
                    raise _refused(answer.status, f"GET {path}", await answer.read())
                rest = b""
                async for chunk in answer.content.iter_any():
                    received = time.monotonic_ns()
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield line, received
                if rest:
                    yield rest, received
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from None

    async def resource(self, api_version: str, kind: str) -> Resource:
        """Return where `kind` of `api_version` is served. The answer is cached.

        Raises KubeError (404, `NoKind`) if the cluster does not serve it.
        """
        if (api_version, kind) not in self._resources:
            with ignore_status(404):
                for each in (await self.request("GET", _root(api_version)))["resources"]:
                    if "/" not in each["name"]:  # else a subresource
                        found = Resource(
                            api_version, each["kind"], each["name"], each["namespaced"]
                        )
                        self._resources[api_version, found.kind] = found
        if (api_version, kind) not in self._resources:
            text = f"the cluster does not serve {api_version} {kind}"
            hint = "check both, or install its CustomResourceDefinition first"
            raise KubeError(404, "NoKind", text, hint)
        return self._resources[api_version, kind]

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
    ) -> Objects:
        """Return the objects of a collection, over all namespaces by default. Raises KubeError."""
        items, _ = await self._list(resource.path(namespace), labels, fields)
        return items

    async def _list(self, path: str, labels: str, fields: str) -> tuple[Objects, str]:
        """Return the objects of a collection, read in pages, and its resourceVersion."""
        params = {"limit": "500", "labelSelector": labels, "fieldSelector": fields}
        items: Objects = []
        while True:
            page = await self.request("GET", path, params=params)
            items += page.get("items") or []
            if not (more := page["metadata"].get("continue")):
                return items, page["metadata"].get("resourceVersion", "")
            params["continue"] = more

    async def logs(
        self, pod: str, namespace: str, *, tail: int | None = None
    ) -> AsyncIterator[str]:
        """Yield the lines of the log of the container `main`. Raises KubeError."""
        params = {"container": "main"} | ({} if tail is None else {"tailLines": str(tail)})
        async for line, _ in self.lines(f"/api/v1/namespaces/{namespace}/pods/{pod}/log", params):
            yield line.decode(errors="replace")

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        patience: float = 60.0,
    ) -> AsyncIterator[Event]:
        """Yield the present objects and a BOOKMARK, then every change, across reconnects.

        After a 410 the objects are listed again, and those that disappeared are DELETED with a part
        of their metadata. Without a namespace it covers all namespaces. Raises KubeError for a
        permanent error, and after `patience` seconds of consecutive failures.
        """
        path = resource.path(namespace)
        seen, version, newest, failing = dict[str, Object](), "", 0, 0.0
        while True:
            try:
                if version:  # until the server's version at the reconnect, changes were missed
                    _, at = await self._list(path, "", "metadata.name=perfdag")
                    newest = int(at)
                else:
                    items, at = await self._list(path, labels, fields)
                    now, present = time.monotonic_ns(), dict[str, Object]()
                    for item in items:
                        present |= _identity(item)
                        yield Event("ADDED", item, now, late=True)
                    for uid in seen.keys() - present.keys():
                        yield Event("DELETED", {"metadata": seen[uid]}, now, late=True)
                    seen, version = present, at
                    mark: Object = {"metadata": {"resourceVersion": version}}
                    yield Event("BOOKMARK", mark, now, late=True)
                async for event in self._follow(path, labels, fields, version):
                    version, failing = event.object["metadata"]["resourceVersion"], 0.0
                    if event.type != "BOOKMARK" and int(version) <= newest:
                        event.late = True
                        self.counts["replayed changes"] += 1
                    if event.type == "DELETED":
                        seen.pop(event.object["metadata"]["uid"], None)
                    elif event.type != "BOOKMARK":
                        seen |= _identity(event.object)
                    yield event
                failing = 0.0
            except KubeError as error:
                failing = failing or time.monotonic()
                if error.status == 410:
                    version = ""
                elif not error.transient or time.monotonic() - failing >= patience:
                    raise
                else:
                    await asyncio.sleep(random.uniform(0.2, 1.0))
            self.counts["watch reconnects"] += 1

    async def _follow(
        self, path: str, labels: str, fields: str, version: str
    ) -> AsyncIterator[Event]:
        """Yield the events of one watch connection until the server ends it.

        Raises KubeError (410 if `version` is too old).
        """
        life = random.randint(240, 290)  # watches that began together end apart
        params = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(life),
            "labelSelector": labels,
            "fieldSelector": fields,
        }
        async for line, received in self.lines(path, params, life + 30.0):
            change = orjson.loads(line)
            if change["type"] == "ERROR":
                status = change["object"]
                raise KubeError(status["code"], status["reason"], status["message"])
            yield Event(change["type"], change["object"], received)

    async def _collection(self, body: Object, namespace: str | None) -> str:
        """Return the path of the collection of the object that `body` describes."""
        resource = await self.resource(body["apiVersion"], body["kind"])
        return resource.path(namespace or body["metadata"].get("namespace") or self.namespace)

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """Return one object. Raises KubeError (404 if it does not exist)."""
        return await self.request("GET", resource.path(namespace or self.namespace, name))

    async def create(self, body: Object, namespace: str | None = None) -> Object:
        """Create the object and return it.

        Raises KubeError (409, AlreadyExists). If the answer to an earlier try was lost, the object
        that this try finds is returned.
        """
        path = await self._collection(body, namespace)
        try:
            return await self.request("POST", path, json=body)
        except KubeError as error:
            if error.reason != "AlreadyExists" or not error.repeated:
                raise
            return await self.request("GET", f"{path}/{body['metadata']['name']}")

    async def apply(
        self, body: Object, namespace: str | None = None, *, dry_run: bool = False
    ) -> Object:
        """Apply the object on the server, as field manager `perfdag`. Raises KubeError.

        A field that another manager owns becomes its own. With `dry_run` nothing changes.
        """
        path = f"{await self._collection(body, namespace)}/{body['metadata']['name']}"
        dry = {"dryRun": "All"} if dry_run else {}
        params = {"fieldManager": "perfdag", "force": "true", **dry}
        headers = {"Content-Type": "application/apply-patch+yaml"}
        return await self.request("PATCH", path, json=body, params=params, headers=headers)

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Any,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
    ) -> Object:
        """Merge a patch into an object or its subresource and return it. Raises KubeError."""
        path = resource.path(namespace or self.namespace, name, subresource)
        headers = {"Content-Type": "application/merge-patch+json"}
        return await self.request("PATCH", path, json=patch, headers=headers)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        grace: int | None = None,
    ) -> None:
        """Delete an object if it exists. Does not wait until it is removed.

        `grace` is in seconds; by default it is the object's. Raises KubeError.
        """
        # Jobs would orphan their pods by default.
        body = {"gracePeriodSeconds": grace, "propagationPolicy": "Background"}
        with ignore_status(404):
            path = resource.path(namespace or self.namespace, name)
            await self.request("DELETE", path, json=body)


def _refused(status: int, call: str, data: bytes) -> KubeError:
    try:
        details = orjson.loads(data)
        message, reason = details["message"], details["reason"]
    except (ValueError, LookupError, TypeError):  # not the API server's words
        text = data[:200].decode(errors="replace")
        message, reason = f"{call}: HTTP {status} {text}", f"HTTP {status}"
    hint = "log in again, or choose another context" if status == 401 else ""
    return KubeError(status, reason, " ".join(message.split()), hint)


def _identity(item: Object) -> dict[str, Object]:
    """Return what tells whose an object is, by its UID."""
    names = ("namespace", "name", "uid", "ownerReferences")
    own = {name: item["metadata"][name] for name in names if name in item["metadata"]}
    return {own["uid"]: own}


def run_with_client(work: Callable[[Kube], Awaitable[T]], **options: Any) -> T:
    """Open a client with `options`, await `work(kube)` and close the client.

    Raises KubeError and what `work` raises.
    """

    async def main() -> T:
        async with Kube(**options) as kube:
            return await work(kube)

    return asyncio.run(main())
