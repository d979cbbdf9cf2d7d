"""Hera: how steps become Argo WorkflowTemplates, CronWorkflows and RBAC. No benchmark by name.

A script uses `measure` and `benchmark` in a DAG or Steps of its own, `schedule`, `dump`, and
`RESTRICTED` for the pods of its own containers. These names are imported on first use, since some
modules need no Hera.
"""

from importlib import import_module

_HOMES = {
    "RESTRICTED": "compose",
    "benchmark": "compose",
    "dump": "emit",
    "measure": "compose",
    "schedule": "cron",
}
__all__ = ["RESTRICTED", "benchmark", "dump", "measure", "schedule"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'perfdag.workflows' has no attribute {name!r}")
    return getattr(import_module(f"perfdag.workflows.{_HOMES[name]}"), name)
