"""Read icoFoam's log, whose lines perfdag.steps.openfoam.line_clock stamps, and its values."""

import re
from dataclasses import dataclass
from itertools import pairwise

from perfdag.benchmark.contract import Output
from perfdag.outcome import Failed, Measurement
from perfdag.steps.openfoam import case
from perfdag.steps.openfoam.line_clock import RANK_LINE
from perfdag.steps.time_bins import bins

_STAMPED = re.compile(r"^(\d+\.\d+)\t(.*)$")
_RESIDUAL = re.compile(
    r"Solving for (\w+), Initial residual = (\S+), Final residual = (\S+), No Iterations (\d+)"
)
_CONTINUITY = re.compile(
    r"continuity errors : sum local = (\S+), global = (\S+), cumulative = (\S+)"
)
_COURANT = re.compile(r"^Courant Number mean: (\S+) max: (\S+)")
PARTS = 20
"""Parts of a run for which the time of a step is reported."""


@dataclass(frozen=True)
class Solve:
    """One pressure solve: its iterations and the residual at its end."""

    iterations: int
    residual: float


@dataclass
class Step:
    """One time step: `end` in s since the solver's start, and each field's first residual."""

    courant: float
    end: float
    residuals: dict[str, float]
    continuity: float
    pressure: list[Solve]


@dataclass(frozen=True)
class Rank:
    """The use of a process: peak resident memory in bytes, user and system time in s."""

    memory: int
    user: float
    system: float


@dataclass
class Log:
    """A run of icoFoam; times in s since its start."""

    begin: float | None
    steps: list[Step]
    complete: bool
    exited: float | None
    ranks: list[Rank]


def read_log(text: str) -> Log:
    """Return the content of a stamped log, including numbers that are not finite.

    OpenFOAM 1912 and later print these lines alike. Raises Failed if a number is unreadable.
    """
    log = Log(None, [], False, None, [])
    open_step: Step | None = None
    for raw in text.splitlines():
        stamped = _STAMPED.match(raw)
        if stamped is None:
            continue
        at, line = float(stamped[1]), stamped[2]
        if line.startswith("Starting time loop"):
            log.begin = at
        elif match := _COURANT.match(line):
            open_step = Step(_number(match[2]), at, {}, 0.0, [])
        elif open_step and (match := _RESIDUAL.search(line)):
            open_step.residuals.setdefault(match[1], _number(match[2]))
            last = _number(match[3])
            if match[1] == "p":
                open_step.pressure.append(Solve(int(match[4]), last))
        elif open_step and (match := _CONTINUITY.search(line)):
            # max() ignores a NaN in second place.
            open_step.continuity = next(
                (v for v in (_number(match[1]), open_step.continuity) if v != v),
                max(_number(match[1]), open_step.continuity),
            )
        elif open_step and line.startswith("ExecutionTime = "):
            open_step.end = at
            log.steps.append(open_step)
            open_step = None
        elif line.strip() == "End":
            log.complete = True
        elif line.startswith(RANK_LINE):
            log.ranks.append(_rank(line))
        elif line.startswith("perfdag-exit "):
            log.exited = at
    return log


def _rank(line: str) -> Rank:
    match = re.fullmatch(
        r"(\d+) user_s=([\d.]+) system_s=([\d.]+)", line.removeprefix(RANK_LINE).strip()
    )
    if match is None:
        raise Failed(f"a rank's line is cut: {line!r}")
    return Rank(int(match[1]), _number(match[2]), _number(match[3]))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Failed(f"icoFoam's log has {text!r} where a number belongs") from None


def unstamped(text: str) -> str:
    """Return the log without the clock before each line."""
    return "".join(
        f"{match[2] if (match := _STAMPED.match(line)) else line}\n" for line in text.splitlines()
    )


def failure_reason(text: str) -> str | None:
    """Return the reason of a failed run from OpenFOAM's output, or None."""
    if "Foam::sigFpe::sigHandler" in text:
        return "the solution diverged: floating point exception in icoFoam; use a smaller delta_t"
    match = re.search(r"FOAM FATAL (?:IO )?ERROR[^\n]*\n((?:[^\n]*\n){1,4})", unstamped(text))
    return f"icoFoam: {' '.join(match[1].split())}" if match else None


def measurements(log: Log, cavity: case.Cavity, output: Output, procs: int) -> list[Measurement]:
    """Return the values of a complete run. Raises Failed if the output lacks a part."""
    assert log.begin is not None
    timing = dict(re.findall(r"^(\w+)=(\S+)$", output.texts.get("timing", ""), re.M))
    if not {"mesh_s", "decompose_s"} <= timing.keys() or log.exited is None:
        raise Failed(
            "the times of mesh, decomposition and exit are not in the output", output.texts
        )
    if len(log.ranks) != procs:
        raise Failed(f"{len(log.ranks)} of {procs} processes reported what they used", output.texts)
    ends = [log.begin, *(step.end for step in log.steps)]
    durations = [later - earlier for earlier, later in pairwise(ends)]
    ordered = sorted(durations)
    solves = [solve for step in log.steps for solve in step.pressure]
    total, n = ends[-1] - ends[0], len(ordered)
    if total <= 0:
        raise Failed("the time loop took no time; the clock in the log is wrong", output.texts)
    user, system = (sum(getattr(rank, name) for rank in log.ranks) for name in ("user", "system"))
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    rows = [
        Measurement("solve_time", total, n=n),
        Measurement("step_time", middle, "p50", n=n),
        Measurement("step_time", ordered[0], "min", n=n),
        Measurement("step_time", ordered[-1], "max", n=n),
        Measurement("cell_steps_rate", cavity.cells**3 * n / total),
        Measurement("wall_time", log.exited),
        Measurement("startup_time", log.begin),
        Measurement("mesh_time", _number(timing["mesh_s"])),
        Measurement("memory", sum(rank.memory for rank in log.ranks), n=procs),
        Measurement("memory", max(rank.memory for rank in log.ranks), "max", n=procs),
        Measurement("user_time", user, n=procs),
        Measurement("system_time", system, n=procs),
        Measurement("cpu", (user + system) / log.exited, n=procs),
        Measurement("pressure_iterations", sum(solve.iterations for solve in solves)),
        Measurement("pressure_residual", max(solve.residual for solve in solves), n=len(solves)),
        Measurement("continuity_error", max(step.continuity for step in log.steps), n=n),
        Measurement("courant_max", max(step.courant for step in log.steps), n=n),
    ]
    if procs > 1:
        rows.append(Measurement("decompose_time", _number(timing["decompose_s"])))
    return (
        rows
        + bins("step_time", "step", durations, PARTS)
        + [
            Measurement("residual", value, coords={"field": name})
            for name, value in sorted(log.steps[-1].residuals.items())
        ]
    )
