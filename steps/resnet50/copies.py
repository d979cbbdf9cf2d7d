"""Run the copies of an interference run together, and collect their results."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from perfdag.benchmark.contract import Gang
from perfdag.hosts.base import CommandResult, Host
from perfdag.outcome import SampleError
from perfdag.steps.resnet50 import launch, result
from perfdag.steps.resnet50.params import Workload
from perfdag.steps.resnet50.program import MARGIN

SETUP_FACTOR, SETUP_MARGIN = 1.5, 2.0
"""Set-up together over the longest set-up alone, and seconds more, until LoadGen starts."""


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


def copy_options(params: Workload, number: int) -> dict[str, Any]:
    """Return the program's options for a copy.

    With one seed, all copies would send the same queries.
    """
    return {"load_seed": params.seed + number}


def offline_rate(solo: Mapping[str, str], params: Workload) -> dict[str, Any]:
    """Return the rate that sizes Offline's query for all copies, from their solo runs.

    In a warm-up beside the others, each copy would find another rate and end at another time.
    The highest rate and the warm-up's margin ensure that none ends before min_duration.
    """
    if params.scenario != "offline":
        return {}
    return {"expected_rate": MARGIN * max(result.read(text).rate for text in solo.values())}


def run_together(
    hosts: Sequence[Host],
    gang: Gang,
    params: Workload,
    argv: Sequence[str],
    setup: float,
    options: Mapping[str, Any],
) -> list[CommandResult]:
    """Run a copy on each host at the same time and return their ends.

    LoadGen starts in all of them at one time of day, which leaves more than the `setup` seconds
    that a copy took alone. A copy that is late overlaps less, and the result says so.
    """
    start_at = time.time() + SETUP_FACTOR * setup + SETUP_MARGIN

    def run(number: int) -> CommandResult:
        own = copy_options(params, number) | {"start_at": start_at}
        spec = launch.program_input(params, **own, **options)
        return hosts[number].run(list(argv), timeout=gang.timeout, stdin=spec)

    with ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(run, range(len(hosts))))
