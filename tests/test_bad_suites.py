"""Bad and hostile suites are refused before anything starts.

A bad one gets exactly the messages that stand beside it in bad_suites.yaml.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from perfdag.benchmark import registry
from perfdag.plan import make_plan
from perfdag.steps.pods.context import from_environment
from perfdag.steps.pods.plan import outputs, plan_of
from perfdag.store.base import DamagedError, FolderStore
from perfdag.suite.document import BadDocument
from perfdag.suite.load import load_suite, parse_suite
from perfdag.suite.model import Suite
from tests.conftest import CommandLine

CASES = yaml.safe_load((Path(__file__).parent / "bad_suites.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_bad_suite(case: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(str(case["suite"]))
    with pytest.raises(BadDocument) as error:
        make_plan(load_suite("suite.yaml"))
    problems = [str(problem).removeprefix("suite.yaml:") for problem in error.value.problems]
    names = ", ".join(registry.names())
    assert problems == [text.replace("{benchmarks}", names) for text in case["expect"]]


def test_a_text_of_the_wrong_form_gets_no_regular_expression() -> None:
    def patterns(schema: Any) -> set[str]:
        """Return the patterns that pydantic itself checks; a Form has words for people."""
        parts = list(schema.values()) if isinstance(schema, dict) else []
        parts = list(schema) if isinstance(schema, list | tuple) else parts
        own = {schema["pattern"]} if isinstance(schema, dict) and "pattern" in schema else set()
        return {str(text) for text in own}.union(*map(patterns, parts))

    models: list[type[BaseModel]] = [
        Suite,
        *(registry.get(name).Params for name in registry.names()),
    ]
    assert not patterns([model.__pydantic_core_schema__ for model in models])


LONG = "x" * 1_000_000
HOST_PATH = 'x"} },{"name":"h","hostPath":{"path":"/"}}],"hostPID":true,"a":[{"b":{"c":"'
TEXTS = {
    "template": "{{workflow.name}}",
    "expression": "{{=1+1}}",
    "kubelet": "$(AWS_SECRET_ACCESS_KEY)",
    "quotes": HOST_PATH,
    "newline": "x\nhostPID: true",
    "placeholder": "@CLAIMED@",
    "long": LONG,
}
SHAPES: dict[str, Any] = {
    "image": lambda text: {"image": f"registry.example/a{text}:1"},
    "network.name": lambda text: {"network": {"name": text}},
    "network.also": lambda text: {"network": {"name": "a", "also": [text]}},
    "network.interface": lambda text: {"network": {"interface": text}},
    "resources key": lambda text: {"resources": {f"example.com/{text}": 1}},
    "resources requests": lambda text: {"resources": {"requests": {f"example.com/{text}": 1}}},
    "resources value": lambda text: {"resources": {"cpu": text}},
    "hugepages": lambda text: {"hugepages": {text: "1Gi"}},
    "volume.path": lambda text: {"volume": {"kind": "hostPath", "path": f"/{text}"}},
    "volume.storage_class": lambda text: {"volume": {"storage_class": text}},
    "volume.claim_template": lambda text: {"volume": {"claim_template": {"volumeName": text}}},
    "volume.claim": lambda text: {"volume": {"claim": text}},
    "node_selector key": lambda text: {"node_selector": {text: "a"}},
    "node_selector value": lambda text: {"node_selector": {"a": text}},
    "zones": lambda text: {"zones": [text]},
    "tolerations key": lambda text: {"tolerations": [{"key": text, "operator": "Exists"}]},
    "tolerations value": lambda text: {"tolerations": [{"key": "a", "value": text}]},
    "runtime_class": lambda text: {"runtime_class": text},
    "secret": lambda text: {"secret": text},
    "an axis": lambda text: {
        "permutations": {"product": {"tolerations": [[{"key": "a", "value": text}]]}}
    },
}


def suite_text(shape: dict[str, Any] | None = None, **keys: Any) -> str:
    entry = {"benchmark": "command", "params": {"argv": ["true"]}, **(shape or {})}
    lines = [f"{key}: {json.dumps(value)}" for key, value in {"name": "s", **keys}.items()]
    return "\n".join([*lines, "entries:", f"  - {json.dumps(entry)}", ""])


def refusal(text: str) -> str:
    """The only line of a refused suite."""
    with pytest.raises(BadDocument) as error:
        make_plan(parse_suite(text))
    [line] = str(error.value).splitlines()
    assert len(line) < 1500
    return line


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("place", SHAPES)
def test_no_hostile_text_of_a_shape_is_planned(place: str, text: str) -> None:
    assert refusal(suite_text(SHAPES[place](TEXTS[text]))).startswith("suite.yaml:3: ")


AXES = {f"env.A{number}": list(range(100)) for number in range(10)}
TWICE = {f"env.A{number}": ["a", "b"] for number in range(1000)}


def with_axes(**axes: list[Any]) -> str:
    return suite_text({"permutations": {"product": axes}})


REFUSED = {
    "product": (
        with_axes(**AXES),
        "suite.yaml:3: entries[0].permutations: more than 1,000,000 combinations up to this entry",
    ),
    "product of many axes": (
        with_axes(**TWICE),
        "suite.yaml:3: entries[0].permutations: more than 1,000,000 combinations up to this entry",
    ),
    "product that exclude would shorten": (
        suite_text(
            {
                "permutations": {
                    "product": {"expected": [*range(1, 2001)], "exit_code": [*range(501)]},
                    "exclude": [{"exit_code": 1}],
                }
            }
        ),
        "suite.yaml:3: entries[0].permutations: more than 1,000,000 combinations up to this entry",
    ),
    "equal points": (
        suite_text(
            {
                "benchmark": "iperf",
                "params": {},
                "hosts": {"count": 400, "pairs": "all"},
                "permutations": {"product": {"duration": ["1s", "1s"]}},
            }
        ),
        "suite.yaml:3: entries[0].permutations: more than 100,000 points",
    ),
    "samples": (
        suite_text(
            {"permutations": {"product": {"expected": [*range(1, 1002)]}}}, repetitions=1000
        ),
        "suite.yaml:2: repetitions: 1,001,000 samples are more than 1,000,000; lower repetitions",
    ),
    "claim": (
        suite_text(store=f"claim://{HOST_PATH}"),
        """suite.yaml:2: store: 'claim://x"} },{"name":"h","hostPath":""",
    ),
    "claim of a template": (
        suite_text(store="claim://{{=sprig.date}}"),
        "suite.yaml:2: store: 'claim://{{=sprig.date}}': a store is claim://NAME",
    ),
    "bucket": (suite_text(store="s3://b/$(A)"), "suite.yaml:2: store: 's3://b/$(A)': a store is"),
    "prefix above the bucket": (suite_text(store="s3://b/../c"), "suite.yaml:2: store: 's3://b/.."),
    "another scheme": (
        suite_text(store="file:///etc"),
        "suite.yaml:2: store: 'file:///etc': a sto",
    ),
    "suite name": (suite_text(name="{{=1}}"), "suite.yaml:1: name: '{{=1}}' is not a suite name"),
    "entry name": (suite_text({"name": "$(A)"}), "suite.yaml:3: entries[0].name: '$(A)' is not"),
    "scheduler": (
        suite_text({"scheduler": "{{=1}}"}),
        "suite.yaml:3: entries[0].scheduler: unknown value '{{=1",
    ),
    "privileges": (suite_text({"privileges": ["all"]}), "suite.yaml:3: entries[0].privileges[0]: "),
    "tag": (
        "name: !!python/object/apply:os.system [id]\n",
        "suite.yaml:1: name: the tag !!python/",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_pod_may_get_is_refused(name: str) -> None:
    text, expected = REFUSED[name]
    assert expected in refusal(text)


@pytest.mark.parametrize(
    "words",
    [
        ["plan"],
        ["run", "--store", "results"],
        ["render", "--store", "s3://b/r"],
        ["submit", "--namespace", "bench"],
    ],
    ids=lambda words: words[0],
)
def test_every_verb_refuses_and_starts_nothing(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    (tmp_path / "suite.yaml").write_text(suite_text(SHAPES["tolerations value"]("{{=1}}")))
    [line] = cli([*words, "suite.yaml"], 2).err.splitlines()
    assert line.startswith("suite.yaml:3: entries[0].tolerations[0].value: '{{=1}}' is not a label")
    assert [path.name for path in tmp_path.iterdir()] == ["suite.yaml"]


STORES = [
    "claim://{{=1}}",
    f"claim://{HOST_PATH}",
    "claim://a.b",
    "s3://b/$(A)",
    "s3://b/../c",
    "x",
]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(
    "words",
    [["render", "--base"], ["install", "--namespace", "bench"]],
    ids=" ".join,
)
def test_no_manifest_has_a_hostile_store(
    words: list[str],
    store: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    (tmp_path / "suite.yaml").write_text(suite_text())
    output = cli([*words, "--store", store], 2)
    [line] = output.err.splitlines()
    assert "a store is" in line or "pods share no folder" in line
    assert not output.out


def plan_in_pod(store: FolderStore, suite: str = "") -> dict[str, Any]:
    """The output parameters of the plan step for a suite, or for the stored plan."""
    context = from_environment({"PERFDAG_STORE": "s3://b/r", "PERFDAG_RUN": ID})
    file = Path("given.yaml")
    file.write_text(suite)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("perfdag.steps.pods.plan.SUITE_FILES", (file,))
        return outputs(plan_of(context, store, {}), context)


ID = "20260101T020000Z-0a1b2c3d"


def test_the_plan_step_refuses_it_of_a_suite_and_of_a_stored_plan(tmp_path: Path) -> None:
    store = FolderStore(str(tmp_path / "store"))
    hostile = suite_text(SHAPES["image"]("{{=1}}"))
    with pytest.raises(BadDocument, match=r"^suite.yaml:3: entries\[0\].image: .* is not an im"):
        plan_in_pod(store, hostile)
    raw = json.loads(make_plan(parse_suite(suite_text()), run_id=ID).dump())
    for shape, error, expected in (
        (SHAPES["tolerations value"]("{{=1}}"), DamagedError, "tolerations.0.value '{{=1}}': is n"),
        (SHAPES["volume.path"]("@CLAIMED@"), BadDocument, "volume.path: '/@CLAIMED@' has"),
    ):
        store.put(f"runs/{ID}/plan.json", json.dumps({**raw, "shapes": [shape]}).encode())
        with pytest.raises(error, match=re.escape(expected)):
            plan_in_pod(store)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"options": {"priority": "1"}}, "options.priority '1': Input should be a valid integer"),
        ({"options": {"pending_limit": "x"}}, "options.pending_limit 'x': Input should be a valid"),
        ({"run_id": "../x"}, "run_id '../x': String should match"),
        ({"schema": 2}, "plan.json is of another schema; use the perfdag version that wrote it"),
        ([], "plan.json is of another schema"),
    ],
)
def test_a_stored_plan_of_wrong_types_is_refused_in_one_line(
    document: Any,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
) -> None:
    store = FolderStore(str(tmp_path / "store"))
    plan = json.loads(make_plan(parse_suite(suite_text()), run_id=ID).dump())
    data = plan | document if isinstance(document, dict) else document
    store.put(f"runs/{ID}/plan.json", json.dumps(data).encode())
    monkeypatch.setattr("perfdag.kube.patch.STORE", store.root)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    for name, value in {"STORE": "claim://results", "RUN": ID}.items():
        monkeypatch.setenv(f"PERFDAG_{name}", value)
    lines = cli(["step", "plan", "--out", str(tmp_path / "out")], 2).err.splitlines()
    [line] = [line for line in lines if not line.startswith("cannot record on the workflow")]
    assert f"plan.json of {ID} is damaged: {expected}" in line


def test_other_text_is_literal_in_the_manifest_and_in_no_pod(
    tmp_path: Path, cli: CommandLine
) -> None:
    hostile = "".join(f"{text}\n" for text in TEXTS.values() if text is not LONG)
    params = {"argv": ["echo", hostile], "env": {"A": hostile}}
    text = suite_text({"params": params}, description=hostile)
    (tmp_path / "suite.yaml").write_text(text)
    [workflow] = yaml.safe_load_all(cli(["render", "suite.yaml"]).out)
    [artifact] = workflow["spec"]["arguments"]["artifacts"]
    given = artifact["raw"]["data"]
    assert yaml.safe_load(given) == yaml.safe_load(text)
    store = FolderStore(str(tmp_path / "store"))
    assert plan_in_pod(store, given) == plan_in_pod(store, suite_text())
