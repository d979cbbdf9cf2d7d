"""The subject of the model, and the CPUs of the program."""

import os
from collections.abc import Mapping
from typing import Any

PHASE_REPETITIONS, PHASE_REPETITIONS_FAST = 7, 2


def pin(text: str) -> None:
    """Run only on the CPUs of a list like `0-2,5`. Raises ValueError if one is missing."""
    from perfdag.quantities import parse_cpu_list

    wanted, allowed = parse_cpu_list(text), os.sched_getaffinity(0)
    if not wanted <= allowed:
        raise ValueError(
            f"cpus {text}: this process may use {', '.join(map(str, sorted(allowed)))}"
        )
    os.sched_setaffinity(0, wanted)


def model_subject(spec: Mapping[str, Any]) -> Any:
    """Return the subject of the real model. Raises ModuleNotFoundError without PyTorch."""
    from perfdag.steps.resnet50.inference.system_checks import ModelSubject

    return ModelSubject(dict(spec), PHASE_REPETITIONS_FAST if spec["fast"] else PHASE_REPETITIONS)
