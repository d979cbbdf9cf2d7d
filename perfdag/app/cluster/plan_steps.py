"""The steps that plan: the plan of a run, and the rechecks of its suspicious points.

The Workflow records that such a step runs, so that it can be repeated if its pod is lost.
"""

import os
from pathlib import Path

from perfdag.commands.options import CommandError, print_now
from perfdag.signals import EXIT_FAILED, EXIT_OK
from perfdag.steps.runner import plan, recheck, step_state
from perfdag.steps.runner.credentials import PeerError
from perfdag.steps.runner.pod_context import from_environment
from perfdag.units import plural


def plan_step(folder: Path) -> int:
    """Plan the run and write the output parameters into `folder`. Return the exit code.

    Raises CommandError, BadDocument, StoreError.
    """
    context = from_environment()

    def work() -> int:
        try:
            result = plan.step(context, folder, os.environ)
        except PeerError as error:
            raise CommandError(str(error), EXIT_FAILED) from None
        counts = f"{plural(len(result.points), 'point')}, {plural(len(result.order), 'sample')}"
        print_now(f"run {result.run_id}: {counts}, {plural(len(result.batches), 'batch')}")
        return EXIT_OK

    return step_state.step(context, "plan", work)


def recheck_step(folder: Path) -> int:
    """Plan the rechecks and write the output parameters. Return the exit code.

    Raises StoreError.
    """
    context = from_environment()

    def work() -> int:
        names = recheck.step(context, folder)
        print_now(
            f"measured again now: {', '.join(names)}" if names else "nothing to measure again"
        )
        return EXIT_OK

    return step_state.step(context, "recheck", work)
