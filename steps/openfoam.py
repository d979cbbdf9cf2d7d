"""openfoam: a 3-D lid-driven cavity solved by icoFoam over MPI, as a whole application."""

import math
import os
import re
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from perfdag.benchmark.contract import (
    Benchmark,
    Failed,
    Gang,
    Invalid,
    Measurement,
    Metric,
    Network,
    Output,
    Params,
    Problem,
    Remark,
    Shape,
    ShortForm,
    Skip,
    Tool,
    bins,
)
from perfdag.steps import mpi
from perfdag.steps.on_host import RANK_LINE
from perfdag.units import parse_quantity, short

EDGE, LID_SPEED, VISCOSITY = 0.1, 1.0, 0.01
PUBLISHED = {
    "XS": (20, 20, 5e-3, 250),
    "S": (100, 500, 1e-3, 250),
    "M": (200, 2000, 2.5e-4, 650),
    "XL": (400, 100, 6.25e-5, 1300),
    "XXL": (800, 100, 6.25e-5, 2600),
}
"""Cells of an edge, time steps, time step in s, and iterations of a pressure solve by size."""
GAMG_CYCLES = 10
"""V-cycles of a pressure solve with stop="iterations".

They gain six digits or more (40^3 cells); the published tolerance needs four."""
MOST_ITERATIONS = 5000
"""Limit of a pressure solve with stop="tolerance"."""
# Seconds for one cell and one pressure iteration, measured with OpenFOAM 1912 on a VM of 2025.
# A V-cycle of GAMG visits all levels.
COST = {"PCG": 50e-9, "GAMG": 240e-9}
TOLERANCE_CYCLES = 15
"""V-cycles of GAMG that reach the published tolerance, whatever the mesh."""
MAX_CELLS = 894
"""Cells along an edge. From 895 on, the faces exceed OpenFOAM's usual 32-bit labels."""
# A tenth more than measured with OpenFOAM 1912: blockMesh and icoFoam take 905 B a cell.
BASE_MEMORY, MEMORY_PER_CELL = 50 << 20, 1000
PARTS = 20
"""Parts of a run for which the time of a step is reported."""
_RUNAWAY = 10.0
"""Multiple of the lid's speed that marks a diverged solution: the lid drives the flow."""
_PRINTED = 1 + 1e-5
"""Tolerance for the six digits that icoFoam prints."""


