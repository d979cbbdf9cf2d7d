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
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

import orjson

from perfdag.kube.config import Cluster, KubeError, load_config, tls_context

Object = dict[str, Any]
"""A Kubernetes object, or a part of one, as its JSON."""


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
        root = (
            f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        )
        where = f"/namespaces/{quote(namespace, safe='')}" if self.namespaced and namespace else ""
        one = f"/{quote(name, safe='')}" if name else ""
        return f"{root}{where}/{self.plural}{one}{f'/{subresource}' if subresource else ''}"


@dataclass(slots=True)
class Event:
    """A change of an object.

    `type` is ADDED, MODIFIED, DELETED or BOOKMARK. `received_ns` is time.monotonic_ns() at arrival.
    `listed` is true if the event comes from a list (the first one, or one after a 410). `replayed`
    is true if the change happened before the watch reconnected.
    """

    type: str
    object: Object
    received_ns: int
    listed: bool = False
    replayed: bool = False


if TYPE_CHECKING:
    import aiohttp


JSON = "application/json"
MAX_BACKOFF = 10.0
TLS_BUFFER = 2**16
"""Bytes that each TLS connection reserves for reading; asyncio's default is four times as much."""

_HINTS = {
    401: "the credentials are not accepted: log in again or choose another context",
    413: "the object is too large; etcd takes at most 1.5 MiB",
}


@cache
def _unbounded() -> Any:
    """Turn off the timeout of aiohttp: one asyncio.timeout limits the whole request for less."""
    import aiohttp

    return aiohttp.ClientTimeout(total=None)


def _retry_after(headers: Mapping[str, str], data: bytes) -> float:
    """Return the seconds of Retry-After or of the Status's retryAfterSeconds, 0 without either."""
    try:
        if "Retry-After" in headers:
            return min(60.0, float(headers["Retry-After"]))
        return min(60.0, float(orjson.loads(data)["details"]["retryAfterSeconds"]))
    except (ValueError, KeyError, TypeError):
        return 0.0


PAGE = 500

WATCH_SECONDS = 290


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


__all__ = ["Event", "Kube", "KubeError", "Object", "Resource", "run_with_client"]

T = TypeVar("T")

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
FIELD_MANAGER = "perfdag"


