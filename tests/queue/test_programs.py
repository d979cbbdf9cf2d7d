"""The programs as processes: their options and output."""

import asyncio
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from perfdag.cli import main
from perfdag.steps.queue.client.load import request
from perfdag.steps.queue.client.stats import ClientStats
from perfdag.steps.queue.client.wires import KeptWire, Work
from perfdag.steps.queue.frontend.frontend import Frontend
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
    kept = KeptWire(clients(frontend), Work("sleep"))
    sent = [asyncio.create_task(request(kept, client_stats, n)) for n in range(2)]
    await until(lambda: frontend.queues["sleep"].waiting == 2)
    argv = ["queue", "backend", f"-faddr={workers(frontend)}", "-backoff=0", "-verbose"]
    backend = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "perfdag", *argv, "--", "sleep", "0"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, log = await asyncio.wait_for(backend.communicate(), 20)
    await asyncio.gather(*sent)
    await kept.close()
    assert backend.returncode == 0
    assert (client_stats.success, log.count(b' sent b\'{"Pod":')) == (2, 2)
    assert log.endswith(b"2 items done\n")


def test_an_open_loop_over_all_three_programs(tmp_path: Path) -> None:
    with ExitStack() as stack:

        def start_program(
            what: str, *argv: str, message: str, **more: str
        ) -> tuple[subprocess.Popen[str], str]:
            """The program, and its first line once that has come, which ``says`` so."""
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "perfdag", "queue", what, *argv],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env={**os.environ, **more},
                )
            )
            stack.callback(process.kill)
            assert process.stderr is not None
            line = process.stderr.readline()
            assert message in line
            return process, line

        frontend, line = start_program(
            "frontend",
            "-interval",
            "7",
            "-verbose",
            *(f"-{one}addr={ANY}" for one in "cwm"),
            "one",
            "two",
            message="queues one, two:",
        )
        clients, workers, metrics = re.findall(
            r"port (\d+), backends on (\d+), metrics on (\d+)", line
        )[0]
        # each argument that a client sends, and -ignore leaves out, would be the exit code
        command = ["-ignore", "-pod-env", "ITS_POD", "--", "/bin/sh", "-c", "exit $#", "sh"]
        backend, _ = start_program(
            "backend",
            f"-faddr=127.0.0.1:{workers}",
            "-name=two",
            "-backoff=0.2",
            *command,
            message="backend of queue 'two'",
            ITS_POD="pod-7",
        )
        load = [
            "-rate=20",
            "-arrival=poisson",
            "-seed=3",
            "-duration=0.6",
            "-drain=5",
            "--",
            "ignored",
        ]
        where = [f"-faddr=127.0.0.1:{clients}", f"-caddr={ANY}", "-name=two"]
        client, line = start_program(
            "client", *where, *load, message="requests to queue 'two'", PERFDAG_QUEUE_TOKEN="secret"
        )
        url = f"http://127.0.0.1:{line.rpartition(' ')[2].strip()}/fails?type=plain"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url, timeout=5)
        with urllib.request.urlopen(
            urllib.request.Request(url, headers={"X-Perfdag-Token": "secret"}), timeout=5
        ) as answer:
            assert answer.read() == b"0\n"
        result = json.loads(client.communicate(timeout=20)[0])
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=5) as answer:
            assert 'hpa_queue_maxrun_seconds{name="two",interval="7s"}' in answer.read().decode()
        assert (result["failure"], result["pending"]) == (0, 0), result["causes"]
        assert 0 < result["success"] == result["scheduled"]
        assert [pod for node in result["nodes"].values() for pod in node["pods"]] == ["pod-7"]
        late = result["schedule_lag"]["late"] > 0.1
        assert result["validity"].startswith("invalid: the generator ran" if late else "valid")
        assert client.returncode == late
        backend.terminate()
        assert backend.communicate(timeout=10)[1] == f"{result['success']} items done\n"
        frontend.terminate()
        log = frontend.communicate(timeout=10)[1]
        assert f"two: {result['success']} done, 0 failed" in log
        assert 'received b\'{"Queue":"two","Args":["ignored"]' in log
        assert log.count(" sent b") >= 2 * result["success"]  # an item and an answer each
        assert (backend.returncode, frontend.returncode) == (0, 0)
