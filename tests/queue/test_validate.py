"""The validator with workloads of a known law, and with sites that misbehave."""

import asyncio
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.commands.main import main
from perfdag.kube.client import KubeError
from perfdag.steps.queue import validate as validation
from perfdag.steps.queue.client import ClientStats
from perfdag.steps.queue.protocol import Address
from perfdag.steps.queue.scaling_benchmark import QueueScalingParams
from perfdag.steps.queue.sites import LocalSite
from perfdag.steps.queue.validate import (
    BadInput,
    Plan,
    Result,
    Site,
    Stats,
    measure,
    measurements_of,
    summary,
    validate,
)
from tests.conftest import CommandLine
from tests.queue.conftest import until


def test_the_steps_double_up_to_the_limit_in_a_seeded_order() -> None:
    assert [sorted(Plan(limit).steps()) for limit in (1, 3, 4)] == [[1], [1, 2, 3], [1, 2, 4]]
    assert Plan(16).steps() == Plan(16).steps()
    assert len({tuple(Plan(16, seed=seed).steps()) for seed in range(9)}) > 5


class Fake(Site):
    """A site of which only three replicas ever run; its client has these statistics."""

    name = "fake"

    def __init__(self, lost: str = "", pending: int = 0) -> None:
        self.wanted = 5
        self.lost_replicas = lost
        self.requests: list[int] = []
        self.client = ClientStats()
        self.client.pending = pending

    async def parallel(self, requests: int) -> int:
        self.requests.append(requests)
        return requests

    async def reset(self) -> None:
        """Keep the statistics."""

    async def stats(self) -> Stats:
        return self.client.as_json()

    async def replicas(self) -> int:
        return self.wanted

    async def scale(self, replicas: int) -> None:
        self.wanted = replicas

    async def ready(self) -> int:
        return min(3, self.wanted)

    async def gone(self) -> bool:
        return True

    async def why(self) -> str:
        return "Insufficient gpu.intel.com/millicores"

    async def lost(self) -> str:
        return self.lost_replicas


async def test_windows_before_the_steady_ones_are_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 3 items: one at 1/s, then three at 10/s, which decide."""
    monkeypatch.setattr(validation, "POLL_SECONDS", 0.0)
    ends = [0.0, 1.0, 2.0, 3.0, *(3 + n / 10 for n in range(1, 10))]

    class Counted(Fake):
        polls = -1

        async def stats(self) -> Stats:
            self.polls += 1
            nodes = {"n": {"pods": ["p"], "failed_devices": {}, "devices": {}, "run_seconds": {}}}
            return {
                **self.client.as_json(),
                "chains": {"0": [0.0, ends[self.polls], self.polls]},
                "success": self.polls,
                "nodes": nodes,
            }

        async def ready(self) -> int:
            return 1

    step = await measure(Counted(), Plan(1), 1)
    assert (step["steady"], step["problems"]) == (True, [])
    assert step["windows"] == pytest.approx([10, 10, 10])


async def run(command: list[str], plan: Plan) -> Result:
    async with LocalSite(command, plan.limit) as site:
        [result] = await validate([site], plan, print)
        assert await site.replicas() == 1
        return result


@pytest.mark.slow
async def test_a_serial_fifth_fails_at_the_right_step() -> None:
    """By Amdahl's law the doublings gain 1.667, 1.5 and 1.333; items take as much longer."""
    result = await run(["usl", "0.3", "0.2", "0"], Plan(8, 1.42))
    steps = result["steps"]
    assert [step["verdict"] == "failed" for step in steps] == [False, False, False, True]
    assert result["verdict"] == "failed"
    assert result["usl"]["sigma"] == pytest.approx(0.2, rel=0.1)
    [(name, seconds)] = steps[-1]["item_seconds"].items()
    assert seconds == pytest.approx(1.5 * steps[-2]["item_seconds"][name], rel=0.1)
    times = [row for row in measurements_of(result) if row.metric == "item_time"]
    assert {(row.subject, row.coords["replicas"]) for row in times} == {
        (name, count) for count in (1, 2, 4, 8)
    }


