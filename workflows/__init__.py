"""Hera: how steps become Argo WorkflowTemplates, CronWorkflows and RBAC. No benchmark by name.

A script uses `measure` and `benchmark` in a DAG or Steps of its own, `workflow`, `schedule`,
`dump`, and `RESTRICTED` for the pods of its own containers.
"""

from perfdag.suite.document import dump
from perfdag.workflows.runs import RESTRICTED, benchmark, measure, schedule, workflow

__all__ = ["RESTRICTED", "benchmark", "dump", "measure", "schedule", "workflow"]
