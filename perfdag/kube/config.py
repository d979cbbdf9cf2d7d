"""The cluster and the user, from a kubeconfig file or from the service account of the pod.

Nothing here uses the network. Format:
https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/
"""

import asyncio
import base64
import json
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


class KubeError(Exception):
    """An error of the cluster or of the connection, in one line that says what to do.

    `status` is the HTTP status, or 0 without an answer. `reason` is the API server's word
    (NotFound, Forbidden, AlreadyExists ...), `Config` or `Unreachable`.
    """

    def __init__(self, status: int, reason: str, message: str, hint: str = "") -> None:
        self.status, self.reason, self.message = status, reason, message
        super().__init__(f"{message}; {hint}" if hint else message)

    @property
    def transient(self) -> bool:
        """Whether the next try may succeed."""
        return self.reason != "Certificate" and (self.status in (0, 429) or self.status >= 500)


def config_error(message: str, hint: str = "") -> KubeError:
    """Return the error for a kubeconfig that cannot be used."""
    return KubeError(0, "Config", message, hint)


TOKEN_LIFE = 60.0
"""Seconds after which a token file is read again, as the kubelet renews it."""


@dataclass
class Credentials:
    """Credentials of a user.

    Every request calls `header`, which reads files or runs a plugin only when the token expires.
    `certificate` is that of the client and its key, in PEM.
    """

    token: str = ""
    token_file: Path | None = None
    plugin: dict[str, Any] | None = None
    certificate: tuple[str, str] | None = None
    expires: float = 0.0
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def header(self) -> dict[str, str]:
        """Return the Authorization header, or nothing for a client certificate.

        Raises KubeError.
        """
        async with self._lock:
            if time.time() >= self.expires:
                await self._refresh()
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def forget(self) -> bool:
        """Drop a token that the server refused. Return whether there can be another one."""
        self.expires = 0.0
        return bool(self.token_file or self.plugin)

    async def _refresh(self) -> None:
        if self.token_file:
            try:
                self.token = self.token_file.read_text().strip()
            except OSError as error:
                raise config_error(f"cannot read the token file: {error}") from None
            self.expires = time.time() + TOKEN_LIFE
        elif self.plugin:
            status = await asyncio.to_thread(_run_plugin, self.plugin)
            self.token = status.get("token", "")
            if "clientCertificateData" in status:
                self.certificate = status["clientCertificateData"], status["clientKeyData"]
            until = status.get("expirationTimestamp")
            self.expires = datetime.fromisoformat(until).timestamp() - 10 if until else float("inf")


def _run_plugin(plugin: dict[str, Any]) -> dict[str, Any]:
    """Run an exec credential plugin (argv, never a shell) and return the `status` it prints."""
    argv = [plugin["command"], *(plugin.get("args") or [])]
    extra = {entry["name"]: entry["value"] for entry in plugin.get("env") or []}
    wanted = {"apiVersion": plugin.get("apiVersion"), "kind": "ExecCredential"}
    info = json.dumps({**wanted, "spec": {"interactive": False}})
    environment = {**os.environ, **extra, "KUBERNETES_EXEC_INFO": info}
    try:
        done = subprocess.run(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=60,
        )
        status: dict[str, Any] = json.loads(done.stdout)["status"]
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
        printed = (getattr(error, "stderr", None) or b"").decode(errors="replace").split()
        text = " ".join([f"{error}:", *printed])[:500].rstrip(": ")
        hint = plugin.get("installHint") or "run it by hand; it may want a login"
        raise config_error(f"the credential plugin gives no token: {text}", hint) from None
    return status


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
IN_POD = "in-cluster"
"""`Cluster.context` without a kubeconfig."""


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
    ca: str | None = None
    insecure: bool = False
    server_name: str | None = None
    proxy: str | None = None
    current: bool = True

    def tls(self) -> ssl.SSLContext | bool:
        """Return the TLS context of a connection, with the system's CAs if the cluster names none.

        Python 3.13 refuses a CA without the key usage extension by default. Go, and so kubectl,
        accepts it, and many clusters have such a CA. Raises KubeError for a bad certificate.
        """
        if not self.server.startswith("https:"):
            return True
        try:
            context = ssl.create_default_context(cadata=self.ca)
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if self.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.credentials.certificate:
                # The ssl module reads a key from a file only. The mode of the file is 0600.
                with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                    file.write("\n".join(self.credentials.certificate))
                    file.flush()
                    context.load_cert_chain(file.name)
        except OSError as error:  # as ssl.SSLError is
            text = f"a certificate or key of context {self.context!r} is bad: {error}"
            raise config_error(text) from None
        return context


