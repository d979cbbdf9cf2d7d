"""The programs as processes: their options and output."""

import asyncio
import sys
from pathlib import Path

import pytest

from perfdag.commands.main import main
from perfdag.steps.queue.client import ClientStats, Work
from perfdag.steps.queue.frontend import Frontend
from tests.queue.conftest import clients, until, workers

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


async def test_the_recipe_of_a_cron_job_ends_on_an_empty_queue(
    frontend: Frontend, client_stats: ClientStats
) -> None:
    kept = Work(clients(frontend), "sleep")
    sent = [asyncio.create_task(kept.request(client_stats, n)) for n in range(2)]
    await until(lambda: frontend.queues["sleep"].waiting == 2)
    argv = ["queue", "backend", f"-faddr={workers(frontend)}", "-backoff=0", "-verbose"]
    backend = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "perfdag", *argv, "--", "sleep", "0"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, log = await asyncio.wait_for(backend.communicate(), 20)
    await asyncio.gather(*sent)
    assert backend.returncode == 0
    assert (client_stats.success, log.count(b' sent b\'{"Pod":')) == (2, 2)
    assert log.endswith(b"2 items done\n")
