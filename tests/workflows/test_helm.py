"""The chart installs the same objects as `perfdag install`. PERFDAG_REGENERATE=1 writes its file anew."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.workflows import base
from perfdag.workflows.emit import dump
from perfdag.workflows.templates import Installation

from .test_manifests import golden

CHART = Path(__file__).parents[2] / "deploy/helm/perfdag"
TOKENS = {
    "NAMESPACE": "bench",
    "STORE": "s3://b/r",
    "STORESECRET": "keys",
    "REGISTRY": "registry.example/x",
    "TAG": "7",
    "PULLPOLICY": "Always",
    "LOCKNAMESPACE": "team",
}
ARGOS = {"BATCH", "CLAIM", "CLAIMED", "TWIN", "PORT"}  # replaced by the workflow's own expressions


def _objects(values: dict[str, str]) -> list[dict[str, Any]]:
    """Hera checks the pull policy, so its token is laid in afterwards."""
    text = dump(base.objects(_installation(values))).replace("imagePullPolicy: Always", f"imagePullPolicy: '{values['PULLPOLICY']}'")
    return list(yaml.safe_load_all(text))


def _installation(values: dict[str, str]) -> Installation:
    return Installation(
        namespace=values["NAMESPACE"],
        store=values["STORE"],
        store_secret=values["STORESECRET"],
        images=f"{values['REGISTRY']}/perfdag-{{name}}:{values['TAG']}",
        pull_policy="Always",
        lock_namespace=values["LOCKNAMESPACE"],
    )


def test_chart_file_is_the_rendered_base() -> None:
    golden("../../../deploy/helm/perfdag/files/base", dump(_objects({name: f"@{name}@" for name in TOKENS})))


def test_chart_gives_the_objects_of_install() -> None:
    text = (CHART / "files/base.yaml").read_text()
    for name, value in TOKENS.items():
        text = text.replace(f"@{name}@", value)
    assert list(yaml.safe_load_all(text)) == base.objects(_installation(TOKENS))


def test_the_template_replaces_every_token() -> None:
    used = set(re.findall(r"@([A-Z]+)@", (CHART / "files/base.yaml").read_text())) - ARGOS
    replaced = set(re.findall(r'replace "@([A-Z]+)@"', (CHART / "templates/base.yaml").read_text()))
    assert used <= replaced == set(TOKENS)


@pytest.mark.skipif(shutil.which("helm") is None, reason="needs the helm command")
@pytest.mark.parametrize("classes", [True, False])
def test_helm_template(classes: bool) -> None:
    argv = [
        "helm",
        "template",
        "perfdag",
        str(CHART),
        "--namespace",
        "bench",
        "--set",
        "store=s3://b/r,storeSecret=keys,registry=registry.example/x,lockNamespace=team",
        "--kube-version",  # a helm that was built from source pretends to talk to 1.20
        "1.34.0",
        "--set",
        f"priorityClasses={str(classes).lower()}",
    ]
    said = subprocess.run([*argv, "--set-string", "tag=7", "--set", "pullPolicy=Always"], capture_output=True, text=True, check=True)
    made = [each for each in yaml.safe_load_all(said.stdout) if each]
    wanted = [each for each in base.objects(_installation(TOKENS)) if classes or each["kind"] != "PriorityClass"]
    assert sorted(made, key=_identity) == sorted(wanted, key=_identity)  # helm sorts by kind


def _identity(made: dict[str, Any]) -> tuple[str, str, str]:
    return made["kind"], made["metadata"].get("namespace", ""), made["metadata"]["name"]
