"""Credentials of a user of a cluster."""

import asyncio
import json
import os
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from perfdag.kube.errors import config_error

TOKEN_LIFE = 60.0
"""Seconds after which a token file is read again, as the kubelet renews it."""


@dataclass
class Credentials:
    """Credentials of a user.

    Every request calls `header`, which reads files or runs a plugin only when the token expires.
    """

    token: str = ""
    token_file: Path | None = None
    basic: str = ""
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
        return f"Bearer {self.token}" if self.token else self.basic

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
