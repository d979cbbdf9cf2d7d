"""The one Kubernetes client of perfdag: async, raw JSON, one pooled session.

    async with Kube() as kube:
        pods = await kube.resource("v1", "Pod")
        async for event in kube.watch(pods, "default", labels="app=web"):
            ...

From synchronous code: `run(work)` opens a client, awaits `work(kube)` and closes it. Every failure is a KubeError of
one line.
API conventions: https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import orjson

from perfdag.kubeconfig import Cluster, KubeError, load

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Event", "Kube", "KubeError", "Resource", "run"]

T = TypeVar("T")
Object = dict[str, Any]

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
METADATA = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
FIELD_MANAGER = "perfdag"
PAGE = 500
WATCH_SECONDS = 290
MAX_BACKOFF = 10.0

_HINTS = {
    401: "the credentials are not accepted: log in again or choose another context",
    413: "the object is too large; etcd takes at most 1.5 MiB",
}


@dataclass(frozen=True)
class Resource:
    """Where the objects of a kind are served."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of the collection or of one object; without a namespace, the collection over all namespaces."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        where = f"/namespaces/{quote(namespace, safe='')}" if self.namespaced and namespace else ""
        one = f"/{quote(name, safe='')}" if name else ""
        return f"{root}{where}/{self.plural}{one}{f'/{subresource}' if subresource else ''}"


@dataclass(slots=True)
class Event:
    """One change. `type` is ADDED, MODIFIED, DELETED or BOOKMARK; `received_ns` is time.monotonic_ns() when its bytes
    arrived;
    `listed` is true where a list told of it (the first one, or the one after a 410), so the change itself was not
    seen."""

    type: str
    object: Object
    received_ns: int
    listed: bool = False


