"""GPUs in the provenance, by a fake nvidia-smi: a change of model or driver shows where two runs
are compared.
"""

import os
import subprocess
import time
from pathlib import Path

import pytest

from perfdag.cli import main
from perfdag.hosts import gpus as asking
from perfdag.hosts.facts import env_class, gather
from perfdag.hosts.gpus import gpus

A100 = "NVIDIA A100-SXM4-40GB, 550.90.07, 40960, 400.00, Enabled, Disabled"


def fake_nvidia_smi(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *lines: str,
    listing: str = "",
    refuse: str = "no.such.field",
) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "table").write_text("".join(f"{line}\n" for line in lines))
    (folder / "listing").write_text(listing)
    program = folder / "nvidia-smi"
    refusal = f"""*{refuse}*) echo 'Field "{refuse}" is not a valid field to query.'; exit 2;;"""
    program.write_text(
        f'#!/bin/sh\ncase "$*" in -L) cat {folder}/listing;; {refusal} *) cat '
        f"{folder}/table;; esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_another_gpu_and_another_driver_show_in_a_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text("name: s\nentries:\n  - {benchmark: command, params: {argv: ['true']}}\n")
    stores = [
        str(tmp_path / name) for name in ("first", "driver", "model")
    ]  # runs of one second have no order
    lines = (
        A100,
        A100.replace("550.90.07", "570.10"),
        A100.replace("A100-SXM4-40GB, 550.90.07", "H200, 570.10"),
    )
    for store, line in zip(stores, lines, strict=True):
        fake_nvidia_smi(tmp_path / "fake", monkeypatch, line, line)
        assert main(["run", str(suite), "--store", store, "--no-report"]) == 0
    capsys.readouterr()
    main(["compare", "last", "last", "--store", stores[0], "--store-b", stores[1]])
    said = capsys.readouterr().out
    assert "gpus.NVIDIA A100-SXM4-40GB.driver: 550.90.07 -> 570.10" in said
    assert "env_class" not in said
    main(["compare", "last", "last", "--store", stores[1], "--store-b", stores[2]])
    said = capsys.readouterr().out
    (line,) = (line for line in said.splitlines() if "env_class" in line)
    assert "2 x NVIDIA A100-SXM4-40GB" in line.partition("->")[0]
    assert "2 x NVIDIA H200" in line.partition("->")[2]


def test_facts_of_a_gpu_have_units_and_mig_slices_are_hardware(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = (
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)\n  MIG 1g.5gb      Device  0: (UUID: MIG-1)\n"
        "  MIG 3g.20gb     Device  1: (UUID: MIG-2)\n"
    )
    fake_nvidia_smi(tmp_path, monkeypatch, A100.replace("Disabled", "Enabled"), listing=listing)
    (found,) = gather()["gpus"]
    assert (found["memory_bytes"], found["power_limit"], found["ecc"]) == (
        40960 * 2**20,
        400.0,
        "Enabled",
    )
    assert (
        env_class({"cpu_model": "C", "gpus": [found]})
        == "C, NVIDIA A100-SXM4-40GB (MIG 1g.5gb, 3g.20gb)"
    )


def test_an_old_driver_or_a_broken_one_costs_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvidia_smi(
        tmp_path, monkeypatch, "[Unknown Error], 440.1, [N/A]", refuse="mig.mode.current"
    )
    assert gpus() == [{"name": "unknown GPU", "driver": "440.1", "memory_bytes": None}]
    fake_nvidia_smi(tmp_path, monkeypatch, refuse="query")
    assert gpus() is None
    assert env_class({"cpu_model": "C", "gpus": None}) == "C"
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert gpus() == []


def test_a_driver_that_hangs_is_asked_once_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvidia_smi(tmp_path, monkeypatch)
    (tmp_path / "nvidia-smi").write_text(
        f"#!/bin/sh\necho asked >>{tmp_path}/asked\nexec sleep 2\n"
    )
    monkeypatch.setattr(asking, "TIMEOUT", 0.2)
    monkeypatch.setattr(
        subprocess.Popen, "kill", lambda *_: None
    )  # what SIGKILL is to a process that waits in the driver
    start = time.monotonic()
    found = gather()
    assert time.monotonic() - start < 1.5
    assert (tmp_path / "asked").read_text() == "asked\n"
    assert found["gpus"] is None
    assert found["kernel"]
