"""Run pytorch/benchmark's run.py and report every iteration, not only its median.

The interpreter that has torch runs this program, so it imports nothing of perfdag. Usage:

    python torchbench_runner.py construct CHECKOUT MODEL
        Construct MODEL once, so that the weights that it downloads are on this machine.
    python torchbench_runner.py run CHECKOUT WARMUP ITERATIONS ARGUMENTS-OF-RUN.PY...
        The last line is `perfdag-torchbench {json}`: times in s, memory in bytes.
"""

import importlib
import json
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MARK = "perfdag-torchbench "
NO_TORCH = 3
"""Exit code if torch or torchvision cannot be imported."""


def construct(checkout: str, model: str) -> int:
    """Construct a model for inference on the CPU and return the exit code."""
    try:
        import torchvision  # noqa: F401 - it imports torch
    except ImportError as error:
        sys.stderr.write(f"{error}\n")
        return NO_TORCH
    sys.path.insert(0, checkout)
    benchmark: Any = importlib.import_module("torchbenchmark")
    benchmark.load_model_by_name(model)(test="eval", device="cpu")
    return 0


def run(checkout: str, warmup: int, iterations: int, arguments: list[str]) -> int:
    """Run run.py with its measuring function wrapped, to time the first call and keep all times."""
    start = time.monotonic()
    sys.path.insert(0, checkout)
    sys.argv = ["run.py", *arguments]
    module: Any = importlib.import_module("run")
    report: dict[str, Any] = {}
    measure = module.run_one_step
    summarise = module.printResultSummaryTime

    def measured(func: Any, *args: Any, **named: Any) -> Any:
        import torch

        model = named["model"]
        # run.py's `ttfb` is the time of the construction in ms; the first call is timed below.
        report["construct_s"] = model.ttfb / 1e3
        before = time.monotonic()
        with _returned_errors_raised(model, module.args.test):
            func()
        if module.args.device == "cuda":
            torch.cuda.synchronize()
        report["first_call_s"] = time.monotonic() - before
        report["began"] = time.time()
        result = measure(func, *args, **{**named, "nwarmup": warmup, "num_iter": iterations})
        report["ended"] = time.time()
        return result

    def summarised(result: Any, model: Any, *args: Any, **named: Any) -> Any:
        # A row of run.py has the wall time in ms, on CUDA behind the time by events of the GPU.
        if module.args.device == "cuda":
            report["gpu_s"] = [float(row[0]) / 1e3 for row in result]
            report["wall_s"] = [float(row[1]) / 1e3 for row in result]
        else:
            report["wall_s"] = [float(row[0]) / 1e3 for row in result]
        report["batch_size"] = model.batch_size
        report["feeds_batch"] = feeds_batch(model)
        report["precision"] = model.dargs.precision
        return summarise(result, model, *args, **named)

    module.run_one_step = measured
    module.printResultSummaryTime = summarised
    module.main()
    report.update(final_report(module), process_s=time.monotonic() - start)
    sys.stdout.write(f"{MARK}{json.dumps(report)}\n")
    return 0


def feeds_batch(model: Any) -> bool:
    """Return whether the inputs of a model have as many samples as its batch size says.

    sam, for one, feeds one image whatever the batch size. A model that does not show its inputs is
    taken at its word.
    """
    try:
        _, inputs = model.get_module()
    except NotImplementedError:
        return True
    return _has_samples(inputs, model.batch_size)


def _has_samples(inputs: Any, count: int) -> bool:
    """Return whether a tensor or a list among nested inputs is that long.

    A tuple has the arguments of a call, so its length says nothing.
    """
    if isinstance(inputs, Mapping):
        return any(_has_samples(value, count) for value in inputs.values())
    if isinstance(inputs, list) and len(inputs) == count:
        return True
    if isinstance(inputs, list | tuple):
        return any(_has_samples(value, count) for value in inputs)
    shape: Sequence[int] = getattr(inputs, "shape", ())
    return len(shape) > 0 and shape[0] == count


@contextmanager
def _returned_errors_raised(model: Any, test: str) -> Iterator[None]:
    """Raise a NotImplementedError that a model's train() returns, as invoke() drops it."""
    invoked = getattr(model, test, None)
    # Without train(), run.py trains in stages: forward, backward and optimizer_step.
    if invoked is None:
        yield
        return

    def checked(*args: Any, **named: Any) -> Any:
        result = invoked(*args, **named)
        if isinstance(result, Exception):
            raise result
        return result

    setattr(model, test, checked)
    try:
        yield
    finally:
        setattr(model, test, invoked)


def final_report(module: Any) -> dict[str, Any]:
    """Return versions, threads, CPU time, memory and the GPUs used, when run.py has ended."""
    import torch

    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    report: dict[str, Any] = {
        "user_s": sum(usage.ru_utime for usage in used),
        "system_s": sum(usage.ru_stime for usage in used),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "max_rss_bytes": used[0].ru_maxrss * 1024,
        "device": module.args.device,
        "gpus_visible": torch.cuda.device_count() if torch.cuda.is_available() else 0,
    }
    if module.args.device == "cuda":
        peaks = [torch.cuda.max_memory_allocated(index) for index in range(report["gpus_visible"])]
        uuids = [
            getattr(torch.cuda.get_device_properties(index), "uuid", None)
            for index, peak in enumerate(peaks)
            if peak > 0
        ]
        report |= {
            "gpu_peak_bytes": peaks,
            "gpus_used": sum(peak > 0 for peak in peaks),
            # As nvidia-smi writes it. torch before 2.4 has none.
            "gpu_uuids": [f"GPU-{uuid}" for uuid in uuids if uuid],
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return report


def main(mode: str, checkout: str, *words: str) -> int:
    """Run the command line and return the exit code."""
    # This file's folder comes first in sys.path, where `queue` would hide the standard module.
    sys.path[:] = [
        entry
        for entry in sys.path
        if Path(entry or ".").resolve() != Path(__file__).resolve().parent
    ]
    if mode == "construct":
        return construct(checkout, *words)
    warmup, iterations, *arguments = words
    return run(checkout, int(warmup), int(iterations), arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
