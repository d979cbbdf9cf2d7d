"""Secrets stay with perfdag's own processes, whatever a measured command reads."""

import os
import subprocess
from pathlib import Path

import pytest

from perfdag.hosts import environment
from perfdag.hosts.local import LocalHost
from perfdag.kube import config
from perfdag.steps.runner.credentials import OF_LEAD, OF_PEER, take_credentials
from perfdag.workflows.gangs import rank
from perfdag.workflows.templates import Installation

STORE = {"AWS_SECRET_ACCESS_KEY": "the-store-key", "EXTRA_OF_STORE": "me:pw@proxy"}
TOKEN = {"token": "the-token", "ca.crt": "CA", "namespace": "bench"}


def test_a_measured_process_has_no_variable_of_perfdag_or_of_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_SESSION_TOKEN", "PERFDAG_WEBHOOK", "PERFDAG_STORE"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("EDITOR", "vi")
    lines = LocalHost().run(["env"], timeout=20, env={"OWN": "1"}).stdout.splitlines()
    names = {line.partition("=")[0] for line in lines}
    assert {"EDITOR", "OWN", "PATH"} <= names
    # the mark by which a killed perfdag's commands are ended
    assert {name for name in names if name.startswith(("AWS_", "PERFDAG_"))} == {"PERFDAG_RUN_BY"}


@pytest.mark.parametrize("hidden", [False, True])
def test_another_process_of_the_uid_cannot_read_the_environment(
    tmp_path: Path, hidden: bool
) -> None:
    # A file of its own, since the user 65534 cannot read this checkout everywhere.
    module = Path("/tmp") / f"perfdag-{os.getpid()}-{hidden}.py"
    call = "hide_memory()" if hidden else "pass"
    read = "subprocess.run(['cat', f'/proc/{os.getpid()}/environ'], stdout=1, stderr=1)"
    module.write_text(
        f"{Path(environment.__file__).read_text()}\nimport subprocess\n{call}\n{read}\n"
    )
    try:
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        output = subprocess.run(
            [*(user if os.getuid() == 0 else []), "/usr/bin/python3", str(module)],
            env={"AWS_SECRET_ACCESS_KEY": "the-store-key"},
            capture_output=True,
            text=True,
            check=False,
        ).stdout
    finally:
        module.unlink()
    assert ("Permission denied" in output) == hidden
    assert ("the-store-key" in output) == (not hidden)


def _copied(folder: Path, role: str) -> Path:
    """Run the script of the init container of a measuring pod in a folder; return its target."""
    files = {
        "secrets/store": STORE,
        "secrets/ssh": dict.fromkeys(("id", "id.pub", "host", "host.pub"), "key"),
        "account": TOKEN,
    }
    for name, texts in files.items():
        (folder / name).mkdir(parents=True)
        for file, text in texts.items():
            (folder / name / file).write_text(text)
    (folder / "credentials").mkdir()
    [init] = rank(Installation()).init_containers or []
    script = (init.command or [])[-1]
    script = script.replace(str(config.SERVICE_ACCOUNT), str(folder / "account"))
    script = script.replace("/perfdag/", f"{folder}/")
    subprocess.run(["sh", "-c", script, role], check=True)
    return folder / "credentials"


@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("lead", {*TOKEN, *STORE, *OF_LEAD}),
        ("peer", {*TOKEN, *OF_PEER}),
        ("lead-b", {*TOKEN, *STORE, *OF_LEAD, *OF_PEER}),
    ],
)
def test_a_pod_gets_what_its_role_needs(tmp_path: Path, role: str, names: set[str]) -> None:
    files = list(_copied(tmp_path, role).iterdir())
    assert {file.name for file in files} == names
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_the_measuring_container_mounts_no_secret_and_no_token() -> None:
    pod = rank(Installation(store="s3://b"))
    mounts = {mount.name: mount.mount_path for mount in pod.volume_mounts or []}
    # A mount at this very path is what keeps Kubernetes from mounting the token there.
    assert mounts == {"credentials": "/var/run/secrets/kubernetes.io/serviceaccount"}
    [memory] = [volume for volume in pod.volumes or [] if volume.name == "credentials"]
    assert memory.secret is None
    assert memory.empty_dir
    assert memory.empty_dir.medium == "Memory"
    assert not pod.env_from


def test_a_pod_takes_its_credentials_and_leaves_none_to_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _copied(tmp_path, "lead")
    for name in STORE:
        monkeypatch.setenv(name, "unset")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setattr(config, "SERVICE_ACCOUNT", folder)
    monkeypatch.setattr(config, "pod_token", "")
    take_credentials(folder)
    assert {file.name for file in folder.iterdir()} == {"ca.crt", "namespace", *OF_LEAD}
    assert {name: os.environ[name] for name in STORE} == STORE
    assert config.load_config().credentials.token == "the-token"
    seen = LocalHost().run(["sh", "-c", f"env; cat {folder}/*"], timeout=20).stdout
    assert not [text for text in (*STORE.values(), "the-token") if text in seen]
