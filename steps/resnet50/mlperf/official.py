"""MLPerf's own settings of LoadGen, its audits, and what they show of two runs.

LoadGen holds mlperf.conf compiled in, and TestSettings.FromConfig applies it. A user.conf may then
set the expected rates. Source: mlcommons/inference, loadgen/mlperf.conf, compliance/TEST01 and
compliance/TEST04 (audit.config, verify_accuracy.py, verify_performance.py).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfdag.steps.resnet50 import imagenet, loadgen_log
from perfdag.steps.resnet50.load import SAMPLES_PER_QUERY, SCENARIOS, Load

MODEL = "resnet50"
DURATION = 600.0
"""Seconds that every scenario of mlperf.conf lasts at least."""
QUERIES = {"offline": 24576, "server": 100, "single-stream": 100, "multi-stream": 662}
_BUILT_IN, _FILE = 0, 2
"""FromConfig's kinds: mlperf.conf, and a file by path without mlperf.conf before it."""
AUDITS = {
    "TEST01": (
        "*.*.mode = 2\n"
        "*.*.accuracy_log_rng_seed = 720381539243781796\n"
        "*.*.accuracy_log_sampling_target = 4096\n"
    ),
    "TEST04": "".join(
        f"*.{name}.{key}\n"
        for name in SCENARIOS.values()
        for key in (
            "mode = 2",
            "performance_issue_unique = 0",
            "performance_issue_same = 1",
            "performance_issue_same_index = 3",
        )
    ),
}
"""TEST01 logs a sample of the answers of a performance run; TEST04 sends one image alone."""
MARGIN, MARGIN_SHORT, SHORT = 0.1, 0.2, {"SingleStream": 200e-6, "MultiStream": 1600e-6}
"""Tolerance for the score of an audit, and for one whose latency is below SHORT seconds."""


def user_conf(load: Load, spare: float) -> str:
    """Return the user.conf of a load: the expected rate, and what differs from mlperf.conf.

    `spare` is the factor on the rate of a stream, so that LoadGen makes enough queries.
    """
    name = SCENARIOS[load.scenario]
    expected = {
        "offline": ("target_qps", load.expected_rate),
        "server": ("target_qps", load.target_rate),
        "single-stream": ("target_latency", 1e3 / (spare * load.expected_rate)),
        "multi-stream": (
            "target_latency",
            1e3 * SAMPLES_PER_QUERY / (spare * load.expected_rate),
        ),
    }[load.scenario]
    lines = [f"*.{name}.{expected[0]} = {expected[1]:.9g}"]
    if load.mode == "performance":
        if load.min_duration != DURATION:
            lines.append(f"*.{name}.min_duration = {max(1, round(load.min_duration * 1e3))}")
        if load.min_queries != QUERIES[load.scenario]:
            lines.append(f"*.{name}.min_query_count = {load.min_queries}")
        if load.max_queries:
            lines.append(f"*.{name}.max_query_count = {load.max_queries}")
    return "\n".join(lines) + "\n"


def configure(settings: Any, scenario: str, user: str, path: str) -> None:
    """Apply LoadGen's mlperf.conf and then a user.conf, which is written to `path`.

    FromConfig with its default applies both, but once in a process; here several tests follow each
    other. Raises ValueError if LoadGen refuses one.
    """
    Path(path).write_text(user)
    for file, kind in (("", _BUILT_IN), (path, _FILE)):
        if code := settings.FromConfig(file, MODEL, scenario, kind):
            raise ValueError(f"LoadGen refuses its configuration: error {code}")


def write_audit(audit: str, path: str) -> str:
    """Write the configuration of an audit. Return its path, where no file is without an audit."""
    if audit:
        Path(path).write_text(AUDITS[audit])
    return path


def further_tests(load: Load, spec: Mapping[str, Any]) -> list[Load]:
    """Return the tests after the performance run: accuracy where it is needed, and audits."""
    accuracy = [replace(load, mode="accuracy")] if spec["imagenet"] or spec["audits"] else []
    return accuracy + [replace(load, audit=audit) for audit in spec["audits"]]


def summary(
    load: Load, spare: float, tests: Sequence[Mapping[str, Any]], labels: Sequence[int]
) -> dict[str, Any]:
    """Return the user.conf, the verdict of each audit, and top-1 where labels are known."""
    logs = {test["name"]: test["logs"] for test in tests}
    result: dict[str, Any] = {
        "user_conf": user_conf(load, spare),
        "audits": {name: list(verdict) for name, verdict in verdicts(logs).items()},
    }
    if labels:
        result["top1"], result["images"] = imagenet.top1(logs["accuracy"]["accuracy"], labels)
    return result


def verdicts(tests: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[bool, str]]:
    """Return whether each audit among the tests passes by MLPerf's rules, and the figures.

    `tests` has the logs by name: performance, accuracy, TEST01, TEST04. Raises UnreadableError.
    """
    results = {}
    for audit in sorted(set(tests) & set(AUDITS)):
        reference, test = (
            loadgen_log.read(tests[name]["summary"], tests[name]["detail"])
            for name in ("performance", audit)
        )
        passed, text = _scores(audit, reference, test)
        if audit == "TEST01":
            differ, compared = _differences(tests["accuracy"]["accuracy"], tests[audit]["accuracy"])
            text += f"; {differ} of {compared} sampled answers differ from the accuracy run"
            passed = passed and compared > 0 and differ == 0
        results[audit] = passed, text
    return results


def _scores(
    audit: str, reference: loadgen_log.Summary, test: loadgen_log.Summary
) -> tuple[bool, str]:
    """Compare the scores: TEST01 within the margin both ways, TEST04 not faster than it."""
    if not (reference.valid and test.valid):
        return False, "LoadGen says INVALID of the run or of its audit"
    latency = reference.estimate is not None
    before, after = (
        (1 / run.estimate if run.estimate else run.rate or 0.0) for run in (reference, test)
    )
    short = latency and (reference.estimate or 0.0) <= SHORT.get(reference.scenario, 0.0)
    margin = MARGIN_SHORT if short else MARGIN
    if audit == "TEST01":
        # MLPerf compares the latencies of a stream, whose ratio is the inverse.
        ratio = before / after if latency else after / before
        passed = 1 - margin <= ratio <= 1 + margin
    else:
        ratio = after / before
        passed = ratio < 1 + margin
    return passed, f"score {ratio:.3f} of the run's, {margin:.0%} allowed"


def _differences(accuracy: str, sampled: str) -> tuple[int, int]:
    """Return how many answers of a sampled log differ from the accuracy run's, and of how many."""
    known = {entry["qsl_idx"]: entry["data"] for entry in json.loads(accuracy)}
    pairs = [
        (known[entry["qsl_idx"]], entry["data"])
        for entry in json.loads(sampled)
        if entry["qsl_idx"] in known
    ]
    return sum(before != after for before, after in pairs), len(pairs)
