"""Collect speed: 10,000 parts with 1,000,000 rows, from a folder and (with AWS_ENDPOINT_URL and
--s3 s3://bucket/prefix) from S3.

Baselines in the same run: for the folder reading the same files and nothing else; for S3 reading
the same objects over 16 connections and nothing else. Prints seconds, microseconds a row, the ratio
and the peak memory; exit 1 where a limit is not held (limits are for 10,000 parts). Usage: python
benchmarks/collect.py [--s3 ROOT] [--parts N]
"""

import argparse
import asyncio
import multiprocessing
import resource
import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
from limits import at_most

from perfdag.hosts import facts
from perfdag.plan import Plan, make_plan
from perfdag.results.collect import collect
from perfdag.results.samples import SampleRecord, now, sample_key
from perfdag.store.base import FolderStore, Store
from perfdag.store.s3 import S3Store
from perfdag.suite.load import parse_suite

ROWS_A_PART = 100
FOLDER_US_A_ROW = 15.0
S3_TIMES_READING = 2.0
MEMORY_MB = 1000.0


def make(parts: int) -> tuple[Plan, list[tuple[str, bytes]]]:
    """A plan and its parts as the lead writes them, 100 rows each, with this machine's
    provenance.
    """
    side = parts // 100
    axes = f"{{expected: {list(range(1, side + 1))}, exit_code: {list(range(100))}}}"
    plan = make_plan(
        parse_suite(
            f"name: big\nentries:\n  - {{benchmark: command, params: {{argv: [ls]}}, "
            f"permutations: {{product: {axes}}}}}\n"
        )
    )
    env = facts.gather()
    objects = []
    for position, (index, repetition) in enumerate(plan.order):
        rows = [
            {
                "metric": "latency",
                "stat": "p99",
                "value": 1e-6 * (i + index),
                "unit": "s",
                "better": "lower",
                "headline": i == 0,
                "coords": {"message_bytes": 2**i % 8191},
                "n": 1000,
            }
            for i in range(ROWS_A_PART)
        ]
        part = SampleRecord(
            plan.points[index].id,
            repetition,
            "ok",
            None,
            now(),
            now(),
            rows,
            {"stdout": "x" * 500},
            [["ls"]],
            "ls 9",
            "1",
            env=env,
            nodes=["node"],
        )
        part.order_index = position
        objects.append((sample_key(plan.run_id, plan.key(position)), part.dump()))
    return plan, objects


def time_collect(store: Store, plan: Plan, queue: "multiprocessing.Queue[Any]") -> None:
    """Collect in a process of its own, so that its peak memory is its own."""
    start = time.perf_counter()
    table, _ = collect(store, plan)
    queue.put(
        (
            time.perf_counter() - start,
            table.num_rows,
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        )
    )


def in_child(target: Callable[..., None], *arguments: Any) -> Any:
    """Run `target(*arguments, queue)` in a spawned process and return what it put."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=target, args=(*arguments, queue))
    process.start()
    result = queue.get()
    process.join()
    return result


def collect_folder(root: str, plan: Plan, queue: "multiprocessing.Queue[Any]") -> None:
    """From a folder."""
    time_collect(FolderStore(root), plan, queue)


def collect_s3(root: str, plan: Plan, queue: "multiprocessing.Queue[Any]") -> None:
    """From S3."""
    time_collect(S3Store(root, 10.0), plan, queue)


def read_s3(root: str, keys: list[str], queue: "multiprocessing.Queue[Any]") -> None:
    """The same objects over 16 connections and nothing else: plain GETs, signed beforehand."""

    import obstore

    store = S3Store(root, 10.0)
    urls = obstore.sign(store._bucket, "GET", keys, timedelta(hours=1))

    async def read() -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=16)) as session:
            todo = iter(urls)

            async def worker() -> None:
                for url in todo:
                    async with session.get(url) as answer:
                        await answer.read()

            await asyncio.gather(*(worker() for _ in range(16)))

    start = time.perf_counter()
    asyncio.run(read())
    queue.put(time.perf_counter() - start)


def main() -> int:
    """Print one line a store, with its limits; 1 where one is not held."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--s3", metavar="ROOT")
    parser.add_argument("--parts", type=int, default=10_000)
    args = parser.parse_args()
    plan, objects = make(args.parts)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        for key, data in objects:
            target = Path(folder) / key
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        start = time.perf_counter()
        for key, _ in objects:
            (Path(folder) / key).read_bytes()
        baseline = time.perf_counter() - start
        seconds, rows, memory = in_child(collect_folder, folder, plan)
    print(
        f"folder: {rows:,} rows of {len(objects):,} parts in {seconds:.1f} s, "
        f"{seconds / rows * 1e6:.1f} us a row, {seconds / baseline:.1f} x reading the files, "
        f"peak {memory:.0f} MB"
    )
    ok = [
        at_most("a row", seconds / rows * 1e6, FOLDER_US_A_ROW, "us"),
        at_most("peak memory", memory, MEMORY_MB, "MB"),
    ]
    if not args.s3:
        print("S3: not measured; name a place with --s3 s3://bucket/prefix")
    else:
        root = f"{args.s3.rstrip('/')}/{secrets.token_hex(4)}"
        store = S3Store(root, 10.0)
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda item: store.put(*item), objects))
        baseline = in_child(read_s3, root, [key for key, _ in objects])
        seconds, rows, memory = in_child(collect_s3, root, plan)
        print(
            f"S3: {rows:,} rows of {len(objects):,} parts in {seconds:.1f} s, "
            f"{seconds / baseline:.2f} x reading the objects over 16 connections "
            f"({baseline:.1f} s), peak {memory:.0f} MB"
        )
        for folder in ("results", "runs"):
            store.delete(folder)
        ok += [
            at_most("times reading", seconds / baseline, S3_TIMES_READING),
            at_most("peak memory", memory, MEMORY_MB, "MB"),
        ]
    return 0 if all(ok) else 1


if __name__ == "__main__":
    sys.exit(main())
