"""What a suite may ask for on a cluster: the installation permits it, the plan step refuses the
rest.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from perfdag.app.cluster.template import SuiteRules
from perfdag.app.doctor.permits import permit_findings
from perfdag.cli import main
from perfdag.kube.permits import FORM, demands, is_permitted, own_image, parse_permits, refusals
from perfdag.plan.plan import Plan, make_plan
from perfdag.shape import Shape
from perfdag.steps.runner.gang import lead
from perfdag.steps.runner.limits import check_account
from perfdag.steps.runner.plan import outputs, step
from perfdag.store.folder import FolderStore
from perfdag.suite.load import load_suite, parse_suite
from perfdag.suite.yaml_document import BadDocument
from tests.conftest import CommandLine
from tests.fakes.api_server import ApiServer, kubeconfig

from .steps.test_plan_step import place

ROOT = Path(__file__).parents[1]
IMAGES = "r.example/bench/perfdag-{name}:1"

# what a shape asks for; permits that allow it; permits that do not
SHAPES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"network": {"host": True}}, ["hostNetwork"], ["hostPath=/", "networks=*"]),
    ({"network": {"path": "nodeport"}}, ["nodePort"], ["hostNetwork", "networks=*"]),
    (
        {"network": {"name": "bench/net"}},
        ["networks=bench/net", "networks=bench/*", "networks=*"],
        ["networks=bench", "networks=b", "networks=other/*", "hostNetwork"],
    ),
    ({"network": {"also": ["bench/net"]}}, ["networks=bench/net"], ["networks=bench"]),
    (
        {"volume": {"kind": "hostPath", "path": "/data/fio"}},
        ["hostPath=/data/fio", "hostPath=/data/fio/", "hostPath=/data/f*", "hostPath=/*/fio"],
        # a pod in /data could make a link /data/fio to a folder of the node
        ["hostPath=/data", "hostPath=/", "hostPath=/*", "hostPath=/data/fio/*", "claims=*"],
    ),
    (
        {"volume": {"kind": "hostPath", "path": "/data/../etc"}},
        [],
        ["hostPath=/data", "hostPath=/data/..", "hostPath=/etc", "hostPath=/data/*/etc"],
    ),
    ({"volume": {"claim": "data-1"}}, ["claims=data-1", "claims=data-*"], ["claims=data"]),
    (
        {"volume": {"claim_template": {"volumeName": "nvme-1"}}},
        ["claims=nvme-1", "claims=nvme-*"],
        ["claims=nvme"],
    ),
    (
        {"volume": {"claim_template": {"dataSource": {"kind": "VolumeSnapshot", "name": "full"}}}},
        ["claims=full"],
        ["claims=VolumeSnapshot"],
    ),
    (
        {"tolerations": [{"key": "bench", "operator": "Exists"}]},
        ["tolerations=bench", "tolerations=*"],
        ["tolerations=b", "tolerations=bench2"],
    ),
    ({"tolerations": [{"operator": "Exists"}]}, ["tolerations=*"], ["tolerations=bench"]),
    ({"privileges": ["mtu"]}, ["privileges=mtu"], ["privileges=rdma", "hostNetwork"]),
    ({"runtime_class": "nvidia"}, ["runtimeClasses=nvidia"], ["runtimeClasses=kata"]),
    (
        {"image": "other.example/x:1"},
        ["images=other.example/*", "images=*"],
        ["images=other.example/x", "images=r.example/*", "images=*.org/x:1"],
    ),
]
FREE: list[dict[str, Any]] = [
    {},
    {"image": "fio"},
    {"image": "r.example/bench/perfdag-queue-media:1"},
    {"hosts": {"count": 4, "exclusive": True}, "zones": ["a"], "node_selector": {"a": "b"}},
    {"network": {"host": False, "family": "ipv6"}},
    {"network": {"path": "pod"}},
    {"network": {"path": "service"}},
    {"resources": {"nvidia.com/gpu": 1, "memory": "1Gi"}, "hugepages": {"hugepages-2Mi": "1Gi"}},
    {"resources": {"requests": {"cpu": 4}}, "volume": {"claim_template": {"volumeMode": "Block"}}},
    {"shm": "1GiB", "volume": {"storage_class": "fast", "access": "ReadWriteMany"}},
    {"volume": {"kind": "emptyDir", "medium": "Memory"}, "scheduler": "volcano"},
]


@pytest.mark.parametrize(("keys", "enough", "useless"), SHAPES)
def test_what_a_shape_asks_for_is_allowed_by_its_permit_alone(
    keys: dict[str, Any], enough: list[str], useless: list[str]
) -> None:
    [demand] = demands(Shape.model_validate(keys), IMAGES)
    assert all(is_permitted(demand, [permit]) for permit in enough)
    assert not is_permitted(demand, useless)
    assert not is_permitted(demand, [])
    assert all(parse_permits(permit) == (permit,) for permit in (*enough, *useless))


@pytest.mark.parametrize("keys", FREE)
def test_a_usual_shape_needs_no_permit(keys: dict[str, Any]) -> None:
    assert list(demands(Shape.model_validate(keys), IMAGES)) == []


@pytest.mark.parametrize(
    "image",
    ["r.example/bench/perfdag-x/../evil:1", "r.example/bench/perfdag-fio:2", "fio:1", "../fio"],
)
def test_an_image_that_only_resembles_an_own_one_is_foreign(image: str) -> None:
    assert not own_image(image, IMAGES)
    assert not own_image(image, "r.example/bench/perfdag-{name}")


def fields_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted keys of a shape; those of hosts are one."""
    for name, field in model.model_fields.items():
        inner = {"network": "Network", "volume": "Volume"}.get(name)
        if inner and not prefix:
            import perfdag.shape as shape

            yield from fields_of(getattr(shape, inner), f"{name}.")
        else:
            yield prefix + name
        assert field is not None


