"""The validator with workloads of a known law, and with sites that misbehave."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.commands.main import main
from perfdag.kube.client import KubeError
from perfdag.steps.queue import validate as validation
from perfdag.steps.queue.client import ClientStats
from perfdag.steps.queue.protocol import REPLY
from perfdag.steps.queue.scaling_benchmark import QueueScalingParams
from perfdag.steps.queue.sites import LocalSite
from perfdag.steps.queue.validate import (
    Plan,
    Replicas,
    Site,
    Stats,
    Step,
    measure,
    measurements_of,
    validate,
)
from tests.conftest import CommandLine


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "POLL_SECONDS", 0.001)


def test_the_steps_double_up_to_the_limit_in_a_seeded_order() -> None:
    assert [sorted(Plan(limit).steps()) for limit in (1, 3, 4)] == [[1], [1, 2, 3], [1, 2, 4]]
    assert Plan(16).steps() == Plan(16).steps()
    assert len({tuple(Plan(16, seed=seed).steps()) for seed in range(9)}) > 5


Law = Callable[[int, int], float]


class Simulated(Site):
    """Backends of a known law on a clock of their own: a look at the statistics is an item later.

    `law`: seconds of an item, by the number of replicas and of the item. `most`: replicas that
    ever run. `reply`: what backends answer.
    """

    name = "simulated"

    def __init__(self, law: Law = lambda n, item: 1.0, most: int = 99, **reply: Any) -> None:
        self.law, self.most, self.reply = law, most, reply
        self.wanted, self.now, self.items = 5, 0.0, 0
        self.client = ClientStats(lambda: self.now)
        self.seen = list[int]()

    async def replicas(self) -> Replicas:
        ready = min(self.most, self.wanted)
        return Replicas(self.wanted, ready, ready, "Insufficient gpu.intel.com/millicores")

    async def scale(self, replicas: int) -> None:
        self.wanted = replicas

    async def parallel(self, requests: int) -> int:
        self.client.parallel = requests
        return requests

    async def reset(self) -> None:
        self.client.reset()

    async def stats(self) -> Stats:
        client = self.client
        if slots := client.parallel:
            began, seconds = self.now, self.law(self.wanted, self.items)
            self.now, self.items = self.now + seconds, self.items + 1
            self.seen.append(self.wanted)
            for slot in range(slots):
                client.begin()
                own = {"Node": "n", "Pod": f"p{slot}", "Runtime": seconds}
                client.finish({**REPLY, **own, **self.reply}, began, slot)
        return client.as_json()


async def one_step(site: Simulated, plan: Plan) -> Step:
    """Measure one replica with one request in flight."""
    await site.scale(1)
    await site.parallel(1)
    return await measure(site, plan, 1)


async def test_windows_before_the_steady_ones_are_warm_up() -> None:
    """Windows of 3 items: one at 1/s, then three at 10/s, which decide."""
    site = Simulated(lambda n, item: 1.0 if item < 4 else 0.1)
    step = await one_step(site, Plan(1))
    assert (step["steady"], step["problems"]) == (True, [])
    assert step["windows"] == pytest.approx([10, 10, 10])
    assert site.items == 13


async def test_a_serial_fifth_fails_at_the_right_step() -> None:
    """By Amdahl's law the doublings gain 1.667, 1.5 and 1.333; items take as much longer."""
    site = Simulated(lambda n, item: 0.3 * (1 + 0.2 * (n - 1)))
    [result] = await validate([site], Plan(8, 1.42))
    steps = result["steps"]
    assert [step["verdict"] == "failed" for step in steps] == [False, False, False, True]
    assert (result["verdict"], site.wanted, site.client.parallel) == ("failed", 1, 0)
    assert result["usl"]["sigma"] == pytest.approx(0.2)
    assert steps[-1]["item_seconds"] == pytest.approx({"n": 0.72})
    times = [row for row in measurements_of(result) if row.metric == "item_time"]
    assert {(row.subject, row.coords["replicas"]) for row in times} == {
        ("n", count) for count in (1, 2, 4, 8)
    }


async def test_two_queues_are_validated_at_the_same_time() -> None:
    """Both have as many replicas in each step, and a verdict of their own."""
    one = Simulated()
    other = Simulated(Retcode=1, Error="invalid sleep time value 'x'")
    results = await validate([one, other], Plan(2, 1))
    assert [result["verdict"] for result in results] == ["passed", "failed"]
    assert list(dict.fromkeys(one.seen)) == list(dict.fromkeys(other.seen))
    steps = results[1]["steps"]
    assert steps[0]["problems"] == ["3 failed requests: invalid sleep time value 'x' (3)"]
    assert steps[1]["ratio"] is None
    assert sum(steps[0]["failed"].values()) == steps[0]["failures"] == 3


async def test_steps_begin_when_the_client_reaches_the_frontend() -> None:
    """A new Service leads nowhere for seconds: connections fail, or something else closes them."""

    class Closed(Simulated):
        polls = 3

        async def stats(self) -> Stats:
            if self.client.parallel and self.polls:
                self.polls -= 1
                self.client.failed("no valid reply")
                return self.client.as_json()
            return await super().stats()

    [result] = await validate([Closed()], Plan(2, 1))
    assert result["verdict"] == "passed"
    never = Closed()
    never.polls = 10**9
    with pytest.raises(ValueError, match=r"0.1 s no request was answered: .* no valid reply"):
        await validate([never], Plan(2, 1, scale_seconds=0.1))