async def test_two_queues_are_validated_at_the_same_time() -> None:
    """Both have as many replicas and requests in each step, and a verdict of their own."""
    async with LocalSite(["sleep", "0.1"], 2) as one, LocalSite(["sleep", "x"], 2) as other:
        together = set[tuple[int, int]]()

        def report(_: str) -> None:
            together.add((len(one.backends.running), len(other.backends.running)))

        results = await validate([one, other], Plan(2, 1), report)
    assert [result["verdict"] for result in results] == ["passed", "failed"]
    assert {(1, 1), (2, 2)} <= together


async def test_steps_begin_when_the_client_reaches_the_frontend() -> None:
    """A new Service leads nowhere for seconds: connections fail, or something else closes them."""
    async with LocalSite(["sleep", "0.1"], 2) as site:
        closing = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        work = site.load.work
        elsewhere = Address("127.0.0.1", closing.sockets[0].getsockname()[1])
        site.load.work = replace(work, frontend=elsewhere)
        with pytest.raises(BadInput, match=r"0.5 s no request was answered: .* no valid reply"):
            await validate([site], Plan(2, 1, scale_seconds=0.5), print)
        asyncio.get_running_loop().call_later(1.5, setattr, site.load, "work", work)
        [result] = await validate([site], Plan(2, 1), print)
        closing.close()
    assert result["verdict"] == "passed", summary(result)


async def test_a_backend_that_is_lost_fails_its_step_at_once() -> None:
    async with LocalSite(["sleep", "0.05"], 2) as site:

        async def kill() -> None:
            def some() -> bool:
                return len(site.backends.running) == 2 and site.load.stats.success > 1

            await until(some)  # checks the limit
            await until(lambda: not site.backends.running)
            await until(some)
            site.backends.running[0].kill()

        killer = asyncio.create_task(kill())
        [result] = await asyncio.wait_for(validate([site], Plan(2, 1), print), 30)
        assert killer.done()
        assert await site.replicas() == await site.ready() == 1
    assert result["verdict"] == "failed"
    step = result["steps"][-1]
    assert step["lost"] == "1 of 2 backends ended by themselves (1 by SIGKILL)"
    assert step["problems"][0] == step["lost"]


async def test_items_longer_than_the_time_given_are_measured_if_one_ends_in_it() -> None:
    # 13 items take 2.6 s, longer than the time given
    assert (await run(["sleep", "0.2"], Plan(1, seconds=1.3)))["verdict"] == "passed"
    [step] = (await run(["sleep", "2"], Plan(1, seconds=0.3)))["steps"]
    assert step["problems"][0].endswith(
        "no item ended: set the timeout (--timeout) to 16 times the time of an item"
    )


async def test_work_that_only_fails_ends_soon_and_says_why() -> None:
    began = time.monotonic()
    result = await run(["sleep", "x"], Plan(2, seconds=60))
    assert time.monotonic() - began < 30
    assert result["verdict"] == "failed"
    steps = result["steps"]
    assert "exit code 1): invalid sleep time value 'x'" in steps[0]["problems"][0]
    assert steps[1]["ratio"] is None
    assert sum(steps[0]["failed"].values()) == steps[0]["failures"] > 0


@pytest.mark.parametrize(
    ("limit", "site", "message"),
    [
        (3, Fake(pending=7), r"7 requests are still in flight: .*\(--scale-timeout, scale_timeout"),
        (8, Fake("1 of 8 backends ended by themselves"), "1 of 8 backends ended by themselves"),
        (8, Fake(), r"3 of 8 replicas run: Insufficient gpu"),
    ],
)
async def test_a_limit_that_cannot_run_restores_the_replicas(
    limit: int, site: Fake, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        await validate([site], Plan(limit, scale_seconds=0.3), print)
    assert site.wanted == 5


async def test_replicas_that_cannot_be_put_back_and_a_client_that_hangs_are_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no_right = KubeError(403, "Forbidden", "no right to scale")

    class Stuck(Fake):
        async def scale(self, replicas: int) -> None:
            if replicas == 5:
                raise no_right
            await super().scale(replicas)

        async def parallel(self, requests: int) -> int:
            if self.requests:
                await asyncio.sleep(60)
            return await super().parallel(requests)

    monkeypatch.setattr(validation, "STOP_SECONDS", 0.1)
    output = list[str]()
    with pytest.raises(BadInput, match=r"3 of 8 replicas run"):
        await validate([Stuck()], Plan(8, scale_seconds=0.1), output.append)
    assert output[-3:] == [
        "fake: restoring 5 replicas",
        f"fake: 5 replicas could not be restored: {no_right}",
        "fake: the client may continue to send: no answer in 0.1 s",
    ]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["sleep", "abc"], "invalid sleep time value 'abc'"),
        (["sleep"], "argument missing"),
        (["usl", "1"], "usl needs SECONDS SIGMA KAPPA"),
        (["ls"], "absolute"),
        (["/bin/cat", "FILENAME"], "no file name to map to it"),
    ],
)
def test_a_command_that_cannot_run_is_refused_by_the_plan(
    command: list[str], message: str, tmp_path: Path, cli: CommandLine
) -> None:
    file = tmp_path / "suite.yaml"
    entries = [{"benchmark": "queue-scaling", "params": {"command": command}}]
    file.write_text(yaml.safe_dump({"name": "q", "entries": entries}))
    assert message in cli(["plan", str(file)], 2).err


