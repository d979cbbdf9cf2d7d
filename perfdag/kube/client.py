"""The Kubernetes client of perfdag: asynchronous, raw JSON, one pooled session.

    async with Kube() as kube:
        async for event in kube.watch("v1/Pod", "default", labels="app=web"):
            ...

A kind of objects is named by its API version and kind: `v1/Pod`, `batch/v1/Job`. Synchronous code
calls `run_with_client(work)`. Every failure is a KubeError of one line. The cluster and the user
come from a kubeconfig file, or from the service account of the pod.
API conventions: https://kubernetes.io/docs/reference/using-api/api-concepts/
Kubeconfig: https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/
"""

import asyncio
import base64
import os
import random
import ssl
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Self, TypeVar, cast
from urllib.parse import urlsplit

import aiohttp
import orjson

from perfdag.problems import PerfdagError
from perfdag.signals import EXIT_REACH

T = TypeVar("T")
Object = dict[str, Any]
"""A Kubernetes object, or a part of one, as its JSON."""
Objects = list[Object]
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
IN_POD = "in-cluster"
"""`Cluster.context` without a kubeconfig."""


class KubeError(PerfdagError):
    """An error of the cluster or of the connection, in one line that says what to do.

    `status` is the HTTP status, or 0 without an answer. `reason` is the API server's word
    (NotFound, Forbidden, AlreadyExists ...), `Config`, or the name of a connection's exception.
    `repeated` tells that an earlier try of the same request had no answer, so that the server may
    have carried it out.
    """

    exit_code = EXIT_REACH
    repeated = False

    def __init__(self, status: int, reason: str, message: str, hint: str = "") -> None:
        self.status = status
        self.reason = reason
        self.message = message
        super().__init__(f"{message}; {hint}" if hint else message)

    @property
    def transient(self) -> bool:
        """Whether the next try may succeed."""
        return self.status in (0, 429) or self.status >= 500


def status_of(body: Object) -> Object:
    """Return the status of an object, empty where it has none yet."""
    return body.get("status") or {}


def annotations_of(body: Object) -> Object:
    """Return the annotations of an object, empty where it has none."""
    return body["metadata"].get("annotations") or {}


@contextmanager
def ignore_status(*statuses: int) -> Iterator[None]:
    """Suppress a KubeError with one of these HTTP statuses, as contextlib.suppress does."""
    try:
        yield
    except KubeError as error:
        if error.status not in statuses:
            raise


def tls_context(ca: str | None = None, *, insecure: bool = False) -> ssl.SSLContext:
    """Return the TLS context for a CA in PEM, or for the system's.

    Python 3.13 refuses a CA without the key usage extension by default. Go, and so kubectl,
    accepts it, and many clusters have such a CA. Raises OSError.
    """
    context = ssl.create_default_context(cadata=ca)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@dataclass
class Cluster:
    """An API server and how to connect to it.

    `server` has no trailing slash. `namespace` is that of the context. `expires` is when the
    credential plugin has to be asked again, in seconds since the epoch. `login` is
    `name:password` of a server with basic authentication, which no API server has.
    """

    server: str
    context: str
    namespace: str
    tls: ssl.SSLContext = field(default_factory=tls_context)
    token: str = ""
    token_file: Path | None = None
    login: str = ""
    plugin: dict[str, Any] | None = None
    server_name: str | None = None
    proxy: str | None = None
    expires: float = 0.0

    def header(self) -> dict[str, str]:
        """Return the Authorization header, or nothing for a client certificate.

        Every request has one: the kubelet renews a token file, and a plugin's token expires. Raises
        KubeError, and OSError if the token file cannot be read.
        """
        if self.token_file:
            self.token = self.token_file.read_text().strip()
        elif self.plugin and time.time() >= self.expires:
            self._run_plugin(self.plugin)
        elif self.login:
            return {"Authorization": "Basic " + base64.b64encode(self.login.encode()).decode()}
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def _run_plugin(self, plugin: dict[str, Any]) -> None:
        """Take what an exec credential plugin (argv, never a shell) prints.

        A token without a time of expiry is used for ten minutes.
        """
        extra = {entry["name"]: entry["value"] for entry in plugin.get("env") or []}
        request = {
            "apiVersion": plugin.get("apiVersion"),
            "kind": "ExecCredential",
            "spec": {"interactive": False},
        }
        info = orjson.dumps(request).decode()
        try:
            done = subprocess.run(
                [plugin["command"], *(plugin.get("args") or [])],
                env={**os.environ, **extra, "KUBERNETES_EXEC_INFO": info},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=True,
                timeout=60,
            )
            status = orjson.loads(done.stdout)["status"]
            self.token = status.get("token", "")
            if "clientCertificateData" in status:
                _present(self.tls, status["clientCertificateData"], status["clientKeyData"])
            end = status.get("expirationTimestamp")
            self.expires = (
                datetime.fromisoformat(end).timestamp() - 10 if end else time.time() + 600
            )
        except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
            printed = (getattr(error, "stderr", None) or b"").decode(errors="replace").split()
            text = " ".join([f"the credential plugin gives no token: {error}:", *printed])
            hint = plugin.get("installHint") or "run it by hand; it may want a login"
            raise KubeError(0, "Config", text[:500].rstrip(": "), hint) from None


