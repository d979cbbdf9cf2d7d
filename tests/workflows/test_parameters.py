"""The first step refuses wrong parameters."""

from pathlib import Path

import pytest

from perfdag.steps.pods.context import from_environment
from perfdag.steps.pods.plan import options, plan_of
from perfdag.store.base import FolderStore, StoreError
from perfdag.suite.document import BadDocument


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RUN": "../../etc"}, "a run id is such as"),
        ({"RUN": "20260101T020000Z-0a1b2c3d\nx"}, "a run id is such as"),
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
        ({}, "no suite: give -p suite=CONFIGMAP"),
        ({"CONFIGMAP": "mine"}, "no ConfigMap mine here has a key suite.yaml"),
        ({"OPTIONS": "settings"}, "the parameter options: Invalid JSON"),
        ({"OPTIONS": "[]"}, "the parameter options: "),
        ({"OPTIONS": '{"settings": "x=1"}'}, "options.settings: Input should be a valid array"),
        ({"OPTIONS": '{"set": ["x=1"]}'}, "options.set: Extra inputs are not permitted"),
    ],
)
def test_the_plan_step_names_a_wrong_parameter(
    variables: dict[str, str], message: str, tmp_path: Path
) -> None:
    environment = {f"PERFDAG_{name}": value for name, value in variables.items()}
    context = from_environment({"PERFDAG_STORE": "s3://b/r", **environment})
    with pytest.raises(BadDocument, match=message):
        plan_of(context, FolderStore(str(tmp_path)), environment)


def test_options_are_lists_of_what_the_command_line_takes() -> None:
    chosen = options({"PERFDAG_OPTIONS": '{"settings": ["a=\\u0024{\\u007bx"], "only": ["b*"]}'})
    assert (chosen.settings, chosen.only, chosen.revision) == (("a=${{x",), ("b*",), "")
