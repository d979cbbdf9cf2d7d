"""What the ResNet-50 harness costs. Needs mlcommons-loadgen; the
first figure needs torch too.

    python benchmarks/resnet50.py [--blocks 28] [--batches 1] [--only loop|stub|server]      exit 1 where a limit is not held
    python benchmarks/resnet50.py --only loop --device cuda --precision fp16 --batch 32 --batches
    200

loop: samples/s of LoadGen Offline through the harness over a bare loop: the same model alone, whose
input lies on the device all the time. They are interleaved in ABBA or BAAB blocks; within 2 %. The
host-bound share is what the device waits for the host, below 2 %: one less that ratio. On a CPU it
is the share of LoadGen's time outside the model, in the same runs, so other work of the machine
hardly changes it. Processor time a sample is printed too. stub: p50 of SingleStream
on a 10 ms system through the harness over LoadGen with the shortest possible answer; below 1.02.
server: the same of Server at 20/s, whose queries go through the batcher; below 1.02.
"""  # noqa: E501

import argparse
import importlib.util
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from limits import at_most
from plain_loadgen import p50

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from perfdag.stats.robust import blocks as orders, spread
from perfdag.steps.resnet50.program import Stub, measure
from perfdag.steps.resnet50.workload import Result, Workload, result_of

LOOP, SHARE = 0.02, 1.02
"""Limits: rate of the loop, relative; share of a latency."""


def stop(error: BaseException) -> None:
    """LoadGen would wait for ever."""
    import os

    sys.stderr.write(f"{error}\n")
    os._exit(1)


def test(system: Any, rate: float, scenario: str, queries: int, **more: Any) -> Result:
    """Return the result of a test of so many queries; `rate`: samples/s of a warm-up."""
    own = {"scenario": scenario, "min_duration": 0.001, "min_queries": queries}
    spec = Workload.model_validate({"system": "stub", **own, **more}).spec()
    return result_of({"test": measure(system, spec, rate, stop)})


class FromTheCall(Stub):
    """Serves from when it is called, not from when a query was queued, so that the way through
    the batcher shows.
    """

    def infer(self, indices: Any, ready: float) -> Any:
        return super().infer(indices, time.monotonic())


def server_p50(service: float, queries: int, rate: float) -> float:
    """Seconds of the median query of Server at `rate`/s through the batcher."""
    more = {"target_rate": rate, "latency_bound": 1.0, "max_delay": 0.0}
    tested = test(FromTheCall(service), 1 / service, "server", queries, **more)
    return tested.percentiles["p50"]


def offline_rate(system: Any, samples: int, images: int) -> float:
    """Samples/s by LoadGen's own word."""
    more = {"batch": system.batch, "samples": images, "fast": True}
    return test(system, 1.0, "offline", samples, **more).rate


class Unwarmed:
    """A system without sizes to warm: what it is compared with has its first batch in the time."""

    def __init__(self, system: Any, batch: int) -> None:
        self.infer, self.batch = system.infer, batch

    def sizes(self) -> tuple[int, ...]:
        return ()