class OpenFoamParams(Params):
    """The size of the cavity and its solver. `procs` is spread evenly over `nodes`."""

    retired: ClassVar[Mapping[str, Any]] = {
        "procs_per_node": None,
        "decomposition": "hierarchical",
        "bind": "none",
    }
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
    stop: Literal["iterations", "tolerance"] = Field(
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
    solver: Literal["PCG", "GAMG"] = Field(
        "PCG", description="linear solver of the pressure: PCG (with DIC) or GAMG (multigrid)"
    )
    procs: int = Field(1, ge=1, le=65536, description="MPI processes in all")
    nodes: int = Field(1, ge=1, le=4096, description="hosts they run on")
    transport: Literal["tcp", "rdma"] = Field(
        "tcp",
        description="between hosts: tcp, or rdma by UCX without a fallback;"
        " within a host shared memory",
    )
    oversubscribe: bool = Field(False, description="allow more processes than CPUs")

    def problems(self) -> Iterator[Problem]:
        """Yield the parameters that contradict one another."""
        if self.size and self.cells:
            yield Problem("size-and-cells", "set `size` or `cells`, not both")
        if self.procs % self.nodes:
            yield Problem(
                "uneven-procs",
                f"procs ({self.procs}) is not divisible by nodes ({self.nodes});"
                f" nodes may be {', '.join(map(str, divisors(self.procs)))}",
            )
        if self.transport == "rdma" and self.nodes == 1:
            yield Problem(
                "rdma-on-one-node",
                "transport rdma is between hosts, and nodes is 1: within a host all goes through"
                " shared memory; use more nodes, or tcp",
            )
        parts = max(split(self.procs))
        cells = self.case.cells
        if parts > cells:
            yield Problem(
                "many-procs",
                f"procs ({self.procs}) would cut {cells} cells an edge into {parts} parts;"
                " use fewer",
            )

    @property
    def case(self) -> "Case":
        """The case of these parameters, with defaults filled in."""
        if self.cells is not None and self.size is None:
            # The Courant number is 1 up to 100 cells; above, the step falls with the square of
            # the cell.
            delta_t = EDGE / LID_SPEED / self.cells * min(1.0, 100 / self.cells)
            published = (self.cells, 20, delta_t, 250)
        else:
            published = PUBLISHED[self.size or "S"]
        cells, time_steps, delta_t, iterations = published
        return Case(
            cells,
            self.time_steps or time_steps,
            self.delta_t or delta_t,
            self.pressure_iterations or (GAMG_CYCLES if self.solver == "GAMG" else iterations),
        )


@dataclass(frozen=True)
class Case:
    """A case: `cells` along one edge, `delta_t` in s, iterations of a pressure solve."""

    cells: int
    time_steps: int
    delta_t: float
    pressure_iterations: int


def split(procs: int) -> tuple[int, int, int]:
    """Return nx >= ny >= nz with nx*ny*nz = procs and the least surface between parts."""
    pairs = product(divisors(procs), repeat=2)
    # The product is fixed, so the least sum has the most equal sides and the least surface.
    triples = [(x, y, procs // x // y) for x, y in pairs if procs % (x * y) == 0]
    return min((t for t in triples if t[0] >= t[1] >= t[2]), key=sum)


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, the smallest first."""
    return [part for part in range(1, number + 1) if number % part == 0]


class OpenFoam(Benchmark[OpenFoamParams]):
    """Time of icoFoam for a 3-D lid-driven cavity, over one or more hosts by Open MPI.

    Clock: starts when icoFoam prints that its time loop begins and stops at the end of the
    last time step. Mesh, decomposition, MPI start and reading the case are measured apart.
    """

    version: ClassVar[int] = 2
    network: ClassVar[Network] = "spread"
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "memory")
    coords: ClassVar[tuple[str, ...]] = ("step",)
    short_forms: ClassVar[Mapping[str, ShortForm]] = {
        "size": "size {}",
        "cells": "{} cells an edge",
        "step": "step {}",
        "procs": "{} ranks",
        "nodes": "{} nodes",
        "solver": "{}",
        "transport": {"tcp": "TCP", "shm": "shared memory", "rdma": "RDMA"},
        "stop": {"iterations": "fixed iterations", "tolerance": "fixed tolerance"},
        "time_steps": "{} time steps",
        "delta_t": "steps of {} s",
        "pressure_iterations": "{} pressure iterations",
        "tolerance": "tolerance {}",
    }
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("solve_time", "s", "lower", "wall time of the time loop", headline=True),
        Metric("step_time", "s", "lower", "wall time of one time step"),
        Metric(
            "cell_steps_rate",
            "1/s",
            "higher",
            "cells times time steps by solve_time",
            label="cells stepped",
        ),
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
        Metric(
            "decompose_time",
            "s",
            "lower",
            "wall time of decomposePar",
            label="decomposition time",
        ),
        Metric(
            "memory",
            "B",
            "lower",
            "peak resident memory: of all processes together (value) and of the largest (max)",
            label="peak memory",
        ),
        Metric("user_time", "s", "lower", "CPU time of all processes in user code", elapsed=False),
        Metric(
            "system_time", "s", "lower", "CPU time of all processes in the kernel", elapsed=False
        ),
        Metric(
            "cpu",
            "1",
            "none",
            "cores used: user and system time by wall time",
            label="cores used",
        ),
        Metric("pressure_iterations", "1", "none", "linear iterations of all pressure solves"),
    )
    remarks: ClassVar[tuple[Remark, ...]] = (Remark(r"^--> FOAM Warning", "note"),)
    tools: ClassVar[tuple[Tool, ...]] = (
        Tool("icoFoam", {"apt": "openfoam"}),
        Tool("blockMesh", {"apt": "openfoam"}),
        mpi.MPIRUN,
    )

    def shape(self, params: OpenFoamParams) -> dict[str, Any]:
        return mpi.shape("openfoam", params.nodes, params.transport)

    def check(self, params: OpenFoamParams, shape: Shape) -> Iterator[Problem]:
        per_host = params.procs // params.nodes
        yield from mpi.problems(shape, per_host, params.transport, params.oversubscribe)
        if shape.hosts.count != params.nodes:
            yield Problem(
                "own-hosts",
                f"hosts.count is {shape.hosts.count} but the parameter nodes is"
                f" {params.nodes}; leave hosts.count out",
            )
        if shape.volume is not None and shape.volume.mode == "Block":
            yield Problem(
                "block-volume",
                "volume.mode is Block, and the case is a folder of files;"
                " use mode Filesystem, or leave volume out",
            )
        cells = params.case.cells**3
        memory = BASE_MEMORY + MEMORY_PER_CELL * cells
        limit = shape.resources.amounts("limits").get("memory")
        if limit is not None and parse_quantity(limit) < memory:
            yield Problem(
                "little-memory",
                f"{cells:,} cells need {short(memory, 'B')} on the first host, which makes the"
                f" whole mesh, and resources.memory is {limit}; raise it or use fewer cells",
            )

    def seconds(self, params: OpenFoamParams) -> float:
        case = params.case
        to_tolerance = TOLERANCE_CYCLES if params.solver == "GAMG" else 2 * case.cells
        solves = 2 * (case.pressure_iterations if params.stop == "iterations" else to_tolerance)
        # The velocity and the rest of a step cost 25 iterations of PCG. The mesh costs 5 us a cell.
        step = solves * COST[params.solver] + 25 * COST["PCG"]
        return 2 + case.cells**3 * (5e-6 + case.time_steps * step / params.procs)

    def require(self, gang: Gang, params: OpenFoamParams) -> None:
        super().require(gang, params)
        if params.procs > 1:
            gang.output.tool = "{} ({})".format(*mpi.find_openmpi(gang.hosts[0]))
        mpi.require(gang.hosts, params.procs, params.oversubscribe, params.transport)

    def run(self, gang: Gang, params: OpenFoamParams) -> list[Measurement]:
        variables = environment()
        # The first host reads and writes for all, so the others need no copy.
        folder = f"{gang.volume or gang.scratch}/perfdag-openfoam-{secrets.token_hex(4)}"
        solver = [*_CLOCK, "rank", "icoFoam", "-case", folder]
        if params.procs > 1:
            mpirun, _ = mpi.find_openmpi(gang.lead)
            launch = mpi.openmpi_mpirun(
                gang,
                mpirun,
                params.procs,
                params.transport,
                oversubscribe=params.oversubscribe,
                export=variables,
            )
            # With masterUncollated rank 0 reads for all. The default file handler needs the case
            # on the disk of every host.
            solver = [*launch, *solver, "-parallel", "-fileHandler", "masterUncollated"]
        try:
            timing = self._lay_out(gang, params, folder, variables)
            finished = gang.lead.run(
                [*_CLOCK, "lines", *solver],
                timeout=gang.timeout,
                env={**variables, **mpi.OPENMPI_ENVIRONMENT},
                cwd=gang.scratch,
            )
        finally:
            gang.lead.remove(folder)
        gang.output = Output(
            {"stdout": finished.stdout, "stderr": finished.stderr, "timing": timing},
            [solver],
            f"OpenFOAM {version(finished.stdout) or '(version not said)'}",
            {"point_to_point": mpi.openmpi_layer(finished.stdout + finished.stderr)},
            comparable=False,
        )
        reason = failure_reason(finished.stdout + finished.stderr)
        if finished.code != 0 and reason:
            raise Failed(reason)
        finished.check("icoFoam")
        return parse(gang.output.texts, params)

    @staticmethod
    def _lay_out(
        gang: Gang, params: OpenFoamParams, folder: str, variables: Mapping[str, str]
    ) -> str:
        """Write the case, make its mesh and decompose it; return their times as a text."""
        lead = gang.hosts[0]
        for path, text in files(params).items():
            lead.put(f"{folder}/{path}", text.encode())
        mesh = lead.run(["blockMesh", "-case", folder], timeout=gang.timeout, env=variables)
        timing = f"mesh_s={mesh.check('blockMesh').seconds!r}\n"
        if params.procs > 1:
            cut = lead.run(["decomposePar", "-case", folder], timeout=gang.timeout, env=variables)
            timing += f"decompose_s={cut.check('decomposePar').seconds!r}\n"
        return timing


_CLOCK = [sys.executable, "-m", "perfdag.steps.on_host"]


def environment() -> dict[str, str]:
    """Return OpenFOAM's environment. Raises Skip if OpenFOAM is not installed."""
    root = os.environ.get("WM_PROJECT_DIR") or "/usr/share/openfoam"  # where Debian has it
    if not (Path(root) / "etc" / "controlDict").exists():
        raise Skip(
            f"{root} has no etc/controlDict: install openfoam,"
            " or set WM_PROJECT_DIR (source OpenFOAM's etc/bashrc)"
        )
    # ssh starts a rank on another host without the image's environment.
    variables = {
        name: value
        for name, value in os.environ.items()
        if value and (name == "PYTHONPATH" or name.startswith(("FOAM_", "WM_")))
    }
    return {**variables, "WM_PROJECT_DIR": root, "FOAM_SIGFPE": "true"}


# -- the case --------------------------------------------------------------------------------------

_FILES = {
    "system/blockMeshDict": """scale {edge:g};
vertices ( (0 0 0) (1 0 0) (1 1 0) (0 1 0) (0 0 1) (1 0 1) (1 1 1) (0 1 1) );
blocks ( hex (0 1 2 3 4 5 6 7) ({n} {n} {n}) simpleGrading (1 1 1) );
edges ();
boundary
(
    lid {{ type wall; faces ( (3 7 6 2) ); }}
    walls {{ type wall; faces ( (0 4 7 3) (2 6 5 1) (1 5 4 0) (0 3 2 1) (4 5 6 7) ); }}
);
mergePatchPairs ();
""",
    # Time::run() ends half a step before endTime, so rounding neither adds nor drops a step.
    # The interval is so large that no field is written.
    "system/controlDict": """application icoFoam;
startFrom startTime;
startTime 0;
stopAt endTime;
endTime {end:.10g};
deltaT {delta_t:.10g};
writeControl timeStep;
writeInterval 1000000000;
writeFormat binary;
writePrecision 6;
timeFormat general;
timePrecision 10;
runTimeModifiable false;
""",
    "system/fvSchemes": """ddtSchemes {{ default Euler; }}
gradSchemes {{ default Gauss linear; }}
divSchemes {{ default none; div(phi,U) Gauss linear; }}
laplacianSchemes {{ default Gauss linear orthogonal; }}
interpolationSchemes {{ default linear; }}
snGradSchemes {{ default orthogonal; }}
""",
    "system/fvSolution": """solvers
{{
    p {{ {pressure} }}
    pFinal {{ $p; }}
    U {{ solver PBiCGStab; preconditioner DILU; tolerance 1e-15; relTol 0; maxIter 5; }}
}}
PISO {{ nCorrectors 2; nNonOrthogonalCorrectors 0; pRefCell 0; pRefValue 0; }}
""",
    "system/decomposeParDict": """numberOfSubdomains {procs};
method hierarchical;
hierarchicalCoeffs {{ n ({parts}); delta 0.001; order xyz; }}
""",
    "constant/transportProperties": "nu [0 2 -1 0 0 0 0] {viscosity:g};\n",
    "0/U": """dimensions [0 1 -1 0 0 0 0];
internalField uniform (0 0 0);
boundaryField
{{
    lid {{ type fixedValue; value uniform ({lid_speed:g} 0 0); }}
    walls {{ type noSlip; }}
}}
""",
    "0/p": """dimensions [0 2 -2 0 0 0 0];
internalField uniform 0;
boundaryField
{{
    lid {{ type zeroGradient; }}
    walls {{ type zeroGradient; }}
}}
""",
}


def files(params: OpenFoamParams) -> dict[str, str]:
    """Return the files of the case: path below its folder -> text."""
    case = params.case
    n = case.pressure_iterations
    kind = (
        "solver PCG; preconditioner DIC;"
        if params.solver == "PCG"
        else "solver GAMG; smoother DICGaussSeidel; nCellsInCoarsestLevel 100;"
    )
    end = (
        f"tolerance 0; relTol 0; minIter {n}; maxIter {n};"
        if params.stop == "iterations"
        else f"tolerance {params.tolerance:g}; relTol 0; maxIter {MOST_ITERATIONS};"
    )
    values: dict[str, Any] = {
        "edge": EDGE,
        "lid_speed": LID_SPEED,
        "viscosity": VISCOSITY,
        "n": case.cells,
        "delta_t": case.delta_t,
        "end": case.delta_t * case.time_steps,
        "pressure": f"{kind} {end}",
        "procs": params.procs,
        "parts": " ".join(map(str, split(params.procs))),
    }
    kinds = {"0/U": "volVectorField", "0/p": "volScalarField"}
    return {
        path: f"FoamFile {{ version 2.0; format ascii; class {kinds.get(path, 'dictionary')};"
        f" object {path.rpartition('/')[2]}; }}\n\n{text.format(**values)}"
        for path, text in _FILES.items()
    }


# -- the log ---------------------------------------------------------------------------------------

_STAMPED = re.compile(r"^(\d+\.\d+)\t(.*)$", re.M)
_SOLVE = re.compile(r"Solving for p, Initial residual = .*, Final residual = (\S+), .* (\d+)$")


@dataclass
class Step:
    """A time step: its Courant number, the residuals and iterations of its pressure solves."""

    courant: float
    end: float = 0.0
    residuals: list[float] = field(default_factory=list)
    iterations: int = 0


@dataclass
class Log:
    """A run of icoFoam; times in s since its start.

    `ranks` has the memory in B, and the user and the system time in s, of each process.
    """

    begin: float | None = None
    steps: list[Step] = field(default_factory=list)
    exited: float | None = None
    ranks: list[tuple[float, ...]] = field(default_factory=list)


def read_log(text: str) -> Log:
    """Return the content of a stamped log, including numbers that are not finite.

    OpenFOAM 1912 and later print these lines alike. Raises ValueError if a number is unreadable.
    """
    log = Log()
    step: Step | None = None
    rank = rf"{RANK_LINE}(\d+) user_s=([\d.]+) system_s=([\d.]+)\s*"
    for at, line in _STAMPED.findall(text):
        if line.startswith("Starting time loop"):
            log.begin = float(at)
        elif match := re.match(r"Courant Number mean: \S+ max: (\S+)", line):
            step = Step(float(match[1]))
        elif step and (match := _SOLVE.search(line)):
            step.residuals.append(float(match[1]))
            step.iterations += int(match[2])
        elif step and line.startswith("ExecutionTime = "):
            step.end = float(at)
            log.steps.append(step)
            step = None
        elif match := re.fullmatch(rank, line):
            log.ranks.append(tuple(map(float, match.groups())))
        elif line.startswith("perfdag-exit "):
            log.exited = float(at)
    return log


def failure_reason(text: str) -> str | None:
    """Return the reason of a failed run from OpenFOAM's output, or None."""
    if "Foam::sigFpe::sigHandler" in text:
        return "the solution diverged: floating point exception in icoFoam; use a smaller delta_t"
    plain = _STAMPED.sub(r"\2", text)
    match = re.search(r"FOAM FATAL (?:IO )?ERROR[^\n]*\n((?:[^\n]*\n){1,4})", plain)
    return f"icoFoam: {' '.join(match[1].split())}" if match else None


def version(log: str) -> str | None:
    """Return the version in the log's head, for example 1912, or None."""
    # Debian prints OPENFOAM=, OpenCFD a tag or commit before it, and the Foundation no OPENFOAM=.
    build = re.search(r"(?m)^Build\s*:\s*(?:.*\bOPENFOAM=)?(\S+)", _STAMPED.sub(r"\2", log))
    return build[1] if build else None


def parse(texts: Mapping[str, str], params: OpenFoamParams) -> list[Measurement]:
    """Return the values of a whole run.

    Raises Failed if it diverged, stopped early or has an incomplete log, Invalid if a solve ended
    above the tolerance.
    """
    stdout = texts.get("stdout", "")
    case = params.case
    timing = dict(re.findall(r"^(\w+)=(\S+)\n", texts.get("timing", ""), re.M))
    try:
        log = read_log(stdout)
        _check_steps(log.steps, case)
        if log.begin is None or len(log.steps) != case.time_steps:
            raise Failed(
                failure_reason(stdout)
                or f"icoFoam stopped early: {len(log.steps)} of {case.time_steps} time steps"
            )
        if len(log.ranks) != params.procs or log.exited is None:
            raise Failed(f"{len(log.ranks)} of {params.procs} processes reported what they used")
        rows = [Measurement("mesh_time", float(timing["mesh_s"]))]
        if params.procs > 1:
            rows.append(Measurement("decompose_time", float(timing["decompose_s"])))
    except (KeyError, ValueError) as error:
        raise Failed(f"icoFoam's log lacks a number: {error}") from None
    rows += _values(log, log.begin, log.exited, params)
    worst = max(max(step.residuals) for step in log.steps)
    if params.stop == "tolerance" and worst > params.tolerance * _PRINTED:
        raise Invalid(
            f"a pressure solve ended at residual {worst:.3g}, above the tolerance"
            f" {params.tolerance:g}; use a larger tolerance",
            measurements=rows,
        )
    return rows


def _check_steps(steps: Sequence[Step], case: Case) -> None:
    """Raise Failed if the solution diverged, or if a step is not whole."""
    bound = _RUNAWAY * LID_SPEED * case.delta_t * case.cells / EDGE
    for number, step in enumerate(steps, start=1):
        if not all(math.isfinite(value) for value in (step.courant, *step.residuals)):
            raise Failed(f"the solution diverged: a value that is not finite in time step {number}")
        if step.courant > bound:
            raise Failed(
                f"the solution diverged: Courant number {step.courant:.4g} in time step {number},"
                f" {_RUNAWAY:g} lid speeds are {bound:.4g}"
            )
        if len(step.residuals) != 2:
            raise Failed(f"time step {number} is incomplete in icoFoam's log")


def _values(log: Log, begin: float, exited: float, params: OpenFoamParams) -> list[Measurement]:
    """Return the values of a run whose time loop began, and which exited, after these times."""
    ends = [begin, *(step.end for step in log.steps)]
    durations = [later - earlier for earlier, later in pairwise(ends)]
    total = ends[-1] - begin
    n = len(durations)
    spread = {"p50": median(durations), "min": min(durations), "max": max(durations)}
    memory, user, system = zip(*log.ranks, strict=True)
    return [
        Measurement("solve_time", total, n=n),
        *(Measurement("step_time", seconds, stat, n=n) for stat, seconds in spread.items()),
        Measurement("cell_steps_rate", params.case.cells**3 * n / total),
        Measurement("wall_time", exited),
        Measurement("startup_time", begin),
        Measurement("memory", sum(memory), n=params.procs),
        Measurement("memory", max(memory), "max", n=params.procs),
        Measurement("user_time", sum(user), n=params.procs),
        Measurement("system_time", sum(system), n=params.procs),
        Measurement("cpu", (sum(user) + sum(system)) / exited, n=params.procs),
        Measurement("pressure_iterations", sum(step.iterations for step in log.steps)),
        *bins("step_time", "step", durations, PARTS),
    ]
