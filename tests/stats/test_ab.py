"""What two variants of a suite cost: `--within` on stored values, what has none, and a limit
given with --resume.
"""

import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from perfdag.commands.main import main
from perfdag.plan import Duet, duet_on_cluster, prepare_duet
from perfdag.results.run_store import RunStore, stored_plan
from perfdag.runs.duet import OUTCOME, conclude, outcome_junit, outcome_text
from perfdag.stats.paired import Paired, within_limit
from perfdag.stats.robust import Spread
from perfdag.store.base import FolderStore
from perfdag.suite.load import parse_suite
from perfdag.suite.model import share
from tests.conftest import CommandLine
from tests.stats.synthetic import put, rows

SUITE = """\
name: duel
entries:
  - {benchmark: command, name: one, params: {argv: ['true'], expected: 1}}
  - {benchmark: command, name: two, params: {argv: ['false'], expected: 1}}
"""
LATENCY = {"metric": "latency", "unit": "s", "better": "lower"}
RATE = {"metric": "rate", "unit": "1/s", "better": "higher"}
LOSS = {"metric": "loss", "unit": "1", "better": "lower"}
ABSOLUTE = "checks: [{metric: '*', min_effect: 0.001, absolute: true}]\n"


def duel(text: str = SUITE, limit: float | None = 0.05) -> Duet:
    return prepare_duet(
        parse_suite(text), parse_suite(text, settings=["one.env.X=x"]), ("a", "b"), 10, (), limit
    )


def fill(
    store: FolderStore,
    duet: Duet,
    of: dict[str, Any],
    *values: tuple[float, float] | tuple[float, None] | tuple[None, None],
) -> None:
    """Store 20 equal values of each point in each variant; None: the variant skipped the point."""
    for side, plan in enumerate((duet.a, duet.b)):
        result = []
        for point, pair in zip(plan.points, values, strict=True):
            level = pair[side]
            each = {
                "run_id": plan.run_id,
                "point": point.id,
                "trigger": "ab",
                "variant": plan.variant,
                "suite": plan.suite,
            }
            more = {"status": "skipped", "error": "not here"} if level is None else {}
            result += rows(
                0,
                {point.entry: [np.nan if level is None else level] * 20},
                **(of | each | more),
                entry=point.entry,
            )
        put(store, result)


def outcome(store: FolderStore, duet: Duet) -> tuple[int, str]:
    result = conclude(store, duet)
    suite = ElementTree.fromstring(outcome_junit(result)).find("testsuite")
    assert suite is not None
    red = [tag for tag in ("failure", "error") if suite.find(f".//{tag}") is not None]
    assert red == {0: [], 3: ["failure"]}.get(result.exit_code, ["error"])
    return result.exit_code, outcome_text(result, store, markdown=True)


@pytest.mark.parametrize(
    ("checks", "of", "a", "b", "code", "message"),
    [
        (ABSOLUTE, LATENCY, 0.001, 0.04, 3, "+3900 % (+3900 % to +3900 %) beyond"),
        (ABSOLUTE, LATENCY, 0.001, 0.00102, 0, "+2.0 % (+2.0 % to +2.0 %) within"),
        (
            ABSOLUTE,
            LATENCY,
            0.0,
            0.04,
            5,
            "| cannot tell: A's median is 0: there is no share of it |",
        ),
        ("", RATE, 1.0, 0.96, 0, "+4.2 % (+4.2 % to +4.2 %) within"),
        ("", LOSS, 0.0, 0.04, 0, "+4.0 points (+4.0 points to +4.0 points) within"),
        (ABSOLUTE, LOSS, 0.0, 0.06, 3, "+6.0 points (+6.0 points to +6.0 points) beyond"),
        (
            "checks: [{metric: '*', min_effect: 10%}]\n",
            LOSS,
            0.0,
            0.04,
            0,
            "+4.0 points (+4.0 points to +4.0 points) within",
        ),
        (ABSOLUTE, LOSS, 0.01, 0.04, 3, "+300 % (+300 % to +300 %) beyond"),
    ],
)
def test_a_limit_is_a_share_or_said_to_be_points(
    checks: str,
    of: dict[str, Any],
    a: float,
    b: float,
    code: int,
    message: str,
    tmp_path: Path,
) -> None:
    store, duet = FolderStore(str(tmp_path)), duel(SUITE + checks)
    fill(store, duet, of, (a, b), (a, b))
    result, out = outcome(store, duet)
    assert (result, message in out) == (code, True), out


