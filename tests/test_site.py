"""`perfdag site`: what it writes after a run, what it does with bad input, and how it is served."""

import socket
import threading
import urllib.error
import urllib.request
from http.server import ThreadingHTTPServer
from math import nan
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from perfdag.analysis.alerts import publish
from perfdag.analysis.gate import judge_run
from perfdag.analysis.gate_result import Rules
from perfdag.charts.pages.site import read_script, script, write_site
from perfdag.commands import site
from perfdag.commands.main import main
from perfdag.commands.options import CommandError
from perfdag.store.base import FolderStore, Store
from tests.conftest import CommandLine
from tests.stats import synthetic
from tests.stats.synthetic import rows, run_id


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    store = FolderStore(str(tmp_path / "store"))
    synthetic.nights(store, 5, lambda night, point: 1e10)
    return store


def test_data_are_scripts_that_hold_no_markup() -> None:
    data = {"</script><script>alert(1)": ["\u2028", None, 1.5]}
    assert b"<" not in script("a/<b>.js", data)
    assert read_script(script("a/<b>.js", data)) == data


def test_a_run_changes_only_the_files_of_its_month(store: FolderStore) -> None:
    synthetic.nights(store, 20, lambda night, point: 1e10, first=25)
    write_site(store)
    before = times(store)
    synthetic.nights(store, 1, lambda night, point: 1e10, first=45)
    write_site(store, "net")
    after = times(store)
    changed = {key for key in after if after[key] != before.get(key)}
    data, (run, last) = "site/data", (run_id(45), run_id(44))
    assert changed == {
        f"{data}/index.js",
        f"{data}/net/suite.js",
        f"{data}/net/runs/2026-02.js",
        f"{data}/net/series/iperf.js",
        f"{data}/net/values/iperf/2026-02.js",
        f"{data}/net/compare/{run}/{last}.js",
    }


