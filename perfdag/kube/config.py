"""The cluster and the user, from a kubeconfig file or from the service account of the pod.

Nothing here uses the network. Format:
https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/
"""

import asyncio
import base64
import binascii
import json
import os
import ssl
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


class KubeError(Exception):
    """An error of the cluster or of the connection, in one line that says what to do.

    `status` is the HTTP status, or 0 without an answer. `reason` is the API server's word
    (NotFound, Forbidden, AlreadyExists ...), `Config` or `Unreachable`. `details` is the server's
    Status object if there is one.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        hint: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        self.status, self.reason, self.message, self.hint = status, reason, message, hint
        self.details = dict(details or {})
        super().__init__(f"{message}; {hint}" if hint else message)


@contextmanager
def ignore_status(*statuses: int) -> Iterator[None]:
    """Suppress a KubeError with one of these HTTP statuses, as contextlib.suppress does."""
    try:
        yield
    except KubeError as error:
        if error.status not in statuses:
            raise


def config_error(message: str, hint: str = "") -> KubeError:
    """Return the error for a kubeconfig that cannot be used."""
    return KubeError(0, "Config", message, hint)


TOKEN_LIFE = 60.0
"""Seconds after which a token file is read again, as the kubelet renews it."""


@dataclass
class Credentials:
    """Credentials of a user.

    Every request calls `header`, which reads files or runs a plugin only when the token expires.
    """

    token: str = ""
    token_file: Path | None = None
    plugin: dict[str, Any] | None = None
    expires: float = 0.0
    certificate: tuple[str, str] | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def header(self) -> str:
        """Return the Authorization header, or an empty text for a client certificate.

        Raises KubeError.
        """
        if (self.token_file or self.plugin) and time.time() >= self.expires:
            async with self._lock:
                if time.time() >= self.expires:
                    await self._refresh()
        return f"Bearer {self.token}" if self.token else ""

    def forget(self) -> bool:
        """Drop a token that the server refused. Return whether there can be another one."""
        self.expires = 0.0
        return bool(self.token_file or self.plugin)

    async def _refresh(self) -> None:
        if self.token_file:
            try:
                self.token = self.token_file.read_text().strip()
            except OSError as error:
                raise config_error(
                    f"cannot read the token file {self.token_file}: {error.strerror}"
                ) from None
            self.expires = time.time() + TOKEN_LIFE
        elif self.plugin:
            status = await _run_plugin(self.plugin)
            self.token = status.get("token", "")
            if "clientCertificateData" in status:
                self.certificate = (
                    status["clientCertificateData"],
                    status.get("clientKeyData", ""),
                )
            until = status.get("expirationTimestamp")
            self.expires = datetime.fromisoformat(until).timestamp() - 10 if until else float("inf")


async def _run_plugin(plugin: dict[str, Any]) -> dict[str, Any]:
    """Run an exec credential plugin (argv, never a shell) and return the `status` it prints."""
    argv = [plugin["command"], *(plugin.get("args") or [])]
    extra = {entry["name"]: entry["value"] for entry in plugin.get("env") or []}
    info = {
        "apiVersion": plugin["apiVersion"],
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }
    environment = {**os.environ, **extra, "KUBERNETES_EXEC_INFO": json.dumps(info)}
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError:
        raise config_error(
            f"the credential plugin {argv[0]!r} cannot be run",
            plugin.get("installHint") or "install it or use another context",
        ) from None
    try:
        out, err = await asyncio.wait_for(process.communicate(), 60)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise config_error(
            f"the credential plugin {argv[0]!r} gave no answer in 60 s",
            "run it by hand; it may want a login",
        ) from None
    if process.returncode:
        last = err.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise config_error(
            f"the credential plugin {argv[0]!r} ended with {process.returncode}: {last[0]}"
        )
    try:
        status: dict[str, Any] = json.loads(out)["status"]
    except (ValueError, KeyError, TypeError):
        raise config_error(f"the credential plugin {argv[0]!r} printed no ExecCredential") from None
    return status


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

IN_POD = "the service account"
"""`Cluster.source` without a kubeconfig."""

pod_token = ""
"""The token of the pod's service account, in a process that has deleted the file."""


