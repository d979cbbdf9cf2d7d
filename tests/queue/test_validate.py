"""The validator with workloads of a known law, and the fits of the laws."""

import asyncio
import math
import random
import socket
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.commands.main import main
from perfdag.hosts.gpu_use import DeviceUse
from perfdag.kube.client import KubeError
from perfdag.steps.queue import validate as validation
from perfdag.steps.queue.client import ClientStats
from perfdag.steps.queue.local import Local
from perfdag.steps.queue.scaling_benchmark import QueueScalingParams, validator_argv
from perfdag.steps.queue.steady_state import Rate, Stats, SteadyCriteria, measure, ratio, summarize
from perfdag.steps.queue.validate import BadInput, Plan, validate
from perfdag.steps.queue.verdict import (
    ReplicaMeasurement,
    Verdict,
    fit,
    limits,
    measurements_of,
    scaling_verdict,
    summary,
)
from perfdag.steps.queue.wire import Address
from tests.conftest import CommandLine
from tests.queue.conftest import until


@pytest.mark.parametrize(
    ("sigma", "kappa"), [(0.0, 0.0), (0.2, 0.0), (0.05, 0.002), (0.02, 0.0005), (0.3, 0.01)]
)
def test_a_known_law_is_recovered(sigma: float, kappa: float) -> None:
    def law(n: int) -> float:
        return 10 * n / (1 + sigma * (n - 1) + kappa * n * (n - 1))

    chance = random.Random(5)
    fitted = fit([(n, law(n) * chance.gauss(1, 0.002)) for n in (1, 2, 4, 8, 16, 32)])
    assert fitted is not None
    assert fitted.rate == pytest.approx(10, rel=0.02)
    assert fitted.sigma == pytest.approx(sigma, rel=0.1, abs=0.003)
    assert fitted.kappa == pytest.approx(kappa, rel=0.1, abs=0.0002)


def step_of(
    replicas: int, mean: float, *windows: float, problems: Sequence[str] = ()
) -> ReplicaMeasurement:
    stats = {"nodes": {}, "failure": 0, "latency": {}}
    windows = windows or (0.99, 1.0, 1.01)
    return ReplicaMeasurement(
        replicas, summarize([mean * part for part in windows], True, 1.0, stats), "", list(problems)
    )


@pytest.mark.parametrize(
    ("rates", "word"),
    [
        ([(1, 10), (2, 19.9)], "passed"),
        ([(2, 19.9), (1, 10)], "passed"),
        ([(1, 10), (2, 18.1)], "inconclusive"),
        ([(1, 10), (2, 17.9)], "inconclusive"),  # the interval reaches what is needed
        ([(1, 10), (2, 15)], "failed"),
        ([(1, 10), (4, 33.0)], "passed"),  # 1.8 for each of two doublings: 3.24 at least
        ([(1, 10), (4, 29.0)], "failed"),
        ([(1, 0)], "passed"),
    ],
)
def test_the_interval_decides_the_verdict(rates: list[tuple[int, float]], word: str) -> None:
    windows = (0.995, 1.0, 1.005)
    assert Verdict(1.8, [step_of(n, mean, *windows) for n, mean in rates]).word == word


def test_a_problem_fails_whatever_the_rates() -> None:
    both = [step_of(1, 10), step_of(2, 20, problems=["3 failed requests"])]
    assert Verdict(1.8, both).word == "failed"
    assert Verdict(1.8).word == "failed", "nothing was measured"


def test_the_order_is_seeded() -> None:
    order = Plan(16).order()
    assert sorted(order) == [1, 2, 4, 8, 16]
    assert order == Plan(16).order()
    assert len({tuple(Plan(16, seed=seed).order()) for seed in range(9)}) > 5


async def test_windows_before_the_steady_ones_are_warm_up() -> None:
    """Windows of 3 items: one at 1/s, then three at 10/s, which decide."""
    ends = iter([0.0, 1.0, 2.0, 3.0, *(3 + n / 10 for n in range(1, 10))])
    done = iter(range(13))

    async def stats() -> Stats:
        number = next(done)
        chains = {"0": [0.0, next(ends), number]}
        return {"chains": chains, "run": {"max": 0.1}, "success": number, "failure": 0}

    async def lost() -> str:
        return ""

    measured = await measure(stats, 1, SteadyCriteria(poll=0.0), lambda _: True, lost)
    assert measured.steady
    assert measured.windows == pytest.approx([10, 10, 10])


def test_too_few_points_are_not_fitted() -> None:
    assert fit([(1, 1.0), (2, 2.0)]) is None
    assert fit([(1, 1.0), (2, 2.0)], coherence=False) is not None
    assert fit([(1, 1.0), (1, 1.0)], coherence=False) is None


