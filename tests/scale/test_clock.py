"""The clocks, the lag of the watch, and how busy the harness is, against a small API server of the heartbeat's one object."""

import asyncio
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from perfdag.kube.client import KubeError
from perfdag.steps.scale.measure import clock
from perfdag.steps.scale.measure.clock import Heartbeat, Offset
from perfdag.steps.scale.measure.self_load import SelfLoad, busiest
from tests.fakes.api_server import ApiServer, Request, client


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not done():
            await asyncio.sleep(0.005)


class TestHeartbeat:
    async def test_a_stall_is_as_many_slow_beats_as_were_due_in_it(self) -> None:
        server, waiting, go_on = ApiServer(), list[Request](), asyncio.Event()

        async def stall(request: Request) -> None:
            waiting.append(request)
            await go_on.wait()

        server.on(r"PATCH [^?]*$", stall)
        async with client(server) as kube, Heartbeat(kube, "r", "n", 0.02) as heart:
            await until(lambda: len(waiting) >= 10)
            assert len(heart.lags) >= 10, "what is on its way counts as at least its age"
            assert heart.lost >= 9
            assert heart.summary()["max_s"] > 0.15
            go_on.set()
            await until(lambda: {*map(str, range(1, 11))} <= heart.arrived.keys())
            slow = sorted(heart.lags, reverse=True)[:10]
        assert all(lag >= 0.02 * (9 - place) for place, lag in enumerate(slow)), (
            "each is late by the time since it was due"
        )

    async def test_what_a_list_alone_told_of_is_lost_and_as_late_as_the_list(self) -> None:
        server = ApiServer()
        go_on = asyncio.Event()

        async def stall(_: Request) -> None:
            await go_on.wait()

        server.on("watch", stall)
        async with client(server) as kube, Heartbeat(kube, "r", "n", 0.02) as heart:
            await until(lambda: len(heart.answered) >= 5 and bool(server.count("watch")))
            missed = len(heart.answered)
            server.expire()
            go_on.set()
            await until(lambda: kube.counts["relist 410"] > 0 and len(heart.arrived) >= 3)
            summary = heart.summary()
        assert summary["lost"] >= missed
        assert summary["beats"] >= summary["lost"] + 3

    async def test_a_watch_that_is_refused_is_told(self) -> None:
        server = ApiServer()
        server.fail("watch", 403, "no more of it")
        async with client(server) as kube, Heartbeat(kube, "r", "n", 0.02) as heart:
            await until(lambda: bool(heart.stopped))
            await until(heart.tasks[0].done)  # nothing is changed that nobody sees
        assert "no more of it" in heart.note

    async def test_one_that_goes_well_has_nothing_to_tell(self) -> None:
        server = ApiServer()
        async with client(server) as kube, Heartbeat(kube, "r", "n", 0.01) as heart:
            await until(lambda: len(heart.after_answer) >= 20)
        assert heart.note == ""
        assert min(heart.lags) > 0

    async def test_beats_of_a_pause_are_left_out(self) -> None:
        server = ApiServer()
        async with client(server) as kube, Heartbeat(kube, "r", "n", 0.02) as heart:
            await until(lambda: len(heart.lags) >= 5)
            heart.pause()
            time.sleep(0.5)  # as the making of rows does
            before = len(heart.lags)
            await asyncio.sleep(0.05)
            assert len(heart.lags) == before
            heart.resume()
            await until(lambda: len(heart.lags) >= before + 5)
        beats = [
            int(item.body["data"]["beat"])
            for item in server.requests
            if "data" in (item.body or {})
        ]
        assert max(after - item for item, after in pairwise(beats)) > 0.5 / 0.02, (
            "none of those that were due meanwhile is sent"
        )


class TestDrift:
    @pytest.mark.parametrize(("end", "message"), [(0.55, False), (0.75, True), (None, True)])
    async def test_beyond_its_bound_it_is_noted(
        self, end: float | None, message: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def measured(kube: Any) -> Offset:
            if end is None:
                raise KubeError(0, "Unreachable", "no answer")
            return Offset(end, 0.01)

        monkeypatch.setattr(clock, "server_offset", measured)
        facts, note = await clock.drift(None, Offset(0.5, 0.02))  # type: ignore[arg-type]
        assert bool(note) == message
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
        while time.thread_time() - (self_load.paused or (0.0, 0.0))[1] < 0.2:
            pass
        assert self_load.share is None
        self_load.resume()
        assert self_load.share is None
        assert self_load.usage[-1][1] - self_load.usage[0][1] < 0.1

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
            self_load.usage = [(0.0, 0.0), (6.0, 4.5)]
            assert "75% of a core" in self_load.note
