"""Runs pytorch/benchmark's own run.py and reports every iteration, not only the median that it prints.

A program of its own, run by the interpreter that has torch; it imports nothing of perfdag. Usage:

    python torchbench_run.py weights FOLDER... MODEL
        the last line is `perfdag-torchbench FOLDER`: the first that has the weights that torchvision would download for MODEL; where none has,
        a seeded random state dict is written under their file name in the last. Any will do for a model that is not torchvision's: the first
    python torchbench_run.py run CHECKOUT WARMUP ITERATIONS ARGUMENTS-OF-RUN.PY...
        the last line is `perfdag-torchbench {json}`: times in s, memory in bytes
"""

import importlib.util
import json
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MARK = "perfdag-torchbench "
SEED = 20240229
_WITHIN = {"Super_SloMo": "vgg16"}
"""Models that are not torchvision's, and the one of it whose ImageNet weights their constructor loads."""


def weights(folders: list[str], model: str) -> str:
    """The first folder that has the state dict of a model, or of the one within it, of torchvision; where none has, the last, in which it is written."""
    import torch
    import torchvision

    model = _WITHIN.get(model, model)
    if model not in torchvision.models.list_models():
        return folders[0]
    kinds = torchvision.models.get_model_weights(model)
    kind = getattr(kinds, "IMAGENET1K_V1", None)
    if kind is None:
        return folders[0]
    targets = {
        folder: Path(folder) / "hub" / "checkpoints" / kind.url.rpartition("/")[2]
        for folder in folders
    }
    there = next((folder for folder, target in targets.items() if target.exists()), None)
    if there is not None:
        return there
    target = targets[folders[-1]]
    target.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    part = target.with_suffix(".part")
    torch.save(getattr(torchvision.models, model)(weights=None).state_dict(), part)
    part.rename(target)
    return folders[-1]


def run(checkout: str, warmup: int, iterations: int, arguments: list[str]) -> int:
    """run.py's main() with its measuring function wrapped: the first call is timed apart, and the raw times are kept."""
    start = time.monotonic()
    sys.path.insert(0, checkout)
    sys.argv = ["run.py", *arguments]
    spec = importlib.util.spec_from_file_location("torchbench_run_py", Path(checkout) / "run.py")
    if spec is None or spec.loader is None:
        sys.stderr.write(f"{checkout} has no run.py\n")
        return 2
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kept: dict[str, Any] = {"import_s": time.monotonic() - start}
    measure, summarise = module.run_one_step, module.printResultSummaryTime

    def measured(func: Any, *args: Any, **named: Any) -> Any:
        import torch

        cuda = module.args.device == "cuda"
        model = named["model"]
        kept["construct_s"] = model.ttfb / 1e3
        before = time.monotonic()
        with _returned_errors_raised(model, module.args.test):
            func()
        if cuda:
            torch.cuda.synchronize()
        kept["first_call_s"] = time.monotonic() - before
        kept["began"] = time.time()
        found = measure(func, *args, **{**named, "nwarmup": warmup, "num_iter": iterations})
        kept["ended"] = time.time()
        return found

    def summarised(result: Any, model: Any, *args: Any, **named: Any) -> Any:
        column = 0 if module.args.device != "cuda" else 1
        kept["wall_s"] = [float(each[column]) / 1e3 for each in result]
        if module.args.device == "cuda":
            kept["gpu_s"] = [float(each[0]) / 1e3 for each in result]
        kept["batches"] = model.num_batch
        kept["batch_size"] = model.batch_size
        kept["precision"] = model.dargs.precision
        return summarise(result, model, *args, **named)

    module.run_one_step, module.printResultSummaryTime = measured, summarised
    module.main()
    kept.update(_after(module))
    sys.stdout.write(f"{MARK}{json.dumps(kept)}\n")
    return 0


@contextmanager
def _returned_errors_raised(model: Any, test: str) -> Iterator[None]:
    """Some models return a NotImplementedError from train() instead of raising it, and invoke() drops what train() returns."""
    own = getattr(model, test, None)
    if own is None:  # trained in stages: forward, backward and optimizer_step
        yield
        return

    def checked(*args: Any, **named: Any) -> Any:
        found = own(*args, **named)
        if isinstance(found, Exception):
            raise found
        return found

    setattr(model, test, checked)
    try:
        yield
    finally:
        setattr(model, test, own)


def _after(module: Any) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "max_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "device": module.args.device,
        "gpus_visible": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "compile_s": _compiled(),
    }
    if module.args.device == "cuda":
        peaks = [torch.cuda.max_memory_allocated(index) for index in range(found["gpus_visible"])]
        found["gpu_peak_bytes"] = peaks
        found["gpus_used"] = sum(peak > 0 for peak in peaks)
        uuids = [
            getattr(torch.cuda.get_device_properties(index), "uuid", None)
            for index, peak in enumerate(peaks)
            if peak > 0
        ]
        found["gpu_uuids"] = [
            f"GPU-{uuid}" for uuid in uuids if uuid
        ]  # as nvidia-smi writes it; torch before 2.4 does not tell
        found["cuda"] = torch.version.cuda
        found["cudnn"] = torch.backends.cudnn.version()
    return found


def _compiled() -> float | None:
    """Seconds in torch.compile, None where nothing was compiled. run.py prints them by a name that newer versions of torch no longer use."""
    utils = sys.modules.get("torch._dynamo.utils")
    times: dict[str, list[float]] = getattr(utils, "compilation_time_metrics", {})
    found = [sum(values) for name, values in times.items() if name.endswith("compile_inner")]
    return sum(found) if found else None


def main(argv: list[str]) -> int:
    """Exit code; usage on stderr where argv is none of the two forms."""
    # this file's folder comes first in sys.path, and its `queue` would hide the standard library's
    sys.path[:] = [
        entry
        for entry in sys.path
        if Path(entry or ".").resolve() != Path(__file__).resolve().parent
    ]
    if len(argv) >= 3 and argv[0] == "weights":
        sys.stdout.write(f"{MARK}{weights(argv[1:-1], argv[-1])}\n")
        return 0
    if len(argv) >= 5 and argv[0] == "run":
        return run(argv[1], int(argv[2]), int(argv[3]), argv[4:])
    sys.stderr.write(str(__doc__))
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