def test_the_page_decides_on_each_key_of_a_shape() -> None:
    page = (ROOT / "docs/reference/permits.md").read_text()
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.+?) \|", page, re.M))
    assert set(rows) == set(fields_of(Shape))
    demanded = {
        demand.key: demand.permit.partition("=")[0]
        for keys, _, _ in SHAPES
        for demand in demands(Shape.model_validate(keys), IMAGES)
    }
    documented = {
        key: re.split(r"[=`]", permit)[1] for key, permit in rows.items() if permit != "-"
    }
    assert documented == demanded


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("hostNetwork", ("hostNetwork",)),
        (
            "hostPath=/data,hostNetwork,privileges=mtu,rdma,images=r/*",
            ("hostPath=/data", "hostNetwork", "privileges=mtu", "privileges=rdma", "images=r/*"),
        ),
        ("claims=a,preemption,b", ("claims=a", "preemption", "claims=b")),
    ],
)
def test_permits_are_separated_by_commas(text: str, items: tuple[str, ...]) -> None:
    assert parse_permits(text) == items


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "''"),
        ("hostnetwork", "'hostnetwork'"),
        ("hostPath=data", "'hostPath=data'"),
        ("hostPath=", "'hostPath='"),
        ("hostNetwork=true", "'hostNetwork=true'"),
        ("privileges=mtu,root", "'privileges=root'"),
        ("images={{=1}}", "'images={{=1}}'"),
        ("claims=a b", "'claims=a b'"),
        ("privileged=true", "'privileged=true'"),
    ],
)
def test_what_is_no_permit_is_refused_with_the_form(
    text: str, wrong: str, cli: CommandLine
) -> None:
    refused = cli(["install", "--store", "s3://b/r", "--permit", text], 2)
    assert f"{wrong} is no permit; write {FORM}" in refused.err


SUITE = """\
name: s
priority: 1
defaults:
  tolerations: [{key: bench, operator: Exists}]
entries:
  - benchmark: command
    params: {argv: ['true']}
    volume:
      kind: hostPath
      path: /etc
  - benchmark: command
    name: second
    image: other.example/x:1
    privileges: [mtu, rdma]
    params: {argv: ['true']}
"""
LINES = [
    ("suite:2: priority", "preemption"),
    ("suite:4: defaults.tolerations", "tolerations=bench"),
    ("suite:10: entries[0].volume.path", "hostPath=/etc"),
    ("suite:13: entries[1].image", "images=other.example/x:1"),
    ("suite:14: entries[1].privileges", "privileges=mtu"),
    ("suite:14: entries[1].privileges", "privileges=rdma"),
]


def lines_of(text: str) -> list[str]:
    return [line.removeprefix("perfdag submit: ") for line in text.splitlines() if line]


def expected(*permits: str) -> list[str]:
    return [
        f"{where}: {permit} is not permitted here; "
        f"an admin may add it: perfdag install ... --permit '{permit}'"
        for where, permit in LINES
        if permit not in permits
    ]