def keep_token(token: str) -> None:
    """Use this token of the pod's service account, whose file is to be deleted."""
    global pod_token
    pod_token = token


def tls_context(file: str | None = None, data: str | None = None) -> ssl.SSLContext:
    """Return a context that trusts a cluster's CA, or the system's without one.

    Python 3.13 refuses a CA without the key usage extension by default. Go, and so kubectl,
    accepts it, and many clusters have such a CA. Raises ssl.SSLError, and OSError for a file.
    """
    context = ssl.create_default_context(cafile=file, cadata=data)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


@dataclass
class Cluster:
    """An API server and how to connect to it.

    `server` has no trailing slash. `namespace` is that of the context. `current` tells whether the
    context is the current one, which other programs use by default.
    """

    server: str
    context: str
    namespace: str
    credentials: Credentials
    source: str
    ca: str | None = None
    insecure: bool = False
    server_name: str | None = None
    proxy: str | None = None
    client_pem: tuple[str, str] | None = None
    current: bool = True

    def tls(self) -> ssl.SSLContext | bool:
        """Return the TLS context of a connection, or False for plain HTTP.

        Raises KubeError for a certificate that cannot be read.
        """
        if not self.server.startswith("https:"):
            return False
        try:
            context = tls_context(data=self.ca)
        except ssl.SSLError as error:
            raise config_error(
                f"the CA certificate of {self.source} cannot be read: {error.reason}"
            ) from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        pem = self.credentials.certificate or self.client_pem
        if pem:
            # The ssl module reads a key from a file only. The mode of the file is 0600.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(pem[0].rstrip("\n") + "\n" + pem[1])
                file.flush()
                try:
                    context.load_cert_chain(file.name)
                except (ssl.SSLError, OSError) as error:
                    raise config_error(
                        f"the client certificate or key of {self.source} cannot be read: {error}"
                    ) from None
        return context


def load_config(context: str | None = None) -> Cluster:
    """Return the cluster of KUBECONFIG, or of ~/.kube/config, or the cluster of this pod.

    `context` overrides the current context. Raises KubeError with the file and what it lacks.
    """
    configured = os.environ.get("KUBECONFIG") or ""
    paths = [Path(part) for part in configured.split(os.pathsep) if part] or [
        Path.home() / ".kube" / "config"
    ]
    files = [path for path in paths if path.is_file()]
    if files:
        return _from_files(files, context)
    if configured:
        raise config_error(f"no kubeconfig at {configured}", "set KUBECONFIG to an existing file")
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    token = pod_token
    if in_pod and (token or (SERVICE_ACCOUNT / "token").is_file()):
        return _in_pod(token)
    raise config_error(
        "no cluster: no KUBECONFIG, no ~/.kube/config, and not in a pod",
        "set KUBECONFIG=/path/to/kubeconfig",
    )


def _in_pod(token: str) -> Cluster:
    host, port = (
        os.environ["KUBERNETES_SERVICE_HOST"],
        os.environ.get("KUBERNETES_SERVICE_PORT", "443"),
    )
    server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    name, ca = SERVICE_ACCOUNT / "namespace", SERVICE_ACCOUNT / "ca.crt"
    return Cluster(
        server=server,
        context="in-cluster",
        namespace=name.read_text().strip() if name.is_file() else "default",
        credentials=Credentials(token=token, expires=float("inf"))
        if token
        else Credentials(token_file=SERVICE_ACCOUNT / "token"),
        source=IN_POD,
        ca=ca.read_text() if ca.is_file() else None,
    )


