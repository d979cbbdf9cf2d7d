"""Hostile parameters and suites on a real Argo: no pod but the planned ones, with their rights
alone.

PodSecurity allows everything here, so that only the templates stand between a text and its pod.
"""

import json

import pytest
from hera.workflows import RawArtifact

from perfdag.kube.client import Kube, Object, run_with_client
from perfdag.suite.load import parse_suite
from perfdag.workflows import runs

from .conftest import IMAGES, Namespace

pytestmark = [pytest.mark.argo, pytest.mark.slow]
ARGO = "argoproj.io/v1alpha1"
HOST_PATH = 'x"} },{"name":"h","hostPath":{"path":"/"}}],"hostPID":true,"a":[{"b":{"c":"'
SUITE = (
    "name: s\npending_limit: 90s\nentries:\n  - benchmark: command\n    params: {argv: ['true']}\n"
)
ECHO = """name: s
pending_limit: 90s
description: '{{workflow.name}} $(AWS_SECRET_ACCESS_KEY) @CLAIMED@'
entries:
  - benchmark: command
    params: {argv: [echo, '{{=1+1}}', $(HOME), '"} },{"hostPID":true']}
"""


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "a ConfigMap that closes its quotes": ({"suite": f"{HOST_PATH}$(HOME)"}, "no ConfigMap"),
    "an expression": ({"options": "{{=1+1}}"}, "the parameter options"),
    "a key outside the store": ({"run": "../../etc"}, "a run id is such as"),
}


def ended(
    namespace: Namespace, parameters: dict[str, str], suite: str = SUITE, **spec: object
) -> Object:
    """The Workflow of somebody who may only submit, once it has ended.

    It carries a suite unless it names a ConfigMap.
    """
    carried = RawArtifact(name="suite", data=runs.inline(parse_suite(suite)))
    inside = [] if "suite" in parameters else [carried]
    body = runs.workflow_of_template(namespace.name, "s", parameters, artifacts=inside)
    body["spec"] |= spec
    name = run_with_client(lambda client: client.create(body))["metadata"]["name"]

    def end() -> Object | None:
        workflows = {item["metadata"]["name"]: item for item in namespace.objects("Workflow", ARGO)}
        return workflows[name] if (workflows[name].get("status") or {}).get("finishedAt") else None

    workflow: Object = namespace.until(end, 240, "end of the Workflow")
    return workflow


def pods(namespace: Namespace, workflow: Object) -> dict[str, Object]:
    """The pods of a Workflow by their roles."""
    labels = f"workflows.argoproj.io/workflow={workflow['metadata']['name']}"
    result = namespace.objects("Pod", labels=labels)
    roles = [pod["metadata"]["labels"]["perfdag/role"] for pod in result]
    assert len(set(roles)) == len(roles)
    return dict(zip(roles, result, strict=True))


def rights(pod: Object) -> Object:
    """What a pod may do on its node and at the API server."""
    spec = pod["spec"]
    containers = [*spec["containers"], *spec["initContainers"]]
    security = [item["securityContext"] for item in containers]
    kinds = {next(key for key in volume if key != "name") for volume in spec["volumes"]}
    return {
        "images": {item["image"] for item in spec["containers"] if item["name"] == "main"},
        "containers": sorted(item["name"] for item in containers),
        "account": spec["serviceAccountName"],
        "host": [key for key in ("hostPID", "hostNetwork", "hostIPC") if spec.get(key)],
        "volumes": kinds - {"emptyDir", "projected"},
        "root": any(item["runAsUser"] == 0 or item.get("privileged") for item in security),
        "escalation": any(item["allowPrivilegeEscalation"] for item in security),
    }


def expected(account: str, image: str = "base", volume: str = "configMap") -> Object:
    """The rights of a pod of this installation."""
    return {
        "images": {IMAGES.replace("{name}", image)},
        "containers": ["init", "main", "wait"],
        "account": account,
        "host": [],
        "volumes": {volume} if volume else set(),
        "root": False,
        "escalation": False,
    }


def refusal(namespace: Namespace, pod: Object) -> str:
    """The only line of perfdag in the log of a pod; the others are Argo's."""

    async def read(client: Kube) -> list[str]:
        lines = client.logs(pod["metadata"]["name"], namespace.name)
        return [line async for line in lines if not line.startswith(("time=", "Error: "))]

    lines = run_with_client(read)
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize("row", REFUSED)
def test_hostile_parameters_end_in_one_line_of_the_plan_step(
    privileged: Namespace, row: str
) -> None:
    parameters, message = REFUSED[row]
    workflow = ended(privileged, parameters)
    assert workflow["status"]["phase"] == "Failed"
    started = pods(privileged, workflow)
    plan = started.pop("plan")
    assert rights(plan) == expected("perfdag-run")
    assert message in refusal(privileged, plan)
    assert not started


def test_the_words_of_a_command_are_literal_and_its_pods_as_planned(
    privileged: Namespace,
) -> None:
    workflow = ended(privileged, {}, ECHO)
    assert workflow["status"]["phase"] == "Succeeded"
    started = {role: rights(pod) for role, pod in pods(privileged, workflow).items()}
    assert started == {
        "plan": expected("perfdag-run"),
        "watchdog": expected("perfdag-watchdog", volume=""),
        "measure": expected("perfdag-measure", volume="secret"),
        "finish": expected("perfdag-finish", "finish", volume=""),
    }
    rows = privileged.rows(privileged.run_id(workflow["metadata"]["name"]))
    assert {row["status"] for row in rows} == {"ok"}
    words = {tuple(json.loads(row["params"])["argv"]) for row in rows}
    assert words == {("echo", "{{=1+1}}", "$(HOME)", '"} },{"hostPID":true')}


BATCH = {"rank": "0", "batch": HOST_PATH, "shape": "0", "attempt": "0"}
BATCH |= {"image": IMAGES.replace("{name}", "base"), "benchmark": "command", "entry": "x"}


def test_another_entrypoint_with_inputs_of_its_own_starts_no_pod(privileged: Namespace) -> None:
    """Whoever submits may choose an entrypoint and its inputs."""
    workflow = ended(privileged, BATCH, entrypoint="host")
    assert workflow["status"]["phase"] in ("Failed", "Error")
    assert not pods(privileged, workflow)