def rate(mean: float, *windows: float) -> Rate:
    return summarize([mean * value for value in windows], True, 1.0, {})


def test_the_interval_of_a_ratio_has_its_known_ends() -> None:
    spread = (1 - 0.01 * math.sqrt(3), 1.0, 1 + 0.01 * math.sqrt(3))  # a standard error of 1 %
    width = 4.302653 * 0.01 * math.sqrt(2)  # Student's t of 2 degrees of freedom, both errors
    assert ratio(rate(20, *spread), rate(10, *spread)) == pytest.approx(
        (2, 2 * math.exp(-width), 2 * math.exp(width))
    )
    assert ratio(rate(20, 1.0), rate(10, *spread)) == (2, 0.0, math.inf)  # one window has no spread
    assert math.isnan(ratio(rate(20, 1.0), rate(0, 1.0))[0])


async def test_the_warm_up_is_no_part_of_the_rate() -> None:
    """Three items of one slot take 6 s, and then three times 3 s."""
    ends, polled = [0, 2, 4, *range(6, 16)], iter(range(0, 13, 3))

    async def stats() -> Stats:
        count = next(polled)
        chains = {"0": [0, ends[count], count]}
        return {"chains": chains, "success": count + 1, "failure": 0, "run": {}}

    async def lost() -> str:
        return ""

    measured = await measure(stats, 1, SteadyCriteria(poll=0), lambda _: True, lost)
    assert (measured.steady, measured.windows, measured.per_second) == (True, (1, 1, 1), 1)


def test_steps_include_the_limit() -> None:
    assert [Plan(limit).steps() for limit in (1, 3, 4)] == [[1], [1, 2, 3], [1, 2, 4]]


@pytest.mark.parametrize(("limit", "factor"), [(0, 1.8), (4, 0.9), (4, 2.5)])
def test_bad_plans(limit: int, factor: float) -> None:
    with pytest.raises(BadInput):
        Plan(limit, factor)


async def run(command: list[str], plan: Plan) -> Verdict:
    async with Local(command, plan.limit) as local:
        verdict = await validate(local.target, local.load, plan, print)
        assert await local.target.replicas() == 1
        return verdict


@pytest.mark.slow
async def test_a_serial_fifth_fails_at_the_right_step_and_names_the_slow_item() -> None:
    """By Amdahl's law the doublings gain 1.667, 1.5 and 1.333; items take as much longer."""
    verdict = await run(["usl", "0.3", "0.2", "0"], Plan(8, 1.42))
    result = verdict.as_json()
    assert result["verdict"] == "failed"
    steps = result["steps"]
    assert [step["verdict"] == "failed" for step in steps] == [False, False, False, True]
    assert result["usl"]["sigma"] == pytest.approx(0.2, rel=0.1)
    [(name, seconds)] = steps[-1]["item_seconds"].items()
    assert seconds == pytest.approx(1.5 * steps[-2]["item_seconds"][name], rel=0.1)
    assert f"times as long on {name} as in the step before" in summary(verdict)
    assert f"times as long on {name}" in str(scaling_verdict(result, 1.42).note)
    subjects = [
        (row.subject, row.coords["replicas"])
        for row in measurements_of(result)
        if row.metric == "item_time"
    ]
    assert sorted(subjects) == [(name, count) for count in (1, 2, 4, 8)]


async def test_steps_begin_when_the_client_reaches_the_frontend() -> None:
    """A new Service leads nowhere for seconds: connections fail, or something else closes them."""
    async with Local(["sleep", "0.1"], 2) as local:
        closing = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        work = local.client.work
        elsewhere = Address("127.0.0.1", closing.sockets[0].getsockname()[1])
        local.client.work = replace(work, frontend=elsewhere)
        with pytest.raises(BadInput, match=r"no request was answered in 0.5 s: .* no valid reply"):
            await validate(local.target, local.load, Plan(2, 1, scale_seconds=0.5), print)
        asyncio.get_running_loop().call_later(1.5, setattr, local.client, "work", work)
        verdict = await validate(local.target, local.load, Plan(2, 1), print)
        closing.close()
    assert verdict.word == "passed", summary(verdict)


