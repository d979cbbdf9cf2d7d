"""The programs as processes: their options and output."""

from pathlib import Path

import pytest

from perfdag.commands.main import main

ANY = "127.0.0.1:0"


@pytest.mark.parametrize(("code", "quiet"), [(0, True), (3, False)])
def test_once_runs_the_command_as_the_flags_say(
    code: int, quiet: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    device = tmp_path / "card0"
    device.touch()
    flags = ["-null-in", "-null-out"] if quiet else ["-null-in"]
    script = f"cat; echo noise; echo FILENAME > seen; exit {code}"
    argv = [
        "queue",
        "backend",
        "-once",
        "-dir",
        str(tmp_path),
        "-glob",
        f"{tmp_path}/card*",
        *flags,
        "--",
        "/bin/sh",
        "-c",
        script,
    ]
    assert main(argv) == bool(code)
    assert (tmp_path / "seen").read_text() == f"{device}\n"
    output = capfd.readouterr()
    assert output.out == ("" if quiet else "noise\n")
    assert f"FILENAME stands for {device}" in output.err
    assert ("returned error code 3" in output.err) == bool(code)
