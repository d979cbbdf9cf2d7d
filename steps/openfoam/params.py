"""Parameters of openfoam."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from perfdag.benchmark.contract import Params
from perfdag.benchmark.rules import refuse
from perfdag.steps.mpi import openmpi
from perfdag.steps.openfoam import case

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
    stop: case.Stop = Field(
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
    solver: case.Solver = Field(
        "PCG", description="linear solver of the pressure: PCG (with DIC) or GAMG (multigrid)"
    )
    procs: int = Field(1, ge=1, le=65536, description="MPI processes in all")
    nodes: int = Field(1, ge=1, le=4096, description="hosts they run on")
    procs_per_node: Annotated[int, Field(ge=1)] | None = Field(
        None, description="if set, checked against procs / nodes"
    )
    decomposition: case.Decomposition = Field(
        "hierarchical",
        description="how the mesh is cut; scotch needs OpenFOAM built with it (Debian's is not)",
    )
    transport: openmpi.Transport = Field(
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
        parts, cells = max(case.split(self.procs)), self.cavity().cells
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

    def cavity(self) -> case.Cavity:
        """Return the case of these parameters, with defaults filled in."""
        size = self.size or ("S" if self.cells is None else None)
        cells = case.CELLS_PER_EDGE[size] if size else self.cells or 0
        return case.Cavity(
            cells=cells,
            time_steps=self.time_steps or (case.TIME_STEPS[size] if size else 20),
            delta_t=self.delta_t or (case.DELTA_T[size] if size else case.default_delta_t(cells)),
            solver=self.solver,
            stop=self.stop,
            pressure_iterations=self.pressure_iterations
            or case.pressure_iterations(size, self.solver),
            tolerance=self.tolerance,
            procs=self.procs,
            decomposition=self.decomposition,
        )
