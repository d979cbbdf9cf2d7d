"""OpenFOAM: a 3-D lid-driven cavity solved by icoFoam over MPI, a whole application beside the network's micro-benchmarks."""

import os
import re
import secrets
import sys
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from perfdag.benchmark import (
    Benchmark,
    Failed,
    Gang,
    Invalid,
    Measurement,
    Metric,
    Output,
    Params,
    Skip,
    Tool,
)
from perfdag.hosts import LocalHost
from perfdag.shape import Shape
from perfdag.steps import devices, leftovers, openfoam_room, openmpi
from perfdag.steps import openfoam_case as case
from perfdag.steps.openfoam_log import Log, check_ended, measurements, read_log, unstamped, why

DEBIAN_ROOT = "/usr/share/openfoam"
# s for a cell and iteration of the pressure, measured with OpenFOAM 1912 on a virtual machine of 2025; a V-cycle goes over all levels
COST = {"PCG": 50e-9, "GAMG": 240e-9}
TOLERANCE_CYCLES = 15  # of GAMG to the published tolerance and below, whatever the mesh
MOST_CELLS = (
    894  # an edge; from 895 on the faces are more than OpenFOAM's usual labels of 32 bits count
)
_STEPS = 3  # of a sample that each may take its timeout: mesh, decomposition, solver
_PRINTED = 1 + 1e-5  # icoFoam prints six digits
_HOSTS = re.compile(r"^Hosts\s*:\s*\n\(\n((?:\s*\(\S+ \d+\)\n)+)\)", re.M)
# Debian's begin with OPENFOAM=, those of OpenCFD with a tag or commit; those of the Foundation have no OPENFOAM=
_VERSION = re.compile(r"^Build\s*:\s*(?:.*\bOPENFOAM=)?(\S+)", re.M)


class OpenFoamParams(Params):
    """The size and how it is solved; `procs` is spread evenly over `nodes`."""

    size: Literal["XS", "S", "M", "XL", "XXL"] | None = Field(
        None,
        description="published size: S 100^3, M 200^3, XL 400^3, XXL 800^3 cells; XS is 20^3, for tests; default S unless `cells` is given",
    )
    cells: Annotated[int, Field(ge=4, le=MOST_CELLS)] | None = Field(
        None, description="cells along one edge of the cube, instead of `size`"
    )
    time_steps: Annotated[int, Field(ge=2, le=1_000_000)] | None = Field(
        None,
        description="time steps; default as published: S 500, M 2000, XL and XXL 100 (XS and `cells`: 20)",
    )
    delta_t: Annotated[float, Field(gt=0)] | None = Field(
        None, description="time step in s; default as published for the size"
    )
    stop: case.Stop = Field(
        "iterations",
        description="a linear solve ends after a fixed number of iterations, or at a fixed tolerance",
    )
    pressure_iterations: Annotated[int, Field(ge=1, le=5000)] | None = Field(
        None,
        description="with stop: iterations, of each pressure solve (two a time step); default for PCG as published: S 250, M 650, XL 1300"
        " (XXL 2600; XS and `cells`: 250), for GAMG 10 V-cycles",
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
        None, description="checked against procs / nodes where given"
    )
    decomposition: case.Decomposition = Field(
        "hierarchical",
        description="how the mesh is cut; scotch needs OpenFOAM built with it (Debian's is not)",
    )
    transport: openmpi.Transport = Field(
        "tcp",
        description="between hosts: tcp, or rdma by UCX without a fallback; within a host shared memory",
    )
    bind: Literal["none", "core"] = Field(
        "none", description="core: pin ranks; only where a pod owns its CPUs"
    )
    oversubscribe: bool = Field(False, description="allow more processes than CPUs")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.size and self.cells:
            raise ValueError("give `size` or `cells`, not both")
        if self.procs % self.nodes:
            near = [n for n in range(1, self.procs + 1) if self.procs % n == 0]
            raise ValueError(
                f"procs ({self.procs}) is not divisible by nodes ({self.nodes}); nodes may be {', '.join(map(str, near))}"
            )
        if self.procs_per_node and self.procs_per_node * self.nodes != self.procs:
            raise ValueError(
                f"procs_per_node ({self.procs_per_node}) times nodes ({self.nodes}) is not procs ({self.procs})"
            )
        if self.transport == "rdma" and self.nodes == 1:
            raise ValueError(
                "transport rdma is between hosts, and nodes is 1: within a host all goes through shared memory; use more nodes, or tcp"
            )
        if max(case.split(self.procs)) > self.cavity().cells:
            raise ValueError(
                f"procs ({self.procs}) would cut {self.cavity().cells} cells an edge into {max(case.split(self.procs))} parts; use fewer"
            )
        return self

    def cavity(self) -> case.Cavity:
        """The case that these parameters mean, defaults filled in."""
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