@pytest.mark.parametrize(
    "permits", [(), ("preemption", "privileges=mtu", "images=other.example/*")]
)
def test_the_plan_step_names_the_missing_permits_and_does_nothing(
    permits: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, server = FolderStore(str(tmp_path / "store")), ApiServer()
    monkeypatch.setattr("perfdag.steps.runner.pod_context.STORE", store.root)
    monkeypatch.setattr("perfdag.kube.client.Kube", server.client)
    plan = make_plan(parse_suite(SUITE), run_id=place().run_id)
    store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    before = store.list("")
    own = "claim://results"
    context = replace(place(), store=own, images=IMAGES, permits=permits)
    with pytest.raises(BadDocument) as error:
        step(context, tmp_path / "out", {})
    allowed = [*permits, *(["images=other.example/x:1"] if permits else [])]
    assert sorted(lines_of(str(error.value))) == sorted(expected(*allowed))
    assert not server.requests
    assert not (tmp_path / "out").exists()
    assert store.list("") == before


def test_submit_and_doctor_read_the_permits_of_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    pytest.importorskip("hera")
    suite = tmp_path / "suite"
    suite.write_text(SUITE)
    server = ApiServer()
    with kubeconfig(server, tmp_path, monkeypatch):
        install = ["install", "--store", "claim://results", "--images", IMAGES]
        assert main([*install, "--permit", "preemption", "--permit", "hostPath=/etc"]) == 0
        lines = lines_of(cli(["submit", "suite"], 2).err)
        assert sorted(lines) == sorted(expected("preemption", "hostPath=/etc"))
        assert server.of("Workflow") == []
        rest = "tolerations=bench,images=other.example/*,privileges=mtu,rdma,preemption"
        assert main([*install, "--permit", rest, "--permit", "hostPath=/etc"]) == 0
        assert main(["submit", "suite"]) == 0
        [workflow] = server.of("Workflow")
        assert workflow["metadata"]["labels"]["perfdag/suite"] == "s"
        assert workflow["spec"]["priority"] == 1


def test_doctor_says_what_is_permitted_and_what_a_suite_lacks() -> None:
    plan = make_plan(parse_suite(SUITE, "suite"))
    text = f"beyond PodSecurity restricted and images {IMAGES}"
    rules = SuiteRules(IMAGES, (), ())
    assert [finding.text() for finding in permit_findings(rules, None)] == [
        f"ok       suites may use nothing {text}"
    ]
    rules = replace(rules, permits=("hostPath=/etc", "preemption", "privileges=mtu"))
    first, *missing = permit_findings(rules, plan)
    assert first.what == f"suites may use hostPath=/etc, preemption, privileges=mtu {text}"
    assert {finding.state for finding in missing} == {"missing"}
    assert [finding.what for finding in missing] == [
        "defaults.tolerations: tolerations=bench is not permitted here",
        "entries[1].image: images=other.example/x:1 is not permitted here",
        "entries[1].privileges: privileges=rdma is not permitted here",
    ]


def test_points_that_only_leaves_out_need_no_permit() -> None:
    plan = make_plan(parse_suite(SUITE.replace("priority: 1\n", "")), only=["second"])
    assert {demand.key for _, demand in refusals(plan, (), IMAGES)} == {
        "image",
        "privileges",
        "tolerations",
    }


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
    rules = SuiteRules(IMAGES, ("images=*",), ("vmi-burst",))
    [shape] = outputs(plan, context, [])["shapes"]
    if image == "base":
        rules.check(plan)
        assert shape["patch"]["serviceAccountName"] == "perfdag-measure-vmi-burst"
    else:
        with pytest.raises(BadDocument, match="image: vmi-burst has rights of its own here"):
            rules.check(plan)
        assert "serviceAccountName" not in shape["patch"], "nor if the check is passed by"


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
    shape = outputs(plan, context, [])["shapes"][plan.batches[number].shape]
    [main_container] = [item for item in shape["patch"]["containers"] if item["name"] == "main"]
    account = shape["patch"]["serviceAccountName"]
    assert main_container["env"] == [{"name": "PERFDAG_ACCOUNT", "value": account}]
    check_account(account, plan, number)
    [command] = [batch for batch in plan.batches if batch is not plan.batches[number]]
    plan.batches[number].samples = command.samples
    with pytest.raises(BadDocument, match=f"command may not use the account {account}"):
        lead(replace(context, account=account), store, plan, number, 0, True)
    check_account("", plan, number)


SUITES = sorted((ROOT / "suites").glob("*.yaml"))


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_a_suite_of_perfdag_needs_what_its_comments_name(path: Path) -> None:
    plan: Plan = make_plan(load_suite(path))
    named = [
        item
        for text in re.findall(r"^#.*--permit (\S+)", path.read_text(), re.M)
        for item in parse_permits(text)
    ]
    images = "localhost/perfdag-{name}:1"
    assert list(refusals(plan, named, images)) == []
    assert {demand.permit for _, demand in refusals(plan, (), images)} == set(named)
    assert yaml.safe_load(path.read_text())["name"] == path.stem