class Kube:
    """A client of one API server; an async context manager.

    `connections` bounds the requests in flight (watches and logs come on top), `timeout` is in seconds for one
    request, `retries`
    how often 429, 5xx, a timeout or a broken connection is tried again. `counts` counts requests, retries by cause
    and relists.
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
        self.cluster = cluster or load(context)
        self.namespace = self.cluster.namespace
        self.counts: Counter[str] = Counter()
        self._slots = asyncio.Semaphore(connections)
        self._timeout, self._retries = timeout, retries
        self._session: aiohttp.ClientSession | None = None
        self._resources: dict[tuple[str, str], Resource] = {}
        self._options: dict[str, Any] = {}

    async def __aenter__(self) -> "Kube":
        import aiohttp

        await self.cluster.credentials.header()  # an exec plugin may bring the client certificate that tls() loads
        connector = aiohttp.TCPConnector(ssl=self.cluster.tls(), limit=0, keepalive_timeout=60)
        headers = {"User-Agent": "perfdag", "Accept": JSON, "Accept-Encoding": "identity"}
        self._session = aiohttp.ClientSession(
            connector=connector, headers=headers, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        )
        if self.cluster.proxy:
            self._options["proxy"] = self.cluster.proxy
        if self.cluster.server_name:
            self._options["server_hostname"] = self.cluster.server_name
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session:
            await self._session.close()
            self._session = None

    # requests

    async def raw(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        tally: Counter[str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """One request, tried again on 429, 5xx, timeout and broken connection; returns status, headers and body of a
        2xx answer.

        Raises KubeError for any other answer. Retry-After is obeyed; `retries=0` hands every failure on; `tally` counts the
        retries of this request by cause; `headers` are added (the API server's proxy hands them on).
        """
        import aiohttp

        limit = self._retries if retries is None else retries
        attempt, refreshed = 0, False
        while True:
            try:
                async with self._slots:
                    status, answered, data = await self._once(
                        method, path, params, body, content_type, accept, timeout or self._timeout, headers or {}
                    )
            except TimeoutError:
                failure = KubeError(
                    0,
                    "Timeout",
                    f"{method} {path}: no answer in {timeout or self._timeout:g} s from {self.cluster.server}",
                )
                cause, wait = "timeout", 0.0
            except (aiohttp.ClientError, OSError) as error:
                failure, cause, wait = self._unreachable(error), "connection", 0.0
            else:
                if status < 300:
                    return status, answered, data
                failure, cause = self._refused(status, method, path, data), str(status)
                if status == 401 and not refreshed and self.cluster.credentials.forget():
                    refreshed = True
                    continue
                if status != 429 and status < 500:
                    raise failure
                wait = _retry_after(answered, data)
            if attempt >= limit or failure.reason == "Certificate":
                raise failure
            attempt += 1
            self.counts[f"retry {cause}"] += 1
            if tally is not None:
                tally[cause] += 1
            await asyncio.sleep(max(wait, min(MAX_BACKOFF, 0.1 * 2**attempt) * random.uniform(0.5, 1.0)))

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> Object:
        """One request with a JSON body and a JSON answer. Raises KubeError."""
        body = None if json is None else orjson.dumps(json)
        _, _, data = await self.raw(method, path, params=params, body=body, content_type=content_type, timeout=timeout, retries=retries)
        answer: Object = orjson.loads(data) if data else {}
        return answer

    async def _once(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: bytes | None,
        content_type: str,
        accept: str | None,
        timeout: float,
        more: Mapping[str, str],
    ) -> tuple[int, Mapping[str, str], bytes]:
        assert self._session is not None, "use `async with Kube()`"
        headers = {**await self._headers(accept), **more}
        if body is not None:
            headers["Content-Type"] = content_type
        self.counts["requests"] += 1
        url = self.cluster.server + path
        async with (
            asyncio.timeout(timeout),
            self._session.request(
                method, url, params=params, data=body, headers=headers, timeout=_unbounded(), **self._options
            ) as response,
        ):
            return response.status, response.headers, await response.read()

    async def _headers(self, accept: str | None) -> dict[str, str]:
        authorization = await self.cluster.credentials.header()
        headers = {"Authorization": authorization} if authorization else {}
        if accept:
            headers["Accept"] = accept
        return headers

    def _unreachable(self, error: Exception) -> KubeError:
        import aiohttp

        if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
            hint = f"check certificate-authority in {self.cluster.source}"
            return KubeError(0, "Certificate", f"the certificate of {self.cluster.server} is not accepted: {error}", hint)
        hint = f"is the cluster up, and is context {self.cluster.context!r} the right one?"
        text = str(error) or type(error).__name__
        return KubeError(0, "Unreachable", f"no answer from {self.cluster.server}: {text}", hint)

    def _refused(self, status: int, method: str, path: str, data: bytes) -> KubeError:
        try:
            told = orjson.loads(data)
        except ValueError:
            told = {}
        if not isinstance(told, dict) or told.get("kind") != "Status":
            told = {"message": f"{method} {path}: HTTP {status} {data[:200].decode(errors='replace').strip()}"}
        message = " ".join(str(told.get("message") or f"{method} {path}: HTTP {status}").split())
        hint = _HINTS.get(status, "")
        if status == 403 and "exceeded quota" in message:
            hint = "free or raise the namespace's ResourceQuota"
        elif status == 403 and told.get("reason") == "Forbidden" and " cannot " in message:
            hint = f"grant it to the user of context {self.cluster.context!r} with a Role or ClusterRole"
        return KubeError(status, told.get("reason") or f"HTTP {status}", message, hint, told)

    # kinds

    async def resource(self, api_version: str, kind: str) -> Resource:
        """Where `kind` of `api_version` is served; remembered.

        Raises KubeError (404, `NoKind`) where the cluster does not have it.
        """
        found = self._resources.get((api_version, kind))
        if found:
            return found
        root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        try:
            served = (await self.request("GET", root))["resources"]
        except KubeError as error:
            if error.status != 404:
                raise
            hint = "install its CustomResourceDefinition first" if "." in api_version else "check apiVersion"
            raise KubeError(404, "NoKind", f"the cluster does not serve {api_version} ({kind})", hint) from None
        for entry in served:
            if "/" not in entry["name"]:
                self._resources[api_version, entry["kind"]] = Resource(api_version, entry["kind"], entry["name"], entry["namespaced"])
        if (api_version, kind) not in self._resources:
            kinds = ", ".join(sorted({entry["kind"] for entry in served if "/" not in entry["name"]}))
            raise KubeError(404, "NoKind", f"the cluster has no kind {kind!r} in {api_version}", f"it has: {kinds}")
        return self._resources[api_version, kind]

    async def _path(self, body: Object, namespace: str | None, *, named: bool) -> str:
        """The path of the object that `body` describes."""
        metadata = body.get("metadata") or {}
        name = metadata.get("name")
        if "apiVersion" not in body or "kind" not in body:
            raise KubeError(0, "Config", f"the object {name or '?'} has no apiVersion or no kind", "add them to the manifest")
        if not name and (named or not metadata.get("generateName")):
            raise KubeError(0, "Config", f"the {body['kind']} has no metadata.name", "add it to the manifest")
        resource = await self.resource(body["apiVersion"], body["kind"])
        return resource.path(namespace or metadata.get("namespace") or self.namespace, name if named else None)

    # objects

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """One object. Raises KubeError (404 where it is not there)."""
        return await self.request("GET", resource.path(namespace or self.namespace, name))

    async def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        accept: str | None = None,
    ) -> AsyncIterator[tuple[list[Object], str]]:
        """A collection in pages of 500: items and resourceVersion.

        Without a namespace: all namespaces. Raises KubeError.
        """
        params = {"limit": str(PAGE)} | _selectors(labels, fields)
        while True:
            _, _, data = await self.raw("GET", resource.path(namespace), params=params, accept=accept)
            page = orjson.loads(data)
            for item in page.get("items") or []:  # items of a list carry neither, and consumers want them
                item.setdefault("apiVersion", resource.api_version)
                item.setdefault("kind", resource.kind)
            yield page.get("items") or [], page["metadata"].get("resourceVersion", "")
            if not (more := page["metadata"].get("continue")):
                return
            params["continue"] = more

    async def list(self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = "") -> "list[Object]":
        """All objects of a collection. Without a namespace: of all namespaces. Raises KubeError."""
        return [item async for items, _ in self.pages(resource, namespace, labels=labels, fields=fields) for item in items]

    async def create(self, body: Object, namespace: str | None = None) -> Object:
        """Create the object.

        Raises KubeError (409, AlreadyExists). An own create whose answer was lost is not a conflict.
        """
        path = await self._path(body, namespace, named=False)
        tally: Counter[str] = Counter()
        params = {"fieldManager": FIELD_MANAGER}
        try:
            _, _, data = await self.raw("POST", path, params=params, body=orjson.dumps(body), tally=tally)
        except KubeError as error:
            if error.reason != "AlreadyExists" or not tally:
                raise
            there = await self.request("GET", f"{path}/{body['metadata']['name']}")
            if any(entry.get("manager") == FIELD_MANAGER for entry in there["metadata"].get("managedFields") or []):
                return there
            raise
        made: Object = orjson.loads(data)
        return made

    async def apply(self, body: Object, namespace: str | None = None, *, force: bool = True) -> Object:
        """Server-side apply, as field manager `perfdag`.

        Raises KubeError (409, Conflict, where another manager owns a field and force is false).
        """
        path = await self._path(body, namespace, named=True)
        params = {"fieldManager": FIELD_MANAGER, "force": "true" if force else "false"}
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
        """Patch an object (a merge patch unless `content_type` says otherwise) or its subresource. Raises KubeError."""
        path = resource.path(namespace or self.namespace, name, subresource)
        return await self.request("PATCH", path, json=patch, params={"fieldManager": FIELD_MANAGER}, content_type=content_type)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        grace: int | None = None,
        propagation: str = "Background",
    ) -> bool:
        """Delete an object; false where it was not there.

        `grace` is in seconds. Returns before it is gone. Raises KubeError.
        """
        try:
            await self.request("DELETE", resource.path(namespace or self.namespace, name), json=_delete_options(grace, propagation))
        except KubeError as error:
            if error.status == 404:
                return False
            raise
        return True

    async def delete_collection(
        self,
        resource: Resource,
        namespace: str,
        *,
        labels: str,
        fields: str = "",
        grace: int | None = None,
        propagation: str = "Background",
    ) -> None:
        """Delete all objects of a namespace (cluster-wide kinds: of the cluster) with these labels, which must be
        given.

        Raises KubeError.
        """
        if not labels and not fields:
            raise ValueError("delete_collection wants a selector")
        params, body = _selectors(labels, fields), _delete_options(grace, propagation)
        await self.request("DELETE", resource.path(namespace), params=params, json=body, timeout=120)

    async def scale(self, resource: Resource, name: str, replicas: int, namespace: str | None = None) -> Object:
        """Set `replicas` through the scale subresource. Raises KubeError."""
        return await self.patch(resource, name, {"spec": {"replicas": replicas}}, namespace, subresource="scale")

    # streams

    async def logs(
        self,
        pod: str,
        namespace: str | None = None,
        *,
        container: str | None = None,
        follow: bool = False,
        tail: int | None = None,
    ) -> AsyncIterator[str]:
        """Lines of a container's log; with `follow` until the container ends. Raises KubeError."""
        params = {"container": container} if container else {}
        params |= {"follow": "true"} if follow else {}
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
        metadata_only: bool = False,
    ) -> AsyncIterator[Event]:
        """Changes without end: what is there now (`listed`), then every change, over reconnects.

        With `resource_version` it goes on from there without a list. A 410 lists again: objects seen before and gone
        since come as DELETED with their metadata only. Without a namespace: all namespaces. Raises KubeError for what
        a retry cannot mend.
        """
        accept = f"{METADATA.replace('{}', 'List')},{JSON}" if metadata_only else None
        known: dict[str, tuple[str, str]] = {}
        version, failures = resource_version, 0
        while True:
            if version is None:
                present: dict[str, tuple[str, str]] = {}
                async for items, at in self.pages(resource, namespace, labels=labels, fields=fields, accept=accept):
                    now, version = time.monotonic_ns(), at
                    for item in items:
                        present[item["metadata"]["uid"]] = _place(item)
                        yield Event("ADDED", item, now, listed=True)
                for uid in known.keys() - present.keys():
                    yield Event("DELETED", _gone(resource, uid, *known[uid]), time.monotonic_ns(), listed=True)
                known = present
                self.counts["lists"] += 1
            try:
                async for event in self._follow(resource, namespace, labels, fields, version or "", metadata_only):
                    version, failures = event.object["metadata"]["resourceVersion"], 0
                    if event.type == "DELETED":
                        known.pop(event.object["metadata"].get("uid", ""), None)
                    elif event.type == "ADDED":
                        known[event.object["metadata"]["uid"]] = _place(event.object)
                    yield event
            except KubeError as error:
                if error.status == 410:
                    version = None
                    self.counts["relist 410"] += 1
                    self.counts["watch reconnects"] += 1
                    continue
                failures += 1
                transient = error.status in (0, 401, 429) or error.status >= 500
                if not transient or failures > max(self._retries, 1):
                    raise
                await asyncio.sleep(min(MAX_BACKOFF, 0.1 * 2**failures))
            self.counts["watch reconnects"] += 1

    async def _follow(
        self, resource: Resource, namespace: str | None, labels: str, fields: str, version: str, metadata_only: bool
    ) -> AsyncIterator[Event]:
        """One watch connection. Ends when the server ends it; raises KubeError (410 where `version` is too old)."""
        life = random.randint(WATCH_SECONDS - 50, WATCH_SECONDS)
        params = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version, "timeoutSeconds": str(life)}
        accept = f"{METADATA.replace('{}', '')},{JSON}" if metadata_only else None
        async for line, received in self.lines(resource.path(namespace), params | _selectors(labels, fields), accept, life + 30.0):
            change = orjson.loads(line)
            if change["type"] == "ERROR":
                told = change["object"]
                raise KubeError(
                    told.get("code", 500),
                    told.get("reason", "Watch"),
                    str(told.get("message", "the watch failed")),
                    "",
                    told,
                )
            yield Event(change["type"], change["object"], received)

    async def lines(
        self, path: str, params: Mapping[str, str], accept: str | None, silence: float | None
    ) -> AsyncIterator[tuple[bytes, int]]:
        """Lines of an answer as they come, each with the monotonic time in ns when its bytes were read."""
        import aiohttp

        assert self._session is not None, "use `async with Kube()`"
        self.counts["requests"] += 1
        patience = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=silence)
        try:
            async with self._session.get(
                self.cluster.server + path,
                params=params,
                headers=await self._headers(accept),
                timeout=patience,
                read_bufsize=2**20,
                **self._options,
            ) as answer:
                if answer.status >= 300:
                    if answer.status == 401:
                        self.cluster.credentials.forget()
                    raise self._refused(answer.status, "GET", path, await answer.read())
                rest = b""
                async for chunk in answer.content.iter_any():
                    received = time.monotonic_ns()
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield line, received
                if rest and silence is None:
                    yield rest, time.monotonic_ns()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unreachable(error) from None


