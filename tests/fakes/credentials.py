"""The files that the init container of a measuring pod leaves, by running its script in a
folder.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from perfdag.steps.pods.peer import make_keys
from perfdag.workflows.installation import Installation
from perfdag.workflows.templates import host


def copied(
    folder: Path,
    role: str,
    secrets: Mapping[str, Mapping[str, str]] | None = None,
    addresses: str = "127.0.0.1",
) -> Path:
    """Return the folder of the credentials of a pod of this role.

    `secrets` are the files of the volumes store, measure, account and ssh, which has the keys of a
    run by default.
    """
    volumes = {"store": {}, "measure": {}, "account": {}, **(secrets or {})}
    if "ssh" not in volumes:
        volumes["ssh"] = make_keys(folder / "keys")
    for name, texts in volumes.items():
        volume = folder / "secrets" / name
        volume.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (volume / file).write_text(text)
    target = folder / "credentials"
    target.mkdir(exist_ok=True)
    [init] = host(Installation()).init_containers or []
    script = (init.command or [])[-1].replace("/perfdag/", f"{folder}/")
    variables = {**os.environ, "PERFDAG_IPS": addresses}
    subprocess.run(["sh", "-c", script, role], check=True, env=variables)
    return target
