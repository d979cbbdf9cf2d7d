"""Lay out a run with `mlperf: true` as MLPerf asks of a submission, and let its checker judge.

    python -m perfdag.steps.resnet50.mlperf.submission RUN FOLDER [--store ROOT] [--submitter NAME]
        [--point ID ...] [--division closed] [--system FILE.json] [--inference CHECKOUT]

`--inference` is a checkout of mlcommons/inference. Its scripts then write the verify_*.txt of the
audits, and its submission checker judges the folder; the exit code is the checker's. perfdag
claims no compliance. Source: tools/submission/submission_structure.md of that repository.
"""

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfdag.results.samples import read_sample, run_folder
from perfdag.steps.resnet50.load import SCENARIOS
from perfdag.steps.resnet50.mlperf.official import AUDITS
from perfdag.store.base import StoreError
from perfdag.store.open import open_store

VERSION = "v6.1"
"""The round whose layout this is, and whose rules the checker applies."""
LOG_EXCERPT = 4000
"""Characters that stay of each end of an accuracy log; its hash stands for the rest."""
_NAMES = """division submitter status system_name number_of_nodes host_processor_model_name
host_processors_per_node host_processor_core_count host_memory_capacity host_storage_capacity
host_storage_type accelerators_per_node accelerator_model_name accelerator_memory_capacity framework
operating_system system_type other_software_stack host_processor_frequency host_processor_caches
host_memory_configuration host_processor_interconnect host_networking host_networking_topology
accelerator_frequency accelerator_host_interconnect accelerator_interconnect
accelerator_interconnect_topology accelerator_memory_configuration accelerator_on-chip_memories
cooling hw_notes sw_notes host_network_card_count system_type_detail"""
FIELDS = tuple(_NAMES.split())
"""Fields of a system description; those that a run does not know are empty."""


def scenario_files(raw: Mapping[str, Any]) -> dict[str, str]:
    """Return the files of one scenario by path, from the program's result."""
    spec, model = raw["spec"], raw["model"]
    tests = {test["name"]: test["logs"] for test in raw["tests"]}
    files = {
        "user.conf": raw["mlperf"]["user_conf"],
        "README.md": "Measured by perfdag. See src/README.md.\n",
        "measurements.json": json.dumps(
            {
                "input_data_types": "fp32",
                "retraining": "N",
                "starting_weights_filename": str(model["weights"]),
                "weight_data_types": spec["precision"],
                "weight_transformations": f"runtime {spec['runtime']}",
            },
            indent=2,
        ),
    }
    folders = {"performance": "performance/run_1", "accuracy": "accuracy"}
    for name, logs in tests.items():
        folder = folders.get(name, f"{name}/performance/run_1")
        for log in ("summary", "detail"):
            files[f"{folder}/mlperf_log_{log}.txt"] = logs[log]
    if "accuracy" in tests:
        log = tests["accuracy"]["accuracy"]
        short = len(log) <= 2 * LOG_EXCERPT
        files["accuracy/mlperf_log_accuracy.json"] = (
            log if short else f"{log[:LOG_EXCERPT]}\n...\n{log[-LOG_EXCERPT:]}"
        )
        if "top1" in raw["mlperf"]:
            share, images = raw["mlperf"]["top1"], raw["mlperf"]["images"]
            digest = hashlib.sha256(log.encode()).hexdigest()
            files["accuracy/accuracy.txt"] = (
                f"accuracy={100 * share:.3f}%, good={round(share * images)}, total={images}\n"
                f"hash={digest}\n"
            )
    return files