async def test_backends_that_something_else_started_fail_the_step() -> None:
    site = Simulated()
    await site.parallel(2)  # each of which another pod answers
    step = await measure(site, Plan(1), 1)
    assert step["problems"][0] == "2 backends completed an item, 1 replicas were requested"


async def test_the_first_window_of_an_unsteady_step_is_warm_up() -> None:
    """Windows of 3 items: one at 50/s, then one at 1000/s and one at 250/s in turn."""
    site = Simulated(lambda n, item: 0.02 if item < 4 else (0.001, 0.004)[item // 3 % 2])
    step = await one_step(site, Plan(1, seconds=0.05))
    assert not step["steady"]
    assert len(step["windows"]) > 1
    assert min(step["windows"]) > 100


async def test_replicas_that_something_else_adds_are_named() -> None:
    class Scaled(Simulated):
        async def replicas(self) -> Replicas:
            ready = 3 if self.items > 5 else self.wanted
            return Replicas(self.wanted, ready, ready, "")

    step = await one_step(Scaled(), Plan(1))
    assert step["problems"] == [
        "3 replicas run at its end, 1 were requested: something else scales or ends them"
    ]


async def test_items_longer_than_the_time_given_are_measured_if_one_ends_in_it() -> None:
    [result] = await validate([Simulated(lambda n, item: 600.0)], Plan(1, seconds=1e-9))
    assert result["verdict"] == "passed"
    step = await measure(Simulated(), Plan(1, seconds=0.01), 1)
    assert step["problems"][0].endswith(
        "no item ended: set the timeout (--timeout) to 16 times the time of an item"
    )


async def test_backends_of_this_machine_are_validated_and_restored() -> None:
    async with LocalSite(["sleep", "0.05"], 2) as site:
        [result] = await validate([site], Plan(2, 1, tolerance=0.9))
        assert result["verdict"] != "failed"
        assert (await site.replicas()).requested == 1
    assert (await site.replicas()).present == 0


async def test_a_limit_that_cannot_run_restores_the_replicas() -> None:
    site = Simulated(most=3)
    site.client.pending = 7  # as in flight
    with pytest.raises(ValueError, match=r"3 of 8 replicas run: Insufficient gpu"):
        await validate([site], Plan(8, scale_seconds=0.1))
    assert site.wanted == 5
    with pytest.raises(
        ValueError, match=r"7 requests are .* flight: .*\(--scale-timeout, scale_ti"
    ):
        await validate([site], Plan(3, scale_seconds=0.1))


async def test_replicas_that_cannot_be_put_back_and_a_client_that_hangs_are_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    no_right = KubeError(403, "Forbidden", "no right to scale")

    class Stuck(Simulated):
        async def scale(self, replicas: int) -> None:
            if replicas == 5:
                raise no_right
            await super().scale(replicas)

        async def parallel(self, requests: int) -> int:
            if self.wanted != 5:
                await asyncio.sleep(60)
            return await super().parallel(requests)

    monkeypatch.setattr(validation, "STOP_SECONDS", 0.1)
    caplog.set_level("INFO", "perfdag")
    with pytest.raises(ValueError, match=r"3 of 8 replicas run"):
        await validate([Stuck(most=3)], Plan(8, scale_seconds=0.1))
    assert caplog.messages[-3:] == [
        "simulated: restoring 5 replicas",
        f"simulated: 5 replicas could not be restored: {no_right}",
        "simulated: the client may continue to send: no answer in 0.1 s",
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
        ([*LOCAL, "--factor", "0.5", "sleep", "1"], "factor: must be at least 1.0, not 0.5"),
        ([*LOCAL, "--factor", "nan", "sleep", "1"], "not nan"),
        (["validate", "--local", "--limit", "0", "sleep", "1"], "limit: must be at least 1, not 0"),
        ([*LOCAL, "--scale-timeout", "inf", "sleep", "1"], "scale_timeout"),
        ([*LOCAL, "--timeout", "-3", "sleep", "1"], "timeout"),
        ([*LOCAL, "nothing"], "neither an absolute path"),
        ([*LOCAL, "/no/such"], "is not an executable file here"),
        ([*LOCAL, "--item-limit", "nan", "sleep", "1"], "item_limit"),
        ([*LOCAL, "--glob", "/nowhere/*", "sleep", "1"], "no files matching glob pattern"),
        ([*LOCAL, "/bin/cat", "FILENAME"], "FILENAME in args"),
        (["validate", "--limit", "2", "there", "--glob", "/dev/null"], "need --local"),
        (["validate", "--limit", "2", "a", "b", "--client", "c"], "the client of one Deployment"),
        (["validate", "--limit", "2"], "name a Deployment"),
        (["client", "--req-now", "5"], "--req-now"),
        (["client", "--caddr", ":9996"], "set PERFDAG_QUEUE_TOKEN, or listen on localhost"),
        (["manifests"], "name a YAML file"),
        (["manifests", "nowhere.yaml"], "No such file"),
        (["backend", "--glob", "/nowhere/*", "sleep", "1"], "no files matching"),
        (["frontend", "sleep", "--caddr", "here"], "HOST:PORT"),
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
    assert "address already in use" in capsys.readouterr().err
