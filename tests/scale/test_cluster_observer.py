"""The observer on a real API server: cut off, stopped and resumed, it loses no stage."""

import asyncio
import contextlib
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import pytest

from perfdag.kube.client import Kube
from perfdag.kube.config import load_config
from perfdag.steps.scale.measure.observer import Observer
from perfdag.steps.scale.model.templates import RUN_LABEL, Document, load

pytestmark = pytest.mark.cluster


def simulated_pods(run: str) -> Document:
    """Pods for KWOK's nodes alone: their image is nowhere, so a real node would never get them ready."""
    document = load("pod", run, {"gpus": 0}).documents[0]
    body = orjson.loads(document.body)
    body["spec"]["nodeSelector"] = {"type": "kwok"}
    return Document(document.api_version, document.kind, orjson.dumps(body))


class Cutter:
    """A TCP proxy on loopback before the API server that cuts all its connections on demand."""

    def __init__(self, host: str, port: int) -> None:
        self._target, self._writers = (host, port), set[asyncio.StreamWriter]()

    async def __aenter__(self) -> "Cutter":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, up_writer}

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))


@pytest.mark.slow
async def test_a_killed_watch_loses_no_stage(kube: Kube, nodes: None, namespace: str) -> None:
    """300 pods while all connections of the observer are cut several times: every pod has every stage."""
    parts = urlsplit(kube.cluster.server)
    async with Cutter(parts.hostname or "", parts.port or 443) as cutter:
        cluster = load_config()
        cluster.server, cluster.server_name = f"https://127.0.0.1:{cutter.port}", parts.hostname
        template = simulated_pods("cut")
        paths = [(await kube.resource("v1", "Pod")).path(namespace)]
        async with (
            Kube(cluster) as through,
            Observer(through, "cut", [("v1", "Pod")], [namespace], primary=["Pod"]) as observer,
        ):

            async def cutting() -> None:
                for _ in range(6):
                    await asyncio.sleep(0.25)
                    cutter.cut()

            cuts = asyncio.create_task(cutting())
            for start in range(0, 300, 30):
                bodies = [template.render(f"p-{i}", namespace, i) for i in range(start, start + 30)]
                await asyncio.gather(*(kube.raw("POST", paths[0], body=body) for body in bodies))
                await asyncio.sleep(0.1)
            await cuts
            assert await observer.until(lambda: observer.counts["Pod", "ready"] >= 300, 60)
            for item in observer.of("Pod"):
                assert {"created", "scheduled", "ready"} <= set(item.stages)
            assert len(list(observer.of("Pod"))) == 300
            assert through.counts["watch reconnects"] >= 5
            assert through.counts["lists"] == 0, (
                "the watch goes on from where it was; nothing is listed again"
            )


@pytest.mark.slow
async def test_an_observer_stopped_and_resumed_sees_what_one_that_stayed_saw(
    kube: Kube, nodes: None, namespace: str, tmp_path: Path
) -> None:
    template = simulated_pods("resume")
    path = (await kube.resource("v1", "Pod")).path(namespace)

    async def create(first: int, last: int) -> None:
        bodies = [template.render(f"p-{i}", namespace, i) for i in range(first, last)]
        await asyncio.gather(*(kube.raw("POST", path, body=body) for body in bodies))

    def observer() -> Observer:
        return Observer(kube, "resume", [("v1", "Pod")], [namespace], primary=["Pod"], events=False)

    async with observer() as stayed:
        async with observer() as left_early:
            await create(0, 50)
            await left_early.until(lambda: left_early.counts["Pod", "ready"] >= 20, 30)
            left_early.save(tmp_path / "state")
        await create(50, 80)
        pods = await kube.resource("v1", "Pod")
        await stayed.until(lambda: stayed.counts["Pod", "ready"] >= 80, 60)
        for i in range(10):  # gone while nobody of the second looks
            await kube.delete(pods, f"p-{i}", namespace)
        await stayed.until(lambda: stayed.counts["Pod", "gone"] >= 10, 30)
        resumed = observer()
        resumed.restore(tmp_path / "state")
        async with resumed:
            await resumed.until(
                lambda: (
                    resumed.counts["Pod", "gone"] >= 10 and resumed.counts["Pod", "ready"] >= 80
                ),
                30,
            )

    def seen(item: Observer) -> dict[str, dict[str, int]]:
        return {
            record.name: {stage: (record.times(stage) or (0,))[0] for stage in record.stages}
            for record in item.of("Pod")
        }

    first, second = seen(stayed), seen(resumed)
    assert {name: set(stages) for name, stages in first.items()} == {
        name: set(stages) for name, stages in second.items()
    }
    assert first == second, "the API times are the same too"


async def test_the_heartbeat_leaves_nothing(kube: Kube, namespace: str) -> None:
    from perfdag.steps.scale.measure.clock import Heartbeat, server_offset

    offset = await server_offset(kube)
    assert offset.bound < 0.2
    async with Heartbeat(kube, "r", namespace, 0.02) as heart:
        await asyncio.sleep(1.0)
    assert len(heart.lags) > 10
    assert min(heart.lags) > 0
    maps = await kube.list(
        await kube.resource("v1", "ConfigMap"), namespace, labels=f"{RUN_LABEL}=r"
    )
    assert maps == []
