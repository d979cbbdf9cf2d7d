"""Record LoadGen's own logs: `python tests/recorded/loadgen/record.py` (needs mlcommons-loadgen).

A stub of known service time answers.
"""

import json
from pathlib import Path

from perfdag.benchmark.contract import Gang
from perfdag.benchmark.registry import get
from perfdag.hosts.local import LocalHost
from perfdag.shape import Shape

HERE = Path(__file__).parent
SHORT = {"system": "stub", "min_duration": 0.2}
CASES = {
    "single-stream": {"scenario": "single-stream", "min_queries": 700, "stub": {"base": 0.001}},
    "offline": {"scenario": "offline", "batch": 8, "min_queries": 640, "stub": {"base": 0.002}},
    "server-overloaded": {
        "scenario": "server",
        "target_rate": 400,
        "min_queries": 500,
        "stub": {"base": 0.003},
        "latency_bound": 0.01,
    },
}


def main() -> None:
    """Write NAME.json: the program's output, with LoadGen's logs in it verbatim."""
    for name, case in CASES.items():
        benchmark = get("resnet50")
        params = benchmark.Params.model_validate({**SHORT, **case})
        gang = Gang([LocalHost()], Shape(), 60, "/tmp")
        benchmark.run(gang, params)
        (HERE / f"{name}.json").write_text(
            json.dumps(json.loads(gang.output.texts["result"]), indent=0) + "\n"
        )


if __name__ == "__main__":
    main()
