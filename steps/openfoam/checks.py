"""Judge whether a run of icoFoam ended, and whether it is the run that the parameters ask for."""

import math
import re

from perfdag.benchmark.contract import Output
from perfdag.outcome import Failed, Invalid, Measurement
from perfdag.steps.openfoam import case
from perfdag.steps.openfoam.log import Log, failure_reason, unstamped
from perfdag.steps.openfoam.params import OpenFoamParams

_PRINTED = 1 + 1e-5
"""Tolerance for the six digits that icoFoam prints."""
_HOSTS = re.compile(r"^Hosts\s*:\s*\n\(\n((?:\s*\(\S+ \d+\)\n)+)\)", re.M)


def check_request(
    log: Log, params: OpenFoamParams, output: Output, measurements: list[Measurement]
) -> None:
    """Raise Invalid if iterations, tolerance, placement or transport differ from the request."""
    solves = [solve for step in log.steps for solve in step.pressure]
    if params.stop == "iterations":
        counts, requested = (
            {solve.iterations for solve in solves},
            params.cavity().pressure_iterations,
        )
        if counts != {requested}:
            raise Invalid(
                f"pressure solves took {min(counts)} to {max(counts)} iterations, not {requested}",
                output.texts,
                measurements,
            )
    else:
        worst = max(solves, key=lambda solve: solve.residual)
        if worst.residual > params.tolerance * _PRINTED:
            raise Invalid(
                f"a pressure solve ended at residual {worst.residual:.3g} after"
                f" {worst.iterations} iterations, above the tolerance {params.tolerance:g};"
                " use a larger tolerance",
                output.texts,
                measurements,
            )
    if params.procs == 1:
        return
    match = _HOSTS.search(unstamped(output.texts["stdout"]))
    per_host = sorted(int(count) for count in re.findall(r"(\d+)\)", match[1])) if match else []
    hosts = int(output.facts.get("addresses", params.nodes))
    if per_host != [params.procs // hosts] * hosts:
        raise Invalid(
            f"icoFoam ran on hosts with {per_host} processes,"
            f" not {hosts} with {params.procs // hosts}",
            output.texts,
            measurements,
        )
    layer = output.facts.get("point_to_point")
    if layer is None and params.nodes == 1:
        # Some builds do not report the layer. Within one host nothing uses the network.
        return
    if layer != {"tcp": "ob1", "rdma": "ucx"}[params.transport]:
        used = f"used {layer}, which" if layer else "does not say what it used, which may be what"
        raise Invalid(
            f"Open MPI {used} is not transport: {params.transport}", output.texts, measurements
        )


_RUNAWAY = 10.0
"""Multiple of the lid's speed that marks a diverged solution: the lid drives the flow."""


def check_ended(log: Log, cavity: case.Cavity, stdout: str, texts: dict[str, str]) -> None:
    """Raise Failed if the run diverged, stopped early or has an incomplete log."""
    if log.begin is None:
        raise Failed(failure_reason(stdout) or "icoFoam never began its time loop", texts)
    bound = _RUNAWAY * case.LID_SPEED * cavity.delta_t * cavity.cells / case.EDGE
    for number, step in enumerate(log.steps, start=1):
        values = [
            step.courant,
            step.continuity,
            *step.residuals.values(),
            *(solve.residual for solve in step.pressure),
        ]
        if not all(math.isfinite(value) for value in values):
            raise Failed(
                f"the solution diverged: a value that is not finite in time step {number}", texts
            )
        if step.courant > bound:
            raise Failed(
                f"the solution diverged: Courant number {step.courant:.4g} in time step {number},"
                f" {_RUNAWAY:g} lid speeds are {bound:.4g}",
                texts,
            )
        if {"Ux", "Uy", "Uz", "p"} - step.residuals.keys() or len(step.pressure) != 2:
            raise Failed(f"time step {number} of icoFoam's log is not whole", texts)
    if len(log.steps) != cavity.time_steps or not log.complete:
        raise Failed(
            failure_reason(stdout)
            or f"icoFoam stopped early: {len(log.steps)} of {cavity.time_steps} time steps",
            texts,
        )