@pytest.mark.parametrize("limit", [1, 2])
async def test_a_backend_that_is_lost_fails_its_step_at_once(limit: int) -> None:
    async with Local(["sleep", "0.05"], limit) as local:

        async def kill() -> None:
            def some() -> bool:
                return len(local.target.running) == limit and local.client_stats.success > 1

            await until(some)  # checks the limit
            await until(lambda: not local.target.running)
            await until(some)
            local.target.running[0].kill()

        killer = asyncio.create_task(kill())
        verdict = await asyncio.wait_for(
            validate(local.target, local.load, Plan(limit, 1), print), 30
        )
        assert killer.done()
        assert await local.target.replicas() == await local.target.ready() == 1
    assert verdict.word == "failed"
    step = verdict.steps[-1].as_json()
    assert (step["replicas"], step["lost"]) == (
        limit,
        f"1 of {limit} backends ended by themselves (1 by SIGKILL)",
    )
    assert step["problems"][0] == step["lost"]


async def test_items_longer_than_the_time_given_are_measured() -> None:
    # 13 items take 2.6 s, longer than the time given; the first one ends well within it
    verdict = await run(["sleep", "0.2"], Plan(1, criteria=SteadyCriteria(seconds=1.3)))
    assert verdict.word == "passed", verdict.steps


async def test_an_item_that_never_ended_is_said() -> None:
    verdict = await run(["sleep", "2"], Plan(1, criteria=SteadyCriteria(seconds=0.3)))
    assert (
        verdict.steps[0]
        .problems[0]
        .startswith("no item ended in 0 s: set the timeout (--timeout) to 16")
    )


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["sleep", "abc"], "invalid sleep time value 'abc'"),
        (["sleep"], "argument missing"),
        (["usl", "1"], "three"),
        (["ls"], "absolute"),
        (["/bin/cat", "FILENAME"], "no file name to map to it"),
    ],
)
def test_a_command_that_cannot_run_is_refused_by_the_plan(
    command: list[str], message: str, tmp_path: Path, cli: CommandLine
) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "name": "q",
                "entries": [{"benchmark": "queue-scaling", "params": {"command": command}}],
            }
        )
    )
    assert message in cli(["plan", str(file)], 2).err


@pytest.mark.parametrize(
    ("params", "seconds"),
    [
        ({"command": ["sleep", "600"]}, 630),
        ({"command": ["/bin/true"], "item": "10m", "item_limit": 900}, 630),
        ({"command": ["/bin/true"], "item_limit": 900}, 930),
        ({"deployment": "d", "scale_timeout": "20m", "item": "10m"}, 1200),
        ({}, 120),
    ],
)
def test_replicas_are_given_the_time_of_an_item_to_go(
    params: dict[str, Any], seconds: float
) -> None:
    argv = validator_argv(QueueScalingParams.model_validate(params))
    assert float(argv[argv.index("--scale-timeout") + 1]) == seconds


class Elsewhere:
    """A target of which only three replicas ever run, and its client with these statistics."""

    def __init__(self, lost: str = "", stats: ClientStats | None = None) -> None:
        self.wanted = 5
        self.lost_replicas = lost
        self.requests: list[int] = []
        self._stats = stats or ClientStats()

    async def parallel(self, requests: int) -> int:
        self.requests.append(requests)
        return requests

    async def reset(self) -> None:
        """Keep the statistics."""

    async def stats(self) -> Stats:
        return self._stats.as_json()

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

    def watch_devices(self) -> AbstractContextManager[dict[str, DeviceUse]]:
        return nullcontext({})


@pytest.mark.parametrize(
    ("limit", "pending", "lost", "message"),
    [
        (
            3,
            7,
            "",
            r"7 requests are still in flight after .*\(--scale-timeout, scale_timeout of the ben",
        ),
        (8, 0, "1 of 8 backends ended by themselves", "1 of 8 backends ended by themselves"),
        (8, 0, "", r"3 of 8 replicas run after .*Insufficient gpu"),
    ],
)
async def test_a_limit_that_cannot_run_restores_the_replicas(
    limit: int, pending: int, lost: str, message: str
) -> None:
    target = Elsewhere(lost)
    async with Local(["sleep", "1"], limit) as local:
        local.client_stats.pending = pending
        with pytest.raises(BadInput, match=message):
            await validate(target, local.load, Plan(limit, scale_seconds=0.5), print)
    assert target.wanted == 5


