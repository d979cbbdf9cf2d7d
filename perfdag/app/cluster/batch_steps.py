"""What the leads of a batch run, beside the watchdog of the run and the check of the store."""

import asyncio
import os

from perfdag.kube.patch import STORE
from perfdag.results.runs import load_plan
from perfdag.signals import end_once
from perfdag.steps.runner import gang
from perfdag.steps.runner.credentials import take_credentials
from perfdag.steps.runner.pod_context import exit_retryable, from_environment
from perfdag.steps.runner.watch import watch_run
from perfdag.store.base import open_store

STORE_PATIENCE = 5.0
"""Seconds for which the check of the store repeats a write."""


def lead(batch: int, attempt: int, last_attempt: int) -> int:
    """Measure a batch and return its exit code. Raises StoreError."""
    end_once(exit_retryable)
    take_credentials()
    context = from_environment()
    store = context.open()
    plan = load_plan(store, context.run_id)
    return gang.lead(context, store, plan, batch, attempt, attempt >= last_attempt)


def watchdog_step(pending: str) -> bool:
    """Watch the run until its last batch ends. Return whether no batch failed."""
    return asyncio.run(watch_run(from_environment(), pending))


def check_store(root: str) -> None:
    """Write, read and delete an object in the store of this pod. Raises StoreError."""
    store = open_store(STORE if root.startswith("claim://") else root, STORE_PATIENCE)
    key = f"runs/doctor-{os.getpid()}"
    store.put(key, b"here")
    store.get(key)
    store.delete(key)