def system_description(raw: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the system description: what the run knows, under what `known` has."""
    device, name = raw["device"], raw["device"]["name"]
    gpu = device.get("cuda") is not None
    measured = {
        "system_name": name,
        "number_of_nodes": "1",
        "framework": " ".join(f"{key} {value}" for key, value in raw.get("versions", {}).items()),
        "host_processor_model_name": "" if gpu else name.removeprefix("CPU: "),
        "accelerators_per_node": "1" if gpu else "0",
        "accelerator_model_name": name if gpu else "N/A",
        "accelerator_memory_capacity": f"{device['memory'] / 1e9:.0f} GB" if gpu else "N/A",
    }
    return {**dict.fromkeys(FIELDS, ""), **measured, **known}


def verify(scenario: Path, raw: Mapping[str, Any], inference: Path) -> None:
    """Write the verify_*.txt of the audits with the scripts of a checkout of MLCommons."""
    tests = {test["name"]: test["logs"] for test in raw["tests"]}
    for audit in sorted(set(AUDITS) & set(tests)):
        folder, scripts = scenario / audit, inference / "compliance" / audit
        log = "detail" if audit == "TEST01" else "summary"
        runs = [
            str(where / "performance" / "run_1" / f"mlperf_log_{log}.txt")
            for where in (scenario, folder)
        ]
        commands = {"verify_performance": [*_compare_options(runs)]}
        if audit == "TEST01":
            answers = [scenario / "all.json", folder / "sampled.json"]
            for file, name in zip(answers, ("accuracy", audit), strict=True):
                file.write_text(tests[name]["accuracy"])
            commands["verify_accuracy"] = [*_compare_options(map(str, answers)), "--dtype", "int32"]
        for name, options in commands.items():
            script = [sys.executable, str(scripts / f"{name}.py"), *options]
            done = subprocess.run(script, capture_output=True, text=True, check=False)
            (folder / f"{name}.txt").write_text(done.stdout + done.stderr)
        for file in (scenario / "all.json", folder / "sampled.json"):
            file.unlink(missing_ok=True)


def _compare_options(paths: Any) -> list[str]:
    reference, test = paths
    return ["-r", reference, "-t", test]


def check(folder: Path, inference: Path) -> int:
    """Run MLCommons' submission checker, which prints, and return its exit code."""
    command = [sys.executable, "-m", "submission_checker.main", "--version", VERSION]
    return subprocess.run(
        [
            *command,
            "--input",
            str(folder.resolve()),
            "--csv",
            str(folder.resolve() / "summary.csv"),
        ],
        cwd=inference / "tools" / "submission",
        check=False,
    ).returncode


def write(
    results: Mapping[str, Mapping[str, Any]], folder: Path, known: Mapping[str, Any]
) -> list[Path]:
    """Write the results by scenario; `known` describes the system. Return the scenario folders."""
    root = folder / known["division"] / known["submitter"]
    system = str(known.get("system_name") or "system").replace(" ", "_")
    written = []
    for scenario, raw in results.items():
        files = {
            f"results/{system}/resnet50/{SCENARIOS[scenario]}/{name}": text
            for name, text in scenario_files(raw).items()
        }
        description = json.dumps(system_description(raw, known), indent=2)
        files |= {f"systems/{system}.json": description, "src/README.md": __doc__ or ""}
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        written.append(root / f"results/{system}/resnet50/{SCENARIOS[scenario]}")
    return written


def stored_results(root: str, run: str, run_ids: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Return the results of a run's samples with mlperf by scenario.

    Of a point it is the last valid one. `chosen` are the points to take, by default all. Raises
    StoreError, and ValueError if the results are not of one system.
    """
    store = open_store(root)
    points: dict[str, dict[str, Any]] = {}
    for _, data in store.get_many(store.list(f"{run_folder(run)}/parts")):
        sample = read_sample(data)
        if sample.status != "ok" or sample.repetition < 1:
            continue
        text = sample.texts.get("result", "{}")
        raw = json.loads(text.splitlines()[-1] if text else "{}")
        if "mlperf" in raw and (not run_ids or sample.point in run_ids):
            points[sample.point] = raw
    if absent := [point for point in run_ids if point not in points]:
        raise ValueError(f"run {run} has no result with mlperf: true of point {absent[0]}")
    return one_system(points)


def one_system(points: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the results of points by scenario.

    Raises ValueError if a scenario has several points, or their devices or weights differ.
    """
    results: dict[str, dict[str, Any]] = {}
    for scenario in dict.fromkeys(raw["spec"]["scenario"] for raw in points.values()):
        same = {name: raw for name, raw in points.items() if raw["spec"]["scenario"] == scenario}
        if len(same) > 1:
            named = ", ".join(f"{name} ({_differs(raw, same)})" for name, raw in same.items())
            raise ValueError(
                f"{len(same)} points are of scenario {scenario}, and a submission has one of each:"
                f" choose with --point from {named}"
            )
        (results[scenario],) = same.values()
    for what, values in (
        ("devices", {raw["device"]["name"] for raw in results.values()}),
        ("weights", {raw["model"]["weights"] for raw in results.values()}),
    ):
        if len(values) > 1:
            raise ValueError(
                f"the {what} of the points differ ({', '.join(sorted(values))}), and a submission"
                " is of one system: choose with --point"
            )
    return results


def _differs(raw: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]) -> str:
    spec = raw["spec"]
    names = [
        name for name in spec if any(other["spec"][name] != spec[name] for other in others.values())
    ]
    return ", ".join(f"{name} {spec[name]}" for name in names) or "the same parameters"


def main() -> int:
    """Write the folder. Exit 2 if the run has no result with mlperf."""
    parser = argparse.ArgumentParser(
        prog="python -m perfdag.steps.resnet50.mlperf.submission",
        description="lay out a run with mlperf: true as a submission; no claim of compliance",
    )
    parser.add_argument("run", help="id of the run")
    parser.add_argument("folder", type=Path, help="folder to write")
    parser.add_argument("--store", default="./perfdag-results", help="store of the run")
    parser.add_argument(
        "--point", nargs="+", default=[], help="points to take, one a scenario; default: all"
    )
    parser.add_argument("--submitter", default="unnamed")
    parser.add_argument("--division", choices=("closed", "open"), default="closed")
    parser.add_argument("--system", type=Path, help="JSON with fields of the system description")
    parser.add_argument("--inference", type=Path, help="checkout of mlcommons/inference")
    args = parser.parse_args()
    known = {
        "submitter": args.submitter,
        "division": args.division,
        "status": "available",
        "system_type": "edge",
    }
    try:
        known |= json.loads(args.system.read_text()) if args.system else {}
        results = stored_results(args.store, args.run, args.point)
    except (OSError, ValueError, StoreError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if not results:
        sys.stderr.write(f"run {args.run} in {args.store} has no result with mlperf: true\n")
        return 2
    for (_, raw), path in zip(results.items(), write(results, args.folder, known), strict=True):
        sys.stdout.write(f"{path}\n")
        if args.inference:
            verify(path, raw, args.inference)
    return check(args.folder, args.inference) if args.inference else 0


if __name__ == "__main__":
    sys.exit(main())
