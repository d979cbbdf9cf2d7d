"""An in-memory Kubernetes API server: objects by path, selectors, patches, watches, and faults on
demand.

In process, `server.client()` is perfdag's own client without sockets. `served(server)` listens on
loopback, and `kubeconfig(server, ...)` does so in a thread of its own for code that reads
KUBECONFIG.
"""

import asyncio
import contextlib
import copy
import itertools
import json
import re
import ssl
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
import yaml
from aiohttp import web

from perfdag.kube.client import Cluster, Kube, Object

KINDS = {
    "v1": (
        "Namespace* Node* PersistentVolume* Pod Secret ServiceAccount ConfigMap "
        "PersistentVolumeClaim Service Event"
    ),
    "apps/v1": "Deployment DaemonSet ReplicaSet StatefulSet",
    "batch/v1": "Job CronJob",
    "autoscaling/v2": "HorizontalPodAutoscaler",
    "apiextensions.k8s.io/v1": "CustomResourceDefinition*",
    "argoproj.io/v1alpha1": "Workflow WorkflowTemplate CronWorkflow WorkflowTaskResult",
    "batch.volcano.sh/v1alpha1": "Job",
    "bus.volcano.sh/v1alpha1": "Command",
    "coordination.k8s.io/v1": "Lease",
    "discovery.k8s.io/v1": "EndpointSlice",
    "k8s.cni.cncf.io/v1": "NetworkAttachmentDefinition",
    "kubevirt.io/v1": "VirtualMachineInstance",
    "networking.k8s.io/v1": "NetworkPolicy",
    "ray.io/v1": "RayCluster",
    "rbac.authorization.k8s.io/v1": "Role RoleBinding ClusterRole* ClusterRoleBinding*",
    "scheduling.k8s.io/v1": "PriorityClass*",
    "scheduling.run.ai/v1": "PodGroup",
    "scheduling.run.ai/v2": "Queue*",
    "scheduling.run.ai/v2alpha2": "PodGroup",
    "scheduling.volcano.sh/v1beta1": "PodGroup Queue*",
    "storage.k8s.io/v1": "StorageClass* CSIDriver*",
}
"""The kinds that are served, by apiVersion; a star marks those of no namespace."""

REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
}


def plural(kind: str) -> str:
    name = kind.lower()
    return (
        f"{name[:-1]}ies"
        if name.endswith("y")
        else f"{name}es"
        if name.endswith("s")
        else f"{name}s"
    )


@dataclass(frozen=True)
class Request:
    """One request as the server read it."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None

    def __str__(self) -> str:
        query = "&".join(f"{key}={value}" for key, value in self.query.items())
        return f"{self.method} {self.path}{'?' if query else ''}{query}"


@dataclass
class Answer:
    """An HTTP answer; status 0 breaks the connection instead."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def data(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


def failure(status: int, message: str = "no", reason: str = "") -> Answer:
    """Return an answer with a Status; `status` 0 breaks the connection."""
    body = {
        "kind": "Status",
        "code": status,
        "reason": reason or REASONS.get(status, "Failure"),
        "message": message,
    }
    return Answer(status, body)


Hook = Callable[[Request], "Answer | Object | Awaitable[Answer | Object | None] | None"]