def _unbounded() -> Any:
    """aiohttp's own timeout off: one asyncio.timeout bounds connecting, sending and reading together, and costs
    less."""
    global _NO_TIMEOUT
    if _NO_TIMEOUT is None:
        import aiohttp

        _NO_TIMEOUT = aiohttp.ClientTimeout(total=None)
    return _NO_TIMEOUT


_NO_TIMEOUT: Any = None


def _selectors(labels: str, fields: str) -> dict[str, str]:
    return ({"labelSelector": labels} if labels else {}) | ({"fieldSelector": fields} if fields else {})


def _delete_options(grace: int | None, propagation: str) -> Object:
    body: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
    return body if grace is None else body | {"gracePeriodSeconds": grace}


def _place(item: Object) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _gone(resource: Resource, uid: str, namespace: str, name: str) -> Object:
    metadata = {"uid": uid, "name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}


def _retry_after(headers: Mapping[str, str], data: bytes) -> float:
    """Seconds the server asks us to wait (Retry-After, or retryAfterSeconds of its Status); 0 where it does not say."""
    try:
        if "Retry-After" in headers:
            return min(60.0, float(headers["Retry-After"]))
        return min(60.0, float(orjson.loads(data)["details"]["retryAfterSeconds"]))
    except (ValueError, KeyError, TypeError):
        return 0.0


def run(work: Callable[[Kube], Awaitable[T]], **options: Any) -> T:
    """Open a client (`options` as for Kube), await `work(kube)`, close it; for synchronous callers.

    Raises KubeError and what `work` raises.
    """

    async def opened() -> T:
        async with Kube(**options) as kube:
            return await work(kube)

    return asyncio.run(opened())
