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
from urllib.parse import quote

import orjson

from perfdag.kube.config import Cluster, KubeError, load_config

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Event", "Kube", "KubeError", "Object", "Resource", "run_with_client"]

T = TypeVar("T")
Object = dict[str, Any]
"""A Kubernetes object, or a part of one, as its JSON."""
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
MANAGER = {"fieldManager": "perfdag"}
PAGE = 500
MAX_BACKOFF = 10.0
WATCH_SECONDS = 290


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
        parts = (*where, self.plural, name, subresource)
        own = "/".join(quote(part, safe="") for part in parts if part)
        return f"{_root(self.api_version)}/{own}"


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
        context: str | None = None,
        connections: int = 100,
        timeout: float = 30.0,
        retries: int = 6,
    ) -> None:
        global aiohttp  # its import takes 0.1 s, and most commands open no client
        import aiohttp

        self.cluster = cluster or load_config(context)
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
        tally: Counter[str] | None = None,
    ) -> tuple[Mapping[str, str], bytes]:
        """Send a request with a JSON body, and return headers and body of a 2xx answer.

        429, 5xx, a timeout and a broken connection are retried, after the Retry-After of the
        server. `tally` counts the retries of this request by cause. `headers` are added, and the
        API server's proxy forwards them. Raises KubeError for any other answer.
        """
        tally = Counter() if tally is None else tally
        body = None if json is None else orjson.dumps(json)
        headers = {"Content-Type": JSON, **(headers or {})}
        while True:
            after = ""
            try:
                async with self._slots, asyncio.timeout(self._timeout):
                    status, answered, data = await self._once(method, path, params, body, headers)
                if status < 300:
                    return answered, data
                error = self._refused(status, f"{method} {path}", data)
                after = answered.get("Retry-After", "")
            except (aiohttp.ClientError, OSError) as broken:
                error = self._unreachable(broken)
            again = error.transient
            if error.status == 401 and not tally:
                again = self.cluster.credentials.forget()
            if not again or tally.total() >= self._retries:
                raise error
            wait = min(MAX_BACKOFF, 0.2 * 2 ** tally.total()) * random.uniform(0.5, 1.0)
            cause = str(error.status or error.reason)
            tally[cause] += 1
            self.counts[f"retry {cause}"] += 1
            await asyncio.sleep(max(wait, min(60.0, float(after)) if after.isdecimal() else 0.0))

    async def _once(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> tuple[int, Mapping[str, str], bytes]:
        headers = {**await self.cluster.credentials.header(), **headers}
        async with self._send(method, path, params=params, data=body, headers=headers) as response:
            return response.status, response.headers, await response.read()

    def _send(
        self, method: str, path: str, **options: Any
    ) -> "AbstractAsyncContextManager[aiohttp.ClientResponse]":
        return self._session.request(
            method,
            self.cluster.server + path,
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
        content_type: str = JSON,
    ) -> Object:
        """Send a request with a JSON body and return the JSON answer. Raises KubeError."""
        headers = {"Content-Type": content_type}
        _, data = await self.raw(method, path, json=json, params=params, headers=headers)
        answer: Object = orjson.loads(data) if data else {}
        return answer

    def _unreachable(self, error: Exception) -> KubeError:
        server, context = self.cluster.server, repr(self.cluster.context)
        if isinstance(error, aiohttp.ClientSSLError):
            text = f"the certificate of {server} is not accepted: {error}"
            hint = f"check certificate-authority of context {context}"
            return KubeError(0, "Certificate", text, hint)
        reason = "Timeout" if isinstance(error, TimeoutError) else "Unreachable"
        text = f"no answer from {server}: {str(error) or f'none in {self._timeout:g} s'}"
        hint = f"is the cluster up, and is context {context} the right one?"
        return KubeError(0, reason, text, hint)

    def _refused(self, status: int, call: str, data: bytes) -> KubeError:
        try:
            details = orjson.loads(data)
            message, reason = details["message"], details["reason"]
        except (ValueError, LookupError, TypeError):  # not the API server's words
            text = data[:200].decode(errors="replace")
            message, reason = f"{call}: HTTP {status} {text}", f"HTTP {status}"
        hint = ""
        if status == 401:
            hint = "the credentials are not accepted: log in again or choose another context"
        elif status == 403 and " cannot " in message:
            user = f"the user of context {self.cluster.context!r}"
            hint = f"grant it to {user} with a Role or ClusterRole"
        return KubeError(status, reason, " ".join(message.split()), hint)

    async def lines(
        self, path: str, params: Mapping[str, str] | None = None, silence: float = 60.0
    ) -> AsyncIterator[tuple[bytes, int]]:
        """Yield the lines of an answer as they arrive, with the monotonic time of arrival in ns.

        `silence` is in seconds: how long the server may send nothing. Raises KubeError.
        """
        headers = await self.cluster.credentials.header()
        patience = aiohttp.ClientTimeout(sock_connect=self._timeout, sock_read=silence)
        options = {"headers": headers, "timeout": patience, "read_bufsize": 2**20}
        try:
            async with self._send("GET", path, params=params, **options) as answer:
                if answer.status >= 300:
                    raise self._refused(answer.status, f"GET {path}", await answer.read())
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
            served: list[Object] = []
            with ignore_status(404):
                served = (await self.request("GET", _root(api_version)))["resources"]
            for item in served:
                if "/" not in item["name"]:  # else a subresource
                    found = Resource(api_version, item["kind"], item["name"], item["namespaced"])
                    self._resources[api_version, item["kind"]] = found
            if (api_version, kind) not in self._resources:
                hint = f"it has: {', '.join(sorted({item['kind'] for item in served}))}"
                if not served:
                    hint = "check apiVersion, or install its CustomResourceDefinition first"
                text = f"the cluster does not serve {api_version} {kind}"
                raise KubeError(404, "NoKind", text, hint)
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
        params = {"limit": str(size), "labelSelector": labels, "fieldSelector": fields}
        while True:
            page = await self.request("GET", resource.path(namespace), params=params)
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
        pages = self.pages(resource, namespace, labels=labels, fields=fields)
        return [item async for items, _ in pages for item in items]

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
        seen, version, newest, failing = dict[str, Object](), "", 0, 0.0
        while True:
            listing = not version
            try:
                if listing:
                    present = dict[str, Object]()
                    pages = self.pages(resource, namespace, labels=labels, fields=fields)
                    async for items, at in pages:
                        version = at
                        now = time.monotonic_ns()
                        for item in items:
                            present |= _identity(item)
                            yield Event("ADDED", item, now, late=True)
                    for uid in seen.keys() - present.keys():
                        body = {"apiVersion": resource.api_version, "kind": resource.kind}
                        gone = {**body, "metadata": seen[uid]}
                        yield Event("DELETED", gone, now, late=True)
                    seen, listing = present, False
                    mark: Object = {"metadata": {"resourceVersion": version}}
                    yield Event("BOOKMARK", mark, now, late=True)
                else:  # until the server's version at the reconnect, changes were missed
                    nothing = self.pages(resource, namespace, fields="metadata.name=perfdag")
                    newest = max([int(at) async for _, at in nothing])
                async for event in self._follow(resource.path(namespace), labels, fields, version):
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
                if listing or error.status == 410:  # a list starts over if one of its pages fails
                    version = ""
                failing = failing or time.monotonic()
                if error.status == 410:
                    self.counts["relist 410"] += 1
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
        life = random.randint(WATCH_SECONDS - 50, WATCH_SECONDS)
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
                message = str(status.get("message", "the watch failed"))
                raise KubeError(status.get("code", 500), status.get("reason", "Watch"), message)
            yield Event(change["type"], change["object"], received)

    async def _collection(self, body: Object, namespace: str | None) -> str:
        """Return the path of the collection of the object that `body` describes."""
        resource = await self.resource(body["apiVersion"], body["kind"])
        return resource.path(namespace or body["metadata"].get("namespace") or self.namespace)

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """Return one object. Raises KubeError (404 if it does not exist)."""
        return await self.request("GET", resource.path(namespace or self.namespace, name))

    async def create(
        self, body: Object, namespace: str | None = None, *, tally: Counter[str] | None = None
    ) -> Object:
        """Create the object and return it. Counts retries by cause in `tally`.

        Raises KubeError (409, AlreadyExists). If the answer to an earlier try was lost, the object
        that this try finds is returned.
        """
        path = await self._collection(body, namespace)
        tally = Counter() if tally is None else tally
        try:
            _, data = await self.raw("POST", path, json=body, params=MANAGER, tally=tally)
        except KubeError as error:
            if error.reason != "AlreadyExists" or not tally.keys() - {"429"}:
                raise
            return await self.request("GET", f"{path}/{body['metadata']['name']}")
        created: Object = orjson.loads(data)
        return created

    async def apply(
        self, body: Object, namespace: str | None = None, *, dry_run: bool = False
    ) -> Object:
        """Apply the object on the server, as field manager `perfdag`. Raises KubeError.

        A field that another manager owns becomes its own. With `dry_run` nothing changes.
        """
        path = f"{await self._collection(body, namespace)}/{body['metadata']['name']}"
        params = MANAGER | {"force": "true"} | ({"dryRun": "All"} if dry_run else {})
        return await self.request("PATCH", path, json=body, params=params, content_type=APPLY_PATCH)

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
        return await self.request(
            "PATCH", path, json=patch, params=MANAGER, content_type=MERGE_PATCH
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

        `grace` is in seconds; by default it is the object's. Raises KubeError.
        """
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace}
        body["propagationPolicy"] = "Background"
        with ignore_status(404):
            path = resource.path(namespace or self.namespace, name)
            await self.request("DELETE", path, json=body)
            return True
        return False


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