def loop(blocks: int, batches: int, batch: int, device: str, precision: str) -> bool:
    """Harness against a bare loop; whether the limit is held."""
    from perfdag.steps.resnet50.torch_backend import torch_system

    params = {
        "batch": batch,
        "device": device,
        "precision": precision,
        "threads": 1,
        "fast": True,
        "samples": 2 * batch,
    }
    spec = Workload.model_validate(params).spec()
    system: Any = torch_system(spec)
    images, count = 2 * batch, batches * batch
    system.infer(range(batch))
    ready = system.copy(system.gather(range(batch)))

    def infer() -> None:
        for _ in range(batches):
            out = system.logits(ready)
        system.answers(out)

    def bare() -> float:
        # in a new thread, as the harness has one: a tenth of a batch's time is page faults, and
        # malloc gives each thread an arena
        thread = threading.Thread(target=infer)
        start = time.perf_counter()
        thread.start()
        thread.join()
        return count / (time.perf_counter() - start)

    plain, computing, outside = system.logits, [0.0], []

    def timed_compute(ready: Any) -> Any:
        start = time.perf_counter()
        out = plain(ready)
        computing[0] += time.perf_counter() - start
        return out

    def harness() -> float:
        computing[0], system.logits = 0.0, timed_compute
        rate = offline_rate(Unwarmed(system, batch), count, images)
        system.logits = plain
        outside.append(1 - computing[0] / (count / rate))
        return rate

    def with_cpu_time(run: Callable[[], float]) -> tuple[float, float]:
        before = time.process_time()
        return run(), time.process_time() - before

    with_cpu_time(bare), with_cpu_time(harness)
    wall, cpu = [], []
    for order in orders(blocks, seed=0):
        result: dict[str, list[tuple[float, float]]] = {"A": [], "B": []}
        for side in order:
            result[side].append(with_cpu_time(bare if side == "A" else harness))
        rate = {side: statistics.fmean(item for item, _ in pairs) for side, pairs in result.items()}
        wall.append(rate["B"] / rate["A"])
        cpu.append(sum(c for _, c in result["B"]) / sum(c for _, c in result["A"]))
    print(f"loop: harness / bare samples/s at batch {batch} on {device}: {interval(wall)}")
    print(f"      processor time a sample: {interval(cpu)}")
    ratio = spread(wall)
    apart = max(ratio.low - 1, 1 - ratio.high, 0.0)
    ok = at_most("away from the bare loop at least, by the interval", apart, LOOP)
    if device == "cpu":
        share = statistics.median(outside)
        print(f"loop: share of LoadGen's time outside the model: {interval(outside)}")
    else:
        share = 1 - statistics.median(wall)
    return at_most("host-bound share", share, LOOP) and ok


def interval(ratios: list[float]) -> str:
    """Median of paired ratios with the interval of the median."""
    result = spread(ratios)
    return (
        f"median {statistics.median(ratios):.4f} ({result.kind} {result.low:.4f} to "
        f"{result.high:.4f}, {len(ratios)} blocks)"
    )


def stub(blocks: int) -> bool:
    """The harness's share of a latency, one query after the other; whether the limit is held."""
    service, count = 0.01, 200
    ratios = []
    for _ in range(blocks):
        tested = test(Stub(service), 1 / service, "single-stream", count)
        ratios.append(tested.percentiles["p50"] / p50(service, count))
    print(f"stub: harness / plain LoadGen p50: {interval(ratios)}")
    return at_most("of plain LoadGen's p50", statistics.median(ratios), SHARE)


def server(blocks: int) -> bool:
    """The share of the way through the batcher in a latency; whether the limit is held."""
    service, count, rate = 0.01, 80, 20.0
    ratios = [server_p50(service, count, rate) / p50(service, count, rate) for _ in range(blocks)]
    print(f"server: harness / plain LoadGen p50 at {rate:g}/s: {interval(ratios)}")
    return at_most("of plain LoadGen's p50", statistics.median(ratios), SHARE)


def main() -> int:
    """Run what was asked; 1 where a limit is not held."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=28)
    parser.add_argument("--batches", type=int, default=1, help="batches a side of a block")
    parser.add_argument("--batch", type=int, default=8, help="samples in a batch of the loop")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16", "fp16"), default="fp32")
    parser.add_argument("--only", choices=("loop", "stub", "server"))
    args = parser.parse_args()
    ok = []
    if args.only in (None, "loop"):
        if importlib.util.find_spec("torch"):
            ok.append(loop(args.blocks, args.batches, args.batch, args.device, args.precision))
        else:
            print("loop: not run, torch is not installed: pip install 'perfdag[torch]'")
    if args.only in (None, "stub"):
        ok.append(stub(args.blocks))
    if args.only in (None, "server"):
        ok.append(server(args.blocks))
    return 0 if all(ok) else 1


if __name__ == "__main__":
    sys.exit(main())
