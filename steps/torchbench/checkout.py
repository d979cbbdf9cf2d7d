"""Locate the checkout of pytorch/benchmark and its commit, and download a model's weights."""

import os
from pathlib import Path

from perfdag.hosts.base import Host
from perfdag.outcome import Skip
from perfdag.steps.torchbench.params import COMMIT, TorchbenchParams
from perfdag.steps.torchbench.runner import NO_TORCH

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


def download_weights(host: Host, python: str, folder: str, model: str, timeout: float) -> None:
    """Construct the model once with a network, since measuring has none.

    Raises Skip if torch is missing. Another failure is explained by the run that follows.
    """
    argv = [python, str(RUNNER), "construct", folder, model]
    finished = host.run(argv, timeout=timeout, env={"PYTHONDONTWRITEBYTECODE": "1"})
    is_silent = finished.code != 0 and not finished.timed_out and not finished.stderr.strip()
    if finished.code == NO_TORCH or is_silent:
        raise Skip(
            f"{python} on {host.name} has no torch and torchvision:"
            " pip install 'perfdag[torch]' (with uv: uv pip install),"
            " or use the parameter python"
        )
