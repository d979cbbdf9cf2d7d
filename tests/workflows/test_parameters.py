"""The first step refuses wrong parameters, and no pod mounts a foreign claim."""

import re
from pathlib import Path

import pytest

from perfdag.steps.runner.plan import plan_of
from perfdag.steps.runner.pod_context import from_environment
from perfdag.store.base import StoreError
from perfdag.store.folder import FolderStore
from perfdag.suite.document import BadDocument
from perfdag.workflows.containers import is_claim
from tests.conftest import CommandLine


@pytest.mark.parametrize(("own", "claims"), [("s3://b/r", set()), ("claim://d-a", {"d-a"})])
def test_no_pod_mounts_another_claim_than_the_store(own: str, claims: set[str]) -> None:
    """A step could refuse the claim of somebody else only after it was mounted."""
    [pattern] = re.findall("matches '(.*)'", is_claim(own))
    names = ("results", "d-a", "preemption", "mtu", "x.y", "A", 'a"} }', "$(A)", "a\nx")
    assert {name for name in names if re.fullmatch(pattern, f"claim://{name}")} == claims


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RUN": "../../etc"}, "a run id is such as"),
        ({"RUN": "20260101T020000Z-0a1b2c3d\nx"}, "a run id is such as"),
        ({"STORE": "claim://of-another"}, "is not mounted"),
        ({"STORE": "s3://B/{{x}}"}, "a store is"),
        ({"STORE": "file:///etc"}, "pods share no folder"),
    ],
)
def test_the_run_names_a_wrong_parameter(variables: dict[str, str], message: str) -> None:
    environment = {f"PERFDAG_{name}": value for name, value in variables.items()}
    with pytest.raises((BadDocument, StoreError), match=message):
        from_environment({"PERFDAG_STORE": "s3://b/r", **environment}).open()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"SUITE": "{{x}}"}, "is not base64 of a suite file"),
        ({"URL": "../../etc/passwd"}, "etc/passwd"),
        ({"SUITE": "bmFtZTogcwo=", "OPTIONS": "$(X)"}, "it is not base64 of JSON"),
        ({"SUITE": "bmFtZTogcw==", "TRIGGER": "ab"}, "trigger 'ab': manual or cron"),
    ],
)
def test_the_plan_step_names_a_wrong_parameter(
    variables: dict[str, str], message: str, tmp_path: Path
) -> None:
    environment = {f"PERFDAG_{name}": value for name, value in variables.items()}
    context = from_environment({"PERFDAG_STORE": "s3://b/r", **environment})
    with pytest.raises((BadDocument, StoreError), match=message):
        plan_of(context, FolderStore(str(tmp_path)), environment)


def test_the_check_of_the_age_names_them_too(
    monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    for name, value in {"STORE": "s3://b/r", "SUITENAME": "quick", "MAXAGE": "soon"}.items():
        monkeypatch.setenv(f"PERFDAG_{name}", value)
    assert "parameter maxage: " in cli(["step", "age"], 2).err
