"""openfoam: a 3-D lid-driven cavity solved by icoFoam over MPI, as a whole application."""

import math
import os
import re
import secrets
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from perfdag.benchmark.contract import (
    Benchmark,
    Gang,
    Metric,
    Network,
    Output,
    Params,
    Tool,
    broken,
    refuse,
)
from perfdag.hosts.base import Host
from perfdag.hosts.local import filesystem
from perfdag.outcome import Failed, Invalid, Measurement, Skip
from perfdag.shape import Shape
from perfdag.steps import devices, mpi
from perfdag.steps.openfoam.line_clock import RANK_LINE
from perfdag.steps.reports import bins
from perfdag.units import parse_quantity, short

EDGE = 0.1
LID_SPEED = 1.0
VISCOSITY = 0.01
CELLS_PER_EDGE = {"XS": 20, "S": 100, "M": 200, "XL": 400, "XXL": 800}
TIME_STEPS = {"XS": 20, "S": 500, "M": 2000, "XL": 100, "XXL": 100}
DELTA_T = {"XS": 5e-3, "S": 1e-3, "M": 2.5e-4, "XL": 6.25e-5, "XXL": 6.25e-5}
PRESSURE_ITERATIONS = {"XS": 250, "S": 250, "M": 650, "XL": 1300, "XXL": 2600}
GAMG_CYCLES = 10
"""V-cycles of a pressure solve with stop="iterations".

They gain six digits or more (40^3 cells); the published tolerance needs four."""
MOST_ITERATIONS = 5000
"""Limit of a pressure solve with stop="tolerance"."""

Solver = Literal["PCG", "GAMG"]
Stop = Literal["iterations", "tolerance"]
Decomposition = Literal["hierarchical", "simple", "scotch"]


@dataclass(frozen=True)
class Cavity:
    """A case: `cells` along one edge, `delta_t` in s."""

    cells: int
    time_steps: int
    delta_t: float
    solver: Solver
    stop: Stop
    pressure_iterations: int
    tolerance: float
    procs: int
    decomposition: Decomposition


def default_delta_t(cells: int) -> float:
    """Return the time step in s for a number of cells along an edge.

    The Courant number is 1 up to 100 cells; above, the step falls with the square of the cell.
    """
    return EDGE / LID_SPEED / cells * min(1.0, 100 / cells)


def pressure_iterations(size: str | None, solver: Solver) -> int:
    """Return the iterations of a pressure solve by default; published figures are for PCG."""
    return GAMG_CYCLES if solver == "GAMG" else PRESSURE_ITERATIONS[size] if size else 250


