"""Manifests: objects of a queue, rights of a pod, and refused files."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.steps.queue.manifests import Queues, load, manifests
from tests.conftest import CommandLine
from tests.test_readme import PAGES

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "queues.yaml"
Objects = dict[str, dict[str, Any]]


def of(kind: str, objects: list[dict[str, Any]]) -> Objects:
    return {body["metadata"]["name"]: body for body in objects if body["kind"] == kind}


def objects_of(*queues: dict[str, Any], **shared: Any) -> list[dict[str, Any]]:
    named = [{"name": "s", "command": ["sleep", "1"], **queue} for queue in queues or ({},)]
    return manifests(Queues.model_validate({"queues": named, **shared}))


def pod_of(objects: list[dict[str, Any]], name: str) -> dict[str, Any]:
    deployment = of("Deployment", objects)[f"perfdag-queue-{name}"]
    pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return pod


def command_of(objects: list[dict[str, Any]], name: str) -> str:
    return " ".join(pod_of(objects, name)["containers"][0]["command"])


def test_the_example_has_everything() -> None:
    objects = manifests(load(str(EXAMPLE), []))
    wanted = {"Secret", "ServiceMonitor", "NetworkPolicy", "PersistentVolume", "ConfigMap"}
    assert {body["kind"] for body in objects} >= {*wanted, "HorizontalPodAutoscaler"}
    hosts = [body["spec"]["rules"][0]["host"] for body in of("Ingress", objects).values()]
    assert hosts == [
        "sleep.queues.example",
        "media.queues.example",
        "1080p-hevc-to-2160p-600-frames.queues.example",
        "hevc-by-sample-multi-transcode.queues.example",
        "hevc-cascade.queues.example",
        "hevc-parallel-encoding.queues.example",
    ]
    gpu = pod_of(objects, "1080p-hevc-to-2160p-600-frames")
    assert gpu["terminationGracePeriodSeconds"] >= 120
    assert gpu["containers"][0]["resources"]["limits"]["gpu.intel.com/millicores"] == 480
    assert gpu["nodeSelector"] == {"gpu.intel.com/platform_DG2.present": "true"}


def test_a_monitor_has_the_labels_by_which_its_operator_selects() -> None:
    more: dict[str, Any] = {
        "monitor_labels": {"release": "prometheus"},
        "monitor_account": "its-prometheus",
    }
    for shared, account, labels in (
        ({}, "prometheus-k8s", {}),
        (more, "its-prometheus", more["monitor_labels"]),
    ):
        objects = objects_of(monitor="monitoring", **shared)
        [subject] = of("RoleBinding", objects)["perfdag-queue-monitor"]["subjects"]
        assert (subject["name"], subject["namespace"]) == (account, "monitoring")
        [monitor] = of("ServiceMonitor", objects).values()
        own = {
            "app.kubernetes.io/part-of": "perfdag-queue",
            "app.kubernetes.io/name": "perfdag-queue-frontend",
        }
        assert monitor["metadata"]["labels"] == {**own, **labels}


def test_the_limit_of_an_item_reaches_who_waits_for_it() -> None:
    objects = objects_of({"limit": 0.5}, {"name": "b"})
    options = {
        name: re.findall(r"--limit (\S+)", command_of(objects, name))
        for name in ("s", "s-client", "b", "b-client")
    }
    assert options == {"s": ["0.5"], "s-client": ["0.5"], "b": ["0"], "b-client": []}
    assert command_of(objects, "frontend").endswith("--qmax 9999 s b")
    assert command_of(objects_of(open=True), "s-client").endswith(" --open")


def test_a_queue_of_the_original_is_told_in_full() -> None:
    objects = objects_of(
        {
            "name": "media",
            "command": ["/usr/bin/transcode"],
            "dir": "/data",
            "env": {"LIBVA_DRIVER_NAME": "iHD"},
            "null_out": True,
            "arguments": ["-n", "600"],
            "data": {"nfs_server": "x", "nfs_path": "/a"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
        },
        {"name": "ignoring", "ignore": True},
    )
    pod = pod_of(objects, "media")
    container = pod["containers"][0]
    assert {"name": "LIBVA_DRIVER_NAME", "value": "iHD"} in container["env"]
    assert container["volumeMounts"] == [{"name": "data", "mountPath": "/data", "readOnly": True}]
    assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    backend, client = command_of(objects, "media"), command_of(objects, "media-client")
    assert backend.endswith("--dir /data --null-out -- /usr/bin/transcode")
    assert client.endswith(" -- -n 600")
    assert "--ignore" in command_of(objects, "ignoring")


def test_the_frontend_admits_pods_of_the_original() -> None:
    for monitor in (None, "prom"):
        objects = objects_of({}, {"name": "media"}, monitor=monitor)
        [policy] = of("NetworkPolicy", objects).values()
        own, original = policy["spec"]["ingress"][0]["from"]
        assert own["podSelector"]["matchLabels"] == {"app.kubernetes.io/part-of": "perfdag-queue"}
        [names] = original["podSelector"]["matchExpressions"]
        programs = ("backend-s", "client-s", "backend-media", "client-media")
        assert names["values"] == [f"scalability-tester-{program}" for program in programs]
        [namespaces] = original["namespaceSelector"]["matchExpressions"]
        assert namespaces["values"] == ["perfdag-queue", monitor or "monitoring", "validation"]


def test_every_pod_is_restricted_unless_a_device_needs_root() -> None:
    for root, level in ((False, "restricted"), (True, "baseline")):
        objects = objects_of({"root": root})
        [namespace] = of("Namespace", objects).values()
        assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == level
        for name in ("frontend", "s", "s-client"):
            pod = pod_of(objects, name)
            as_root = root and name == "s"
            assert pod["automountServiceAccountToken"] is False
            assert pod["securityContext"].get("runAsNonRoot", False) is not as_root
            assert (pod["securityContext"]["runAsUser"] == 0) is as_root
            container = pod["containers"][0]["securityContext"]
            assert container == {
                "capabilities": {"drop": ["ALL"]},
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
            }


def test_a_new_token_is_said_and_a_given_one_kept(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["queue", "manifests", "--queue", "sleep=sleep 2", "--namespace", "there"]

    def token(text: str) -> str:
        objects = list(yaml.safe_load_all(text))
        namespaces = {b["metadata"].get("namespace") for b in objects if b["kind"] != "Namespace"}
        assert namespaces == {"there"}
        [variable] = pod_of(objects, "sleep-client")["containers"][0]["env"]
        assert variable["name"] == "PERFDAG_QUEUE_TOKEN"
        return str(of("Secret", objects)["perfdag-queue-token"]["stringData"]["token"])

    monkeypatch.delenv("PERFDAG_QUEUE_TOKEN", raising=False)
    output = cli(argv)
    assert "set PERFDAG_QUEUE_TOKEN to keep one" in output.err
    assert len(token(output.out)) >= 24
    monkeypatch.setenv("PERFDAG_QUEUE_TOKEN", "mine")
    output = cli(argv)
    assert (token(output.out), output.err) == ("mine", "")


def test_a_new_token_starts_the_clients_again_and_nothing_else() -> None:
    """A pod reads the token as it starts, and `apply` starts another if its template differs."""
    queues = load(str(EXAMPLE), [])
    one, two = (of("Deployment", manifests(queues, token)) for token in ("one", "two"))
    changed = {name for name in one if one[name] != two[name]}
    assert changed == {name for name in one if name.endswith("-client")}


def test_the_commands_of_the_page_need_a_plain_cluster_and_the_images_that_they_build(
    cli: CommandLine,
) -> None:
    _, _, section = PAGES[ROOT / "docs/queue.md"].partition("## On a cluster")
    build, apply, validate, _, *sizes = map(shlex.split, re.findall(r"^ {4}(.*)", section, re.M))
    printed = cli(apply[1 : apply.index("|")]).out
    assert set(re.findall(r"/perfdag-(\S+):1", printed)) <= set(build)
    assert "monitoring.coreos.com" not in printed
    assert validate[3] in of("Deployment", list(yaml.safe_load_all(printed)))
    assert [command[0] for command in sizes] == [
        "/usr/bin/time",
        "intel_gpu_top",
        "cd",
        "nvidia-smi",
        "ffmpeg",
    ]


@pytest.mark.parametrize("by", ["custom", "external"])
def test_an_autoscaler_owns_the_number_of_replicas(by: str) -> None:
    objects = objects_of({"autoscale": {"by": by, "most": 9, "window": 33, "items": 0.8}})
    assert "replicas" not in of("Deployment", objects)["perfdag-queue-s"]["spec"]
    spec = of("HorizontalPodAutoscaler", objects)["perfdag-queue-s"]["spec"]
    assert spec["maxReplicas"] == 9
    assert spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 33
    assert by == "custom" or spec["metrics"][0]["external"]["target"]["averageValue"] == "800m"
    [rules] = of("ConfigMap", objects).values()
    text = rules["data"]["config.yaml"]
    assert yaml.safe_load(text)["rules"] == yaml.safe_load(text)["externalRules"]
    assert 'namespace="perfdag-queue"' in text


def test_the_backends_of_a_cron_job_end_on_an_empty_queue() -> None:
    objects = objects_of({"autoscale": {"by": "cron", "parallelism": 3}})
    job = of("CronJob", objects)["perfdag-queue-s"]["spec"]["jobTemplate"]["spec"]
    assert job["parallelism"] == 3
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "OnFailure"
    assert "--backoff 0 --" in " ".join(pod["containers"][0]["command"])
    assert "--backoff 0.05 --backoff-max 0.5 --" in command_of(objects, "s")
    selector = of("Deployment", objects)["perfdag-queue-s"]["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= job["template"]["metadata"]["labels"].items()


def test_queues_may_share_a_volume() -> None:
    data = {"nfs_server": "x", "nfs_path": "/a"}
    kinds = [body["kind"] for body in objects_of({"data": data}, {"name": "b", "data": data})]
    assert kinds.count("PersistentVolume") == kinds.count("PersistentVolumeClaim") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("queues: []", "1 or more"),
        ("queues: [{name: a b, command: [sleep]}]", "queues[0].name: 'a b' is not a name"),
        ("queues: [{name: a, command: [ls]}]", "absolute path"),
        ("queues: [{name: a, command: [sleep], limit: 60, grace: 30}]", "scale-in would kill"),
        (
            "queues: [{name: a, command: [sleep]}, {name: A, command: [sleep]}]",
            "two queues define Deployment perfdag-queue-a:",
        ),
        (
            "queues: [{name: a, command: [sleep], data: {nfs_server: x, nfs_path: /a}},"
            " {name: b, command: [sleep], data: {nfs_server: x, nfs_path: /b}}]",
            "two queues define PersistentVolume perfdag-queue-data-b9021664:",
        ),
        ("queues: [{name: a, command: [sleep], replcas: 2}]", "replcas"),
        ("queues: [{name: a, command: [sleep], data: {nfs_server: x}}]", "go together"),
        ("[1]", "must be a mapping"),
        ("a: [", "expected"),
    ],
)
def test_bad_files(text: str, message: str, tmp_path: Path, cli: CommandLine) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(text)
    output = cli(["queue", "manifests", str(file)], 2).err
    assert message in output
    assert str(file) in output
