"""The commands and the observer on a real API server with simulated nodes."""

import asyncio
import contextlib
import shutil
import uuid
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import pyarrow.parquet as pq
import pytest

from perfdag.commands.main import main
from perfdag.kube.client import Kube
from perfdag.kube.config import load_config
from perfdag.steps.scale.measure.observer import Observer
from perfdag.steps.scale.model.templates import RUN_LABEL, Document, built_in, load
from tests.fakes.proxy import Proxy

pytestmark = pytest.mark.cluster


class TestCommands:
    """The commands as a user runs them; synchronous, so each has an event loop of its own."""

    def cli(self, *words: str) -> int:
        return main(["scale", *words])

    @pytest.mark.slow
    def test_submit_sample_plot_delete(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out, name = str(tmp_path / "out"), f"perfdag-test-{uuid.uuid4().hex[:8]}"
        assert self.cli("nodes", "--count", "20", "--gpus", "8") == 0
        words = [
            "--template",
            "job",
            "-n",
            "12",
            "-p",
            "5",
            "--delay",
            "0.2",
            "--namespace",
            name,
            "--create-namespace",
        ]
        assert self.cli("submit", "-o", out, *words) == 0
        submitted = orjson.loads((tmp_path / "out" / "submitted.json").read_bytes())
        assert len(submitted) == 12, "the remainder of 12 by 5 is not dropped"
        assert set(submitted[0]) == {"jobName", "projectName", "jobNamespace", "submitTimestamp"}
        assert self.cli("sample", "-o", out) == 0
        assert self.cli("sample", "-o", out, "--watch", "30") == 0
        sampled = orjson.loads((tmp_path / "out" / "sampled.json").read_bytes())
        assert len(sampled) == 12
        rows = pq.read_table(tmp_path / "out" / "stages.parquet").to_pylist()
        assert len(rows) == 12 * len({row["stage"] for row in rows})
        for plot in ("general", "detailed", "timeline", "scurves", "ecdf", "order"):
            assert self.cli("plot", "-o", out, "--plot", plot) == 0
            assert (tmp_path / "out" / f"{plot}.png").stat().st_size > 5000
        assert self.cli("delete", "-o", out) == 0
        assert "all deleted" in capsys.readouterr().out

        async def clean() -> int:
            async with Kube() as kube:
                jobs = await kube.list(await kube.resource("batch/v1", "Job"), name)
                await kube.delete(await kube.resource("v1", "Namespace"), name)
                return len(jobs)

        assert asyncio.run(clean()) == 0

    @pytest.mark.slow
    @pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
    def test_kubectl_submits_too(self, tmp_path: Path) -> None:
        """Two documents a workload, so that both are made, and both deleted."""
        name, out = f"perfdag-test-{uuid.uuid4().hex[:8]}", str(tmp_path / "out")
        claim = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: 'm-${name}'}\n---\n"
        (tmp_path / "t.yaml").write_text(claim + built_in()["pod"].read_text())
        words = [
            "--template",
            str(tmp_path / "t.yaml"),
            "-n",
            "4",
            "-p",
            "2",
            "-g",
            "0",
            "--namespace",
            name,
            "--create-namespace",
        ]
        assert self.cli("submit", "-o", out, "--submitter", "kubectl", *words) == 0
        assert self.cli("sample", "-o", out, "--watch", "30") == 0
        rows = pq.read_table(tmp_path / "out" / "stages.parquet").to_pylist()
        assert [row["status"] for row in rows if row["stage"] == "scheduled"] == ["ok"] * 4
        assert all(row["uid"] for row in rows), "found by name: kubectl tells no UID"
        assert self.cli("delete", "-o", out) == 0

        async def clean() -> list[str]:
            async with Kube() as kube:
                maps = await kube.list(
                    await kube.resource("v1", "ConfigMap"), name, labels=RUN_LABEL
                )
                await kube.delete(await kube.resource("v1", "Namespace"), name)
                return [item["metadata"]["name"] for item in maps]

        assert asyncio.run(clean()) == []


def simulated_pods(run: str) -> Document:
    """Pods for KWOK's nodes alone: their image is nowhere, so a real node would never get them
    ready.
    """
    document = load("pod", run, {"gpus": 0}).documents[0]
    body = orjson.loads(document.body)
    body["spec"]["nodeSelector"] = {"type": "kwok"}
    return Document(document.api_version, document.kind, orjson.dumps(body))


@pytest.mark.slow
async def test_a_killed_watch_loses_no_stage(kube: Kube, nodes: None, namespace: str) -> None:
    """300 pods while all connections of the observer are cut several times: every pod has every
    stage.
    """
    parts = urlsplit(kube.cluster.server)
    with contextlib.closing(Proxy((parts.hostname or "", parts.port or 443))) as proxy:
        cluster = load_config()
        cluster.server, cluster.server_name = f"https://127.0.0.1:{proxy.port}", parts.hostname
        template = simulated_pods("cut")
        paths = [(await kube.resource("v1", "Pod")).path(namespace)]
        async with (
            Kube(cluster) as through,
            Observer(through, "cut", [("v1", "Pod")], [namespace], primary=["Pod"]) as observer,
        ):

            async def cutting() -> None:
                for _ in range(6):
                    before = through.counts["watch reconnects"]
                    while through.counts["watch reconnects"] == before:
                        await asyncio.sleep(0.25)
                        proxy.cut()  # cuts nothing where the watch has not connected again yet

            cuts = asyncio.create_task(cutting())
            for start in range(0, 300, 30):
                bodies = [template.render(f"p-{i}", namespace, i) for i in range(start, start + 30)]
                await asyncio.gather(*(kube.raw("POST", paths[0], body=body) for body in bodies))
                await asyncio.sleep(0.1)
            await asyncio.wait_for(cuts, 60)
            assert await observer.until(lambda: observer.counts["Pod", "ready"] >= 300, 60)
            for item in observer.of("Pod"):
                assert {"created", "scheduled", "ready"} <= set(item.stages)
            assert len(list(observer.of("Pod"))) == 300
            assert through.counts["lists"] == 0, (
                "the watch goes on from where it was; nothing is listed again"
            )
