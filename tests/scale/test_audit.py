"""`perfdag scale audit` of a past window, against a Prometheus that answers by rule."""

import json
from pathlib import Path
from typing import Any

import pytest

from perfdag.commands import scale
from perfdag.commands.main import main
from perfdag.kube.client import Prometheus
from perfdag.steps.scale.runai import run_file
from tests.conftest import CommandLine

WINDOW = ["--from", "2026-11-23T08:00:00Z", "--to", "2026-11-23T09:05:00+01:00"]
END = 1795421100.0


@pytest.fixture
def queries_sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Scrapes each 15 s until END, and a value for what is asked of KubeVirt's histograms."""
    queries: list[dict[str, Any]] = []

    async def query(self: Any, wanted: Any, path: str = "") -> dict[str, Any]:
        queries.append(dict(wanted))
        scrapes = [[END - 15 * i, "1"] for i in range(20, -1, -1)]
        data = {}
        for name, params in wanted.items():
            value = "6.5" if "from_creation" in params["query"] else "NaN"
            metric = {"verb": "PATCH", "resource": "pods"}
            if params["query"] == "sum by (phase) (node:kubevirt_vmi_phase:sum)":
                value, metric = "97", {"phase": "running"}
            answer = {"metric": metric, "value": [END, value]}
            data[name] = {"result": [answer | {"values": scrapes}]}
        return data

    monkeypatch.setattr(Prometheus, "query", query)
    return queries


def test_a_past_window_has_the_keys_of_the_audit(
    queries_sent: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["scale", "audit", "--prometheus", "http://p", "-o", str(tmp_path), *WINDOW]
    assert main(argv) == 0
    path = tmp_path / "perf-audit-results.json"
    assert str(path) in capsys.readouterr().out
    values = {key: item["value"] for key, item in json.loads(path.read_text())["Values"].items()}
    assert values["vmiCreationToRunningSecondsP95"] == 6.5
    assert values["vmiDeletionToSucceededSecondsP95"] is None, "NaN is no data"
    assert values["PATCH-pods-count"] == 0, "the counter did not grow"
    assert values["running-phase-count"] == 97
    by_name = {name: params for many in queries_sent for name, params in many.items()}
    running = by_name["vmiCreationToRunningSecondsP95"]
    assert running["time"] == f"{END:.3f}"
    assert "histogram_quantile(0.95, sum by (le) (rate(" in running["query"]
    assert "[300s]" in running["query"], "the window is 5 minutes long"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--from", "yesterday"], "'yesterday' is no time with a zone; write it as 2026-"),
        (["--from", "2026-11-23T08:00:00"], "no time with a zone"),
        (["--from", WINDOW[3], "--to", WINDOW[1]], "the window ends before it begins"),
        (["--from", "2026-11-23T08:04:50Z", *WINDOW[2:]], "a window of 10 s has less than two"),
    ],
)
def test_a_window_that_cannot_be_audited_is_refused(
    argv: list[str],
    message: str,
    queries_sent: list[dict[str, Any]],
    tmp_path: Path,
    cli: CommandLine,
) -> None:
    assert (
        message
        in cli(["scale", "audit", "--prometheus", "http://p", "-o", str(tmp_path), *argv], 2).err
    )
    assert not list(tmp_path.iterdir())


def test_requests_that_kubevirt_cannot_name_have_a_key_too() -> None:
    """A client that sends to an unknown path counts it as verb and resource `none`."""
    assert run_file.audit_key("virt_requests/none-none") == "none-none-count"


async def test_a_prometheus_without_kubevirt_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Any, wanted: Any, path: str = "") -> dict[str, Any]:
        return {name: {"result": []} for name in wanted}

    monkeypatch.setattr(Prometheus, "query", nothing)
    with pytest.raises(ValueError, match="has no series of KubeVirt in the 5 minutes before --to"):
        await scale.past_figures(Prometheus("http://p"), END - 300, END)
