"""The clocks, the lag of the watch, and how busy the harness is, against a small API server of the heartbeat's one object."""

import asyncio
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import orjson
import pytest
from aiohttp import web

from perfdag.kube.client import KubeError
from perfdag.steps.scale.measure import clock
from perfdag.steps.scale.measure.clock import Heartbeat, Offset
from perfdag.steps.scale.measure.self_load import SelfLoad, busiest

from .api import client


class Server:
    """Serves one ConfigMap: its changes go through `change`, which tells the watch unless it is overridden."""

    def __init__(self) -> None:
        self.beats: list[str] = []
        self.watches: list[asyncio.Queue[bytes | None]] = []
        self.version = 1
        self.refuse_watch = 0

    def log(self, beat: str) -> None:
        self.version += 1
        line = orjson.dumps({"type": "MODIFIED", "object": self.body(beat)}) + b"\n"
        for watch in self.watches:
            watch.put_nowait(line)

    def body(self, beat: str) -> dict[str, Any]:
        return {
            "metadata": {"name": "h", "uid": "u", "resourceVersion": str(self.version)},
            "data": {"beat": beat},
        }

    async def change(self, beat: str) -> web.Response:
        self.log(beat)
        return web.json_response({})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if (
            request.method == "PATCH"
            and "json" in request.content_type
            and "merge" in request.content_type
        ):
            beat = orjson.loads(await request.read())["data"]["beat"]
            self.beats.append(beat)
            return await self.change(beat)
        if request.path == "/api/v1":
            return web.json_response(
                {"resources": [{"name": "configmaps", "kind": "ConfigMap", "namespaced": True}]}
            )
        if request.method != "GET":
            return web.json_response({})
        if "watch" not in request.query:
            items = [self.body(self.beats[-1] if self.beats else "")]
            return web.json_response(
                {"metadata": {"resourceVersion": str(self.version)}, "items": items}
            )
        if self.refuse_watch:
            return web.json_response(
                {"kind": "Status", "message": "no more of it"}, status=self.refuse_watch
            )
        answer = web.StreamResponse()
        await answer.prepare(request)
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.watches.append(lines)
        while line := await lines.get():
            await answer.write(line)
        self.watches.remove(lines)
        return answer


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not done():
            await asyncio.sleep(0.005)


class TestHeartbeat:
    async def test_a_stall_is_as_many_slow_beats_as_were_due_in_it(self) -> None:
        class Stalling(Server):
            waiting: list[str] = []
            go_on = asyncio.Event()

            async def change(self, beat: str) -> web.Response:
                self.waiting.append(beat)
                await self.go_on.wait()
                return await super().change(beat)

        server = Stalling()
        async with client(server.handle) as kube, Heartbeat(kube, "r", "n", 0.02) as heart:
            await until(lambda: len(server.waiting) >= 10)
            assert len(heart.lags) >= 10, "what is on its way counts as at least its age"
            assert heart.lost >= 9
            assert heart.summary()["max_s"] > 0.15
            server.go_on.set()
            await until(lambda: {*map(str, range(1, 11))} <= heart._arrived.keys())
            slow = sorted(heart.lags, reverse=True)[:10]
        assert all(lag >= 0.02 * (9 - place) for place, lag in enumerate(slow)), (
            "each is late by the time since it was due"
        )

    async def test_what_a_list_alone_told_of_is_lost_and_as_late_as_the_list(self) -> None:
        class Silent(Server):
            silent = True

            def log(self, beat: str) -> None:
                if not self.silent:
                    super().log(beat)

        server = Silent()
        async with client(server.handle) as kube, Heartbeat(kube, "r", "n", 0.02) as heart:
            await until(lambda: len(heart._answered) >= 5 and bool(server.watches))
            missed = len(heart._answered)
            server.silent = False
            gone = {
                "type": "ERROR",
                "object": {"code": 410, "reason": "Expired", "message": "too old"},
            }
            server.watches[0].put_nowait(orjson.dumps(gone) + b"\n")
            await until(lambda: kube.counts["relist 410"] > 0 and len(heart._arrived) >= 3)
            told = heart.summary()
        assert told["lost"] >= missed
        assert told["beats"] >= told["lost"] + 3

    async def test_a_watch_that_is_refused_is_told(self) -> None:
        server = Server()
        server.refuse_watch = 403
        async with client(server.handle) as kube, Heartbeat(kube, "r", "n", 0.02) as heart:
            await until(lambda: bool(heart.stopped))
            await until(heart._tasks[0].done)  # nothing is changed that nobody sees
        assert "no more of it" in heart.note

    async def test_one_that_goes_well_has_nothing_to_tell(self) -> None:
        server = Server()
        async with client(server.handle) as kube, Heartbeat(kube, "r", "n", 0.01) as heart:
            await until(lambda: len(heart.after_answer) >= 20)
        assert heart.note == ""
        assert min(heart.lags) > 0

    async def test_beats_of_a_pause_are_left_out(self) -> None:
        server = Server()
        async with client(server.handle) as kube, Heartbeat(kube, "r", "n", 0.02) as heart:
            await until(lambda: len(heart.lags) >= 5)
            heart.pause()
            time.sleep(0.5)  # as the making of rows does
            before = len(heart.lags)
            await asyncio.sleep(0.05)
            assert len(heart.lags) == before
            heart.resume()
            await until(lambda: len(heart.lags) >= before + 5)
        beats = [int(each) for each in server.beats]
        assert max(after - each for each, after in pairwise(beats)) > 0.5 / 0.02, (
            "none of those that were due meanwhile is sent"
        )


class TestDrift:
    @pytest.mark.parametrize(("end", "told"), [(0.55, False), (0.75, True), (None, True)])
    async def test_beyond_its_bound_it_is_noted(
        self, end: float | None, told: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def measured(kube: Any) -> Offset:
            if end is None:
                raise KubeError(0, "Unreachable", "no answer")
            return Offset(end, 0.01)

        monkeypatch.setattr(clock, "server_offset", measured)
        facts, note = await clock.drift(None, Offset(0.5, 0.02))  # type: ignore[arg-type]
        assert bool(note) == told
        assert facts == (
            {}
            if end is None
            else pytest.approx(
                {"server_clock_drift_s": end - 0.5, "server_clock_drift_bound_s": 0.03}
            )
        )


class TestHarness:
    def test_a_pause_is_left_out(self) -> None:
        self_load = SelfLoad()
        assert self_load.share is None
        self_load.pause()
        while time.thread_time() - (self_load._paused or (0.0, 0.0))[1] < 0.2:
            pass
        assert self_load.share is None
        self_load.resume()
        assert self_load.share is None
        assert self_load._seen[-1][1] - self_load._seen[0][1] < 0.1

    def test_the_busiest_seconds_count_and_not_the_mean(self) -> None:
        quiet = [(float(i), 0.1 * i) for i in range(100)]
        busy = [(100.0 + i, 10.0 + 0.9 * i) for i in range(7)]
        after = [(107.0 + i, 15.4 + 0.1 * i) for i in range(100)]
        assert busiest([*quiet, *busy, *after]) == pytest.approx(0.9)
        assert busiest(quiet) == pytest.approx(0.1)
        assert busiest(quiet[:4]) is None, "too short for a share"

    async def test_it_is_noted_above_its_limit(self) -> None:
        async with SelfLoad() as self_load:
            assert self_load.note == ""
            self_load._seen = [(0.0, 0.0), (6.0, 4.5)]
            assert "75% of a core" in self_load.note
