"""deploy/argo and the Helm chart are what perfdag renders."""

import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.workflows import templates
from perfdag.workflows.installation import Installation

from .rules import problems

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/perfdag"
VALUES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {}),
    "claim": ({"store": "claim://results"}, {"store": "claim://results"}),
    "all": (
        {
            "store": "s3://other/perfdag-store",
            "secret": "mine",
            "images": "registry.example:5000/{name}/p-{name}:7",
            "lockNamespace": "team",
            "deadline": 3600,
        },
        {
            "store": "s3://other/perfdag-store",
            "store_secret": "mine",
            "images": "registry.example:5000/{name}/p-{name}:7",
            "lock_namespace": "team",
            "deadline": 3600,
        },
    ),
}


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    made: dict[str, str] = runpy.run_path(str(ROOT / "scripts/deploy"))["files"]()
    return made


def test_the_files_for_kubectl_are_what_perfdag_renders(files: dict[str, str]) -> None:
    for name, text in files.items():
        file = ROOT / f"deploy/argo/{name}.yaml"
        assert file.read_text() == text, f"`make generated` writes {file.name}; read the diff"
        assert [problems(each) for each in yaml.safe_load_all(text)] == [[]] * text.count("\nkind:")
        assert max(map(len, text.splitlines())) <= 300


@pytest.mark.skipif(
    shutil.which("helm") is None, reason="needs the helm command: the chart was NOT compared"
)
@pytest.mark.parametrize("case", VALUES)
def test_helm_gives_the_objects_of_install(case: str, tmp_path: Path) -> None:
    values, options = VALUES[case]
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    # a helm that was built from source pretends to talk to 1.20
    more = ["--namespace", "bench", "--kube-version", "1.34.0", "--values", "values.yaml"]
    result = subprocess.run(
        ["helm", "template", "perfdag", str(CHART), *more],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    made = [each for each in yaml.safe_load_all(result.stdout) if each["kind"] != "ConfigMap"]
    installation = Installation(**{"namespace": "bench", "store": "s3://perfdag/results"} | options)

    def identity(body: dict[str, Any]) -> tuple[str, str]:
        return body["kind"], body["metadata"]["name"]

    expected = templates.objects(installation)
    assert sorted(made, key=identity) == sorted(expected, key=identity)  # helm sorts by kind