def split(procs: int) -> tuple[int, int, int]:
    """Return nx >= ny >= nz with nx*ny*nz = procs and the least surface between parts."""
    triples = [
        (x, y, procs // x // y)
        for x in range(1, procs + 1)
        if procs % x == 0
        for y in range(1, procs // x + 1)
        if procs // x % y == 0
    ]
    return min((t for t in triples if t[0] >= t[1] >= t[2]), key=sum)


def files(cavity: Cavity) -> dict[str, str]:
    """Path below the case folder -> text."""
    return {
        "system/blockMeshDict": _dictionary("blockMeshDict", _mesh(cavity)),
        "system/controlDict": _dictionary("controlDict", _control(cavity)),
        "system/fvSchemes": _dictionary("fvSchemes", _SCHEMES),
        "system/fvSolution": _dictionary("fvSolution", _solution(cavity)),
        "system/decomposeParDict": _dictionary("decomposeParDict", _decompose(cavity)),
        "constant/transportProperties": _dictionary(
            "transportProperties", f"nu [0 2 -1 0 0 0 0] {VISCOSITY:g};\n"
        ),
        "0/U": _dictionary("U", _velocity(), "volVectorField"),
        "0/p": _dictionary("p", _PRESSURE, "volScalarField"),
    }


def _dictionary(name: str, body: str, kind: str = "dictionary") -> str:
    return f"FoamFile {{ version 2.0; format ascii; class {kind}; object {name}; }}\n\n{body}"


def _mesh(cavity: Cavity) -> str:
    n = cavity.cells
    return f"""scale {EDGE:g};
vertices ( (0 0 0) (1 0 0) (1 1 0) (0 1 0) (0 0 1) (1 0 1) (1 1 1) (0 1 1) );
blocks ( hex (0 1 2 3 4 5 6 7) ({n} {n} {n}) simpleGrading (1 1 1) );
edges ();
boundary
(
    lid {{ type wall; faces ( (3 7 6 2) ); }}
    walls {{ type wall; faces ( (0 4 7 3) (2 6 5 1) (1 5 4 0) (0 3 2 1) (4 5 6 7) ); }}
);
mergePatchPairs ();
"""


def _control(cavity: Cavity) -> str:
    # Time::run() ends half a step before endTime, so rounding neither adds nor drops a step.
    # The interval is so large that no field is written.
    end = cavity.delta_t * cavity.time_steps
    return f"""application icoFoam;
startFrom startTime;
startTime 0;
stopAt endTime;
endTime {end:.10g};
deltaT {cavity.delta_t:.10g};
writeControl timeStep;
writeInterval 1000000000;
writeFormat binary;
writePrecision 6;
timeFormat general;
timePrecision 10;
runTimeModifiable false;
"""


_SCHEMES = """ddtSchemes { default Euler; }
gradSchemes { default Gauss linear; }
divSchemes { default none; div(phi,U) Gauss linear; }
laplacianSchemes { default Gauss linear orthogonal; }
interpolationSchemes { default linear; }
snGradSchemes { default orthogonal; }
"""


def _solution(cavity: Cavity) -> str:
    kind = (
        "solver PCG; preconditioner DIC;"
        if cavity.solver == "PCG"
        else "solver GAMG; smoother DICGaussSeidel; nCellsInCoarsestLevel 100;"
    )
    if cavity.stop == "iterations":
        n = cavity.pressure_iterations
        pressure = f"{kind} tolerance 0; relTol 0; minIter {n}; maxIter {n};"
    else:
        pressure = f"{kind} tolerance {cavity.tolerance:g}; relTol 0; maxIter {MOST_ITERATIONS};"
    return f"""solvers
{{
    p {{ {pressure} }}
    pFinal {{ $p; }}
    U {{ solver PBiCGStab; preconditioner DILU; tolerance 1e-15; relTol 0; maxIter 5; }}
}}
PISO {{ nCorrectors 2; nNonOrthogonalCorrectors 0; pRefCell 0; pRefValue 0; }}
"""


def _decompose(cavity: Cavity) -> str:
    x, y, z = split(cavity.procs)
    text = f"numberOfSubdomains {cavity.procs};\nmethod {cavity.decomposition};\n"
    if cavity.decomposition == "scotch":
        return text
    order = " order xyz;" if cavity.decomposition == "hierarchical" else ""
    return f"{text}{cavity.decomposition}Coeffs {{ n ({x} {y} {z}); delta 0.001;{order} }}\n"


def _velocity() -> str:
    return f"""dimensions [0 1 -1 0 0 0 0];
internalField uniform (0 0 0);
boundaryField
{{
    lid {{ type fixedValue; value uniform ({LID_SPEED:g} 0 0); }}
    walls {{ type noSlip; }}
}}
"""


_PRESSURE = """dimensions [0 2 -2 0 0 0 0];
internalField uniform 0;
boundaryField
{
    lid { type zeroGradient; }
    walls { type zeroGradient; }
}
"""


# Seconds for one cell and one pressure iteration, measured with OpenFOAM 1912 on a VM of 2025.
# A V-cycle of GAMG visits all levels.
COST = {"PCG": 50e-9, "GAMG": 240e-9}
TOLERANCE_CYCLES = 15
"""V-cycles of GAMG that reach the published tolerance, whatever the mesh."""
MAX_CELLS = 894
"""Cells along an edge. From 895 on, the faces exceed OpenFOAM's usual 32-bit labels."""


class OpenFoamParams(Params):
    """The size of the cavity and its solver. `procs` is spread evenly over `nodes`."""

    size: Literal["XS", "S", "M", "XL", "XXL"] | None = Field(
        None,
        description="published size: S 100^3, M 200^3, XL 400^3, XXL 800^3 cells; XS is 20^3,"
        " for tests; default S unless `cells` is set",
    )
    cells: Annotated[int, Field(ge=4, le=MAX_CELLS)] | None = Field(
        None, description="cells along one edge of the cube, instead of `size`"
    )
    time_steps: Annotated[int, Field(ge=2, le=1_000_000)] | None = Field(
        None,
        description="time steps; default as published: S 500, M 2000, XL and XXL 100"
        " (XS and `cells`: 20)",
    )
    delta_t: Annotated[float, Field(gt=0)] | None = Field(
        None, description="time step in s; default as published for the size"
    )
    stop: Stop = Field(
        "iterations",
        description="a linear solve ends after a fixed number of iterations,"
        " or at a fixed tolerance",
    )
    pressure_iterations: Annotated[int, Field(ge=1, le=5000)] | None = Field(
        None,
        description="with stop: iterations, of each pressure solve (two a time step);"
        " default for PCG as published: S 250, M 650, XL 1300 (XXL 2600; XS and `cells`: 250),"
        " for GAMG 10 V-cycles",
    )
    tolerance: float = Field(
        1e-4,
        gt=0,
        lt=1,
        description="with stop: tolerance, residual at which a pressure solve ends, as published",
    )
    solver: Solver = Field(
        "PCG", description="linear solver of the pressure: PCG (with DIC) or GAMG (multigrid)"
    )
    procs: int = Field(1, ge=1, le=65536, description="MPI processes in all")
    nodes: int = Field(1, ge=1, le=4096, description="hosts they run on")
    procs_per_node: Annotated[int, Field(ge=1)] | None = Field(
        None, description="if set, checked against procs / nodes"
    )
    decomposition: Decomposition = Field(
        "hierarchical",
        description="how the mesh is cut; scotch needs OpenFOAM built with it (Debian's is not)",
    )
    transport: Literal["tcp", "rdma"] = Field(
        "tcp",
        description="between hosts: tcp, or rdma by UCX without a fallback;"
        " within a host shared memory",
    )
    bind: Literal["none", "core"] = Field(
        "none", description="core: pin ranks; only where a pod owns its CPUs"
    )
    oversubscribe: bool = Field(False, description="allow more processes than CPUs")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        parts, cells = max(split(self.procs)), self.cavity().cells
        divisors = [str(n) for n in range(1, self.procs + 1) if self.procs % n == 0]
        refuse(
            (self.size and self.cells, "set `size` or `cells`, not both"),
            (
                self.procs % self.nodes,
                f"procs ({self.procs}) is not divisible by nodes ({self.nodes});"
                f" nodes may be {', '.join(divisors)}",
            ),
            (
                self.procs_per_node and self.procs_per_node * self.nodes != self.procs,
                f"procs_per_node ({self.procs_per_node}) times nodes ({self.nodes})"
                f" is not procs ({self.procs})",
            ),
            (
                self.transport == "rdma" and self.nodes == 1,
                "transport rdma is between hosts, and nodes is 1: within a host all goes through"
                " shared memory; use more nodes, or tcp",
            ),
            (
                parts > cells,
                f"procs ({self.procs}) would cut {cells} cells an edge into {parts} parts;"
                " use fewer",
            ),
        )
        return self

    def cavity(self) -> Cavity:
        """Return the case of these parameters, with defaults filled in."""
        size = self.size or ("S" if self.cells is None else None)
        cells = CELLS_PER_EDGE[size] if size else self.cells or 0
        return Cavity(
            cells=cells,
            time_steps=self.time_steps or (TIME_STEPS[size] if size else 20),
            delta_t=self.delta_t or (DELTA_T[size] if size else default_delta_t(cells)),
            solver=self.solver,
            stop=self.stop,
            pressure_iterations=self.pressure_iterations or pressure_iterations(size, self.solver),
            tolerance=self.tolerance,
            procs=self.procs,
            decomposition=self.decomposition,
        )


# A tenth more than measured with OpenFOAM 1912: blockMesh and icoFoam take 905 B a cell, the case
# with its mesh in text 115 B.
BASE_MEMORY, MEMORY_PER_CELL = 50 << 20, 1000
DISK_PER_CELL = 130
"""Bytes of the case for each cell; decomposePar takes the same amount once more."""


def problems(params: OpenFoamParams, shape: Shape) -> list[str]:
    """Return why the case does not fit in the memory of a pod or on the volume of the suite."""
    cells = params.cavity().cells ** 3
    memory, disk = BASE_MEMORY + MEMORY_PER_CELL * cells, _disk(params)
    messages = []
    limit = shape.resources.all_limits().get("memory")
    if limit is not None and parse_quantity(limit) < memory:
        messages.append(
            f"{cells:,} cells need {short(memory, 'B')} on the first host, which makes the whole"
            f" mesh, and resources.memory is {limit}; raise it or use fewer cells"
        )
    known = shape.volume.known_size if shape.volume is not None else None
    if known is not None and known < disk:
        messages.append(
            f"the case of {cells:,} cells needs {short(disk, 'B')}, volume.size is"
            f" {short(known, 'B')}; make it larger or use fewer cells"
        )
    return messages


def _disk(params: OpenFoamParams) -> int:
    """Return the bytes of the case with its mesh."""
    return DISK_PER_CELL * params.cavity().cells ** 3 * (2 if params.procs > 1 else 1)


def need(host: Host, root: str, params: OpenFoamParams) -> None:
    """Raise Failed if the case does not fit on the disk.

    blockMesh would stop with half a mesh and leave the disk full.
    """
    facts = filesystem(host, root)
    free, needed = facts.get("free_bytes"), _disk(params)
    if free is not None and free < needed:
        raise Failed(
            f"{facts.get('mount') or root} on {host.name} has {short(free, 'B')} free, the case of"
            f" {params.cavity().cells ** 3:,} cells needs {short(needed, 'B')};"
            " free some, use a volume or fewer cells"
        )


_STAMPED = re.compile(r"^(\d+\.\d+)\t(.*)$")
_PRESSURE_SOLVE = re.compile(
    r"Solving for p, Initial residual = (\S+), Final residual = (\S+), No Iterations (\d+)"
)
_COURANT = re.compile(r"^Courant Number mean: (\S+) max: (\S+)")
_PRINTED = 1 + 1e-5
"""Tolerance for the six digits that icoFoam prints."""
_HOSTS = re.compile(r"^Hosts\s*:\s*\n\(\n((?:\s*\(\S+ \d+\)\n)+)\)", re.M)
_RUNAWAY = 10.0
"""Multiple of the lid's speed that marks a diverged solution: the lid drives the flow."""
PARTS = 20
"""Parts of a run for which the time of a step is reported."""


@dataclass(frozen=True)
class Solve:
    """One pressure solve: its iterations and the residual at its end."""

    iterations: int
    residual: float


@dataclass
class Step:
    """One time step: `end` in s since the solver's start, and its pressure solves."""

    courant: float
    end: float
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
            open_step = Step(_number(match[2]), at, [])
        elif open_step and (match := _PRESSURE_SOLVE.search(line)):
            open_step.pressure.append(Solve(int(match[3]), _number(match[2])))
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


def measurements(log: Log, cavity: Cavity, output: Output, procs: int) -> list[Measurement]:
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
    ]
    if procs > 1:
        rows.append(Measurement("decompose_time", _number(timing["decompose_s"])))
    return rows + bins("step_time", "step", durations, PARTS)


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


def check_ended(log: Log, cavity: Cavity, stdout: str, texts: dict[str, str]) -> None:
    """Raise Failed if the run diverged, stopped early or has an incomplete log."""
    if log.begin is None:
        raise Failed(failure_reason(stdout) or "icoFoam never began its time loop", texts)
    bound = _RUNAWAY * LID_SPEED * cavity.delta_t * cavity.cells / EDGE
    for number, step in enumerate(log.steps, start=1):
        values = [step.courant, *(solve.residual for solve in step.pressure)]
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
        if len(step.pressure) != 2:
            raise Failed(f"time step {number} of icoFoam's log is not whole", texts)
    if len(log.steps) != cavity.time_steps or not log.complete:
        raise Failed(
            failure_reason(stdout)
            or f"icoFoam stopped early: {len(log.steps)} of {cavity.time_steps} time steps",
            texts,
        )


DEBIAN_ROOT = "/usr/share/openfoam"
# Debian prints OPENFOAM=, OpenCFD a tag or commit before it, and the Foundation no OPENFOAM=.
_VERSION = re.compile(r"^Build\s*:\s*(?:.*\bOPENFOAM=)?(\S+)", re.M)


class OpenFoam(Benchmark[OpenFoamParams]):
    """Time of icoFoam for a 3-D lid-driven cavity, over one or more hosts by Open MPI.

    Clock: starts when icoFoam prints that its time loop begins and stops at the end of the
    last time step. Mesh, decomposition, MPI start and reading the case are measured apart.
    """

    name: ClassVar[str] = "openfoam"
    version: ClassVar[int] = 2
    image: ClassVar[str] = "openfoam"
    network: ClassVar[Network] = "spread"
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "memory")
    Params: ClassVar[type[OpenFoamParams]] = OpenFoamParams
    coords: ClassVar[tuple[str, ...]] = ("step",)
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("solve_time", "s", "lower", "wall time of the time loop", headline=True),
        Metric("step_time", "s", "lower", "wall time of one time step"),
        Metric("cell_steps_rate", "1/s", "higher", "cells times time steps by solve_time"),
        Metric(
            "wall_time",
            "s",
            "lower",
            "wall time of the solver from its start to its exit, MPI start and reading included",
        ),
        Metric(
            "startup_time",
            "s",
            "lower",
            "from the start to the first time step: MPI start, reading, distributing",
        ),
        Metric("mesh_time", "s", "lower", "wall time of blockMesh"),
        Metric("decompose_time", "s", "lower", "wall time of decomposePar"),
        Metric(
            "memory",
            "B",
            "lower",
            "peak resident memory: of all processes together (value) and of the largest (max)",
        ),
        Metric("user_time", "s", "lower", "CPU time of all processes in user code"),
        Metric("system_time", "s", "lower", "CPU time of all processes in the kernel"),
        Metric("cpu", "1", "none", "cores used: user and system time by wall time"),
        Metric("pressure_iterations", "1", "none", "linear iterations of all pressure solves"),
    )
    tools: ClassVar[tuple[Tool, ...]] = (
        Tool("icoFoam", {"apt": "openfoam"}),
        Tool("blockMesh", {"apt": "openfoam"}),
        mpi.MPIRUN,
    )

    def shape(self, params: OpenFoamParams) -> dict[str, Any]:
        return {"hosts": {"count": params.nodes}} | (
            {"privileges": ["rdma"]} if params.transport == "rdma" else {}
        )

    def check(self, params: OpenFoamParams, shape: Shape) -> list[str]:
        few = [] if params.oversubscribe else mpi.few_cpus(shape, params.procs // params.nodes)
        return [
            *broken(
                (
                    shape.hosts.count != params.nodes,
                    f"hosts.count is {shape.hosts.count} but the parameter nodes is"
                    f" {params.nodes}; leave hosts.count out",
                ),
                (
                    shape.volume is not None and shape.volume.mode == "Block",
                    "volume.mode is Block, and the case is a folder of files;"
                    " use mode Filesystem, or leave volume out",
                ),
            ),
            *problems(params, shape),
            *few,
            *broken(
                (
                    params.transport == "rdma" and not devices.has_rdma(shape),
                    f"transport: rdma {devices.RDMA_WANTED}",
                )
            ),
        ]

    def seconds(self, params: OpenFoamParams) -> float:
        cavity = params.cavity()
        to_tolerance = TOLERANCE_CYCLES if params.solver == "GAMG" else 2 * cavity.cells
        solves = 2 * (cavity.pressure_iterations if params.stop == "iterations" else to_tolerance)
        # The velocity and the rest of a step cost 25 iterations of PCG. The mesh costs 5 us a cell.
        step = solves * COST[params.solver] + 25 * COST["PCG"]
        return 2 + cavity.cells**3 * (5e-6 + cavity.time_steps * step / params.procs)

    def require(self, gang: Gang, params: OpenFoamParams) -> None:
        super().require(gang, params)
        mpi.require(gang.hosts, params.procs, params.oversubscribe, params.transport)

    def prepare(self, gang: Gang, params: OpenFoamParams) -> None:
        variables = environment()
        lead = gang.hosts[0]
        need(lead, gang.volume or gang.scratch, params)
        # The first host reads and writes for all, so the others need no copy.
        folder = gang.notes["case"] = (
            f"{gang.volume or gang.scratch}/perfdag-openfoam-{secrets.token_hex(4)}"
        )
        try:
            self._lay_out(gang, params, folder, variables)
        except BaseException:
            lead.remove(folder)
            raise

    def _lay_out(
        self, gang: Gang, params: OpenFoamParams, folder: str, variables: dict[str, str]
    ) -> None:
        """Write the case, make its mesh and decompose it; their times go to the notes."""
        lead = gang.hosts[0]
        for path, text in files(params.cavity()).items():
            lead.put(f"{folder}/{path}", text.encode())
        mesh = lead.run(["blockMesh", "-case", folder], timeout=gang.timeout, env=variables).check(
            "blockMesh"
        )
        gang.notes |= {"mesh_s": mesh.seconds, "decompose_s": 0.0, "mesh": mesh.stdout}
        if params.procs > 1:
            cut = lead.run(["decomposePar", "-case", folder], timeout=gang.timeout, env=variables)
            if "dummy" in cut.stderr + cut.stdout and "stub library" in cut.stderr + cut.stdout:
                raise Skip(
                    f"OpenFOAM here is built without {params.decomposition};"
                    " use decomposition: hierarchical"
                )
            gang.notes["decompose_s"] = cut.check("decomposePar").seconds

    def run(self, gang: Gang, params: OpenFoamParams) -> list[Measurement]:
        self.prepare(gang, params)
        gang.output = self.measure(gang, params)
        gang.output.comparable = False
        return self.parse(gang.output, params)

    def measure(self, gang: Gang, params: OpenFoamParams) -> Output:
        lead, folder = gang.hosts[0], gang.notes["case"]
        solver = [
            sys.executable,
            "-m",
            "perfdag.steps.openfoam.line_clock",
            "rank",
            "icoFoam",
            "-case",
            folder,
        ]
        if params.procs > 1:
            launch = mpi.openmpi_mpirun(
                gang,
                params.procs,
                params.transport,
                bind=params.bind,
                oversubscribe=params.oversubscribe,
                export=environment(),
            )
            # With masterUncollated rank 0 reads for all. The default file handler needs the case
            # on the disk of every host.
            argv = [*launch, *solver, "-parallel", "-fileHandler", "masterUncollated"]
        else:
            argv = solver
        argv_with_clock = [
            sys.executable,
            "-m",
            "perfdag.steps.openfoam.line_clock",
            "lines",
            *argv,
        ]
        try:
            finished = lead.run(
                argv_with_clock,
                timeout=gang.timeout,
                env={**environment(), **mpi.OPENMPI_ENVIRONMENT},
                cwd=gang.scratch,
            )
        finally:
            lead.remove(folder)
        texts = {
            "stdout": finished.stdout,
            "stderr": finished.stderr,
            "timing": f"mesh_s={gang.notes['mesh_s']!r}\n"
            f"decompose_s={gang.notes['decompose_s']!r}\nwall_s={finished.seconds!r}\n",
        }
        if finished.timed_out:
            raise Failed(f"icoFoam did not end within {gang.timeout:g} s", texts)
        if finished.code != 0:
            raise Failed(
                failure_reason(finished.stdout + finished.stderr)
                or f"icoFoam exited {finished.code}: {finished.tail()}",
                texts,
            )
        facts = {
            "addresses": len({host.address for host in gang.hosts}),
            "point_to_point": mpi.openmpi_layer(finished.stdout + finished.stderr),
        }
        return Output(
            texts, [argv], f"OpenFOAM {version(finished.stdout) or '(version not said)'}", facts
        )

    def parse(self, output: Output, params: OpenFoamParams) -> list[Measurement]:
        stdout = output.texts.get("stdout", "")
        log = read_log(stdout)
        cavity = params.cavity()
        check_ended(log, cavity, stdout, output.texts)
        rows = measurements(log, cavity, output, params.procs)
        check_request(log, params, output, rows)
        return rows


def version(log: str) -> str | None:
    """Return the version in the log's head, for example 1912, or None."""
    match = _VERSION.search(unstamped(log))
    return match[1] if match else None


def environment() -> dict[str, str]:
    """Return OpenFOAM's environment. Raises Skip if OpenFOAM is not installed."""
    root = os.environ.get("WM_PROJECT_DIR") or DEBIAN_ROOT
    if not (Path(root) / "etc" / "controlDict").exists():
        raise Skip(
            f"{root} has no etc/controlDict: install openfoam,"
            " or set WM_PROJECT_DIR (source OpenFOAM's etc/bashrc)"
        )
    # ssh starts a rank on another host without the image's environment.
    own = {
        name: value
        for name, value in os.environ.items()
        if value and (name == "PYTHONPATH" or name.startswith(("FOAM_", "WM_")))
    }
    return {**own, "WM_PROJECT_DIR": root, "FOAM_SIGFPE": "true"}