class Kube:
    """A client of one API server, as an async context manager.

    `connections` limits the requests in flight, apart from watches and logs. `timeout` is in
    seconds for one request. `retries` is the number of retries after 429, 5xx, a timeout or a
    broken connection. `counts` counts requests, retries by cause and relists.
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
        self.cluster = cluster or load_config(context)
        self.namespace = self.cluster.namespace
        self.counts: Counter[str] = Counter()
        self._slots = asyncio.Semaphore(connections)
        self._timeout, self._retries = timeout, retries
        self._session: aiohttp.ClientSession | None = None
        self._options: dict[str, Any] = {}
        self._resources: dict[tuple[str, str], Resource] = {}

    async def __aenter__(self) -> Self:
        import aiohttp

        SSLProtocol.max_size = TLS_BUFFER
        # An exec plugin may return the client certificate that tls() loads.
        await self.cluster.credentials.header()
        connector = aiohttp.TCPConnector(ssl=self.cluster.tls(), limit=0, keepalive_timeout=60)
        headers = {"User-Agent": "perfdag", "Accept": JSON, "Accept-Encoding": "identity"}
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=headers,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
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

    async def connect(self, connections: int) -> None:
        """Open this many connections before a measurement, up to the limit of the transport.

        A handshake takes longer than most requests. Raises KubeError.
        """
        await asyncio.gather(*(self.raw("GET", "/version") for _ in range(connections)))

    async def raw(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout: float | None = None,
        retries: int | None = None,
        tally: Counter[str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request and return status, headers and body of a 2xx answer.

        429, 5xx, a timeout and a broken connection are retried, after the Retry-After of the
        server. `tally` counts the retries of this request by cause. `headers` are added, and the
        API server's proxy forwards them. Raises KubeError for any other answer.
        """
        import aiohttp

        limit = self._retries if retries is None else retries
        attempt, refreshed = 0, False
        while True:
            try:
                async with self._slots:
                    status, answered, data = await self._once(
                        method,
                        path,
                        params,
                        body,
                        content_type,
                        timeout or self._timeout,
                        headers or {},
                    )
            except TimeoutError:
                failure = KubeError(
                    0,
                    "Timeout",
                    f"{method} {path}: no answer in {timeout or self._timeout:g} s "
                    f"from {self.cluster.server}",
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
            await asyncio.sleep(
                max(wait, min(MAX_BACKOFF, 0.1 * 2**attempt) * random.uniform(0.5, 1.0))
            )

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
        """Send a request with a JSON body and return the JSON answer. Raises KubeError."""
        _, _, data = await self.raw(
            method,
            path,
            params=params,
            body=None if json is None else orjson.dumps(json),
            content_type=content_type,
            timeout=timeout,
            retries=retries,
        )
        answer: Object = orjson.loads(data) if data else {}
        return answer

    async def _once(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: bytes | None,
        content_type: str,
        timeout: float,
        more: Mapping[str, str],
    ) -> tuple[int, Mapping[str, str], bytes]:
        assert self._session is not None, "open it with `async with`"
        headers = {**await self._headers(), **more}
        if body is not None:
            headers["Content-Type"] = content_type
        self.counts["requests"] += 1
        url = self.cluster.server + path
        async with (
            asyncio.timeout(timeout),
            self._session.request(
                method,
                url,
                params=params,
                data=body,
                headers=headers,
                timeout=_unbounded(),
                **self._options,
            ) as response,
        ):
            return response.status, response.headers, await response.read()

    async def _headers(self) -> dict[str, str]:
        authorization = await self.cluster.credentials.header()
        return {"Authorization": authorization} if authorization else {}

    def _unreachable(self, error: Exception) -> KubeError:
        import aiohttp

        if isinstance(
            error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError
        ):
            hint = f"check certificate-authority in {self.cluster.source}"
            return KubeError(
                0,
                "Certificate",
                f"the certificate of {self.cluster.server} is not accepted: {error}",
                hint,
            )
        hint = f"is the cluster up, and is context {self.cluster.context!r} the right one?"
        text = str(error) or type(error).__name__
        return KubeError(0, "Unreachable", f"no answer from {self.cluster.server}: {text}", hint)

    def _refused(self, status: int, method: str, path: str, data: bytes) -> KubeError:
        try:
            details = orjson.loads(data)
        except ValueError:
            details = {}
        if not isinstance(details, dict) or details.get("kind") != "Status":
            text = data[:200].decode(errors="replace").strip()
            details = {"message": f"{method} {path}: HTTP {status} {text}"}
        message = " ".join(str(details.get("message") or f"{method} {path}: HTTP {status}").split())
        hint = _HINTS.get(status, "")
        if status == 403 and "exceeded quota" in message:
            hint = "free or raise the namespace's ResourceQuota"
        elif status == 403 and details.get("reason") == "Forbidden" and " cannot " in message:
            user = f"the user of context {self.cluster.context!r}"
            hint = f"grant it to {user} with a Role or ClusterRole"
        return KubeError(status, details.get("reason") or f"HTTP {status}", message, hint, details)

    async def lines(
        self, path: str, params: Mapping[str, str], accept: str | None, silence: float | None
    ) -> AsyncIterator[tuple[bytes, int]]:
        """Yield the lines of an answer as they arrive, with the monotonic time of arrival in ns."""
        import aiohttp

        assert self._session is not None, "open it with `async with`"
        self.counts["requests"] += 1
        patience = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=silence)
        try:
            async with self._session.get(
                self.cluster.server + path,
                params=params,
                headers=await self._headers() | ({"Accept": accept} if accept else {}),
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


@dataclass(frozen=True)
class Prometheus:
    """The address of a Prometheus, with optional files of a bearer token and a CA certificate."""

    url: str
    token_file: str | None = None
    ca_file: str | None = None

    async def query(
        self, queries: Mapping[str, Mapping[str, str]], path: str = "query_range"
    ) -> dict[str, Any]:
        """Return the `data` of the answers by query name. Raises KubeError."""
        import aiohttp

        data: dict[str, Any] = {}
        try:
            token = Path(self.token_file).read_text().strip() if self.token_file else ""
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            connector = (
                aiohttp.TCPConnector(ssl=tls_context(file=self.ca_file)) if self.ca_file else None
            )
            timeout = aiohttp.ClientTimeout(total=60)
            async with aiohttp.ClientSession(
                timeout=timeout, headers=headers, connector=connector
            ) as session:
                for name, params in queries.items():
                    async with session.get(
                        f"{self.url.rstrip('/')}/api/v1/{path}", params=params
                    ) as answer:
                        if answer.status in (401, 403):
                            hint = "it needs a token, which `scale` takes (--prometheus-token-file)"
                            raise KubeError(
                                answer.status,
                                "Prometheus",
                                f"Prometheus at {self.url} answers {answer.status}",
                                hint,
                            )
                        body: dict[str, Any] = await answer.json(content_type=None)
                    if body.get("status") != "success":
                        raise KubeError(
                            0,
                            "Refused",
                            f"Prometheus at {self.url} refuses the query {name}: "
                            f"{body.get('error', answer.status)}",
                        )
                    data[name] = body["data"]
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
            raise KubeError(
                0,
                "Unreachable",
                f"no answer from Prometheus at {self.url}: {error}",
                "check --prometheus",
            ) from None
        return data