def _from_files(paths: list[Path], context: str | None) -> Cluster:
    """Merge kubeconfig files as kubectl does.

    The first file that defines a name wins. Relative paths are relative to their file.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    groups: dict[str, dict[str, tuple[dict[str, Any], Path]]] = {
        "clusters": {},
        "users": {},
        "contexts": {},
    }
    current = ""
    for path in paths:
        try:
            document = yaml.load(path.read_text(), loader) or {}
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise config_error(
                f"cannot read the kubeconfig {path}: {' '.join(str(error).split())}"
            ) from None
        if not isinstance(document, dict):
            raise config_error(f"{path} is not a kubeconfig")
        current = current or document.get("current-context") or ""
        for group, entries in groups.items():
            for entry in document.get(group) or []:
                entries.setdefault(entry.get("name", ""), (entry.get(group[:-1]) or {}, path))
    name = context or current
    where = os.pathsep.join(map(str, paths))
    if not name:
        raise config_error(
            f"{where} has no current-context",
            "choose one with --context or `kubectl config use-context`",
        )
    selected, _ = _named(groups["contexts"], name, "context", where)
    server, server_file = _named(groups["clusters"], selected.get("cluster", ""), "cluster", where)
    user, user_file = (
        _named(groups["users"], selected["user"], "user", where)
        if selected.get("user")
        else ({}, paths[0])
    )
    if not server.get("server"):
        raise config_error(f"cluster {selected.get('cluster')!r} in {where} has no server")
    address = server["server"].rstrip("/")
    certificate = _pem(user, "client-certificate", user_file), _pem(user, "client-key", user_file)
    return Cluster(
        server=address,
        context=name,
        namespace=selected.get("namespace") or "default",
        credentials=_credentials(user, user_file),
        source=where,
        ca=_pem(server, "certificate-authority", server_file),
        insecure=bool(server.get("insecure-skip-tls-verify")),
        server_name=server.get("tls-server-name"),
        proxy=server.get("proxy-url") or _environment_proxy(address),
        client_pem=(certificate[0], certificate[1] or "") if certificate[0] else None,
        current=name == current,
    )


def _named(
    entries: dict[str, tuple[dict[str, Any], Path]], name: str, what: str, where: str
) -> tuple[dict[str, Any], Path]:
    if name not in entries:
        raise config_error(
            f"no {what} {name!r} in {where}", f"it has: {', '.join(sorted(entries)) or 'none'}"
        )
    return entries[name]


def _credentials(user: dict[str, Any], path: Path) -> Credentials:
    if plugin := user.get("exec"):
        if "command" not in plugin or "apiVersion" not in plugin:
            raise config_error(f"the exec plugin in {path} has no command or no apiVersion")
        command = plugin["command"]
        if os.sep in command and not Path(command).is_absolute():
            plugin = {**plugin, "command": str(path.parent / command)}
        return Credentials(plugin=plugin)
    if token := user.get("token"):
        return Credentials(token=token, expires=float("inf"))
    if file := user.get("tokenFile"):
        return Credentials(token_file=path.parent / file)
    return Credentials()


def _pem(entry: dict[str, Any], key: str, path: Path) -> str | None:
    """Return a certificate or key that is inline (`<key>-data`, base64) or in a file."""
    if data := entry.get(f"{key}-data"):
        try:
            return base64.b64decode(data, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError, TypeError, ValueError):
            raise config_error(f"{key}-data in {path} is not base64 of a PEM text") from None
    if file := entry.get(key):
        try:
            return (path.parent / str(file)).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise config_error(f"{key} of {path} cannot be read: {error}") from None
    return None


def _environment_proxy(server: str) -> str | None:
    """Return the proxy of the environment for this server.

    NO_PROXY lists names, suffixes, addresses and CIDRs, as in Go.
    """
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(server)
    host = parts.hostname or ""
    proxy: str | None = getproxies().get(parts.scheme)
    if not proxy or host == "localhost" or proxy_bypass(host):
        return None
    try:
        address = ip_address(host)
    except ValueError:
        return proxy
    if address.is_loopback:
        return None
    for entry in (os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or "").split(","):
        try:
            if address in ip_network(entry.strip(), strict=False):
                return None
        except ValueError:
            continue
    return proxy
