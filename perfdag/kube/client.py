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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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


PAGE = 500

WATCH_SECONDS = 290


def selectors(labels: str, fields: str) -> dict[str, str]:
    """Return the query parameters of label and field selectors."""
    return ({"labelSelector": labels} if labels else {}) | (
        {"fieldSelector": fields} if fields else {}
    )


__all__ = ["Event", "Kube", "KubeError", "Object", "Resource", "run_with_client"]

T = TypeVar("T")

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
FIELD_MANAGER = "perfdag"


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
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers={"User-Agent": "perfdag", "Accept": JSON, "Accept-Encoding": "identity"},
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            # one asyncio.timeout limits a whole request for less
            timeout=aiohttp.ClientTimeout(total=None),
        )
        options = {"proxy": self.cluster.proxy, "server_hostname": self.cluster.server_name}
        self._options = {name: value for name, value in options.items() if value}
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session:
            await self._session.close()
            self._session = None

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
        seconds = timeout or self._timeout
        attempt, refreshed = 0, False
        while True:
            wait = 0.0
            try:
                async with self._slots:
                    status, answered, data = await self._once(
                        method, path, params, body, content_type, seconds, headers or {}
                    )
            except TimeoutError:
                text = f"{method} {path}: no answer in {seconds:g} s from {self.cluster.server}"
                failure, cause = KubeError(0, "Timeout", text), "timeout"
            except (aiohttp.ClientError, OSError) as error:
                failure, cause = self._unreachable(error), "connection"
            else:
                if status < 300:
                    return status, answered, data
                failure, cause = self._refused(status, method, path, data), str(status)
                if status == 401 and not refreshed and self.cluster.credentials.forget():
                    refreshed = True
                    continue
                if status != 429 and status < 500:
                    raise failure
                with suppress(ValueError):
                    wait = min(60.0, float(answered.get("Retry-After", 0)))
            if attempt >= limit or failure.reason == "Certificate":
                raise failure
            attempt += 1
            self.counts[f"retry {cause}"] += 1
            if tally is not None:
                tally[cause] += 1
            backoff = min(MAX_BACKOFF, 0.1 * 2**attempt) * random.uniform(0.5, 1.0)
            await asyncio.sleep(max(wait, backoff))

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON,
        timeout: float | None = None,
    ) -> Object:
        """Send a request with a JSON body and return the JSON answer. Raises KubeError."""
        _, _, data = await self.raw(
            method,
            path,
            params=params,
            body=None if json is None else orjson.dumps(json),
            content_type=content_type,
            timeout=timeout,
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
        async with (
            asyncio.timeout(timeout),
            self._session.request(
                method,
                self.cluster.server + path,
                params=params,
                data=body,
                headers=headers,
                **self._options,
            ) as response,
        ):
            return response.status, response.headers, await response.read()

    async def _headers(self) -> dict[str, str]:
        authorization = await self.cluster.credentials.header()
        return {"Authorization": authorization} if authorization else {}

    def _unreachable(self, error: Exception) -> KubeError:
        import aiohttp

        server = self.cluster.server
        if isinstance(
            error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError
        ):
            hint = f"check certificate-authority in {self.cluster.source}"
            text = f"the certificate of {server} is not accepted: {error}"
            return KubeError(0, "Certificate", text, hint)
        hint = f"is the cluster up, and is context {self.cluster.context!r} the right one?"
        text = f"no answer from {server}: {str(error) or type(error).__name__}"
        return KubeError(0, "Unreachable", text, hint)

    def _refused(self, status: int, method: str, path: str, data: bytes) -> KubeError:
        details: Object = {}
        with suppress(ValueError):
            details = orjson.loads(data)
        if not isinstance(details, dict) or details.get("kind") != "Status":
            text = data[:200].decode(errors="replace")
            details = {"message": f"{method} {path}: HTTP {status} {text}"}
        message = " ".join(str(details.get("message") or f"HTTP {status}").split())
        hint = _HINTS.get(status, "")
        if status == 403 and "exceeded quota" in message:
            hint = "free or raise the namespace's ResourceQuota"
        elif status == 403 and details.get("reason") == "Forbidden" and " cannot " in message:
            user = f"the user of context {self.cluster.context!r}"
            hint = f"grant it to {user} with a Role or ClusterRole"
        reason = details.get("reason") or f"HTTP {status}"
        return KubeError(status, reason, message, hint)

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
        if (api_version, kind) not in self._resources:
            group = "apis" if "/" in api_version else "api"
            try:
                served = (await self.request("GET", f"/{group}/{api_version}"))["resources"]
            except KubeError as error:
                if error.status != 404:
                    raise
                served = []
            kinds = {item["kind"]: item for item in reversed(served) if "/" not in item["name"]}
            for name, item in kinds.items():
                resource = Resource(api_version, name, item["name"], item["namespaced"])
                self._resources[api_version, name] = resource
            if kind not in kinds:
                hint = f"it has: {', '.join(sorted(kinds))}"
                if not kinds:
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
        params = {"limit": str(size)} | selectors(labels, fields)
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
        patience: float = 60.0,
    ) -> AsyncIterator[Event]:
        """Yield the present objects (`listed`), then every change, across reconnects.

        With `resource_version` the watch continues from there without a list. `known` are the
        objects at that version, as UID to namespace and name. After a 410 the objects are listed
        again, and those that disappeared are DELETED with their metadata only. Changes from before
        a reconnect are `replayed`: their arrival does not tell when they happened. Without a
        namespace it covers all namespaces. Raises KubeError for a permanent error, and after
        `patience` seconds of consecutive failures.
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
                            present |= _identity(item)
                            yield Event("ADDED", item, now, listed=True)
                    for uid in seen.keys() - present.keys():
                        place, name = seen[uid]
                        gone = {"uid": uid, "name": name} | ({"namespace": place} if place else {})
                        body: Object = {"apiVersion": resource.api_version, "kind": resource.kind}
                        body["metadata"] = gone
                        yield Event("DELETED", body, time.monotonic_ns(), listed=True)
                    seen, failures, listing, behind = present, 0, False, 0
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
                        seen |= _identity(event.object)
                    yield event
                failures = 0
            except KubeError as error:
                # If one page of a list fails, the list starts over.
                version = None if listing or error.status == 410 else version
                if error.status == 410:
                    self.counts["relist 410"] += 1
                else:
                    since = since if failures else time.monotonic()
                    failures += 1
                    transient = error.status in (0, 401, 429) or error.status >= 500
                    if not transient or time.monotonic() - since >= patience:
                        raise
                    await asyncio.sleep(min(MAX_BACKOFF, 0.1 * 2**failures))
            away = True
            self.counts["watch reconnects"] += 1

    async def _newest(self, resource: Resource, namespace: str | None) -> int:
        """Return the server's resource version now, from an empty list. Raises KubeError."""
        params = {"limit": "1"} | selectors("", "metadata.name=perfdag")
        page = await self.request("GET", resource.path(namespace), params=params)
        return int(page["metadata"].get("resourceVersion") or 0)

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
                )
            yield Event(change["type"], change["object"], received)

    async def _path(self, body: Object, namespace: str | None, *, named: bool) -> str:
        """Return the path of the object that `body` describes."""
        metadata = body.get("metadata") or {}
        resource = await self.resource(body["apiVersion"], body["kind"])
        place = namespace or metadata.get("namespace") or self.namespace
        return resource.path(place, metadata["name"] if named else None)

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
        path = await self._path(body, namespace, named=False)
        tally = Counter() if tally is None else tally
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
    ) -> Object:
        """Merge a patch into an object or its subresource and return it. Raises KubeError."""
        path = resource.path(namespace or self.namespace, name, subresource)
        return await self.request(
            "PATCH",
            path,
            json=patch,
            params={"fieldManager": FIELD_MANAGER},
            content_type=MERGE_PATCH,
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
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1"}
        body |= {"propagationPolicy": "Background"}
        body |= {} if grace is None else {"gracePeriodSeconds": grace}
        try:
            path = resource.path(namespace or self.namespace, name)
            await self.request("DELETE", path, json=body)
        except KubeError as error:
            if error.status == 404:
                return False
            raise
        return True


def _identity(item: Object) -> dict[str, tuple[str, str]]:
    """Return the namespace and the name of an object by its UID."""
    metadata = item["metadata"]
    return {metadata["uid"]: (metadata.get("namespace", ""), metadata["name"])}


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
            tls = tls_context(file=self.ca_file) if self.ca_file else True
            async with aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=60),
                headers={"Authorization": f"Bearer {token}"} if token else {},
                connector=aiohttp.TCPConnector(ssl=tls),
            ) as session:
                for name, params in queries.items():
                    url = f"{self.url.rstrip('/')}/api/v1/{path}"
                    async with session.get(url, params=params) as answer:
                        status = answer.status
                        if status in (401, 403):
                            text = f"Prometheus at {self.url} answers {status}"
                            hint = "it needs a token, which `scale` takes (--prometheus-token-file)"
                            raise KubeError(status, "Prometheus", text, hint)
                        body: dict[str, Any] = await answer.json(content_type=None)
                    if body.get("status") != "success":
                        why = f"refuses the query {name}: {body.get('error', status)}"
                        raise KubeError(0, "Refused", f"Prometheus at {self.url} {why}")
                    data[name] = body["data"]
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
            text = f"no answer from Prometheus at {self.url}: {error}"
            raise KubeError(0, "Unreachable", text, "check --prometheus") from None
        return data
