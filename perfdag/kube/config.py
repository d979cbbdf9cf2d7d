"""The cluster and the user, from a kubeconfig file or from the service account of the pod.

Nothing here uses the network. Format:
https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/
"""

import asyncio
import base64
import json
import math
import os
import ssl
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


class KubeError(Exception):
    """An error of the cluster or of the connection, in one line that says what to do.

    `status` is the HTTP status, or 0 without an answer. `reason` is the API server's word
    (NotFound, Forbidden, AlreadyExists ...), `Config` or `Unreachable`. `repeated` tells that an
    earlier try of the same request had no answer, so that the server may have carried it out.
    """

    repeated = False

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


@dataclass
class Credentials:
    """Credentials of a user.

    `certificate` is that of the client and its key, in PEM. `expires` is when the plugin has to be
    asked again, in seconds since the epoch.
    """

    token: str = ""
    token_file: Path | None = None
    plugin: dict[str, Any] | None = None
    certificate: tuple[str, str] | None = None
    expires: float = 0.0
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def header(self) -> dict[str, str]:
        """Return the Authorization header, or nothing for a client certificate.

        Every request has one: the kubelet renews a token file, and a plugin's token expires. Raises
        KubeError.
        """
        if self.token_file:
            try:
                self.token = self.token_file.read_text().strip()
            except OSError as error:
                raise config_error(f"cannot read the token file: {error}") from None
        elif self.plugin:
            async with self._lock:
                if time.time() >= self.expires:
                    await asyncio.to_thread(self._run_plugin, self.plugin)
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def _run_plugin(self, plugin: dict[str, Any]) -> None:
        """Take what an exec credential plugin (argv, never a shell) prints."""
        extra = {entry["name"]: entry["value"] for entry in plugin.get("env") or []}
        wanted = {"apiVersion": plugin.get("apiVersion"), "kind": "ExecCredential"}
        info = json.dumps({**wanted, "spec": {"interactive": False}})
        try:
            done = subprocess.run(
                [plugin["command"], *(plugin.get("args") or [])],
                env={**os.environ, **extra, "KUBERNETES_EXEC_INFO": info},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=True,
                timeout=60,
            )
            status = json.loads(done.stdout)["status"]
            self.token = status.get("token", "")
            if "clientCertificateData" in status:
                self.certificate = status["clientCertificateData"], status["clientKeyData"]
            until = status.get("expirationTimestamp")
            self.expires = datetime.fromisoformat(until).timestamp() - 10 if until else math.inf
        except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
            printed = (getattr(error, "stderr", None) or b"").decode(errors="replace").split()
            text = " ".join([f"{error}:", *printed])[:500].rstrip(": ")
            hint = plugin.get("installHint") or "run it by hand; it may want a login"
            raise config_error(f"the credential plugin gives no token: {text}", hint) from None


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
IN_POD = "in-cluster"
"""`Cluster.context` without a kubeconfig."""


@dataclass
class Cluster:
    """An API server and how to connect to it.

    `server` has no trailing slash. `namespace` is that of the context.
    """

    server: str
    context: str
    namespace: str
    credentials: Credentials
    ca: str | None = None
    insecure: bool = False
    server_name: str | None = None
    proxy: str | None = None

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context of a connection, with the system's CAs if the cluster names none.

        Python 3.13 refuses a CA without the key usage extension by default. Go, and so kubectl,
        accepts it, and many clusters have such a CA. Raises KubeError for a bad certificate.
        """
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


def load_config() -> Cluster:
    """Return the cluster of KUBECONFIG, or of ~/.kube/config, or the cluster of this pod.

    Raises KubeError with the file and what it lacks.
    """
    configured = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    paths = [Path(part) for part in configured.split(os.pathsep) if part]
    if files := [path for path in paths if path.is_file()]:
        return _from_files(files)
    host, token = os.environ.get("KUBERNETES_SERVICE_HOST", ""), SERVICE_ACCOUNT / "token"
    if os.environ.get("KUBECONFIG") or not host or not token.is_file():
        text = f"no cluster: no kubeconfig at {configured}, and not in a pod"
        raise config_error(text, "set KUBECONFIG=/path/to/kubeconfig")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    return Cluster(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        context=IN_POD,
        namespace=(SERVICE_ACCOUNT / "namespace").read_text().strip(),
        credentials=Credentials(token_file=token),
        ca=(SERVICE_ACCOUNT / "ca.crt").read_text(),
    )


def _from_files(paths: list[Path]) -> Cluster:
    """Return the cluster of the current context of kubeconfig files. Raises KubeError.

    The first file that has a name wins, as for kubectl. Paths in a file are relative to it.
    """
    import yaml

    where, name = os.pathsep.join(map(str, paths)), ""
    entries: dict[str, dict[str, Any]] = {}
    try:
        for path in paths:
            document = yaml.load(path.read_text(), yaml.CSafeLoader) or {}
            name = name or document.get("current-context") or ""
            for kind in ("cluster", "context", "user"):
                for entry in document.get(f"{kind}s") or []:
                    values = {**(entry.get(kind) or {}), "folder": path.parent}
                    entries.setdefault(f"{kind} {entry['name']}", values)
        if not name:
            hint = "choose one with `kubectl config use-context`"
            raise config_error(f"{where} has no current-context", hint)
        context = entries[f"context {name}"]
        cluster = entries[f"cluster {context['cluster']}"]
        user = entries[f"user {context['user']}"] if context.get("user") else {}
        server, certificate = cluster["server"].rstrip("/"), _pem(user, "client-certificate")
        if (plugin := user.get("exec")) and os.sep in plugin["command"]:
            plugin = plugin | {"command": str(user["folder"] / plugin["command"])}
        return Cluster(
            server=server,
            context=name,
            namespace=context.get("namespace") or "default",
            credentials=Credentials(
                user.get("token") or "",
                user["folder"] / user["tokenFile"] if user.get("tokenFile") else None,
                plugin,
                (certificate, _pem(user, "client-key") or "") if certificate else None,
            ),
            ca=_pem(cluster, "certificate-authority"),
            insecure=bool(cluster.get("insecure-skip-tls-verify")),
            server_name=cluster.get("tls-server-name"),
            proxy=cluster.get("proxy-url") or _environment_proxy(server),
        )
    except LookupError as error:
        raise config_error(f"the kubeconfig {where} has no {error}") from None
    except (OSError, ValueError, AttributeError, TypeError, yaml.YAMLError) as error:
        text = " ".join(str(error).split())
        raise config_error(f"cannot read the kubeconfig {where}: {text}") from None


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

    url, proxies = urlsplit(server), getproxies()
    host, excluded = url.hostname or "", proxies.get("no", "").split(",")
    try:
        address, networks = ip_address(host), [part.strip() for part in excluded if "/" in part]
        direct = address.is_loopback or any(address in ip_network(each, False) for each in networks)
    except ValueError:
        direct = host == "localhost"
    return None if direct or proxy_bypass(host) else proxies.get(url.scheme)
