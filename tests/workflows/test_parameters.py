"""No value that somebody submits reaches a pod before an expression of the template has matched
it.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from perfdag.steps.runner.pod_context import from_environment
from perfdag.suite.yaml_document import BadDocument
from perfdag.workflows import base
from perfdag.workflows.parameters import AGE, RUN
from perfdag.workflows.templates import Installation
from tests.conftest import CommandLine

TEMPLATES = {
    body["metadata"]["name"]: body["spec"]
    for body in base.objects(Installation(store="claim://results", parallel_batches=2))
    if body["kind"] == "WorkflowTemplate"
}
NAMES = {"perfdag": RUN, "perfdag-age": AGE}
GUARD = re.compile(r"workflow\.parameters\.(\w+) matches '(\^[^']*\$)'")
HOSTILE = [
    'x"} },{"name":"h","hostPath":{"path":"/"}}],"hostPID":true,"a":[{"b":{"c":"',
    "{{workflow.name}}",
    "{{=1+1}}",
    "$(AWS_SECRET_ACCESS_KEY)",
    "'",
    "\\",
    "--help",
    "20260101T020000Z-0a1b2c3d\nx",
    "../../etc",
    "claim://a.b",
    "claim://A",
    f"claim://{'a' * 64}",
    'claim://a"} }',
    "claim://$(A)",
    "s3://b/../c",
    "s3://b/{{=1}}",
    "s3://",
    "s3://B/x",
    "file:///etc",
]
ALLOWED = {
    "suite": ["", "bmFtZTogcwo=", "bmFt\nZTogcwo=\n"],
    "configmap": ["perfdag-none", "perfdag-suite-quick", "a.b"],
    "url": ["", "suites/quick.yaml", "s3://bench/results/suites/quick.yaml"],
    "run": ["", "20260101T020000Z-0a1b2c3d", "20260101T020000Z-0a1b2c3da"],
    "store": ["", "s3://b", "s3://bench/results/", "s3://bench.x/a=1/_b", "claim://results"],
    "options": ["", "e30="],
    "trigger": ["manual", "cron"],
    "suitename": ["quick", "a"],
    "maxage": ["93600s", "26h", "1.5d"],
}


def texts(value: Any) -> Iterator[str]:
    """All texts in a document, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for item in value.items() for part in item for text in texts(part))
    elif isinstance(value, list):
        yield from (text for item in value for text in texts(item))


@pytest.mark.parametrize("template", NAMES)
def test_every_use_of_a_parameter_is_behind_its_pattern(template: str) -> None:
    spec = TEMPLATES[template]
    assert [item["name"] for item in spec["arguments"]["parameters"]] == [*NAMES[template]]
    uses = [text for text in texts(spec) if "workflow.parameters" in text]
    assert len(uses) >= len(NAMES[template])
    for text in uses:
        assert text.startswith("{{="), text
        assert text.count("}}") == 1, text
        guarded = {name for name, _ in GUARD.findall(text)}
        assert guarded == set(re.findall(r"workflow\.parameters\.(\w+)", text)), text
        # a value is used on the side of `?` or `&&` where its pattern has matched
        use = re.search(r"workflow\.parameters\.\w+(?! matches)\b", text)
        assert not use or "?" in text[: use.start()], text


@pytest.mark.parametrize("template", NAMES)
def test_patterns_match_what_is_allowed_and_nothing_hostile(template: str) -> None:
    guards = {guard for text in texts(TEMPLATES[template]) for guard in GUARD.findall(text)}
    assert {name for name, _ in guards} == set(NAMES[template])
    for name, pattern in guards:
        own = [re.match(pattern[:-1] + r"\Z", value) for value in ALLOWED[name]]
        assert all(own) or pattern.startswith("^claim"), name
        for value in HOSTILE:
            assert not re.match(pattern[:-1] + r"\Z", value), (name, value)


@pytest.mark.parametrize(
    ("own", "permits", "claims"),
    [
        ("s3://b/r", (), set()),
        ("claim://results", (), {"results"}),
        (
            "claim://results",
            ("claims=d-*", "claims=x.y", "images=*", "preemption"),
            {"results", "d-a"},
        ),
        ("s3://b/r", ("claims=d-*", "privileges=mtu"), {"d-a"}),
        ("", ("claims=*",), {"results", "d-a", "preemption", "mtu"}),
    ],
)
def test_no_pod_mounts_a_claim_that_is_not_permitted(
    own: str, permits: tuple[str, ...], claims: set[str]
) -> None:
    """A step could refuse the claim of somebody else only after it was mounted."""
    expected = {f"claim://{name}" for name in claims}
    stores = [f"claim://{name}" for name in ("results", "d-a", "preemption", "mtu", "x.y")]
    uses = 0
    for body in base.objects(Installation(store=own, permit=permits)):
        for text in texts(body.get("spec") if body["kind"] == "WorkflowTemplate" else {}):
            for name, pattern in GUARD.findall(text):
                if name == "store":
                    allowed = {store for store in stores if re.match(pattern, store)}
                    assert allowed == expected, text
                    uses += 1
    assert uses > 10


def test_the_run_names_the_wrong_parameters_and_finish_does_not_start() -> None:
    spec = TEMPLATES["perfdag"]
    templates = {item["name"]: item for item in spec["templates"]}
    [finish] = templates["finish"]["dag"]["tasks"]
    assert {name for name, _ in GUARD.findall(finish["when"])} == set(RUN)
    state = "(workflow.annotations['perfdag/step'] ?? '') == workflow.uid + ' plan refused'"
    assert finish["when"].endswith(f" && !({state})}}}} == true")
    environment = {"PERFDAG_REFUSED": "run must be a run id; store must be s3://b or claim://N; "}
    with pytest.raises(BadDocument) as error:
        from_environment(environment).open()
    expected = "parameters of the Workflow: run must be a run id; store must be s3://b or claim://N"
    assert str(error.value) == f"suite:1: {expected}"


def test_the_check_of_the_age_names_them_too(
    monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("PERFDAG_REFUSED", "maxage must be an age such as 26h; ")
    [line] = cli(["step", "age"], 2).err.splitlines()
    assert line == "suite:1: parameters of the Workflow: maxage must be an age such as 26h"