async def test_replicas_that_cannot_be_put_back_and_a_client_that_hangs_are_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stuck(Elsewhere):
        async def scale(self, replicas: int) -> None:
            if replicas == 5:
                raise KubeError(403, "Forbidden", "no right to scale")
            await super().scale(replicas)

        async def parallel(self, requests: int) -> int:
            if self.requests:
                await asyncio.sleep(60)
            return await super().parallel(requests)

    monkeypatch.setattr(validation, "STOP_SECONDS", 0.1)
    stuck, output = Stuck(), list[str]()
    with pytest.raises(BadInput, match=r"3 of 8 replicas run after"):
        await validate(stuck, stuck, Plan(8, scale_seconds=0.1), output.append)
    assert output[-3:] == [
        "restoring 5 replicas",
        f"5 replicas could not be restored: {KubeError(403, 'Forbidden', 'no right to scale')}",
        "the client may continue to send: no answer in 0.1 s",
    ]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["validate", "--local", "--limit", "2", "--factor", "0.5", "sleep", "1"], "factor 0.5"),
        (["validate", "--local", "--limit", "2", "--factor", "nan", "sleep", "1"], "factor nan"),
        (
            ["validate", "--local", "--limit", "2", "--scale-timeout", "-5", "sleep", "1"],
            "scale timeout -5 s",
        ),
        (
            ["validate", "--local", "--limit", "2", "--scale-timeout", "inf", "sleep", "1"],
            "scale timeout inf s",
        ),
        (["validate", "--local", "--limit", "2", "--timeout", "-3", "sleep", "1"], "timeout -3 s"),
        (
            ["validate", "--local", "--limit", "2", "--timeout", "nan", "sleep", "1"],
            "timeout nan s",
        ),
        (
            ["validate", "--local", "--limit", "2", "--tolerance", "-1", "sleep", "1"],
            "tolerance -1",
        ),
        (["validate", "--local", "--limit", "2", "--tolerance", "1", "sleep", "1"], "tolerance 1 "),
        (["validate", "--local", "--limit", "2", "nothing"], "neither an absolute path"),
        (
            ["validate", "--local", "--limit", "2", "--item-limit", "nan", "sleep", "1"],
            "item limit nan s",
        ),
        (
            ["validate", "--local", "--limit", "2", "--item-limit", "-1", "sleep", "1"],
            "item limit -1 s",
        ),
        (
            ["validate", "--local", "--limit", "2", "--glob", "/nowhere/*", "sleep", "1"],
            "no files matching glob pattern '/nowhere/*'",
        ),
        (["validate", "--local", "--limit", "2", "/bin/cat", "FILENAME"], "FILENAME in args"),
        (["validate", "--limit", "2", "there", "--glob", "/dev/null"], "need --local"),
        (["validate", "--limit", "2", "there", "--item-limit", "3"], "need --local"),
        (["validate", "--limit", "2"], "name a Deployment"),
        (["client", "--req-now", "5"], "--req-now"),
        (["client", "--caddr", ":9996"], "set PERFDAG_QUEUE_TOKEN, or listen on localhost"),
        (["client", "--duration", "nan"], "--duration nan"),
        (["manifests"], "name a YAML file"),
        (["manifests", "nowhere.yaml"], "No such file"),
        (["backend", "--glob", "/nowhere/*", "sleep", "1"], "no files matching"),
        (["frontend", "sleep", "--caddr", "here"], "HOST:PORT"),
        (
            ["frontend", "-verbose", "--message-timeout", "0", "sleep"],
            "--message-timeout 0.0 is not above 0",
        ),
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


async def test_work_that_only_fails_ends_soon_and_says_why() -> None:
    began = time.monotonic()
    result = (await run(["sleep", "x"], Plan(2, criteria=SteadyCriteria(seconds=60)))).as_json()
    assert time.monotonic() - began < 30
    assert result["verdict"] == "failed"
    steps = result["steps"]
    assert "exit code 1): invalid sleep time value 'x'" in steps[0]["problems"][0]
    assert steps[1]["ratio"] is None
    assert sum(steps[0]["failed"].values()) == steps[0]["failures"] > 0


MANY = {"n/card0": 1.0, "n/card1": 1.1, "n/card2": 2.0}


@pytest.mark.parametrize(
    ("items", "before", "uses", "text"),
    [
        ({"n": 1.0}, {"n": 1.0}, {}, ""),
        ({"n": 1.0}, {}, {"card0": DeviceUse(0.94), "card1": DeviceUse()}, ""),
        ({"n": 1.9}, {"n": 1.0}, {}, "an item takes 1.90 times as long on n as in the step before"),
        (
            {"n": 1.9},
            {"n": 1.0},
            {"card0": DeviceUse(0.98)},
            "card0 is saturated (98 % busy)",
        ),
        (MANY, {}, {}, "n/card2 is slow (an item takes 2 s, on the others 1.05 s)"),
    ],
)
def test_the_device_that_limits_a_step_is_named(
    items: dict[str, float], before: dict[str, float], uses: dict[str, DeviceUse], text: str
) -> None:
    assert limits(items, before, uses) == text
