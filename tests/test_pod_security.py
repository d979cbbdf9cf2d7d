"""The pods that a suite may have: the Pod Security level of its namespace decides, and an account
with rights is in images of the installation alone.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfdag.commands.main import parser
from perfdag.kube.client import Object
from perfdag.kube.patch import LEVEL, LEVELS, level_needs, own_image
from perfdag.plan import make_plan
from perfdag.runs.cluster import check_pod_security
from perfdag.shape import Shape
from perfdag.steps.pods.lead import check_account, lead
from perfdag.steps.pods.plan import outputs
from perfdag.store.base import FolderStore
from perfdag.suite.document import BadDocument
from perfdag.suite.load import parse_suite
from perfdag.workflows.installation import Installation, supporting_objects
from tests.fakes.api_server import ApiServer

from .steps.test_plan_step import place
from .workflows.pods import pod

ROOT = Path(__file__).parents[1]
IMAGES = "r.example/bench/perfdag-{name}:1"
BASELINE = {"AUDIT_WRITE", "SETGID", "SETUID", "SYS_CHROOT"}
"""Those of the capabilities of `baseline` that perfdag adds."""
SHAPES: list[tuple[dict[str, Any], set[str]]] = [
    ({}, set()),
    ({"network": {"path": "nodeport"}}, set()),
    ({"volume": {"claim_template": {"volumeMode": "Block"}}}, set()),
    ({"network": {"host": True}}, {"privileged"}),
    ({"volume": {"kind": "hostPath", "path": "/data"}}, {"privileged"}),
    ({"privileges": ["block"], "hosts": {"count": 2}}, {"baseline"}),
    ({"privileges": ["rdma"]}, {"privileged"}),
    ({"privileges": ["mtu"], "network": {"mtu": 9000}}, {"privileged"}),
    ({"privileges": ["block", "rdma"]}, {"baseline", "privileged"}),
]


def level_of(spec: Object) -> str:
    """The least level that admits a pod of perfdag, by the standards of Kubernetes."""
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    security = [item["securityContext"] for item in containers]
    added = {name for item in security for name in item["capabilities"].get("add", ())}
    if (
        spec.get("hostNetwork")
        or any("hostPath" in volume for volume in spec.get("volumes", ()))
        or added - BASELINE
    ):
        return "privileged"
    return "baseline" if added or any(item["runAsUser"] == 0 for item in security) else "restricted"


@pytest.mark.parametrize(("keys", "levels"), SHAPES)
def test_a_shape_needs_the_level_that_admits_its_pod(keys: Object, levels: set[str]) -> None:
    assert set(level_needs(Shape.model_validate(keys)).values()) == levels
    admits = level_of(pod(keys, "x")["spec"])
    assert admits == max(levels, default="restricted", key=LEVELS.index)


@pytest.mark.parametrize("store", ["s3://bench/results", "claim://results"])
def test_the_site_is_admitted_everywhere_and_can_write_nowhere(store: str) -> None:
    installed = Installation("bench", store=store, site=True, site_hosts=("b.example",))
    [deployment] = [body for body in supporting_objects(installed) if body["kind"] == "Deployment"]
    spec = deployment["spec"]["template"]["spec"]
    assert level_of(spec) == "restricted"
    assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"]
    _, *words = spec["containers"][0]["command"] + spec["containers"][0]["args"]
    options = parser(words[0]).parse_args(words)
    assert options.serve_only
    assert options.store == ("/perfdag/store" if store.startswith("claim") else store)
    assert {"perfdag-site", "perfdag-site.bench.svc", "b.example"} < {*options.hosts}


SUITE = """\
name: s
entries:
  - {benchmark: command, name: plain, params: {argv: ['true']}}
  - {benchmark: command, name: block, privileges: [block], params: {argv: ['true']}}
  - {benchmark: command, name: host, network: {host: true}, params: {argv: ['true']}}
"""


@pytest.mark.parametrize(
    ("labels", "states", "refused"),
    [
        ({LEVEL: "restricted"}, {"missing"}, {"block", "host"}),
        ({LEVEL: "baseline"}, {"missing"}, {"host"}),
        ({LEVEL: "privileged"}, {"ok"}, set()),
        ({}, {"warn"}, set()),
        (None, {"warn"}, set()),
    ],
)
async def test_doctor_names_the_entries_that_the_namespace_refuses(
    labels: Object | None, states: set[str], refused: set[str]
) -> None:
    server = ApiServer()
    if labels is not None:
        server.add({"kind": "Namespace", "metadata": {"name": "bench", "labels": labels}})
    plan = make_plan(parse_suite(SUITE))
    findings = await check_pod_security(server.client(), "bench", plan)
    assert {finding.state for finding in findings} == states
    named = [re.match("entry (.+) needs", finding.what) for finding in findings]
    assert {match[1] for match in named if match} == refused
    if states != {"ok"}:
        assert {finding.do.rpartition("kubectl")[2] for finding in findings} == {
            f" label --overwrite namespace bench {LEVEL}=privileged"
        }


@pytest.mark.parametrize(
    "image",
    ["r.example/bench/perfdag-x/../evil:1", "r.example/bench/perfdag-fio:2", "fio:1", "../fio"],
)
def test_an_image_that_only_resembles_an_own_one_is_foreign(image: str) -> None:
    assert not own_image(image, IMAGES)
    assert not own_image(image, "r.example/bench/perfdag-{name}")


RIGHTS = """\
name: s
entries:
  - benchmark: vmi-burst
    image: IMAGE
    params: {counts: [1]}
"""


@pytest.mark.parametrize("image", ["evil.example/x:1", "base"])
def test_an_account_with_rights_is_never_in_a_foreign_image(image: str) -> None:
    plan = make_plan(parse_suite(RIGHTS.replace("IMAGE", image)), run_id=place().run_id)
    context = replace(place(), images=IMAGES, allowed=("vmi-burst",))
    if image == "base":
        [kind] = outputs(plan, context)["kinds"]
        assert kind["lead"]["serviceAccountName"] == "perfdag-measure-vmi-burst"
    else:
        with pytest.raises(BadDocument, match="vmi-burst has rights of its own here"):
            outputs(plan, context)


def test_a_pod_with_rights_measures_its_own_benchmark_alone(tmp_path: Path) -> None:
    """A plan that was changed in the store puts a command into the batch of the VMIs."""
    text = RIGHTS.replace("IMAGE", "base") + "  - {benchmark: command, params: {argv: [id]}}\n"
    plan = make_plan(parse_suite(text), run_id=place().run_id)
    store = FolderStore(str(tmp_path))
    context = replace(place(), images=IMAGES, allowed=("vmi-burst",))
    number = next(
        number
        for number, batch in enumerate(plan.batches)
        if plan.point_at(batch.samples[0]).benchmark == "vmi-burst"
    )
    given = outputs(plan, context)
    kind = given["kinds"][int(given["kindof"][number])]
    [main_container] = [item for item in kind["lead"]["containers"] if item["name"] == "main"]
    account = kind["lead"]["serviceAccountName"]
    assert main_container["env"] == [{"name": "PERFDAG_ACCOUNT", "value": account}]
    check_account(account, plan, number)
    [command] = [batch for batch in plan.batches if batch is not plan.batches[number]]
    plan.batches[number].samples = command.samples
    with pytest.raises(BadDocument, match=f"command may not use the account {account}"):
        lead(replace(context, account=account), store, plan, number, 0)
    check_account("", plan, number)