@pytest.mark.parametrize(
    ("params", "scale_seconds", "seconds"),
    [
        ({"command": ["sleep", "600"]}, 630, 9600),
        ({"command": ["/bin/true"], "item": "10m", "item_limit": 900}, 630, 9600),
        ({"command": ["/bin/true"], "item_limit": 900}, 930, 120),
        ({"deployment": "d", "scale_timeout": "20m", "item": "10m"}, 1200, 9600),
        ({}, 120, 120),
    ],
)
def test_replicas_are_given_the_time_of_an_item_to_go(
    params: dict[str, Any], scale_seconds: float, seconds: float
) -> None:
    plan = QueueScalingParams.model_validate(params).plan()
    assert (plan.scale_seconds, plan.seconds) == (scale_seconds, seconds)


LOCAL = ["validate", "--local", "--limit", "2"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([*LOCAL, "--factor", "0.5", "sleep", "1"], "factor 0.5"),
        ([*LOCAL, "--factor", "nan", "sleep", "1"], "factor nan"),
        (["validate", "--local", "--limit", "0", "sleep", "1"], "LIMIT 0"),
        ([*LOCAL, "--scale-timeout", "inf", "sleep", "1"], "scale timeout inf s"),
        ([*LOCAL, "--timeout", "-3", "sleep", "1"], "timeout -3 s"),
        ([*LOCAL, "--tolerance", "1", "sleep", "1"], "tolerance 1 "),
        ([*LOCAL, "nothing"], "neither an absolute path"),
        ([*LOCAL, "--item-limit", "nan", "sleep", "1"], "item limit nan s"),
        ([*LOCAL, "--glob", "/nowhere/*", "sleep", "1"], "no files matching glob pattern"),
        ([*LOCAL, "/bin/cat", "FILENAME"], "FILENAME in args"),
        (["validate", "--limit", "2", "there", "--glob", "/dev/null"], "need --local"),
        (["validate", "--limit", "2", "a", "b", "--client", "c"], "the client of one Deployment"),
        (["validate", "--limit", "2"], "name a Deployment"),
        (["client", "--req-now", "5"], "--req-now"),
        (["client", "--caddr", ":9996"], "set PERFDAG_QUEUE_TOKEN, or listen on localhost"),
        (["client", "--duration", "nan"], "--duration nan"),
        (["manifests"], "name a YAML file"),
        (["manifests", "nowhere.yaml"], "No such file"),
        (["backend", "--glob", "/nowhere/*", "sleep", "1"], "no files matching"),
        (["frontend", "sleep", "--caddr", "here"], "HOST:PORT"),
        (["frontend", "-verbose", "--message-timeout", "0", "sleep"], "--message-timeout 0.0"),
        (["frontend", "--reply-timeout", "nan", "sleep"], "--reply-timeout nan"),
    ],
)
def test_bad_input_is_one_line(argv: list[str], message: str, cli: CommandLine) -> None:
    output = cli(["queue", *argv], 2).err
    assert message in output
    assert output.count("\n") == 1


def test_a_taken_port_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        argv = ["--caddr", where, "--waddr", "127.0.0.1:0", "--maddr", "127.0.0.1:0"]
        assert main(["queue", "frontend", "sleep", *argv]) == 2
    assert f"cannot listen on {where}" in capsys.readouterr().err
