"""times.csv, from submitted.json, sampled.json and run.json, and its pictures."""

import csv
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import orjson
import pytest

from perfdag.commands.main import main
from perfdag.steps.scale.figures.rows import Row
from perfdag.steps.scale.measure.generator import GeneratorResult, Submission
from perfdag.steps.scale.runai import settings
from perfdag.steps.scale.runai import times_csv as times
from perfdag.steps.scale.runai.run_file import RunFile, write_run


def item(name: str, **times: str | None) -> dict[str, Any]:
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


class TestTimes:
    def folder(self, tmp_path: Path, sampled: list[dict[str, Any]]) -> Path:
        submitted = [
            {
                "jobName": entry["jobName"],
                "projectName": "p",
                "jobNamespace": "runai-p",
                "submitTimestamp": "2026-01-01T00:00:00.700000+00:00",
            }
            for entry in sampled
        ]
        (tmp_path / "submitted.json").write_bytes(orjson.dumps(submitted))
        (tmp_path / "sampled.json").write_bytes(orjson.dumps(sampled))
        return tmp_path

    def test_reference_stages_and_columns(self, tmp_path: Path) -> None:
        result = times.read_times(self.folder(tmp_path, [item("a")]))
        assert result[0].deltas == {
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
        times.write_csv(tmp_path / "times.csv", result)
        rows = list(csv.reader((tmp_path / "times.csv").read_text().splitlines()))
        assert len(rows[0]) == len(rows[1]) == len(set(rows[0]))
        assert rows[1][rows[0].index("First Eviction")] == ""

    def test_excluded_workloads_are_named_and_kept_in_the_table(self, tmp_path: Path) -> None:
        late_pod = item("late", firstPodCreatedTimestamp="08")
        result = times.read_times(self.folder(tmp_path, [item("a"), late_pod, item("b")]))
        assert [entry.excluded != "" for entry in result] == [False, True, False]
        assert len(times.select(result, True, None, None)) == 2
        assert len(times.select(result, False, None, None)) == 3
        assert [entry.info["jobName"] for entry in times.select(result, True, 2, 1)] == ["b"]

    def test_what_the_sample_did_not_see_is_not_said_to_wait(self, tmp_path: Path) -> None:
        """Who was sampled tells, and no clock: an open loop that is behind sends long after what
        is due.
        """
        folder = self.folder(tmp_path, [item("a"), item("waits"), item("later")])
        (folder / "sampled.json").write_bytes(orjson.dumps([item("a")]))
        (folder / "summary.json").write_bytes(orjson.dumps({"not_scheduled": ["waits"]}))
        assert [read_time.excluded for read_time in times.read_times(folder)] == [
            "",
            "not scheduled when sampled",
            "not sampled",
        ]

    def test_one_that_has_a_node_is_scheduled_whatever_else_was_not_seen(
        self, tmp_path: Path
    ) -> None:
        rows = [
            Row(
                "r",
                0,
                "a",
                "runai-p",
                "TrainingWorkload",
                "",
                "scheduled",
                "pod_group_created",
                "ok",
                api_time=1_767_225_606.0,
            )
        ]
        sampled, waiting = settings.sampled_json(rows, "p")
        assert waiting == []
        self.folder(tmp_path, sampled)
        (tmp_path / "summary.json").write_bytes(orjson.dumps({"server_clock_ahead_s": 0.5}))
        (result,) = times.read_times(tmp_path)
        assert (
            result.excluded,
            result.deltas["Total Pod Scheduling Decision"],
            result.deltas["Workload Creation"],
        ) == ("", 5.0, None)

    def partly_scheduled(self, folder: Path) -> None:
        """Of 12 workloads 10 were accepted, of which 6 were scheduled."""
        self.folder(folder, [item(f"j-{i}") for i in range(10)])
        (folder / "sampled.json").write_bytes(orjson.dumps([item(f"j-{i}") for i in range(6)]))
        due = round(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1e9)
        error = 'pods "j-10" is forbidden: exceeded quota'
        items = [
            Submission(i, f"j-{i}", "runai-p", due, due, due + 1, error=error if i > 9 else "")
            for i in range(12)
        ]
        file = RunFile(
            "r", "run.ai/v2alpha1", "TrainingWorkload", ["runai-p"], "p", 1, 1, True, items, {}
        )
        file.submissions[11].error = 'pods "j-11" is forbidden: exceeded quota'
        write_run(folder / "run.json", file, GeneratorResult("r", items, 0.0, 0))

    @pytest.mark.parametrize("plot", ["general", "detailed"])
    @pytest.mark.parametrize(
        ("skip", "shown", "how"),
        [("--skip-errors", 6, "left out"), ("--no-skip-errors", 12, "flagged")],
    )
    def test_what_was_never_scheduled_or_refused_is_counted_with_the_reason(
        self,
        plot: str,
        skip: str,
        shown: int,
        how: str,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        to_bytes = Mock(return_value=(None, b"x"))
        monkeypatch.setattr("perfdag.charts.files.to_bytes", to_bytes)
        self.partly_scheduled(tmp_path)
        assert main(["scale", "plot", "--plot", plot, skip, "-o", str(tmp_path)]) == 0
        reasons = [
            f"4 {how}: not scheduled when sampled",
            f'2 {how}: refused: pods "NAME" is forbidden: exceeded quota',
        ]
        output = capsys.readouterr()
        assert output.err.splitlines() == [f"of 12 workloads {entry}" for entry in reasons]
        assert f"{shown} of 12 workloads" in output.out
        with (tmp_path / "times.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [row["Job Name"] for row in rows if not row["Excluded"]] == [
            f"j-{i}" for i in range(6)
        ]
        assert len(rows) == 12
        assert all(
            row["Total Pod Scheduling Decision"] == "" and row["Workload Submitted"]
            for row in rows
            if row["Excluded"]
        )
        (figure,) = to_bytes.call_args.args
        title, subtitle = (entry.get_text() for entry in figure.texts)
        assert ("6 of 12" if plot == "general" or shown == 6 else "12 workloads") in title
        assert all(entry in subtitle.replace("\n", " ") for entry in reasons)

    @pytest.mark.parametrize(
        ("file", "body", "message"),
        [
            (
                "submitted.json",
                [{}],
                r"submitted\.json: workload 1 of 1 has no jobName, projectName, submitTimestamp",
            ),
            ("submitted.json", ["x"], r"submitted\.json: workload 1 of 1 has no jobName"),
            (
                "sampled.json",
                [{"jobName": "a"}],
                r"sampled\.json: workload 1 of 1 has no projectName",
            ),
            ("submitted.json", {}, r"submitted\.json is not a list of workloads"),
            (
                "sampled.json",
                [item("a") | {"jobCreatedTimestamp": "yesterday"}],
                "workload a: jobCreatedTimestamp is 'yesterday', not a time",
            ),
        ],
    )
    def test_files_of_another_shape_are_named_with_what_they_lack(
        self, file: str, body: Any, message: str, tmp_path: Path
    ) -> None:
        self.folder(tmp_path, [item("a")])
        (tmp_path / file).write_bytes(orjson.dumps(body))
        with pytest.raises(settings.SettingsError, match=message):
            times.read_times(tmp_path)
