"""Start the copies of an interference run together, and collect their results."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfdag.benchmark.contract import Gang
from perfdag.hosts.base import CommandResult, Host, Server
from perfdag.outcome import Failed, SampleError
from perfdag.steps.resnet50 import launch, result
from perfdag.steps.resnet50.interference_params import InterferenceParams
from perfdag.steps.resnet50.params import Workload
from perfdag.steps.resnet50.program import MARGIN


def collect_results(
    hosts: Sequence[Host],
    results: Sequence[CommandResult],
    watch: launch.Watch,
    texts: dict[str, str],
) -> None:
    """Store what the copies printed, before any copy is judged.

    Raises the exception of the first copy without a result, with all texts and how many ended
    well.
    """
    for number, finished in enumerate(results):
        texts |= {f"together-{number}": finished.stdout} | launch.stderr_text(
            f"together-{number}", finished
        )
    lost: list[tuple[int, SampleError]] = []
    for number, finished in enumerate(results):
        try:
            texts[f"together-{number}"] = watch.result_text(hosts[number], finished)
            result.read(texts[f"together-{number}"])
        except SampleError as error:
            lost.append((number, error))
    if lost:
        number, first = lost[0]
        well = f"{len(results) - len(lost)} of {len(results)} copies ended well"
        with launch.keeping_texts(texts, f"copy {number} beside the others ({well})"):
            raise first


def copy_options(params: InterferenceParams, number: int) -> dict[str, Any]:
    """Return the program's options for a copy.

    With one seed, all copies would send the same queries.
    """
    return {"load_seed": params.seed + number}


def offline_rate(solo: Mapping[str, str], params: InterferenceParams) -> dict[str, Any]:
    """Return the rate that sizes Offline's query for all copies, from their solo runs.

    In a warm-up beside the others, each copy would find another rate and end at another time.
    The highest rate and the warm-up's margin ensure that none ends before min_duration.
    """
    if params.scenario != "offline":
        return {}
    return {"expected_rate": MARGIN * max(result.read(text).rate for text in solo.values())}


@dataclass
class Copy:
    """A copy that waits for the start: its host, its folder there, its process."""

    host: Host
    folder: str
    server: Server


def run_together(
    hosts: Sequence[Host], gang: Gang, params: InterferenceParams, options: Mapping[str, Any]
) -> list[CommandResult]:
    """Start a copy on each host, let all begin when the last is warm, return their ends.

    `options` has the options of each program beside the workload. No process or file remains.
    """
    copies: list[Copy] = []
    deadline = time.monotonic() + gang.timeout
    with contextlib.ExitStack() as stack:
        for number, host in enumerate(hosts):
            folder = f"{gang.scratch}/copy-{number}"
            stack.callback(host.remove, folder)
            host.put(
                f"{folder}/spec",
                launch.program_input(params, **copy_options(params, number), **options),
            )
            copies.append(
                Copy(
                    host, folder, stack.enter_context(host.serve(launch.copy_argv(folder, params)))
                )
            )
        for number, copy in enumerate(copies):
            await_ready(copy, f"copy {number}", deadline, params)
        for copy in copies:
            copy.host.put(f"{copy.folder}/go", b"")
        return [copy.server.wait(max(1.0, deadline - time.monotonic())) for copy in copies]


def await_ready(copy: Copy, name: str, deadline: float, params: Workload) -> None:
    """Wait until a copy is warm. Raises Failed, or what it reports, if it ends or is late."""
    while time.monotonic() < deadline:
        with contextlib.suppress(SampleError):
            copy.host.get(f"{copy.folder}/ready")
            return
        if not copy.server.alive():
            result.read(launch.result_text(copy.server.stop(0), params))
            raise Failed(f"{name} ended before it was ready")
        time.sleep(0.02)
    message = copy.server.stop(0).tail()
    if params.wrapper and not message:
        message = (
            "it printed nothing. It reports on standard error that it is ready;"
            f" {params.wrapper[0]} must pass that on unchanged"
        )
    raise Failed(f"{name} was not ready in time: {message}")