@pytest.mark.parametrize(
    ("of", "two", "limit", "code", "message"),
    [
        (LATENCY, (1.0, None), 0.05, 3, "not compared: two latency: only A has values"),
        (LATENCY, (None, None), 0.05, 3, "not compared: two: neither variant has a headline value"),
        (
            {**LATENCY, "headline": False},
            (1.0, 1.0),
            0.05,
            3,
            "not compared: two: neither variant has a headline value",
        ),
        (LATENCY, (1.0, None), None, 0, "not compared: two latency: only A has values"),
        (LATENCY, (1.0, 1.0), 0.05, 0, "within"),
    ],
)
def test_a_headline_without_values_does_not_pass(
    of: dict[str, Any],
    two: Any,
    limit: float | None,
    code: int,
    message: str,
    tmp_path: Path,
) -> None:
    store, duet = FolderStore(str(tmp_path)), duel(limit=limit)
    fill(store, duet, of, (1.0, 1.0), two)
    result, out = outcome(store, duet)
    assert (result, message in out) == (code, True), out


def test_a_limit_holds_what_the_checks_of_the_suite_let_alert(tmp_path: Path) -> None:
    """On a shared runner that is CPU time, whatever the wall time did."""
    checks = "checks: [{metric: wall_time, page: false}, {metric: cpu_time, page: true}]\n"
    wall_time = {**LATENCY, "metric": "wall_time"}
    cpu_time = {**LATENCY, "metric": "cpu_time", "headline": False}
    for of, b, code in ((wall_time, 2.0, 3), (cpu_time, 1.0, 0), (cpu_time, 2.0, 3)):
        store, duet = FolderStore(str(tmp_path / f"{of['metric']} {b}")), duel(SUITE + checks)
        fill(store, duet, of, (1.0, b), (1.0, b))
        result, out = outcome(store, duet)
        assert (result, " beyond |" in out) == (code, of is cpu_time and code == 3), out


AB_KEYS = {
    "": "a b blocks changes damaged series suite unpaired",
    "a": "run_id words",
    "changes": "folders recorded unknown values",
    "series": "cost info label name paired",
    "series cost": "high kind limit low points share why",
    "series paired": "a absolute b better blocks effect interval kind min_effect p why",
    "series paired interval": "coverage high low middle n",
}
"""The keys of the JSON of `ab` by place; other tools read them."""


@pytest.mark.parametrize("place", AB_KEYS)
def test_the_json_of_ab_has_these_keys(place: str, tmp_path: Path) -> None:
    store, duet = FolderStore(str(tmp_path)), duel(SUITE + ABSOLUTE, limit=0.5)
    fill(store, duet, LATENCY, (1.0, 1.02), (1.0, 1.5))
    conclude(store, duet)
    data = orjson.loads(store.get(OUTCOME.format(duet.a.run_id)))
    for part in place.split():
        data = data[part]
        data = data[0] if isinstance(data, list) else data
    assert " ".join(sorted(data)) == AB_KEYS[place]


def test_junit_says_what_passed_and_what_is_beyond(tmp_path: Path) -> None:
    store, duet = FolderStore(str(tmp_path)), duel(SUITE + ABSOLUTE)
    fill(store, duet, LATENCY, (1.0, 1.02), (1.0, 1.5))
    suite = ElementTree.fromstring(outcome_junit(conclude(store, duet))).find("testsuite")
    assert suite is not None
    assert [suite.get(key) for key in ("tests", "failures", "errors")] == ["2", "1", "0"]
    one, two = suite.findall("testcase")
    assert (one.get("classname"), one.get("name")) == ("duel.ab", "one latency, - | env.X=x")
    assert one.findtext("system-out") == (
        "+2.0 % (+2.0 % to +2.0 %) within; A 1 s; B 1.02 s; B against A +20 ms; "
        "interval +20 ms to +20 ms; p 0.002; verdict worse"
    )
    failure = two.find("failure")
    assert failure is not None
    assert failure.text == failure.get("message")
    assert "+50.0 % (+50.0 % to +50.0 %) beyond; A 1 s; B 1.5 s" in (failure.text or "")


def test_what_would_decide_grows_with_the_square_of_the_width() -> None:
    """An interval 1.4 times as wide as wanted needs twice the blocks."""
    interval = Spread(0.05, -0.02, 0.12, 8)
    judged = Paired(0.05, interval, p=0.2, blocks=8, a=1, b=1, min_effect=0.05, better="lower")
    bound = within_limit(judged, 0.1)
    assert bound is not None
    assert (bound.kind, bound.why) == ("unclear", "--blocks 16 would tell")


def test_variants_of_which_nothing_was_measured_fail(tmp_path: Path) -> None:
    store, duet = FolderStore(str(tmp_path)), duel(limit=None)
    fill(store, duet, LATENCY, (None, None), (None, None))
    assert outcome(store, duet)[0] == 1