class ApiServer:
    """Serves `objects` and everything that is created; kinds in `absent` are not served.

    `requests` lists every request. An object with finalizers only gets a deletionTimestamp when it
    is deleted.
    """

    def __init__(
        self, *objects: Object, absent: tuple[str, ...] = (), namespace: str = "default"
    ) -> None:
        self.objects: dict[str, Object] = {}
        self.requests: list[Request] = []
        self.namespace, self._absent = namespace, absent
        self._kinds = {
            (api, kind.rstrip("*")): "*" not in kind
            for api, kinds in KINDS.items()
            for kind in kinds.split()
        }
        self._version = self._expired = 0
        self._events: list[tuple[str, Object, str]] = []
        self._watches: list[tuple[asyncio.AbstractEventLoop, asyncio.Queue[None]]] = []
        self._hooks: list[tuple[re.Pattern[str], Hook]] = []
        self.add(*objects)

    def add(self, *objects: Object) -> None:
        """Store objects as they are; the namespace is their own or the server's."""
        for body in objects:
            self._store(self.path(body), copy.deepcopy(body))

    def serve(self, *kinds: tuple[str, str]) -> None:
        """Serve more kinds, by apiVersion and kind, whose objects have a namespace."""
        for kind in kinds:
            self._kinds.setdefault(kind, True)

    def path(self, body: Object) -> str:
        """Return the path at which an object is stored; its kind is served from then on."""
        api, kind, meta = body.get("apiVersion", "v1"), body["kind"], body["metadata"]
        self.serve((api, kind))
        inside = (
            f"/namespaces/{meta.get('namespace') or self.namespace}"
            if self._kinds[api, kind]
            else ""
        )
        return f"{'/apis' if '/' in api else '/api'}/{api}{inside}/{plural(kind)}/{meta['name']}"

    def of(self, kind: str) -> list[Object]:
        """Return the objects of a kind."""
        return [body for path, body in self.objects.items() if path.split("/")[-2] == plural(kind)]

    def names(self, kind: str) -> list[str]:
        """Return the names of the objects of a kind."""
        return [body["metadata"]["name"] for body in self.of(kind)]

    def remove(self, *kinds: str) -> None:
        """Delete all objects of these kinds (without any: all objects)."""
        for path in [
            path for path in self.objects if not kinds or path.split("/")[-2] in map(plural, kinds)
        ]:
            self._drop(path)

    def collect_garbage(self) -> None:
        """Delete the objects whose owners are gone, as Kubernetes does some time later."""
        while True:
            uids = {body["metadata"]["uid"] for body in self.objects.values()}
            orphans = [
                path
                for path, body in self.objects.items()
                if (owners := body["metadata"].get("ownerReferences"))
                and not uids & {owner["uid"] for owner in owners}
            ]
            if not orphans:
                return
            for path in orphans:
                self._drop(path)

    def on(self, pattern: str, hook: Hook) -> None:
        """Call `hook` for requests that match `pattern` ("METHOD /path?query"), newest first.

        Its answer is sent instead of the server's own, unless it is None.
        """
        self._hooks.insert(0, (re.compile(pattern), hook))

    def fail(
        self, pattern: str, status: int = 503, message: str = "no", *, times: int = -1
    ) -> None:
        """Refuse the next `times` requests that match `pattern`, all of them by default; status
        0 breaks the connection.
        """
        left = itertools.count(times, -1)
        self.on(
            pattern, lambda _: failure(status, message) if times < 0 or next(left) > 0 else None
        )

    def count(self, pattern: str) -> int:
        """Return how many requests matched `pattern`."""
        return sum(1 for request in self.requests if re.search(pattern, str(request)))

    def expire(self) -> None:
        """Forget all changes: watches end with 410, those under way and those that begin at an
        older version.
        """
        self._expired = self._version
        self._wake()

    def bookmark(self) -> None:
        """Send a bookmark with a new version to all watches."""
        self._version += 1
        self._events.append(
            ("BOOKMARK", {"metadata": {"name": "", "resourceVersion": str(self._version)}}, "")
        )
        self._wake()

    async def answer(self, request: Request) -> Answer:
        """Answer one request that is no watch."""
        self.requests.append(request)
        for pattern, hook in self._hooks:
            if pattern.search(str(request)):
                result = hook(request)
                result = await result if isinstance(result, Awaitable) else result
                if result is not None:
                    return result if isinstance(result, Answer) else Answer(200, result)
        return self._answer(request)

    def _answer(self, request: Request) -> Answer:
        parts = request.path.strip("/").split("/")
        if request.path == "/version":
            return Answer(200, {"gitVersion": "v1.34.0"})
        if request.path == "/apis":
            groups = dict.fromkeys(api for api, _ in self._kinds if "/" in api)
            return Answer(
                200, {"groups": [{"preferredVersion": {"groupVersion": api}} for api in groups]}
            )
        api, rest = (
            ("/".join(parts[1:3]), parts[3:]) if parts[0] == "apis" else (parts[1], parts[2:])
        )
        if not rest:
            return self._discover(api)
        namespace, rest = (
            (rest[1], rest[2:]) if rest[0] == "namespaces" and len(rest) > 2 else ("", rest)
        )
        kind = next(
            (kind for known, kind in self._kinds if known == api and plural(kind) == rest[0]), None
        )
        if kind is None or kind in self._absent:
            return failure(404, f"{request.path}: the server could not find the requested resource")
        if len(rest) == 1:
            return self._collection(request, api, kind, namespace)
        prefix = request.path.rpartition("/")[0] if len(rest) > 2 else request.path
        return self._one(request, prefix, "/".join(rest[2:]))

    def _discover(self, api: str) -> Answer:
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        served = [
            (kind, inside)
            for (known, kind), inside in self._kinds.items()
            if known == api and kind not in self._absent
        ]
        entries = [
            {"name": plural(kind), "kind": kind, "namespaced": inside, "verbs": verbs}
            for kind, inside in served
        ]
        return Answer(200, {"resources": entries}) if entries else failure(404, f"no {api}")

    def _collection(self, request: Request, api: str, kind: str, namespace: str) -> Answer:
        if request.method == "POST":
            body = {"apiVersion": api, "kind": kind, **request.body}
            meta = body["metadata"] = {**body.get("metadata", {})}
            if namespace:
                meta["namespace"] = namespace
            if not meta.get("name"):
                meta["name"] = f"{meta['generateName']}{len(self.requests):05}"
            path = f"{request.path}/{meta['name']}"
            if path in self.objects:
                return failure(
                    409, f'{plural(kind)} "{meta["name"]}" already exists', "AlreadyExists"
                )
            if "dryRun" not in request.query:
                self._store(path, body)
            return Answer(201, copy.deepcopy(body))
        paths = [path for path, body in self.objects.items() if self._selected(request, path, body)]
        if request.method == "DELETE":
            for path in paths:
                self._delete(path)
            return Answer()
        items = [copy.deepcopy(self.objects[path]) for path in paths]
        return Answer(200, {"metadata": {"resourceVersion": str(self._version)}, "items": items})

    def _one(self, request: Request, path: str, subresource: str) -> Answer:
        name = path.rpartition("/")[2]
        there, content = self.objects.get(path), request.headers.get("Content-Type", "")
        if there is None and not ("apply" in content and request.method == "PATCH"):
            return failure(404, f'"{name}" not found')
        if request.method == "DELETE":
            self._delete(path)
        elif request.method == "PUT":
            version = request.body["metadata"].get("resourceVersion")
            if there and version not in (None, there["metadata"]["resourceVersion"]):
                return failure(409, "the object has been modified", "Conflict")
            self._store(path, request.body)
        elif request.method == "PATCH":
            changed, whole = (
                copy.deepcopy(there or {}),
                "apply" in content or subresource == "scale",
            )
            parts = {
                key: value
                for key, value in request.body.items()
                if whole or (key == "status") == (subresource == "status")
            }
            merge(changed, parts)
            if "dryRun" not in request.query:
                self._store(path, changed)
            return Answer(200, changed)
        return Answer(200, copy.deepcopy(self.objects.get(path, there)))

    def _selected(self, request: Request, path: str, body: Object) -> bool:
        at, _, _ = path.rpartition("/")
        inside = at if "/namespaces/" in request.path else re.sub(r"/namespaces/[^/]+(?=/)", "", at)
        labels, fields = (
            request.query.get("labelSelector", ""),
            request.query.get("fieldSelector", ""),
        )
        return (
            inside == request.path
            and selects(labels, body["metadata"].get("labels") or {})
            and has_fields(fields, body)
        )

    def _store(self, path: str, body: Object) -> None:
        old = self.objects.get(path)
        self._version += 1
        meta = body["metadata"] = {**body["metadata"], "resourceVersion": str(self._version)}
        meta.setdefault("uid", old["metadata"]["uid"] if old else f"uid-{self._version}")
        meta.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        self.objects[path] = body
        self._events.append(("MODIFIED" if old else "ADDED", copy.deepcopy(body), path))
        self._wake()

    def _delete(self, path: str) -> None:
        if self.objects[path]["metadata"].get("finalizers"):
            body = copy.deepcopy(self.objects[path])
            body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self._store(path, body)
            return
        self._drop(path)
        if re.fullmatch(r"/api/v1/namespaces/[^/]+", path):
            for inside in [
                at for at in self.objects if f"/namespaces/{path.rpartition('/')[2]}/" in at
            ]:
                self._drop(inside)

    def _drop(self, path: str) -> None:
        body = self.objects.pop(path)
        self._version += 1
        gone = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self._version)}}
        self._events.append(("DELETED", gone, path))
        self._wake()

    def _wake(self) -> None:
        for loop, queue in self._watches:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(queue.put_nowait, None)

    async def watch(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Give the lines of a watch, without end unless it expired."""
        queue: asyncio.Queue[None] = asyncio.Queue()
        entry = asyncio.get_running_loop(), queue
        self._watches.append(entry)
        version = int(request.query.get("resourceVersion") or self._version)
        try:
            while True:
                if version < self._expired:
                    gone = failure(410, "too old resource version").body
                    yield json.dumps({"type": "ERROR", "object": gone}).encode()
                    return
                for kind, body, path in list(self._events):
                    if int(body["metadata"]["resourceVersion"]) > version and (
                        not path or self._selected(request, path, body)
                    ):
                        version = int(body["metadata"]["resourceVersion"])
                        yield json.dumps({"type": kind, "object": body}).encode()
                await queue.get()
        finally:
            self._watches.remove(entry)

    def client(self, *_: Any, **options: Any) -> Kube:
        """Return perfdag's client of this server, in process and without retries unless they are
        asked for.
        """
        return _InProcess(self, **{"retries": 0, **options})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer over HTTP."""
        data = await request.read()
        call = Request(
            request.method,
            request.path,
            dict(request.query),
            dict(request.headers),
            json.loads(data) if data else None,
        )
        answer = await self.answer(call)
        if "watch" not in call.query or answer.status >= 300:
            if not answer.status and request.transport:
                request.transport.abort()
            return web.Response(
                body=answer.data(), status=answer.status or 500, headers=answer.headers
            )
        stream = web.StreamResponse()
        await stream.prepare(request)
        async with contextlib.aclosing(self.watch(call)) as lines:
            async for line in lines:
                await stream.write(line[:20])
                await asyncio.sleep(0)  # a change may come in two pieces
                await stream.write(line[20:] + b"\n")
        return stream


class _InProcess(Kube):
    """perfdag's client whose requests are answered without a connection."""

    def __init__(self, server: ApiServer, **options: Any) -> None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without the hundreds of CAs of a machine
        cluster = Cluster("http://fake", "fake", server.namespace, tls)
        super().__init__(cluster, **options)
        self.server = server

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is open."""

    @contextlib.asynccontextmanager
    async def _send(
        self, method: str, path: str, headers: Mapping[str, str], **options: Any
    ) -> AsyncIterator[Any]:
        content = json.loads(options["data"]) if options["data"] else None
        request = Request(method, path, options["params"] or {}, headers, content)
        answer = await self.server.answer(request)
        if not answer.status:
            raise ConnectionError(answer.body["message"])

        async def read() -> bytes:
            return answer.data()

        yield SimpleNamespace(status=answer.status, headers=answer.headers, read=read)


def selects(selector: str, labels: Mapping[str, str]) -> bool:
    """Return whether labels match a selector of `key`, `!key`, `key=value`, `key!=value` and
    `key in (a,b)`.
    """
    for term in filter(None, re.split(r",(?![^(]*\))", selector)):
        if match := re.fullmatch(r"(\S+) in \((.*)\)", term.strip()):
            holds = labels.get(match[1]) in [value.strip() for value in match[2].split(",")]
        elif "!=" in term:
            key, _, value = term.partition("!=")
            holds = labels.get(key) != value
        elif "=" in term:
            key, _, value = term.replace("==", "=").partition("=")
            holds = labels.get(key) == value
        else:
            holds = (term.lstrip("!") in labels) != term.startswith("!")
        if not holds:
            return False
    return True


def has_fields(selector: str, body: Object) -> bool:
    """Return whether an object matches a field selector of `path=value` and `path!=value`."""
    for term in filter(None, selector.split(",")):
        path, negated, expected = re.split(r"(!?)==?", term, maxsplit=1)
        value: Any = body
        for key in path.split("."):
            value = (value or {}).get(key)
        if (str(value or "") == expected) == bool(negated):
            return False
    return True


def merge(into: Object, patch: Object) -> None:
    """Carry out a JSON merge patch (RFC 7386)."""
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            if not isinstance(into.get(key), dict):
                into[key] = {}
            merge(into[key], value)
        else:
            into[key] = value


Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def served(server: ApiServer | Handle) -> AsyncIterator[Cluster]:
    """Serve on loopback in this event loop; a plain handler answers every request itself."""
    app = web.Application()
    app.router.add_route(
        "*", "/{tail:.*}", server.handle if isinstance(server, ApiServer) else server
    )
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield Cluster(f"http://127.0.0.1:{runner.addresses[0][1]}", "fake", "default")
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def client(server: ApiServer | Handle) -> AsyncIterator[Kube]:
    """Serve on loopback and give a client."""
    async with served(server) as cluster, Kube(cluster) as kube:
        yield kube


@contextlib.contextmanager
def kubeconfig(server: ApiServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve in a thread, with a kubeconfig in `folder` that KUBECONFIG names."""
    ready, loop, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    clusters: list[Cluster] = []

    async def serve() -> None:
        async with served(server) as cluster:
            clusters.append(cluster)
            ready.set()
            await stop.wait()

    def work() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            loop.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    ready.wait()
    document = {
        "current-context": "one",
        "clusters": [{"name": "one", "cluster": {"server": clusters[0].server}}],
        "users": [{"name": "one", "user": {"token": "t"}}],
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
    }
    (folder / "config").write_text(yaml.safe_dump(document))
    monkeypatch.setenv("KUBECONFIG", str(folder / "config"))
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
