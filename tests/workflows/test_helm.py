"""The chart installs the same objects as `perfdag install`, for each of its options."""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from perfdag.app.cluster.installation import installation_objects
from perfdag.cli.cluster.installation_options import installation_of
from perfdag.commands.main import parser
from perfdag.workflows import chart

CHART = Path(__file__).parents[2] / "deploy/helm/perfdag"
STORE: dict[str, Any] = {"store": "s3://b/r"}
ALLOW = [word for name in chart.allowed() for word in ("--allow", f"{name}=one,two")]
EACH: dict[str, tuple[list[str], dict[str, Any]]] = {
    "store": (["--store", "claim://results"], {"store": "claim://results"}),
    "storeSecret": (["--store-secret", "1"], {"storeSecret": "1"}),
    "images": (
        ["--images", "registry.example:5000/{name}/$1-{name}:7"],
        {"images": "registry.example:5000/{name}/$1-{name}:7"},
    ),
    "pullPolicy": (["--pull-policy", "Always"], {"pullPolicy": "Always"}),
    "pullSecrets": (["--pull-secret", "one", "--pull-secret", "2"], {"pullSecrets": ["one", "2"]}),
    "clusterScope": (["--cluster-scope"], {"clusterScope": True}),
    "namespaced": (["--namespaced"], {"namespaced": True}),
    "networkPolicy": (["--no-network-policy"], {"networkPolicy": False}),
    "lockNamespace": (["--lock-namespace", "team"], {"lockNamespace": "team"}),
    "pendingLimit": (["--pending-limit", "2h"], {"pendingLimit": 7200}),
    "deadline": (["--deadline", "720h"], {"deadline": 2592000}),
    "keep": (["--keep", "48h"], {"keep": 172800}),
    "keepPods": (["--keep-pods", "1m"], {"keepPods": 60}),
    "parallelBatches": (["--parallel-batches", "3"], {"parallelBatches": 3}),
    "allow": (ALLOW, {"allow": {name: ["one", "two"] for name in chart.allowed()}}),
}
CASES: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in EACH},
    "default": (),
    "all": tuple(EACH),
    "cluster-wide": tuple(name for name in EACH if name != "namespaced"),
    "allowed in its namespace": ("namespaced", "allow"),
    "allowed with pull secrets": ("allow", "pullSecrets", "networkPolicy"),
    "of the cluster, in turn": ("clusterScope", "parallelBatches", "pullPolicy"),
    "of a tenant": (
        "namespaced",
        "clusterScope",
        "pullSecrets",
        "networkPolicy",
        "parallelBatches",
    ),
}
REFUSED: dict[str, Any] = {
    "store": "/tmp/results",
    "storeSecret": "Not A Name",
    "images": "",
    "pullPolicy": "Sometimes",
    "pullSecrets": "one",
    "clusterScope": "yes",
    "lockNamespace": None,
    "pendingLimit": "10m",
    "deadline": 0,
    "keep": "7d",
    "keepPods": 59,
    "parallelBatches": 0,
    "allow": {"iperf": ["one"]},
    "registry": "registry.example",
}
needs_helm = pytest.mark.skipif(
    shutil.which("helm") is None,
    reason="needs the helm command: the chart's objects were NOT compared",
)


@cache
def installed(*argv: str) -> list[dict[str, Any]]:
    options = parser("install").parse_args(["install", "--namespace", "123", *argv])
    bodies = installation_objects(installation_of(options))
    return [body for body in bodies if body["kind"] != "Namespace"]  # a chart makes none


def helm(
    verb: str, folder: Path, values: dict[str, Any], *more: str
) -> subprocess.CompletedProcess[str]:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    name = ["perfdag"] if verb != "lint" else []
    # a helm that was built from source pretends to talk to 1.20
    argv = [
        "helm",
        verb,
        *name,
        str(CHART),
        "--namespace",
        "123",
        "--kube-version",
        "1.34.0",
        "--values",
        str(file),
        *more,
    ]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def identity(body: dict[str, Any]) -> tuple[str, str, str]:
    return body["kind"], body["metadata"]["name"], body["metadata"].get("namespace", "")


@pytest.fixture(scope="module")
def objects() -> list[chart.Object]:
    return chart.objects()