def load_config(context: str | None = None) -> Cluster:
    """Return the cluster of KUBECONFIG, or of ~/.kube/config, or the cluster of this pod.

    `context` overrides the current context. Raises KubeError with the file and what it lacks.
    """
    configured = os.environ.get("KUBECONFIG")
    names = configured or str(Path.home() / ".kube" / "config")
    paths = [Path(part) for part in names.split(os.pathsep) if part]
    if files := [path for path in paths if path.is_file()]:
        return _from_files(files, context)
    if configured:
        raise config_error(f"no kubeconfig at {configured}", "set KUBECONFIG to an existing file")
    host, token = os.environ.get("KUBERNETES_SERVICE_HOST", ""), SERVICE_ACCOUNT / "token"
    if not host or not token.is_file():
        text = "no cluster: no KUBECONFIG, no ~/.kube/config, and not in a pod"
        raise config_error(text, "set KUBECONFIG=/path/to/kubeconfig")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    return Cluster(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        context=IN_POD,
        namespace=(SERVICE_ACCOUNT / "namespace").read_text().strip(),
        credentials=Credentials(token_file=token),
        ca=(SERVICE_ACCOUNT / "ca.crt").read_text(),
    )


_FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
"""Keys of a kubeconfig that name a file, relative to it."""


def _from_files(paths: list[Path], context: str | None) -> Cluster:
    """Return the cluster of a context of kubeconfig files. Raises KubeError."""
    import yaml

    where = os.pathsep.join(map(str, paths))
    try:
        documents = {path: yaml.load(path.read_text(), yaml.CSafeLoader) or {} for path in paths}
        every = [document.get("current-context") for document in documents.values()]
        current = next(filter(None, every), "")
        name = context or current
        if not name:
            hint = "choose one with --context or `kubectl config use-context`"
            raise config_error(f"{where} has no current-context", hint)
        selected = _entry(documents, "context", name)
        cluster = _entry(documents, "cluster", selected["cluster"])
        user = _entry(documents, "user", selected["user"]) if selected.get("user") else {}
        address, certificate = cluster["server"].rstrip("/"), _pem(user, "client-certificate")
        return Cluster(
            server=address,
            context=name,
            namespace=selected.get("namespace") or "default",
            credentials=Credentials(
                user.get("token") or "",
                user.get("tokenFile"),
                user.get("exec"),
                (certificate, _pem(user, "client-key") or "") if certificate else None,
            ),
            ca=_pem(cluster, "certificate-authority"),
            insecure=bool(cluster.get("insecure-skip-tls-verify")),
            server_name=cluster.get("tls-server-name"),
            proxy=cluster.get("proxy-url") or _environment_proxy(address),
            current=name == current,
        )
    except (OSError, ValueError, yaml.YAMLError) as error:
        text = " ".join(str(error).split())
        raise config_error(f"cannot read the kubeconfig {where}: {text}") from None
    except (AttributeError, LookupError, TypeError) as error:
        raise config_error(f"{where} is not a kubeconfig: {error!r}") from None


def _entry(documents: Mapping[Path, dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """Return a cluster, user or context, with whole paths of files.

    The first file that has the name wins, as for kubectl. Raises KubeError.
    """
    known = set()
    for path, document in documents.items():
        for entry in document.get(f"{kind}s") or []:
            known.add(entry["name"])
            if entry["name"] == name:
                values = dict(entry.get(kind) or {})
                values |= {key: path.parent / values[key] for key in _FILES if values.get(key)}
                if (plugin := values.get("exec")) and os.sep in plugin["command"]:
                    values["exec"] = plugin | {"command": str(path.parent / plugin["command"])}
                return values
    where = os.pathsep.join(map(str, documents))
    hint = f"it has: {', '.join(sorted(known)) or 'none'}"
    raise config_error(f"no {kind} {name!r} in {where}", hint)


def _pem(entry: dict[str, Any], key: str) -> str | None:
    """Return a certificate or key that is inline (`<key>-data`, base64) or in a file."""
    if data := entry.get(f"{key}-data"):
        return base64.b64decode(data, validate=True).decode()
    return entry[key].read_text() if key in entry else None


def _environment_proxy(server: str) -> str | None:
    """Return the proxy of the environment for this server.

    NO_PROXY lists names, suffixes, addresses and CIDRs, as in Go.
    """
    from urllib.request import getproxies, proxy_bypass

    url, proxies = urlsplit(server), getproxies()
    host = url.hostname or ""
    with suppress(ValueError):  # a name, or something else than a CIDR
        address = ip_address(host)
        excluded = [part.strip() for part in proxies.get("no", "").split(",") if "/" in part]
        if address.is_loopback or any(address in ip_network(each, False) for each in excluded):
            return None
    return None if host == "localhost" or proxy_bypass(host) else proxies.get(url.scheme)
