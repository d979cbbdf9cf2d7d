"""The files, settings and submitters of Run:ai's scale test tool."""

import csv
from pathlib import Path
from typing import Any

import orjson
import pytest

from perfdag.steps.scale import runai


class TestRunaiFiles:
    def folder(self, tmp_path: Path, sampled: list[dict[str, Any]]) -> Path:
        submitted = [
            {
                "jobName": each["jobName"],
                "projectName": "p",
                "jobNamespace": "runai-p",
                "submitTimestamp": "2026-01-01T00:00:00.700000+00:00",
            }
            for each in sampled
        ]
        (tmp_path / "submitted.json").write_bytes(orjson.dumps(submitted))
        (tmp_path / "sampled.json").write_bytes(orjson.dumps(sampled))
        return tmp_path

    def item(self, name: str, **times: str | None) -> dict[str, Any]:
        second = {
            "workloadCreatedTimestamp": "01",
            "jobCreatedTimestamp": "02",
            "firstPodCreatedTimestamp": "03",
            "lastPodCreatedTimestamp": "04",
            "podGroupCreatedTimestamp": "05",
            "podSchedulingDecisionTimestamp": "06",
            "firstEvictionTimestamp": None,
            "firstPVCBindRequestTimestamp": "07",
            "firstPVCBindTimestamp": "09",
            "backendJobCreatedTimestamp": None,
        } | times
        stamps = {key: f"2026-01-01T00:00:{at}Z" if at else None for key, at in second.items()}
        return {"jobName": name, "jobNamespace": "runai-p", "projectName": "p"} | stamps

    def test_reference_stages_and_columns(self, tmp_path: Path) -> None:
        times = runai.read_times(self.folder(tmp_path, [self.item("a")]))
        assert times[0].deltas == {
            "Workload Creation": 1.0,
            "Job Creation": 1.0,
            "First Pod Creation": 1.0,
            "Last Pod Creation": 2.0,
            "Pod Group Creation": 2.0,
            "Pod Scheduling Decision": 1.0,
            "First Eviction": None,
            "First PVC Bind Request": 2.0,
            "First PVC Bind": 2.0,
            "Backend Job Creation": None,
            "Total Pod Scheduling Decision": 6.0,
            "Total Backend Job Creation": None,
        }
        runai.write_csv(tmp_path / "times.csv", times)
        rows = list(csv.reader((tmp_path / "times.csv").open()))
        assert len(rows[0]) == len(rows[1]) == len(set(rows[0]))
        assert rows[1][rows[0].index("First Eviction")] == ""

    def test_excluded_workloads_are_named_and_kept_in_the_table(self, tmp_path: Path) -> None:
        late_pod = self.item("late", firstPodCreatedTimestamp="08")
        times = runai.read_times(self.folder(tmp_path, [self.item("a"), late_pod, self.item("b")]))
        assert [each.excluded != "" for each in times] == [False, True, False]
        assert len(runai.select(times, True, None, None)) == 2
        assert len(runai.select(times, False, None, None)) == 3
        assert [each.info["jobName"] for each in runai.select(times, True, 2, 1)] == ["b"]

    def test_missing_files_and_bad_settings_say_what_to_do(self, tmp_path: Path) -> None:
        with pytest.raises(runai.SettingsError, match="perfdag scale submit"):
            runai.read_times(tmp_path)
        (tmp_path / "s.yaml").write_text("submiter: api")
        with pytest.raises(runai.SettingsError, match=r"submiter; there are .*submitter"):
            runai.read_settings(tmp_path / "s.yaml")
        (tmp_path / "s.yaml").write_text("submitter: carrier-pigeon")
        with pytest.raises(runai.SettingsError, match="there are api, kubectl, runai-cli"):
            runai.read_settings(tmp_path / "s.yaml")

    def test_the_cli_gets_an_argument_list(self) -> None:
        argv = runai.runai_argv(runai.Settings(), "distributed", "2", 7, True)
        assert argv[:3] == ["runai", "submit-pytorch", "{name}"]
        assert argv[argv.index("--workers") + 1] == "7"
        assert argv[-4:] == ["--command", "--", "sleep", "infinity"]