def test_the_chart_is_the_one_that_is_made(
    objects: list[chart.Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chart, "objects", lambda: objects)
    files = {
        str(file.relative_to(CHART)): file.read_text()
        for file in [*(CHART / "templates").iterdir(), CHART / "values.schema.json"]
    }
    current = chart.files()
    stale = sorted(
        name for name in files.keys() | current.keys() if files.get(name) != current.get(name)
    )
    assert stale == [], "`make generated` writes the chart anew; read the diff"


def test_every_value_stands_in_the_templates() -> None:
    templates = "".join(file.read_text() for file in (CHART / "templates").iterdir())
    assert set(re.findall(r"\.Values\.(\w+)", templates)) == chart.schema()["properties"].keys() - {
        "global"
    }
    assert not re.search(
        r"@\.|@(each|allow|named|image)|98765430|: Never$(?<!preemptionPolicy: Never)",
        templates,
        re.M,
    ), "left of what marks a value"


@pytest.mark.parametrize(
    "taken",
    [
        set(),
        *({option} for option in [*chart.OPTIONS, *chart.allowed().values()]),
        set(chart.OPTIONS),
    ],
)
def test_lines_that_are_chosen_are_those_of_an_installation(
    taken: set[str], objects: list[chart.Object]
) -> None:
    """What Helm chooses, chosen without it; where no or one option is taken, for the lines are
    found where all but one are.
    """
    left_out = {*chart.OPTIONS, *chart.allowed().values()} - taken
    chosen = [
        [
            text
            for needs, text in each.lines
            if all((option in taken) is expected for option, expected in needs)
        ]
        for each in objects
        if each.needs <= taken
    ]
    assert chosen == [*chart.rendered(left_out).values()]


def test_every_option_is_a_value_of_the_same_name_and_default() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.validate(values, chart.schema())
    assert (
        values.keys()
        == chart.schema()["properties"].keys() - {"global"}
        == EACH.keys() | {"priorityClasses"}
    )
    options = vars(parser("install").parse_args(["install"]))
    of_the_command = {
        "verb",
        "run",
        "namespace",
        "create_namespace",
        "pod_security",
        "keep_secret",
        "dry_run",
    }
    expected = {
        re.sub("_(.)", lambda match: match[1].upper(), name): value
        for name, value in options.items()
        if name not in of_the_command
    }
    expected["pullSecrets"] = expected.pop("pullSecret")  # one is given at a time
    expected["allow"] = dict(expected["allow"])
    assert {name: value for name, value in values.items() if name != "priorityClasses"} == expected


@pytest.mark.parametrize("name", REFUSED)
def test_the_schema_refuses_a_value_that_no_object_can_hold(name: str) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**values, name: REFUSED[name]}, chart.schema())


@needs_helm
@pytest.mark.parametrize("case", CASES)
def test_helm_gives_the_objects_of_install(case: str, tmp_path: Path) -> None:
    argv, values = ["--store", STORE["store"]], dict(STORE)
    for name in CASES[case]:
        argv += EACH[name][0]
        values |= EACH[name][1]
    expected = installed(*argv)
    assert (expected != installed("--store", STORE["store"])) is (case != "default"), (
        "an option that changes nothing shows nothing"
    )
    result = helm("template", tmp_path, values)
    assert result.returncode == 0, result.stderr
    bodies = [each for each in yaml.safe_load_all(result.stdout) if each]
    assert sorted(bodies, key=identity) == sorted(expected, key=identity)  # helm sorts by kind


@needs_helm
def test_helm_takes_what_the_readme_sets(tmp_path: Path) -> None:
    images = "registry.example/bench/perfdag-{name}:1.0"
    allow = "allow.scale={one,two},allow.vmi-burst={vmis},pullSecrets={one}"
    result = helm(
        "template",
        tmp_path,
        {},
        "--set",
        f"store=s3://b/r,images={images},priorityClasses=false",
        "--set",
        allow,
    )
    assert result.returncode == 0, result.stderr
    argv = [
        "--store",
        "s3://b/r",
        "--images",
        images,
        "--allow",
        "scale=one,two",
        "--allow",
        "vmi-burst=vmis",
        "--pull-secret",
        "one",
    ]
    expected = [each for each in installed(*argv) if each["kind"] != "PriorityClass"]
    assert sorted(filter(None, yaml.safe_load_all(result.stdout)), key=identity) == sorted(
        expected, key=identity
    )


@needs_helm
@pytest.mark.parametrize("values", [{}, {**STORE, **EACH["allow"][1], "clusterScope": True}])
def test_helm_lint(values: dict[str, Any], tmp_path: Path) -> None:
    result = helm("lint", tmp_path, values)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "[WARNING]" not in result.stdout


@needs_helm
@pytest.mark.parametrize("name", [*REFUSED, "no store"])
def test_helm_refuses_it_and_names_it(name: str, tmp_path: Path) -> None:
    result = helm("template", tmp_path, {**STORE, name: REFUSED[name]} if name in REFUSED else {})
    assert result.returncode != 0
    assert (
        name in result.stderr
        if name in REFUSED
        else "s3://bucket/prefix or claim://NAME is needed" in result.stderr
    )
