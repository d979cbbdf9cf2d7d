"""Objects that a validation applies and deletes, on a simulated API server."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.cli.queue import _answered, _client
from perfdag.kube.client import KubeError
from perfdag.steps.queue.manifests.model import Queues
from perfdag.steps.queue.manifests.objects import manifests
from perfdag.steps.queue.validate import deploy
from perfdag.steps.queue.validate.deploy import deployed


class Server:
    """A store of objects; a deleted one disappears after ``lasts`` reads, by kind."""

    def __init__(self, **lasts: int) -> None:
        self.there: dict[tuple[str, str], dict[str, Any]] = {}
        self.lasts = lasts
        self.paths: list[str] = []

    async def resource(self, _: str, kind: str) -> str:
        return kind

    async def get(self, kind: str, name: str, _: str | None) -> dict[str, Any]:
        body = self.there.get((kind, name))
        if body and body["metadata"].get("deletionTimestamp"):
            self.lasts[kind] = self.lasts.get(kind, 0) - 1
            if self.lasts[kind] < 0:
                body = self.there.pop((kind, name)) and None
        if not body:
            raise KubeError(404, "NotFound", name)
        return body

    async def apply(self, body: dict[str, Any], _: str | None) -> None:
        key = body["kind"], body["metadata"]["name"]
        assert key not in self.there
        self.there[key] = {**body, "metadata": dict(body["metadata"])}

    async def delete(self, kind: str, name: str, _: str | None) -> None:
        self.there[kind, name]["metadata"]["deletionTimestamp"] = "now"

    async def raw(self, _: str, path: str, **__: Any) -> tuple[int, dict[str, str], bytes]:
        self.paths.append(path)
        raise KubeError(503, "ServiceUnavailable", "no endpoints")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(deploy, "POLL_SECONDS", 0.001)
    scale = {"by": "cron"}
    queues = [
        {"name": "s", "command": ["sleep", "1"], "limit": 900},
        {"name": "c", "command": ["sleep", "1"], "autoscale": scale},
    ]
    objects = manifests(Queues.model_validate({"queues": queues}))
    assert max(map(deploy._grace, objects)) == 915
    assert [
        deploy._grace(body)
        for body in objects
        if body["kind"] in ("CronJob", "Service", "Namespace")
    ] == [0, 0, 0, 0, 60]
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    return str(path)


async def test_what_was_made_is_waited_for_and_what_is_not_gone_is_said(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: Any = Server(Deployment=20)
    reports = list[str]()
    async with deployed(server, file, None, "perfdag-queue-s", reports.append):
        assert ("Deployment", "perfdag-queue-s") in server.there
    assert not server.there
    assert len(reports) == 1
    assert reports[0].startswith("deleting the ")

    server.lasts = {"Namespace": 10**9}
    monkeypatch.setattr(deploy, "MARGIN", 0.01 - 915)
    async with deployed(server, file, None, "perfdag-queue-c", reports.append):
        assert (
            reports[-1]
            == "not applied: CronJob perfdag-queue-c, which would scale perfdag-queue-c while it is validated"
        )
    assert reports[-1] == "not gone 0.01 s after they were deleted: Namespace perfdag-queue"


@pytest.mark.parametrize(
    ("kind", "spec", "grace"),
    [
        (
            "SealedSecret",
            {"encryptedData": {"key": "x"}, "template": {"metadata": {"name": "o"}}},
            0,
        ),
        ("CronJob", {"schedule": "* * * * *", "jobTemplate": None}, 0),
        ("CronJob", {"jobTemplate": {"spec": None}}, 0),
        (
            "CronJob",
            {
                "jobTemplate": {
                    "spec": {"template": {"spec": {"terminationGracePeriodSeconds": None}}}
                }
            },
            30,
        ),
        ("Deployment", {"template": {"spec": {"terminationGracePeriodSeconds": 7}}}, 7),
        ("Template", {"template": "{{ .name }}"}, 0),
        ("Anything", None, 0),
        ("Pod", {"terminationGracePeriodSeconds": 9, "containers": []}, 9),
    ],
)
async def test_any_object_is_applied_whatever_its_spec(
    kind: str, spec: Any, grace: int, tmp_path: Path
) -> None:
    body = {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"name": "o", "labels": None},
        "spec": spec,
    }
    (tmp_path / "o.yaml").write_text(yaml.safe_dump(body))
    assert deploy._grace(body) == grace
    server: Any = Server()
    async with deployed(server, str(tmp_path / "o.yaml"), None, "o", list[str]().append):
        assert list(server.there) == [(kind, "o")]
    assert not server.there


@pytest.mark.parametrize("metadata", [None, {}, {"generateName": "o-"}])
async def test_an_object_without_a_name_is_refused(metadata: Any, tmp_path: Path) -> None:
    (tmp_path / "o.yaml").write_text(
        yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    )
    server: Any = Server()
    with pytest.raises(
        ValueError, match=r"a ConfigMap has no metadata\.name; objects that are removed afterwards"
    ):
        async with deployed(server, str(tmp_path / "o.yaml"), None, "o", list[str]().append):
            pass
    assert not server.there


async def test_what_a_validation_before_deletes_is_waited_for(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: Any = Server(Namespace=5)
    reports = list[str]()

    async def again() -> None:
        body = {
            "kind": "Namespace",
            "metadata": {"name": "perfdag-queue", "deletionTimestamp": "before"},
        }
        server.there["Namespace", "perfdag-queue"] = body
        async with deployed(server, file, None, "perfdag-queue-s", reports.append):
            assert "deletionTimestamp" not in server.there["Namespace", "perfdag-queue"]["metadata"]

    await again()
    assert reports[0] == "waiting for Namespace perfdag-queue, which is being deleted, to be gone"
    server.lasts = {"Namespace": 10**9}
    monkeypatch.setattr(deploy, "MARGIN", 0.01 - 915)
    with pytest.raises(
        ValueError, match=r"Namespace perfdag-queue is being deleted and not gone after 0.01 s"
    ):
        await again()
    assert len(server.there) == 1


@pytest.mark.parametrize(("namespace", "where"), [(None, "there"), ("elsewhere", "elsewhere")])
async def test_the_client_may_be_of_another_namespace(
    namespace: str | None, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from perfdag.steps.queue.validate.targets import HttpLoad

    server: Any = Server()
    args = argparse.Namespace(
        client_url=None, client=None, client_namespace=namespace, deployment="d"
    )
    load = HttpLoad(_client(server, args, "there"))
    target: Any = None
    await _answered(target, load, 1)  # the verdict stands, whatever became of the client
    assert server.paths == [f"/api/v1/namespaces/{where}/services/d-client:9996/proxy/stats"]
    assert "no endpoints" in capsys.readouterr().err