def _present(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Present a client certificate. The ssl module reads it from a file only, of mode 0600."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(f"{certificate}\n{key}")
        file.flush()
        context.load_cert_chain(file.name)


def load_config() -> Cluster:
    """Return the cluster of KUBECONFIG, or of ~/.kube/config, or the cluster of this pod.

    Raises KubeError with the file and what it lacks.
    """
    configured = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    if files := [file for file in map(Path, configured.split(os.pathsep)) if file.is_file()]:
        return _from_files(files)
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    token = SERVICE_ACCOUNT / "token"
    if os.environ.get("KUBECONFIG") or not host or not token.is_file():
        raise KubeError(
            0,
            "Config",
            f"no cluster: no kubeconfig at {configured}, and not in a pod",
            "set KUBECONFIG=/path/to/kubeconfig",
        )
    host = f"[{host}]" if ":" in host else host
    return Cluster(
        server=f"https://{host}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}",
        context=IN_POD,
        namespace=(SERVICE_ACCOUNT / "namespace").read_text().strip(),
        tls=tls_context((SERVICE_ACCOUNT / "ca.crt").read_text()),
        token_file=token,
    )


def _from_files(paths: list[Path]) -> Cluster:
    """Return the cluster of the current context of kubeconfig files. Raises KubeError.

    The first file that has a name wins, as for kubectl. Paths in a file are relative to it.
    """
    import yaml

    where = os.pathsep.join(map(str, paths))
    try:
        documents = [yaml.load(path.read_text(), yaml.CSafeLoader) or {} for path in paths]
        name = next(filter(None, (item.get("current-context") for item in documents)), None)
        if not name:
            raise KubeError(
                0,
                "Config",
                f"{where} has no current-context",
                "choose one with `kubectl config use-context`",
            )
        entries = _named_entries(documents, paths)
        context = entries[f"context {name}"]
        cluster = entries[f"cluster {context['cluster']}"]
        user = entries[f"user {context['user']}"] if context.get("user") else {}
        tls = tls_context(
            _pem(cluster, "certificate-authority"),
            insecure=bool(cluster.get("insecure-skip-tls-verify")),
        )
        if certificate := _pem(user, "client-certificate"):
            _present(tls, certificate, _pem(user, "client-key") or "")
        if (plugin := user.get("exec")) and os.sep in plugin["command"]:
            plugin = plugin | {"command": str(user["folder"] / plugin["command"])}
        return Cluster(
            server=cluster["server"].rstrip("/"),
            context=name,
            namespace=context.get("namespace") or "default",
            tls=tls,
            token=user.get("token") or "",
            token_file=user["folder"] / user["tokenFile"] if user.get("tokenFile") else None,
            plugin=plugin,
            server_name=cluster.get("tls-server-name"),
            proxy=cluster.get("proxy-url") or _environment_proxy(cluster["server"]),
        )
    except LookupError as error:
        raise KubeError(0, "Config", f"the kubeconfig {where} has no {error}") from None
    except (OSError, ValueError, AttributeError, TypeError, yaml.YAMLError) as error:
        text = " ".join(f"cannot read the kubeconfig {where}: {error}".split())
        raise KubeError(0, "Config", text) from None


def _named_entries(
    documents: Iterable[dict[str, Any]], paths: Iterable[Path]
) -> dict[str, dict[str, Any]]:
    """Return the entries of kubeconfig documents by kind and name, such as `user admin`."""
    entries: dict[str, dict[str, Any]] = {}
    for document, path in zip(documents, paths, strict=True):
        for kind in ("cluster", "context", "user"):
            for entry in document.get(f"{kind}s") or []:
                values = {**(entry.get(kind) or {}), "folder": path.parent}
                entries.setdefault(f"{kind} {entry['name']}", values)
    return entries


def _pem(entry: dict[str, Any], key: str) -> str | None:
    """Return a certificate or key that is inline (`<key>-data`, base64) or in a file."""
    if data := entry.get(f"{key}-data"):
        return base64.b64decode(data, validate=True).decode()
    return (entry["folder"] / entry[key]).read_text() if entry.get(key) else None


def _environment_proxy(server: str) -> str | None:
    """Return the proxy of the environment for this server.

    NO_PROXY lists names, suffixes, addresses and CIDRs, as in Go.
    """
    from urllib.request import getproxies, proxy_bypass

    url = urlsplit(server)
    proxies = getproxies()
    host = url.hostname or ""
    direct = host == "localhost" or bool(proxy_bypass(host))
    with suppress(ValueError):  # a name is no address
        address = ip_address(host)
        excluded = (part.strip() for part in proxies.get("no", "").split(",") if "/" in part)
        networks = (ip_network(part, strict=False) for part in excluded)
        direct |= address.is_loopback or any(address in network for network in networks)
    return None if direct else proxies.get(url.scheme)


class Kube:
    """A client of one API server, as an async context manager.

    `connections` limits the requests in flight, apart from watches and logs. `timeout` is in
    seconds for one request. `retries` is the number of retries after 429, 5xx, a timeout or a
    broken connection. `counts` counts retries by cause, and watches that broke. `date` is the Date
    header of the last answer.
    """

    def __init__(
        self,
        cluster: Cluster | None = None,
        *,
        connections: int = 100,
        timeout: float = 30.0,
        retries: int = 6,
    ) -> None:
        self.cluster = cluster or load_config()
        self.counts: Counter[str] = Counter()
        self._slots = asyncio.Semaphore(connections)
        self._timeout = timeout
        self._retries = retries
        self._served: dict[str, Object] = {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self.cluster.tls, limit=0),
            headers={"User-Agent": "perfdag", "Accept-Encoding": "identity"},
            timeout=aiohttp.ClientTimeout(),  # `request` has one for the whole request
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Object:
        """Send a request with a JSON body, and return the JSON of a 2xx answer.

        429, 5xx, a timeout and a broken connection are retried, after the Retry-After of the
        server. `headers` are added, and the API server's proxy forwards them. Raises KubeError for
        any other answer.
        """
        body = None if json is None else orjson.dumps(json)
        headers = {"Content-Type": "application/json", **(headers or {})}
        tries = 0
        unanswered = False
        while True:
            after = ""
            try:
                async with (
                    self._slots,
                    asyncio.timeout(self._timeout),
                    self._send(method, path, headers, params=params, data=body) as answer,
                ):
                    data = await answer.read()
                self.date = answer.headers.get("Date", "")
                if answer.status < 300:
                    return cast(Object, orjson.loads(data))
                error = _refused(answer.status, f"{method} {path}", data)
                after = answer.headers.get("Retry-After", "")
            except (aiohttp.ClientError, OSError) as broken:
                error = self._unreachable(broken)
            if tries >= self._retries or not error.transient:
                error.repeated = unanswered
                raise error
            self.counts[f"retry {error.status or error.reason}"] += 1
            # A server that answers 429 did nothing. After any other error it may have.
            unanswered |= error.status != 429
            pause = min(10.0, 0.2 * 2**tries) * random.uniform(0.5, 1.0)
            if after.isdecimal():
                pause = max(pause, min(60.0, float(after)))
            await asyncio.sleep(pause)
            tries += 1

    def _send(
        self, method: str, path: str, headers: Mapping[str, str], **options: Any
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        cluster = self.cluster
        return self._session.request(
            method,
            cluster.server + path,
            headers={**cluster.header(), **headers},
            proxy=cluster.proxy,
            server_hostname=cluster.server_name,
            **options,
        )

    def _unreachable(self, error: Exception) -> KubeError:
        cause = str(error) or f"none in {self._timeout:g} s"
        return KubeError(
            0,
            type(error).__name__,
            f"no answer from {self.cluster.server}: {cause}",
            f"is the cluster up, and is context {self.cluster.context!r} the right one?",
        )

    async def lines(
        self, path: str, params: Mapping[str, str] | None = None, silence: float = 60.0
    ) -> AsyncIterator[tuple[bytes, int]]:
        """Yield the lines of an answer as they arrive, with the monotonic time of arrival in ns.

        `silence` is in seconds: how long the server may send nothing. Raises KubeError.
        """
        patience = aiohttp.ClientTimeout(sock_connect=self._timeout, sock_read=silence)
        options = {"params": params, "timeout": patience, "read_bufsize": 2**20}
        try:
            async with self._send("GET", path, {}, **options) as answer:
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

    async def path(
        self, kind: str, namespace: str | None = None, name: str = "", subresource: str = ""
    ) -> str:
        """Return the URL path of the objects of a kind, or of one of them.

        Without a namespace it is that of all namespaces, or of one object in the context's. Raises
        KubeError (404, `NoKind`) if the cluster does not serve the kind.
        """
        namespace = namespace or (self.cluster.namespace if name else None)
        version = kind.rpartition("/")[0]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if kind not in self._served:
            with ignore_status(404):
                for resource in (await self.request("GET", root))["resources"]:
                    if "/" not in resource["name"]:  # else a subresource
                        self._served[f"{version}/{resource['kind']}"] = resource
        served = self._served.get(kind)
        if served is None:
            raise KubeError(
                404,
                "NoKind",
                f"the cluster does not serve {kind}",
                "check both, or install its CustomResourceDefinition first",
            )
        where = ("namespaces", namespace) if served["namespaced"] and namespace else ()
        return "/".join(filter(None, (root, *where, served["name"], name, subresource)))

    async def list(
        self, kind: str, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Objects:
        """Return the objects of a kind, over all namespaces by default. Raises KubeError."""
        path = await self.path(kind, namespace)
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        return cast(Objects, (await self.request("GET", path, params=selectors))["items"] or [])

    async def list_readable(
        self, kind: str, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Objects | None:
        """Return the objects of a kind; None where it does not exist or may not be listed.

        Raises KubeError.
        """
        with ignore_status(403, 404):
            return await self.list(kind, namespace, labels=labels, fields=fields)
        return None

    async def logs(
        self, pod: str, namespace: str, *, tail: int | None = None
    ) -> AsyncIterator[str]:
        """Yield the lines of the log of the container `main`. Raises KubeError."""
        params = {"container": "main"} | ({} if tail is None else {"tailLines": str(tail)})
        async for line, _ in self.lines(f"/api/v1/namespaces/{namespace}/pods/{pod}/log", params):
            yield line.decode(errors="replace")

    async def watch(
        self,
        kind: str,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        patience: float = 60.0,
    ) -> AsyncIterator[tuple[str, Object, int]]:
        """Yield the present objects and a BOOKMARK, then every change, across reconnects.

        Each is ADDED, MODIFIED, DELETED or BOOKMARK, the object, and time.monotonic_ns() at arrival
        or 0 for what comes from a list, since the change may be older. After a 410 or a broken
        connection the objects are listed again, and those that disappeared are DELETED with a part
        of their metadata. Raises KubeError for a permanent error, and after `patience` seconds in
        which no list was answered.
        """
        path = await self.path(kind, namespace)
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        present: dict[str, Object] = {}
        version = ""
        failing_since = 0.0
        while True:
            try:
                if not version:
                    listed = await self.request("GET", path, params=selectors)
                    before = present
                    present = {}
                    for item in listed["items"] or []:
                        present[item["metadata"]["uid"]] = _identity(item)
                        yield "ADDED", item, 0
                    for uid in before.keys() - present.keys():
                        yield "DELETED", before[uid], 0
                    version = listed["metadata"]["resourceVersion"]
                    failing_since = 0.0
                    yield "BOOKMARK", {"metadata": listed["metadata"]}, 0
                # The server sends a bookmark a minute, whose version is newer than that of the
                # last change. Without them a quiet watch would resume at a version that is gone.
                params = {"resourceVersion": version, "watch": "1", "allowWatchBookmarks": "true"}
                async for line, received in self.lines(path, selectors | params, 300.0):
                    event = orjson.loads(line)
                    body = event["object"]
                    if event["type"] == "ERROR":
                        raise KubeError(body["code"], body["reason"], body["message"])
                    version = body["metadata"]["resourceVersion"]
                    if event["type"] == "DELETED":
                        present.pop(body["metadata"]["uid"], None)
                    elif event["type"] != "BOOKMARK":
                        present[body["metadata"]["uid"]] = _identity(body)
                    yield event["type"], body, received
            except KubeError as error:
                version = ""
                failing_since = failing_since or time.monotonic()
                patient = time.monotonic() - failing_since < patience
                # 410: the server has forgotten this version, which a new list mends.
                if error.status != 410 and not (error.transient and patient):
                    raise
                self.counts["watches broken"] += 1
                await asyncio.sleep(random.uniform(0.2, 1.0))

    async def _collection(self, body: Object, namespace: str | None) -> str:
        """Return the path of the collection of the object that `body` describes."""
        namespace = namespace or body["metadata"].get("namespace") or self.cluster.namespace
        return await self.path(f"{body['apiVersion']}/{body['kind']}", namespace)

    async def get(self, kind: str, name: str, namespace: str | None = None) -> Object:
        """Return one object. Raises KubeError (404 if it does not exist)."""
        return await self.request("GET", await self.path(kind, namespace, name))

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
        params = {"fieldManager": "perfdag", "force": "true"}
        params |= {"dryRun": "All"} if dry_run else {}
        return await self.request(
            "PATCH",
            path,
            json=body,
            params=params,
            headers={"Content-Type": "application/apply-patch+yaml"},
        )

    async def patch(
        self,
        kind: str,
        name: str,
        patch: Any,
        namespace: str | None = None,
        *,
        subresource: str = "",
    ) -> Object:
        """Merge a patch into an object or its subresource and return it. Raises KubeError."""
        path = await self.path(kind, namespace, name, subresource)
        return await self.request(
            "PATCH", path, json=patch, headers={"Content-Type": "application/merge-patch+json"}
        )

    async def delete(
        self, kind: str, name: str, namespace: str | None = None, *, grace: int | None = None
    ) -> None:
        """Delete an object if it exists. Does not wait until it is removed.

        `grace` is in seconds; by default it is the object's. Raises KubeError.
        """
        # Jobs would orphan their pods by default.
        body = {"gracePeriodSeconds": grace, "propagationPolicy": "Background"}
        path = await self.path(kind, namespace, name)
        with ignore_status(404):
            await self.request("DELETE", path, json=body)


def _refused(status: int, call: str, data: bytes) -> KubeError:
    try:
        details = orjson.loads(data)
        message = details["message"]
        reason = details["reason"]
    except (ValueError, LookupError, TypeError):  # not the API server's words
        reason = f"HTTP {status}"
        message = f"{call}: {reason} {data[:200].decode(errors='replace')}"
    # A program behind the API server's proxy has a login of its own.
    by_api_server = "/proxy/" not in call
    hint = "log in again, or choose another context" if status == 401 and by_api_server else ""
    return KubeError(status, reason, " ".join(message.split()), hint)


def _identity(item: Object) -> Object:
    """Return the part of an object that tells whose it is."""
    names = ("namespace", "name", "uid", "ownerReferences")
    return {"metadata": {key: value for key, value in item["metadata"].items() if key in names}}


def run_with_client(work: Callable[[Kube], Awaitable[T]], **options: Any) -> T:
    """Open a client with `options`, await `work(kube)` and close the client.

    Raises KubeError and what `work` raises.
    """

    async def main() -> T:
        async with Kube(**options) as kube:
            return await work(kube)

    return asyncio.run(main())