@pytest.mark.parametrize("side", ["a", "b"])
def test_a_limit_given_with_resume_reaches_the_cluster(
    side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, started = FolderStore(str(tmp_path)), list[str]()

    def start(namespace: str, run_id: str, *_: Any) -> str:
        started.append(run_id)
        return "duel-1"

    # the cluster and its store are the only things that are not real
    monkeypatch.setattr("perfdag.runs.cluster.installed_store", lambda _: "s3://bench/results")
    monkeypatch.setattr("perfdag.runs.cluster.start_run", start)
    monkeypatch.setattr("perfdag.commands.run.open_store", lambda root: store)
    duet = duet_on_cluster(duel(limit=0.2))
    for plan in (duet.a, duet.b):
        store.put(f"runs/{plan.run_id}/plan.json", plan.dump())
    repeated = ["ab", "--resume", getattr(duet, side).run_id, "--submit"]
    assert main([*repeated, "--within", "5%"]) == 0
    assert started == [duet.a.run_id]
    assert stored_plan(store, duet.a.run_id).options == replace(duet.a.options, within=0.05)
    assert main(repeated) == 0
    assert stored_plan(store, duet.a.run_id).options.within == 0.05


@pytest.mark.parametrize(
    ("text", "read"), [("5%", 0.05), ("0.05", 0.05), ("100%", 1), ("150 %", 1.5)]
)
def test_a_share_is_read(text: str, read: float) -> None:
    assert share(text) == read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5", "'5' would be 500 %; write 5% or 0.05, and 100% or more with its %"),
        ("1", "'1' would be 100 %; write"),
        ("0%", "not a share: '0%'; write it as 5% or 0.05"),
        ("half", "not a share: 'half'; write"),
        ("inf", "not a share: 'inf'; write"),
    ],
)
def test_a_share_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        share(text)


def test_commands_make_the_variants_and_leave_the_machine_as_a(cli: CommandLine) -> None:
    metrics = "{rate: {regex: '(\\d+)', better: higher}}"
    Path("suite.yaml").write_text(
        "name: setting\nentries:\n  - benchmark: command\n"
        f"    params: {{argv: [cat, setting], metrics: {metrics}}}\n"
    )
    setting = Path("setting")
    commands = ["--a-do", "echo 300 >setting", "--b-do", "echo 200 >setting"]
    out = cli(["ab", "suite.yaml", *commands, "--blocks", "8"]).out
    assert "-33.3 %" in out
    assert "no recorded difference: perfdag records nothing of what --a-do and --b-do set" in out
    assert setting.read_text() == "300\n"
    [a, b] = RunStore(FolderStore("perfdag-results")).suites_by_run
    setting.write_text("mine")
    assert "-33.3 %" in cli(["ab", "--resume", a]).out
    assert setting.read_text() == "mine", "nothing was left to measure"
    commands[3] = "echo refused >&2; exit 7"
    refused = cli(["ab", "suite.yaml", *commands], 2).err
    assert "perfdag ab: --b-do: echo refused >&2; exit 7 exited 7: refused" in refused
    assert [*RunStore(FolderStore("perfdag-results")).suites_by_run] == [a, b]
    assert "give both" in cli(["ab", "suite.yaml", *commands[:2]], 2).err
    assert "measures on a cluster" in cli(["ab", "suite.yaml", *commands, "--submit"], 2).err


def test_a_duet_ends_when_it_is_decided_or_its_time_is_up(cli: CommandLine) -> None:
    metrics = "{rate: {regex: '(\\d+)', better: higher}}"
    Path("suite.yaml").write_text(
        "name: auto\nentries:\n  - benchmark: command\n"
        f"    params: {{argv: [cat, setting], metrics: {metrics}}}\n"
    )
    commands = ["ab", "suite.yaml", "--blocks", "auto", "--within", "5%"]
    commands += ["--a-do", "echo 300 >setting", "--b-do"]
    out = cli([*commands, "echo 200 >setting"], 3).out
    assert "10 blocks of ABBA or BAAB; interval: 99 % interval of the median, n=10" in out
    assert "+50.0 % (+50.0 % to +50.0 %) beyond" in out
    [a, _] = RunStore(FolderStore("perfdag-results")).suites_by_run
    assert stored_plan(FolderStore("perfdag-results"), a).budget is None
    assert out == cli(["ab", "--resume", a], 3).out
    slow = ["echo 1 >setting", "--set", "command.argv=[sleep, '1']", "--for", "1s"]
    assert "not one block" in cli([*commands, *slow], 2).err
    assert "--for is the time of --blocks auto" in cli(["ab", "x", "--for", "1s"], 2).err


@pytest.mark.parametrize(
    ("failed", "b", "code"), [(1, 3.0, 1), (0, 3.0, 3), (0, 2.0, 5), (0, 1.0, 0)]
)
def test_a_failure_matters_more_than_the_limit_and_that_more_than_noise(
    failed: int, b: float, code: int, tmp_path: Path
) -> None:
    """A cost of 2.0 is the limit itself, which is neither within nor beyond it."""
    store, duet = FolderStore(str(tmp_path)), duel(limit=1.0)
    fill(store, duet, LATENCY, (1.0, b), (1.0, b))
    result = conclude(store, duet)
    assert replace(result, failed=Counter({"crash": failed} if failed else {})).exit_code == code
