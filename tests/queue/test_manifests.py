"""Manifests: objects of a queue, rights of a pod, and refused files."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.steps.queue.manifests import manifests
from perfdag.steps.queue.spec import Queues, load
from tests.conftest import CommandLine

EXAMPLE = Path(__file__).parents[2] / "examples" / "queues.yaml"
DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "queue.json"


def of(kind: str, objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {body["metadata"]["name"]: body for body in objects if body["kind"] == kind}


def test_the_example_has_everything() -> None:
    objects = manifests(load(str(EXAMPLE), []))
    kinds = {body["kind"] for body in objects}
    assert {
        "Namespace",
        "Deployment",
        "Service",
        "ServiceMonitor",
        "Role",
        "RoleBinding",
        "NetworkPolicy",
    } <= kinds
    assert {
        "PersistentVolume",
        "PersistentVolumeClaim",
        "HorizontalPodAutoscaler",
        "ConfigMap",
    } <= kinds
    hosts = [body["spec"]["rules"][0]["host"] for body in objects if body["kind"] == "Ingress"]
    assert hosts == [
        "sleep.queues.example",
        "media.queues.example",
        "1080p-hevc-to-2160p-600-frames.queues.example",
    ]
    gpu = of("Deployment", objects)["perfdag-queue-1080p-hevc-to-2160p-600-frames"]["spec"][
        "template"
    ]["spec"]
    assert gpu["terminationGracePeriodSeconds"] >= 120
    assert gpu["containers"][0]["resources"]["limits"]["gpu.intel.com/millicores"] == 480
    assert gpu["nodeSelector"] == {"gpu.intel.com/platform_DG2.present": "true"}
    assert "FILENAME" in gpu["containers"][0]["command"]


def test_a_monitor_has_the_labels_by_which_its_operator_selects() -> None:
    queue = {"name": "s", "command": ["sleep", "1"]}
    labels = {"release": "prometheus"}
    scaler = [
        manifests(Queues.model_validate({"queues": [queue], "monitor": "monitoring", **more}))
        for more in ({}, {"monitor_labels": labels, "monitor_account": "its-prometheus"})
    ]
    monitors = [of("ServiceMonitor", body)["perfdag-queue-frontend"] for body in scaler]
    accounts = [
        of("RoleBinding", body)["perfdag-queue-monitor"]["subjects"][0]["name"] for body in scaler
    ]
    assert accounts == ["prometheus-k8s", "its-prometheus"]
    plain, labelled = (body["metadata"].pop("labels") for body in monitors)
    assert labelled == {**plain, **labels}
    assert monitors[0] == monitors[1]


def test_a_queue_is_one_line_more() -> None:
    one, two = (
        manifests(load(None, lines))
        for lines in (["sleep=sleep 2"], ["sleep=sleep 2", "other=sleep 1"])
    )
    assert len(two) == len(one) + 3
    frontend = of("Deployment", two)["perfdag-queue-frontend"]["spec"]["template"]["spec"][
        "containers"
    ][0]["command"]
    assert frontend[-2:] == ["sleep", "other"]


def test_the_limit_of_an_item_reaches_who_waits_for_it() -> None:
    queues = [
        {"name": "a", "command": ["sleep", "1"], "limit": 0.5},
        {"name": "b", "command": ["sleep", "1"]},
    ]
    objects = of(
        "Deployment", manifests(Queues.model_validate({"queues": queues, "reply_timeout": 90}))
    )

    def option(deployment: str, name: str) -> str | None:
        command = objects[deployment]["spec"]["template"]["spec"]["containers"][0]["command"]
        return command[command.index(name) + 1] if name in command else None

    assert [
        option(f"perfdag-queue-{name}", "--limit") for name in ("a", "a-client", "b", "b-client")
    ] == ["0.5", "0.5", "0", None]
    assert option("perfdag-queue-frontend", "--reply-timeout") == "90"


def test_a_queue_of_the_original_is_told_in_full() -> None:
    queue = {
        "name": "media",
        "command": ["/usr/bin/transcode"],
        "dir": "/data",
        "env": {"LIBVA_DRIVER_NAME": "iHD"},
        "null_out": True,
        "arguments": ["-n", "600"],
    }
    objects = of("Deployment", manifests(Queues.model_validate({"queues": [queue]})))
    backend, client = (
        objects[name]["spec"]["template"]["spec"]["containers"][0]
        for name in ("perfdag-queue-media", "perfdag-queue-media-client")
    )
    assert {"name": "LIBVA_DRIVER_NAME", "value": "iHD"} in backend["env"]
    assert " ".join(backend["command"]).endswith("--dir /data --null-out -- /usr/bin/transcode")
    assert " ".join(client["command"]).endswith(" -- -n 600")
    ignoring = {**queue, "ignore": True, "arguments": []}
    objects = of("Deployment", manifests(Queues.model_validate({"queues": [ignoring]})))
    pod = objects["perfdag-queue-media"]["spec"]["template"]["spec"]
    assert "--ignore" in pod["containers"][0]["command"]


def test_the_frontend_admits_pods_of_the_original() -> None:
    policy = of("NetworkPolicy", manifests(load(None, ["sleep=sleep 2", "media=sleep 1"])))
    own, original = policy["perfdag-queue-frontend"]["spec"]["ingress"][0]["from"]
    assert own == {"podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "perfdag-queue"}}}
    [names] = original["podSelector"]["matchExpressions"]
    assert names == {
        "key": "app",
        "operator": "In",
        "values": [
            f"scalability-tester-{program}"
            for program in ("backend-sleep", "client-sleep", "backend-media", "client-media")
        ],
    }
    [namespaces] = original["namespaceSelector"]["matchExpressions"]
    assert namespaces["values"] == ["perfdag-queue", "monitoring", "validation"]
    [policy] = of("NetworkPolicy", manifests(load(str(EXAMPLE), [], monitor="prom"))).values()
    elsewhere = policy["spec"]["ingress"][0]["from"][1]["namespaceSelector"]
    assert elsewhere["matchExpressions"][0]["values"] == ["perfdag-queue", "prom", "validation"]


def test_the_dashboard_counts_backends_alone() -> None:
    dashboard = DASHBOARD.read_text().replace('\\"', '"')
    pod, job = "perfdag-queue-sleep-6d4b75cb6d-x2vnk", "perfdag-queue-sleep-28123456-x2vnk"
    others = ("perfdag-queue-frontend", "perfdag-queue-sleep-client")
    for label, backends, rest in (
        ("deployment", ["perfdag-queue-sleep"], others),
        ("pod", [pod, job], [f"{name}-6d4b75cb6d-x2vnk" for name in others]),
    ):
        for expected, unwanted in re.findall(rf'{label}=~"(.*?)", {label}!~"(.*?)"', dashboard):
            kept = [
                name
                for name in (*backends, *rest)
                if re.fullmatch(expected, name) and not re.fullmatch(unwanted, name)
            ]
            assert kept == backends
        assert len(re.findall(f'{label}=~"perfdag', dashboard)) == len(
            re.findall(f'{label}!~"perfdag', dashboard)
        )


def test_every_pod_is_restricted() -> None:
    objects = manifests(load(None, ["sleep=sleep 2"]))
    assert (
        of("Namespace", objects)["perfdag-queue"]["metadata"]["labels"][
            "pod-security.kubernetes.io/enforce"
        ]
        == "restricted"
    )
    for body in of("Deployment", objects).values():
        pod = body["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        container = pod["containers"][0]["securityContext"]
        assert container["capabilities"] == {"drop": ["ALL"]}
        assert (container["allowPrivilegeEscalation"], container["readOnlyRootFilesystem"]) == (
            False,
            True,
        )


def test_two_frontends_never_share_a_queue() -> None:
    assert of("Deployment", manifests(load(None, ["sleep=sleep 2"])))["perfdag-queue-frontend"][
        "spec"
    ]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize("ingress", [{}, {"ingress": "queue.example"}])
def test_every_client_has_a_token(ingress: dict[str, str]) -> None:
    queue = {"name": "sleep", "command": ["sleep", "1"], **ingress}
    objects = manifests(Queues.model_validate({"queues": [queue]}))
    token = of("Secret", objects)["perfdag-queue-token"]["stringData"]["token"]
    assert len(token) >= 24
    client = of("Deployment", objects)["perfdag-queue-sleep-client"]["spec"]["template"]["spec"][
        "containers"
    ][0]
    assert client["env"][0]["name"] == "PERFDAG_QUEUE_TOKEN"


@pytest.mark.parametrize(
    "queues",
    ["queues: [{SLEEP, ingress: queue.example}]", "{ingress_domain: example, queues: [{SLEEP}]}"],
)
def test_a_new_token_is_said_and_a_given_one_kept(
    queues: str, tmp_path: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(queues.replace("SLEEP", "name: sleep, command: [sleep, '1']"))
    monkeypatch.delenv("PERFDAG_QUEUE_TOKEN", raising=False)
    assert "set PERFDAG_QUEUE_TOKEN to keep one" in cli(["queue", "manifests", str(file)]).err
    monkeypatch.setenv("PERFDAG_QUEUE_TOKEN", "mine")
    output = cli(["queue", "manifests", str(file)])
    assert not output.err
    assert (
        of("Secret", list(yaml.safe_load_all(output.out)))["perfdag-queue-token"]["stringData"][
            "token"
        ]
        == "mine"
    )


def backoff(template: dict[str, Any]) -> str:
    command = template["spec"]["containers"][0]["command"]
    return str(command[command.index("--backoff") + 1])


@pytest.mark.parametrize(
    ("by", "kind"),
    [
        ("custom", "HorizontalPodAutoscaler"),
        ("external", "HorizontalPodAutoscaler"),
        ("cron", "CronJob"),
    ],
)
def test_scaling(by: str, kind: str) -> None:
    objects = manifests(
        Queues.model_validate(
            {
                "queues": [
                    {
                        "name": "s",
                        "command": ["sleep", "1"],
                        "autoscale": {"by": by, "most": 9, "window": 33},
                    }
                ]
            }
        )
    )
    scaler = of(kind, objects)["perfdag-queue-s"]
    deployment = of("Deployment", objects)["perfdag-queue-s"]
    if by == "cron":
        job = scaler["spec"]["jobTemplate"]["spec"]
        assert backoff(job["template"]) == "0"  # it ends on an empty queue
        assert float(backoff(deployment["spec"]["template"])) > 0
        labels = job["template"]["metadata"]["labels"]
        assert not deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    else:
        assert (
            "replicas" not in deployment["spec"]
        )  # else every apply would reset the scaler's count
        assert scaler["spec"]["maxReplicas"] == 9
        assert scaler["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 33


def test_queues_may_share_a_volume() -> None:
    data = {"nfs_server": "x", "nfs_path": "/a"}
    objects = manifests(
        Queues.model_validate(
            {"queues": [{"name": name, "command": ["sleep"], "data": data} for name in "ab"]}
        )
    )
    assert [body["kind"] for body in objects if body["kind"].startswith("PersistentVolume")] == [
        "PersistentVolume",
        "PersistentVolumeClaim",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("queues: []", "at least 1"),
        ("queues: [{name: a b, command: [sleep]}]", "pattern"),
        ("queues: [{name: a, command: [ls]}]", "absolute path"),
        ("queues: [{name: a, command: [sleep], limit: 60, grace: 30}]", "scale-in would kill"),
        (
            "queues: [{name: a, command: [sleep]}, {name: A, command: [sleep]}]",
            "queue 'a' and queue 'A' both define Deployment perfdag-queue-a:",
        ),
        (
            "queues: [{name: a, command: [sleep]}, {name: a, command: [sleep]}]",
            "queue 'a' and queue 'a' both define Deployment",
        ),
        (
            "queues: [{name: frontend, command: [sleep]}]",
            "the frontend of all queues and queue 'frontend' both define Deployment",
        ),
        (
            "queues: [{name: a, command: [sleep]}, {name: a-client, command: [sleep]}]",
            (
                "queue 'a' and queue 'a-client' both define Deployment perfdag-queue-a-client: "
                "another name"
            ),
        ),
        (
            "queues: [{name: a, command: [sleep], data: {nfs_server: x, nfs_path: /a}},"
            " {name: b, command: [sleep], data: {nfs_server: x, nfs_path: /b}}]",
            (
                "queue 'a' and queue 'b' both define PersistentVolume "
                "perfdag-queue-data-b9021664: a `claim` of its own"
            ),
        ),
        (
            "queues: [{name: a, command: [sleep], ingress: h}, {name: b, command: [sleep], "
            "ingress: h}]",
            "at the Ingress host h",
        ),
        (
            "{queues: [{name: a, command: [sleep]}], monitor_account: x}",
            "monitor_account belong to a ServiceMonitor",
        ),
        ("queues: [{name: a, command: [sleep], replcas: 2}]", "replcas"),
        ("queues: [{name: a, command: [sleep], env: {NODE_NAME: n}}]", "env NODE_NAME"),
        (
            "queues: [{name: a, command: [sleep], ignore: true, arguments: ['1']}]",
            "the backends ignore the client's `arguments`",
        ),
        ("queues: [{name: a, command: [sleep], data: {nfs_server: x}}]", "go together"),
        (
            "{queues: [{name: a, command: [sleep]}], monitor_labels: {release: x}}",
            "monitor_labels belong to a ServiceMonitor",
        ),
        ("[1]", "not a mapping"),
        ("a: [", "expected"),
    ],
)
def test_bad_files(text: str, message: str, tmp_path: Path, cli: CommandLine) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(text)
    output = cli(["queue", "manifests", str(file)], 2).err
    assert message in output
    assert str(file) in output


def test_the_verb_prints_yaml(cli: CommandLine) -> None:
    objects = list(
        yaml.safe_load_all(
            cli(["queue", "manifests", "--queue", "sleep=sleep 2", "--namespace", "there"]).out
        )
    )
    assert {
        body["metadata"].get("namespace") for body in objects if body["kind"] != "Namespace"
    } == {"there"}