class OpenFoam(Benchmark[OpenFoamParams]):
    """Time of icoFoam for a 3-D lid-driven cavity, over one or more hosts by Open MPI.

    Clock: starts when icoFoam prints that its time loop begins and stops at the end of the last time step; mesh, decomposition, MPI start
    and reading the case are measured apart.
    """

    name: ClassVar[str] = "openfoam"
    version: ClassVar[int] = 2
    image: ClassVar[str] = "openfoam"
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "memory")
    Params: ClassVar[type[OpenFoamParams]] = OpenFoamParams
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
        Metric("pressure_iterations", "1", "none", "linear iterations of all pressure solves"),
        Metric(
            "pressure_residual", "1", "none", "largest residual at which a pressure solve ended"
        ),
        Metric("residual", "1", "none", "initial residual of the last time step, by field"),
        Metric("continuity_error", "1", "none", "largest local continuity error of the run"),
        Metric("courant_max", "1", "none", "largest Courant number of the run"),
    )
    tools: ClassVar[tuple[Tool, ...]] = (
        Tool("icoFoam", {"apt": "openfoam"}),
        Tool("blockMesh", {"apt": "openfoam"}),
        openmpi.MPIRUN,
    )

    def shape(self, params: OpenFoamParams) -> dict[str, Any]:
        return {"hosts": {"count": params.nodes}} | (
            {"privileges": ["rdma"]} if params.transport == "rdma" else {}
        )

    def check(self, params: OpenFoamParams, shape: Shape) -> list[str]:
        problems = []
        if shape.hosts.count != params.nodes:
            problems.append(
                f"hosts.count is {shape.hosts.count} but the parameter nodes is {params.nodes}; leave hosts.count out"
            )
        if shape.volume is not None and shape.volume.mode == "Block":
            problems.append(
                "volume.mode is Block, and the case is a folder of files; use mode Filesystem, or leave volume out"
            )
        problems += openfoam_room.problems(params, shape)
        problems += (
            [] if params.oversubscribe else openmpi.few_cpus(shape, params.procs // params.nodes)
        )
        if params.transport == "rdma" and not devices.has_rdma(shape):
            problems.append(f"transport: rdma {devices.RDMA_WANTED}")
        return problems

    def seconds(self, params: OpenFoamParams) -> float:
        cavity = params.cavity()
        to_tolerance = TOLERANCE_CYCLES if params.solver == "GAMG" else 2 * cavity.cells
        solves = 2 * (cavity.pressure_iterations if params.stop == "iterations" else to_tolerance)
        # the velocity and the rest of a step are 25 iterations of PCG; 5 us a cell to make the mesh
        step = solves * COST[params.solver] + 25 * COST["PCG"]
        return 2 + cavity.cells**3 * (5e-6 + cavity.time_steps * step / params.procs)

    def longest(self, params: OpenFoamParams, timeout: float) -> float:
        return _STEPS * timeout

    def prepare(self, gang: Gang, params: OpenFoamParams) -> None:
        if not params.oversubscribe:
            openmpi.need_cpus(gang.hosts, params.procs)
        if params.transport == "rdma":
            openmpi.need_rdma(gang.hosts)
        environment = _environment()
        lead = gang.hosts[0]
        for root in filter(None, (str(Path(gang.scratch).parent), gang.volume)):
            leftovers.clear(lead, root)  # what was killed leaves tens of GB
        openfoam_room.need(lead, gang.volume or gang.scratch, params)
        # the first host reads and writes for all, so no other has a copy; other runs on the volume have theirs
        folder = gang.notes["case"] = (
            f"{gang.volume or gang.scratch}/{leftovers.PREFIX}openfoam-{secrets.token_hex(4)}"
        )
        try:
            self._lay_out(gang, params, folder, environment)
        except BaseException:
            lead.remove(folder)
            raise

    def _lay_out(
        self, gang: Gang, params: OpenFoamParams, folder: str, environment: dict[str, str]
    ) -> None:
        """The case with its mesh, cut where several processes solve it; its times go to the notes."""
        lead = gang.hosts[0]
        lead.put(
            f"{folder}/{leftovers.MARKER}",
            leftovers.mark(_STEPS * gang.timeout, isinstance(lead, LocalHost)),
        )
        for path, text in case.files(params.cavity()).items():
            lead.put(f"{folder}/{path}", text.encode())
        mesh = lead.run(
            ["blockMesh", "-case", folder], timeout=gang.timeout, env=environment
        ).check("blockMesh")
        gang.notes |= {"mesh_s": mesh.seconds, "decompose_s": 0.0, "mesh": mesh.stdout}
        if params.procs > 1:
            cut = lead.run(["decomposePar", "-case", folder], timeout=gang.timeout, env=environment)
            if "dummy" in cut.stderr + cut.stdout and "stub library" in cut.stderr + cut.stdout:
                raise Skip(
                    f"OpenFOAM here is built without {params.decomposition}; use decomposition: hierarchical"
                )
            gang.notes["decompose_s"] = cut.check("decomposePar").seconds

    def run(self, gang: Gang, params: OpenFoamParams) -> Output:
        lead, folder = gang.hosts[0], gang.notes["case"]
        ranked = [sys.executable, "-m", "perfdag.steps.stamp", "rank", "icoFoam", "-case", folder]
        if params.procs > 1:
            launch = openmpi.mpirun(
                gang,
                params.procs,
                params.transport,
                bind=params.bind,
                oversubscribe=params.oversubscribe,
                export=_environment(),
            )
            # masterUncollated: rank 0 reads for all; the default handler wants the case on the disk of every host
            argv = [*launch, *ranked, "-parallel", "-fileHandler", "masterUncollated"]
        else:
            argv = ranked
        stamped = [sys.executable, "-m", "perfdag.steps.stamp", "lines", *argv]
        try:
            finished = lead.run(
                stamped,
                timeout=gang.timeout,
                env={**_environment(), **openmpi.environment()},
                cwd=gang.scratch,
            )
        finally:
            lead.remove(folder)
        texts = {
            "stdout": finished.stdout,
            "stderr": finished.stderr,
            "timing": f"mesh_s={gang.notes['mesh_s']!r}\ndecompose_s={gang.notes['decompose_s']!r}\nwall_s={finished.seconds!r}\n",
        }
        if finished.timed_out:
            raise Failed(f"icoFoam did not end within {gang.timeout:g} s", texts)
        if finished.code != 0:
            raise Failed(
                why(finished.stdout + finished.stderr)
                or f"icoFoam exited {finished.code}: {finished.tail()}",
                texts,
            )
        facts = {
            "addresses": len(openmpi.ranks_by_address(gang.hosts, params.procs)),
            "point_to_point": openmpi.selected_layer(finished.stdout + finished.stderr),
        }
        return Output(
            texts, [argv], f"OpenFOAM {version(finished.stdout) or '(version not said)'}", facts
        )

    def series(self, output: Output) -> str:
        return output.tool

    def parse(self, output: Output, params: OpenFoamParams) -> list[Measurement]:
        stdout = output.texts.get("stdout", "")
        log = read_log(stdout)
        cavity = params.cavity()
        check_ended(log, cavity, stdout, output.texts)
        found = measurements(log, cavity, output, params.procs)
        _check_claims(log, params, output, found)
        return found


def version(log: str) -> str | None:
    """The version that the log's head names, for example 1912; None: it names none."""
    found = _VERSION.search(unstamped(log))
    return found[1] if found else None


def _environment() -> dict[str, str]:
    root = os.environ.get("WM_PROJECT_DIR") or DEBIAN_ROOT
    if not (Path(root) / "etc" / "controlDict").exists():
        raise Skip(
            f"{root} has no etc/controlDict: install openfoam, or set WM_PROJECT_DIR (source OpenFOAM's etc/bashrc)"
        )
    # a rank on another host is started by a shell of ssh, which has nothing of an image's environment
    own = {
        name: value
        for name, value in os.environ.items()
        if value and (name == "PYTHONPATH" or name.startswith(("FOAM_", "WM_")))
    }
    return {**own, "WM_PROJECT_DIR": root, "FOAM_SIGFPE": "true"}


def _check_claims(
    log: Log, params: OpenFoamParams, output: Output, measurements: list[Measurement]
) -> None:
    """Raise Invalid where the run was not the one asked for: iterations, tolerance, placement or transport."""
    solves = [solve for step in log.steps for solve in step.pressure]
    if params.stop == "iterations":
        done, asked = {solve.iterations for solve in solves}, params.cavity().pressure_iterations
        if done != {asked}:
            raise Invalid(
                f"pressure solves took {min(done)} to {max(done)} iterations, not {asked}",
                output.texts,
                measurements,
            )
    else:
        worst = max(solves, key=lambda solve: solve.residual)
        if worst.residual > params.tolerance * _PRINTED:
            raise Invalid(
                f"a pressure solve ended at residual {worst.residual:.3g} after {worst.iterations} iterations, above the tolerance"
                f" {params.tolerance:g}; use a larger tolerance",
                output.texts,
                measurements,
            )
    if params.procs == 1:
        return
    found = _HOSTS.search(unstamped(output.texts["stdout"]))
    per_host = sorted(int(count) for count in re.findall(r"(\d+)\)", found[1])) if found else []
    hosts = int(output.facts.get("addresses", params.nodes))
    if per_host != [params.procs // hosts] * hosts:
        raise Invalid(
            f"icoFoam ran on hosts with {per_host} processes, not {hosts} with {params.procs // hosts}",
            output.texts,
            measurements,
        )
    layer = output.facts.get("point_to_point")
    if (
        layer is None and params.nodes == 1
    ):  # a build without that output: within one host nothing goes over the wire
        return
    if layer != {"tcp": "ob1", "rdma": "ucx"}[params.transport]:
        used = f"used {layer}, which" if layer else "does not say what it used, which may be what"
        raise Invalid(
            f"Open MPI {used} is not transport: {params.transport}", output.texts, measurements
        )
