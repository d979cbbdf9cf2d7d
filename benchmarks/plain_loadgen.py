"""LoadGen with the shortest possible answer, in a process of its own: what a harness is held
against.

python plain_loadgen.py SERVICE_SECONDS QUERIES [--server RATE]     prints LoadGen's p50 in seconds, of SingleStream or of Server at RATE/s
"""  # noqa: E501

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def p50(service: float, queries: int, rate: float | None = None) -> float:
    """Seconds of the median query of a system that sleeps `service` seconds; `rate`: queries/s
    that arrive (Server).
    """
    argv = [
        sys.executable,
        __file__,
        str(service),
        str(queries),
        *(["--server", str(rate)] if rate else []),
    ]
    return float(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


def main(service: float, queries: int, rate: float | None) -> None:
    """Run one test and print its p50."""
    import mlperf_loadgen as lg

    def answer(samples: Any) -> None:
        time.sleep(service)
        lg.QuerySamplesComplete([lg.QuerySampleResponse(sample.id, 0, 0) for sample in samples])

    settings, logs = lg.TestSettings(), lg.LogSettings()
    settings.scenario = lg.TestScenario.Server if rate else lg.TestScenario.SingleStream
    settings.mode = lg.TestMode.PerformanceOnly
    settings.min_duration_ms, settings.min_query_count, settings.max_query_count = (
        0,
        queries,
        queries,
    )
    settings.single_stream_expected_latency_ns = int(service * 1e9)
    settings.server_target_qps, settings.server_target_latency_ns = rate or 1.0, int(1e9)
    logs.enable_trace = False
    with tempfile.TemporaryDirectory() as folder:
        logs.log_output.outdir = folder
        sut = lg.ConstructSUT(answer, lambda: None)
        qsl = lg.ConstructQSL(64, 64, lambda indices: None, lambda indices: None)
        lg.StartTestWithLogSettings(sut, qsl, settings, logs, folder + "/none")
        summary = Path(folder, "mlperf_log_summary.txt").read_text()
    line = next(line for line in summary.splitlines() if line.startswith("50.00 percentile"))
    print(int(line.split(":")[1]) / 1e9)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("service", type=float)
    parser.add_argument("queries", type=int)
    parser.add_argument("--server", type=float, metavar="RATE")
    args = parser.parse_args()
    main(args.service, args.queries, args.server)
