"""openfoam: a 3-D lid-driven cavity solved by icoFoam over MPI, as a whole application."""

import os
import re
import secrets
import sys
from pathlib import Path
from typing import Any, ClassVar

from perfdag.benchmark.contract import Benchmark, Gang, Metric, Output, Tool
from perfdag.benchmark.rules import broken
from perfdag.hosts import stale_files
from perfdag.hosts.local import LocalHost
from perfdag.outcome import Failed, Measurement, Skip
from perfdag.shape import Placement, Shape
from perfdag.steps import devices
from perfdag.steps.mpi import openmpi
from perfdag.steps.openfoam import case, footprint
from perfdag.steps.openfoam.checks import check_ended, check_request
from perfdag.steps.openfoam.log import failure_reason, measurements, read_log, unstamped
from perfdag.steps.openfoam.params import COST, TOLERANCE_CYCLES, OpenFoamParams

DEBIAN_ROOT = "/usr/share/openfoam"
_STEPS = 3
"""Steps of a sample with a timeout each: mesh, decomposition, solver."""
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
    placement: ClassVar[Placement] = "spread"
    canaries: ClassVar[tuple[str, ...]] = ("cpu", "memory")
    Params: ClassVar[type[OpenFoamParams]] = OpenFoamParams
    coords: ClassVar[tuple[str, ...]] = ("field", "step")
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
        few = [] if params.oversubscribe else openmpi.few_cpus(shape, params.procs // params.nodes)
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
            *footprint.problems(params, shape),
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

    def longest(self, params: OpenFoamParams, timeout: float) -> float:
        return _STEPS * timeout

    def require(self, gang: Gang, params: OpenFoamParams) -> None:
        openmpi.require(gang.hosts, params.procs, params.oversubscribe, params.transport)

    def prepare(self, gang: Gang, params: OpenFoamParams) -> None:
        self.require(gang, params)
        variables = environment()
        lead = gang.hosts[0]
        for root in filter(None, (str(Path(gang.scratch).parent), gang.volume)):
            stale_files.clear(lead, root)  # a killed run leaves tens of GB
        footprint.need(lead, gang.volume or gang.scratch, params)
        # The first host reads and writes for all, so the others need no copy.
        folder = gang.notes["case"] = (
            f"{gang.volume or gang.scratch}/{stale_files.PREFIX}openfoam-{secrets.token_hex(4)}"
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
        lead.put(
            f"{folder}/{stale_files.MARKER}",
            stale_files.mark(_STEPS * gang.timeout, isinstance(lead, LocalHost)),
        )
        for path, text in case.files(params.cavity()).items():
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

    def run(self, gang: Gang, params: OpenFoamParams) -> Output:
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
            launch = openmpi.mpirun(
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
                env={**environment(), **openmpi.environment()},
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
