"""Locate the checkout of pytorch/benchmark, its commit, and a folder with a model's weights."""

import os
import re
import shutil
import tempfile
import weakref
from pathlib import Path

from perfdag.hosts.base import Host
from perfdag.outcome import Skip
from perfdag.steps.torchbench.params import COMMIT, TorchbenchParams
from perfdag.steps.torchbench.runner import MARK

IMAGE_CHECKOUT = "/opt/torchbench"
RUNNER = Path(__file__).with_name("runner.py")
OFFLINE = dict.fromkeys(
    ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"
) | {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
"""Environment without a network: a model that wants to download fails at once."""


def locate(host: Host, params: TorchbenchParams) -> str:
    """Return the checkout's folder. Raises Skip if it is absent or lacks the model."""
    folder = params.path or os.environ.get("PERFDAG_TORCHBENCH") or IMAGE_CHECKOUT
    for file in ("run.py", f"torchbenchmark/models/{params.model}/__init__.py"):
        if host.run(["test", "-f", f"{folder}/{file}"], timeout=10).code != 0:
            raise Skip(
                f"no {file} in {folder} on {host.name}: git clone"
                f" https://github.com/pytorch/benchmark, check out {COMMIT[:12]},"
                " and name the folder with the parameter path or PERFDAG_TORCHBENCH"
            )
    return folder


def commit(host: Host, folder: str) -> str:
    """Return the checkout's commit, from the image's stamp or git.

    Raises Skip if it is unknown: a figure of an unknown program compares with nothing.
    """
    stamp = host.run(["cat", f"{folder}/.perfdag-commit"], timeout=10)
    if stamp.code == 0:
        return stamp.stdout.strip()
    argv = ["git", "-c", f"safe.directory={folder}", "-C", folder, "rev-parse", "HEAD"]
    head = host.run(argv, timeout=10) if host.which("git") else None
    if head is None or head.code != 0:
        raise Skip(
            f"{folder} on {host.name} does not say which commit of pytorch/benchmark it is:"
            " make it a git clone (git must be installed),"
            f" or write the commit to {folder}/.perfdag-commit"
        )
    return head.stdout.strip()


class WeightFolders:
    """A TORCH_HOME for each host, interpreter and model, looked up once in a process.

    Looking starts a Python with torch, which is slow.
    """

    def __init__(self) -> None:
        self._folders: dict[tuple[str, str, str, str | None], str] = {}
        self._own: str | None = None

    def folder(self, host: Host, python: str, model: str, timeout: float) -> str:
        """Return a TORCH_HOME with the model's weights. Raises Skip if torch is missing."""
        configured = os.environ.get("TORCH_HOME")
        key = (host.name, python, model, configured)
        if key not in self._folders:
            # An image's TORCH_HOME stays as it is; missing weights go to a folder of this run.
            homes = [*([configured] if configured else []), self._own_folder()]
            finished = host.run(
                [python, str(RUNNER), "weights", *homes, model], timeout=timeout, env=OFFLINE
            )
            missing = not finished.stderr.strip() or re.search(
                r"\b(ModuleNotFound|Import)Error\b", finished.stderr
            )
            if finished.code != 0 and not finished.timed_out and missing:
                raise Skip(
                    f"{python} on {host.name} has no torch and torchvision:"
                    " pip install 'perfdag[torch]' (with uv: uv pip install),"
                    " or use the parameter python"
                )
            stdout = finished.check("writing random weights").stdout
            self._folders[key] = stdout.rpartition(MARK)[2].strip()
        return self._folders[key]

    def _own_folder(self) -> str:
        """Return a folder of this process, so that its samples share weights of hundreds of MB."""
        if self._own is None:
            self._own = tempfile.mkdtemp(prefix="perfdag-torch-home-")
            weakref.finalize(self, shutil.rmtree, self._own, ignore_errors=True)
        return self._own