@pytest.mark.parametrize(("name", "quote"), [("a pod store", "'"), ("st", "")])
def test_an_alert_names_the_place_of_the_store_that_has_the_site(
    name: str, quote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checked = FolderStore(name)
    synthetic.nights(checked, 12, lambda night, point: 1e10 * (0.8 if night >= 9 else 1))
    publish(checked, judge_run(checked, "net", run_id(11), Rules()))
    Path(name).rename("copy")
    copy = FolderStore(str(tmp_path / "copy"))
    write_site(copy)
    (alert, *_) = read_script(copy.get("site/data/net/suite.js"))["alerts"]
    assert "pod" not in alert["text"]
    report, compare = f"{copy.root}/runs/{run_id(11)}/report.html", f"perfdag compare {run_id(8)}"
    where = f"{run_id(11)} --store {quote}{copy.root}{quote}"
    assert f"do      {report}   {compare} {where}\n" in alert["text"]


def test_a_headline_has_the_unit_of_its_newest_value(tmp_path: Path) -> None:
    store = FolderStore(str(tmp_path))
    for first, count, point in ((0, 5, "bs=4KiB"), (5, 1, "bs=8KiB")):
        level = lambda night, point: 0.02  # noqa: E731
        synthetic.nights(store, count, level, first=first, points=(point,), metric="t", unit="s")
    write_site(store)
    headline = read_script(store.get("site/data/net/suite.js"))["headline"]
    assert (headline["name"], headline["unit"]) == ("iperf bs=8KiB t", "ms")


def test_a_point_that_never_had_a_value_is_a_failure_of_its_runs(tmp_path: Path) -> None:
    store, lost = FolderStore(str(tmp_path)), "iperf streams=8"
    late = {"streams=1": 1.0, "streams=4": 0.7, "streams=8": nan}
    early = late | {"streams=4": 1.0}
    synthetic.nights(store, 8, lambda night, point: 1e10 * (late if night > 4 else early)[point])
    write_site(store)
    series = read_script(store.get("site/data/net/series/iperf.js"))["series"]
    words = {line["name"].removesuffix(" throughput"): line["text"] for line in series}
    assert words[lost] == "failed: it would not start"
    assert words["iperf streams=1"].startswith("same")
    runs = read_script(store.get("site/data/net/runs/2026-01.js"))["runs"]
    assert {run["verdict"] for run in runs} == {"failed"}
    worse = ["iperf throughput, 4 streams", words["iperf streams=4"]]
    failed = ["iperf, 8 streams", words[lost]]
    assert runs[-1]["verdicts"] == [failed, worse], "what failed, then what is worse"


def test_a_lost_file_is_written_again_and_those_of_deleted_runs_go(
    store: FolderStore,
) -> None:
    write_site(store)
    before = {key: store.get(key) for key in store.list("site")}
    store.delete("site/data/net/values/iperf/2026-01.js")
    store.put("site/data/net/runs/2026-01.js", b"perfdag.add(")
    store.put("site/data/net/suite.js", b"not JSON")
    write_site(store)
    assert {key: store.get(key) for key in store.list("site")} == before
    store.delete(f"results/net/2026-01/{run_id(4)}.parquet")
    write_site(store)
    assert not [key for key in store.list("site") if run_id(4) in key]


def test_the_verb_prints_the_address_and_for_a_store_without_runs_one_line(
    store: FolderStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["site", "--store", store.root]) == 0
    assert capsys.readouterr().out == f"{store.root}/site/index.html\n"
    assert main(["site", "--store", str(tmp_path / "empty")]) == 2
    assert capsys.readouterr().err.splitlines() == [
        (
            f"perfdag site: store {tmp_path / 'empty'} has no results: run a suite, or `perfdag "
            f"collect RUN --store {tmp_path / 'empty'}`"
        )
    ]


def test_damaged_and_newer_files_are_named_by_each_verb_and_the_rest_is_written(
    store: FolderStore, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = f"results/net/2026-01/{run_id(4)}.parquet"
    store.put(damaged, b"PAR1 and no more")
    newer = synthetic.put(store, rows(5, {"streams=1": [1e10]}, schema_version=2))
    write_site(store)
    assert caplog.messages == [
        (
            f"perfdag site: damaged, left out: {damaged}; `perfdag collect {run_id(4)} "
            f"--store {store.root}` writes it from its samples"
        ),
        (
            f"perfdag site: left out: {newer}: its schema is 2, and this version reads 1; update "
            f"perfdag"
        ),
    ]
    head = read_script(store.get("site/data/net/suite.js"))
    assert [run for run, *_ in head["runs"]] == [run_id(night) for night in range(4)]
    assert len(head["damaged"]) == 2
    for run, remedy in (
        (run_id(4), f"`perfdag collect {run_id(4)} --store "),
        (run_id(5), "update perf"),
    ):
        for argv in (["compare", run_id(0), run], ["check", run]):
            assert main([*argv, "--store", store.root]) == 2
            assert remedy in capsys.readouterr().err
        assert main(["history", "net", "--store", store.root]) == 0
        assert remedy in capsys.readouterr().err


def test_a_server_of_what_is_written_writes_nothing(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    stop = create_autospec(ThreadingHTTPServer.serve_forever, side_effect=KeyboardInterrupt)
    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", stop)
    for option, written in (("--serve-only", False), ("--serve", True)):
        assert "serving http://" in cli(["site", option, "--port", "0", "--store", store.root]).out
        assert bool([*store.list("site")]) is written


def test_a_port_in_use_gives_one_line(store: FolderStore) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(CommandError, match=r"--port \d+: Address already in use; name"),
    ):
        site.server(store, taken.getsockname()[1])
    with pytest.raises(CommandError, match="0-65535"):
        site.server(store, 70000)


def test_the_server_shows_the_site_and_reports_but_no_secret(
    store: FolderStore,
) -> None:
    write_site(store)
    store.put(f"runs/{run_id(0)}/secrets.json", b"{}")
    store.put(f"runs/{run_id(0)}/report.html", b"report")
    with site.server(store, 0, ["Bench.example"]) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        root = f"http://127.0.0.1:{server.server_port}"
        assert b"data-page" in urllib.request.urlopen(f"{root}/").read()
        answer = urllib.request.urlopen(f"{root}/site/site.js?1")
        assert answer.headers["Content-Type"].startswith("text/javascript")
        assert urllib.request.urlopen(f"{root}/runs/{run_id(0)}/report.html").read() == b"report"
        ours, foreign = (
            urllib.request.Request(f"{root}/site/index.html", headers={"Host": host})
            for host in ("bench.example", "evil.test")
        )
        assert urllib.request.urlopen(ours).status == 200
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(foreign)
        for path in (
            f"runs/{run_id(0)}/secrets.json",
            "results/x",
            "site/../acks.yaml",
        ):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"{root}/{path}")
        server.shutdown()


def times(store: Store) -> dict[str, int]:
    """When each file of the site was written."""
    return {key: Path(store.url(key)).stat().st_mtime_ns for key in store.list("site")}
