"""OpenFOAM: the case, the parameters, the parser on recorded logs, and the real solver where it
is installed.
"""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from perfdag.benchmark.contract import Gang, Output
from perfdag.hosts.local import LocalHost
from perfdag.outcome import Failed, Invalid, SampleError, Skip
from perfdag.shape import Shape
from perfdag.steps import mpi
from perfdag.steps.openfoam import benchmark as openfoam
from perfdag.steps.openfoam.benchmark import OpenFoam, OpenFoamParams, environment, version

RECORDED = Path(__file__).parent.parent / "recorded" / "openfoam"
TIMING = "mesh_s=0.25\ndecompose_s=0.5\nwall_s=13.3\n"
TWO = OpenFoamParams(size="XS", procs=2)


def output(name: str, facts: dict[str, Any] | None = None, stdout: str | None = None) -> Output:
    return Output(
        {"stdout": stdout if stdout is not None else recorded(name), "timing": TIMING},
        tool="OpenFOAM 1912",
        facts=facts or {"addresses": 1},
    )


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


def values(output: Output, params: OpenFoamParams) -> dict[tuple[str, str], float]:
    return {(m.metric, m.stat): m.value for m in OpenFoam().parse(output, params) if not m.coords}


# -- parameters and case -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "cells", "delta_t", "time_steps", "iterations"),
    [
        ({"size": "S"}, 100, 1e-3, 500, 250),
        ({"size": "M"}, 200, 2.5e-4, 2000, 650),
        ({"size": "XL"}, 400, 6.25e-5, 100, 1300),
        ({"size": "XXL"}, 800, 6.25e-5, 100, 2600),
        ({}, 100, 1e-3, 500, 250),
        ({"cells": 200}, 200, 2.5e-4, None, None),
        ({"cells": 400}, 400, 6.25e-5, None, None),
    ],
)
def test_published_sizes_and_time_steps(
    params: dict[str, Any], cells: int, delta_t: float, time_steps: int | None, iterations: int
) -> None:
    cavity = OpenFoamParams(**params).cavity()
    assert cavity.cells == cells
    assert cavity.delta_t == pytest.approx(delta_t)
    if time_steps:
        assert (cavity.time_steps, cavity.pressure_iterations) == (time_steps, iterations)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            {"procs": 7, "nodes": 2},
            r"procs \(7\) is not divisible by nodes \(2\); nodes may be 1, 7",
        ),
        ({"procs": 8, "nodes": 2, "procs_per_node": 3}, "procs_per_node"),
        ({"size": "S", "cells": 10}, "not both"),
        ({"cells": 4, "procs": 5}, "use fewer"),
        ({"size": "L"}, "XXL"),
        ({"cells": 895}, "less than or equal to 894"),
        ({"procs": 0}, "greater than or equal to 1"),
        (
            {"procs": 2, "nodes": 1, "transport": "rdma"},
            "nodes is 1: within a host all goes through shared memory; use more nodes, or tcp",
        ),
    ],
)
def test_bad_parameters_are_refused(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        OpenFoamParams(**bad)


@pytest.mark.parametrize(
    ("procs", "parts"),
    [
        (1, (1, 1, 1)),
        (2, (2, 1, 1)),
        (8, (2, 2, 2)),
        (12, (3, 2, 2)),
        (48, (4, 4, 3)),
        (7, (7, 1, 1)),
    ],
)
def test_the_cube_is_cut_near_cubes(procs: int, parts: tuple[int, int, int]) -> None:
    assert openfoam.split(procs) == parts


def test_the_dictionaries_say_what_was_asked() -> None:
    params = OpenFoamParams(size="M", procs=8, solver="GAMG", stop="tolerance", tolerance=1e-5)
    files = openfoam.files(params.cavity())
    fixed = openfoam.files(OpenFoamParams(size="S", pressure_iterations=77).cavity())
    for text, words in (
        (files["system/blockMeshDict"], "(200 200 200)"),
        (files["system/decomposeParDict"], "n (2 2 2)"),
        (files["system/fvSolution"], "solver GAMG"),
        (files["system/fvSolution"], "tolerance 1e-05"),
        (
            files["system/fvSolution"],
            "U { solver PBiCGStab; preconditioner DILU; tolerance 1e-15; relTol 0; maxIter 5; }",
        ),
        (fixed["system/fvSolution"], "minIter 77; maxIter 77;"),
    ):
        assert words in text


RDMA = {"procs": 4, "nodes": 2, "transport": "rdma"}
SIXTEEN = {"procs": 16, "nodes": 2}
FOUR_CPUS = {"hosts": {"count": 2}, "resources": {"cpu": 4}}


@pytest.mark.parametrize(
    ("params", "shape", "message"),
    [
        (RDMA, {"hosts": {"count": 2}}, "needs an RDMA network"),
        (
            RDMA,
            {"hosts": {"count": 2}, "resources": {"nvidia.com/gpu": 1}},
            "needs an RDMA network",
        ),
        (RDMA, {"hosts": {"count": 2}, "resources": {"rdma/hca": 1}}, None),
        ({"procs": 2, "nodes": 2}, {"hosts": {"count": 3}}, "hosts.count is 3"),
        (
            {"size": "M"},
            {"resources": {"memory": "4Gi"}},
            "8,000,000 cells need 7.499 GiB on the first host",
        ),
        (
            {"size": "S", "procs": 2},
            {"volume": {"size": "100MiB"}},
            "the case of 1,000,000 cells needs 248 MiB, volume.size is 100 MiB",
        ),
        ({}, {"volume": {"size": "1GiB", "mode": "Block"}}, "volume.mode is Block"),
        ({"size": "M"}, {"resources": {"memory": "8Gi"}, "volume": {"size": "1GiB"}}, None),
        # the default of volume.size says nothing of them
        *(
            ({"size": "M", "procs": 8, "nodes": 2}, {"hosts": {"count": 2}, "volume": volume}, None)
            for volume in ({"kind": "hostPath", "path": "/mnt/data"}, {"claim": "kept"})
        ),
        # ranks that spin under a quota are throttled, and oversubscribe would not help
        (
            SIXTEEN,
            FOUR_CPUS,
            "on a cluster 8 processes in each pod, and resources.cpu 4, would be throttled by its "
            "CPU quota; raise it to 8, use fewer, or write it below resources.requests, which sets "
            "no quota",
        ),
        ({**SIXTEEN, "oversubscribe": True}, FOUR_CPUS, None),
        ({"procs": 8, "nodes": 2}, FOUR_CPUS, None),
    ],
)
def test_what_does_not_fit_is_refused_when_planning(
    params: dict[str, Any], shape: dict[str, Any], message: str | None
) -> None:
    problems = OpenFoam().check(OpenFoamParams(**params), Shape.model_validate(shape))
    assert [str(message) in problem for problem in problems] == [True] * bool(message)


def test_rdma_asks_for_its_right_and_hosts_follow_nodes() -> None:
    assert OpenFoam().shape(OpenFoamParams.model_validate(RDMA)) == {
        "hosts": {"count": 2},
        "privileges": ["rdma"],
    }


def test_mpirun_names_hosts_with_slots_and_the_transport() -> None:
    hosts = [LocalHost("10.0.0.1", "a"), LocalHost("10.0.0.2", "b")]
    argv = mpi.openmpi_mpirun(Gang(hosts, Shape(), 1, "/tmp"), 8, "tcp")
    assert argv[argv.index("--host") + 1] == "10.0.0.1:4,10.0.0.2:4"
    assert argv[argv.index("--map-by") + 1] == "ppr:4:node"
    assert argv[argv.index("plm_rsh_agent") + 1] == "perfdag step rsh"
    assert "self,vader,tcp" in argv
    rdma = mpi.openmpi_mpirun(Gang(hosts, Shape(), 1, "/tmp"), 8, "rdma")
    assert rdma[rdma.index("pml") + 1] == "ucx"
    assert "UCX_TLS=rc,dc,ud,self,sm" in rdma
    alone = mpi.openmpi_mpirun(Gang([LocalHost()] * 2, Shape(), 1, "/tmp"), 4, "tcp")
    assert alone[alone.index("--host") + 1] == "127.0.0.1:4"
    assert not {"plm_rsh_agent", "--map-by"} & set(alone)


# -- recorded logs -------------------------------------------------------------------------------


def test_a_serial_log() -> None:
    result = values(output("xs-1-proc.stdout"), OpenFoamParams(size="XS"))
    assert result["solve_time", "value"] == pytest.approx(3.419091)
    assert result["cell_steps_rate", "value"] == pytest.approx(20**3 * 20 / 3.419091)
    assert result["step_time", "min"] <= result["step_time", "p50"] <= result["step_time", "max"]
    assert result["pressure_iterations", "value"] == 20 * 2 * 250
    assert result["memory", "value"] == result["memory", "max"] == 62922752
    assert ("decompose_time", "value") not in result


def test_a_parallel_log() -> None:
    measured = OpenFoam().parse(output("xs-2-procs.stdout"), TWO)
    result = {(m.metric, m.stat): m.value for m in measured if not m.coords}
    assert result["memory", "value"] == 141291520
    assert result["memory", "max"] == 70676480
    assert result["user_time", "value"] == pytest.approx(3.671781 + 3.280954)
    assert result["system_time", "value"] == pytest.approx(0.124662 + 0.113244)
    used = result["user_time", "value"] + result["system_time", "value"]
    assert result["cpu", "value"] == pytest.approx(used / result["wall_time", "value"])
    assert result["decompose_time", "value"] == 0.5


def test_size_s_and_a_tolerance() -> None:
    for name, procs in (("s-1-proc.stdout", 1), ("s-2-procs.stdout", 2)):
        result = values(output(name), OpenFoamParams(size="S", time_steps=3, procs=procs))
        assert result["cell_steps_rate", "value"] == pytest.approx(
            3e6 / result["solve_time", "value"]
        )
        assert result["pressure_iterations", "value"] == 3 * 2 * 250
    gamg = values(output("gamg-tolerance.stdout"), OpenFoamParams.model_validate(GAMG))
    assert gamg["pressure_iterations", "value"] == 65


GANG = {
    "cells": 16,
    "time_steps": 5,
    "pressure_iterations": 50,
    "procs": 2,
    "nodes": 2,
    "oversubscribe": True,
}
GAMG = {"cells": 16, "time_steps": 5, "solver": "GAMG", "stop": "tolerance", "tolerance": 1e-6}


def test_a_gang_of_two_pods_has_a_rank_in_each() -> None:
    of_two = output("gang-2-pods.stdout", {"addresses": 2, "point_to_point": "ob1"})
    assert values(of_two, OpenFoamParams.model_validate(GANG))["memory", "value"] > 0


@pytest.mark.parametrize(
    ("name", "params", "facts", "error", "message"),
    [
        (
            "runaway",
            {"cells": 50, "time_steps": 8, "pressure_iterations": 8},
            {},
            Failed,
            "diverged: Courant number 16.44 in time step 4",
        ),
        (
            "diverged",
            {"cells": 12, "time_steps": 40, "delta_t": 0.5, "pressure_iterations": 1},
            {},
            Failed,
            "diverged: Courant number 6656 in time step 5",
        ),
        (
            "xs-2-procs",
            {"size": "XS", "procs": 2, "time_steps": 21},
            {},
            Failed,
            "stopped early: 20 of 21 time steps",
        ),
        (
            "xs-2-procs",
            {"size": "XS", "procs": 2, "pressure_iterations": 100},
            {},
            Invalid,
            "250 to 250 iterations, not 100",
        ),
        (
            "xs-2-procs",
            {"size": "XS", "procs": 2, "nodes": 2},
            {"addresses": 2},
            Invalid,
            r"ran on hosts with \[2\] processes, not 2 with 1",
        ),
        (
            "gang-2-pods",
            GANG | {"nodes": 1},
            {},
            Invalid,
            r"ran on hosts with \[1, 1\] processes, not 1 with 2",
        ),
        (
            "gang-2-pods",
            GANG | {"transport": "rdma"},
            {"addresses": 2, "point_to_point": "ob1"},
            Invalid,
            "Open MPI used ob1",
        ),
        (
            "gang-2-pods",
            GANG,
            {"addresses": 2, "point_to_point": None},
            Invalid,
            "Open MPI does not say what it used",
        ),
        (
            "gang-2-pods",
            GANG,
            {"addresses": 2, "point_to_point": "ucx"},
            Invalid,
            "Open MPI used ucx, which is not transport: tcp",
        ),
        (
            "gamg-tolerance",
            GAMG | {"tolerance": 1e-9},
            {},
            Invalid,
            r"a pressure solve ended at residual \S+ after \d+ iterations, above the tolerance "
            "1e-09",
        ),
    ],
)
def test_what_went_otherwise_than_asked_is_no_sample(
    name: str, params: dict[str, Any], facts: dict[str, Any], error: type[SampleError], message: str
) -> None:
    with pytest.raises(error, match=message) as wrong:
        OpenFoam().parse(output(f"{name}.stdout", facts), OpenFoamParams(**params))
    assert error is Failed or wrong.value.measurements


@pytest.mark.parametrize(
    ("name", "params", "old", "new", "message"),
    [
        (
            "xs-2-procs",
            {"size": "XS", "procs": 2},
            r"(Courant Number mean: \S+ max: )\S+",
            r"\g<1>nan",
            "not finite",
        ),
        (
            "xs-2-procs",
            {"size": "XS", "procs": 2},
            r"(Solving for p.*?Final residual = )1",
            r"\g<1>1x1",
            "where a number belongs",
        ),
        (
            "gamg-tolerance",
            GAMG,
            r"(?s)(.*Solving for p.*?Final residual = )\S+?,",
            r"\g<1>nan,",
            "not finite in time step 5",
        ),
    ],
)
def test_numbers_that_are_none_are_failed(
    name: str, params: dict[str, Any], old: str, new: str, message: str
) -> None:
    log, count = re.subn(old, new, recorded(f"{name}.stdout"), count=1)
    assert count
    with pytest.raises(Failed, match=message):
        OpenFoam().parse(output("", stdout=log), OpenFoamParams(**params))


def test_a_run_of_many_hours_parses() -> None:
    later = re.sub(
        r"^(\d+\.\d+)\t",
        lambda result: f"{float(result[1]) * 10_000:.6f}\t",
        recorded("xs-2-procs.stdout"),
        flags=re.M,
    )
    assert values(output("", stdout=later), TWO)["solve_time", "value"] == pytest.approx(121_897.62)


def constructed_2312(log: str) -> str:
    """Constructed, not recorded: a log of 1912 with the head and the lines of OpenCFD's v2312."""
    build = "Build  : _a0f1846504-20231220 OPENFOAM=2312 patch=240220 version=2312"
    tuned = "nonBlockingExchange: 0 (tuning: 0)\n0.768151\t    exchange algorithm : 0"
    log = re.sub(r"Build  : OPENFOAM=1912 patch=\d+", build, log).replace(
        "nProcsSimpleSum    : 0", f"nProcsSimpleSum    : 0\n0.768151\t    {tuned}"
    )
    return log.replace(
        "polling iterations : 0", "polling iterations : 0\n0.768152\t    topoControl        : 0"
    )


@pytest.mark.parametrize(
    ("name", "params"), [("xs-1-proc", OpenFoamParams(size="XS")), ("xs-2-procs", TWO)]
)
def test_a_log_of_a_later_version_reads_the_same(name: str, params: OpenFoamParams) -> None:
    old = recorded(f"{name}.stdout")
    new = constructed_2312(old)
    assert (version(old), version(new)) == ("1912", "2312")
    assert version("0.1\tBuild  : 11-7bb0de2dd2d6\n") == "11-7bb0de2dd2d6", "of the Foundation"
    assert values(output("", stdout=new), params) == values(output("", stdout=old), params)
    with pytest.raises(Failed):
        OpenFoam().parse(output("", stdout=new[: len(new) // 2]), params)


@pytest.mark.parametrize("name", ["xs-2-procs", "xs-2-procs-openmpi5"])
def test_the_point_to_point_layer_is_read(name: str) -> None:
    assert mpi.openmpi_layer(recorded(f"{name}.stderr")) == "ob1"
    assert mpi.openmpi_layer("") is None


def test_a_run_with_open_mpi_5_has_every_headline() -> None:
    params = OpenFoamParams(size="XS", time_steps=5, procs=2)
    result = values(output("xs-2-procs-openmpi5.stdout"), params)
    assert result["solve_time", "value"] == pytest.approx(1.704, abs=0.001)
    assert result["memory", "value"] == 150913024
    assert mpi.wrong_transport(recorded("xs-2-procs-openmpi5.stderr"), "shm", True) is None


def test_multigrid_has_a_cost_and_iterations_of_its_own() -> None:
    """Measured: a V-cycle takes 229 ns a cell, and 50 of them are at the end of a double's
    digits.
    """
    gamg = OpenFoamParams(size="S", solver="GAMG", pressure_iterations=250)
    assert OpenFoam().seconds(gamg) > 229e-9 * 1e6 * 500 * 2 * 250
    assert OpenFoamParams(size="S", solver="GAMG").cavity().pressure_iterations == 10
    assert OpenFoamParams(cells=30, solver="GAMG").cavity().pressure_iterations == 10
    tolerance = [
        OpenFoam().seconds(OpenFoamParams(cells=n, solver="GAMG", stop="tolerance")) - 2
        for n in (100, 200)
    ]
    assert tolerance[1] == pytest.approx(8 * tolerance[0]), "the cycles are as many for any mesh"


def test_faces_are_counted_in_32_bits() -> None:
    faces = [3 * n**2 * (n + 1) for n in (openfoam.MAX_CELLS, openfoam.MAX_CELLS + 1)]
    assert faces[0] < 2**31 <= faces[1]


def test_a_custom_openfoam_reaches_the_ranks_on_other_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, 0)
    monkeypatch.setenv("WM_OPTIONS", "linux64Gcc")
    monkeypatch.setenv("FOAM_LIBBIN", "/opt/of/lib")
    monkeypatch.setenv("FOAM_USER_LIBBIN", "")
    result = environment()
    assert (
        result.items()
        >= {
            "WM_PROJECT_DIR": str(tmp_path),
            "WM_OPTIONS": "linux64Gcc",
            "FOAM_LIBBIN": "/opt/of/lib",
            "FOAM_SIGFPE": "true",
        }.items()
    )
    assert "FOAM_USER_LIBBIN" not in result


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> Path:
    """Make a blockMesh that only exits; return the volume for the cases."""
    for name in ("bin", "etc", "volume"):
        (folder / name).mkdir()
    (folder / "bin" / "blockMesh").write_text(f"#!/bin/sh\nexit {code}\n")
    (folder / "bin" / "blockMesh").chmod(0o755)
    (folder / "etc" / "controlDict").touch()
    monkeypatch.setenv("WM_PROJECT_DIR", str(folder))
    monkeypatch.setenv("PATH", f"{folder}/bin:/usr/bin:/bin")
    return folder / "volume"


def test_two_runs_on_one_volume_have_cases_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = stand_in(tmp_path, monkeypatch, 0)
    volume.mkdir(exist_ok=True)
    gangs = [
        Gang([LocalHost()], Shape(), 20, str(tmp_path / name / "s"), volume=str(volume))
        for name in ("one", "two")
    ]
    for gang in gangs:
        OpenFoam().prepare(gang, OpenFoamParams(cells=4))
    assert {str(path) for path in volume.iterdir()} == {gang.notes["case"] for gang in gangs}
    assert all((Path(gang.notes["case"]) / "system/controlDict").exists() for gang in gangs)


@pytest.mark.parametrize(
    ("code", "free", "size", "message"),
    [
        (3, 1 << 40, "XS", "blockMesh"),
        (
            0,
            1 << 30,
            "XL",
            "on .* has 1 GiB free, the case of 64,000,000 cells needs 7.749 GiB; free some",
        ),
    ],
)
def test_a_mesh_that_fails_or_does_not_fit_on_the_disk_leaves_no_case(
    code: int,
    free: int,
    size: Any,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    volume = stand_in(tmp_path, monkeypatch, code)
    monkeypatch.setattr(
        openfoam, "filesystem", lambda host, path: {"mount": path, "free_bytes": free}
    )
    gang = Gang([LocalHost()], Shape(), 20, str(tmp_path / "s"), volume=str(volume))
    with pytest.raises(Failed, match=message):
        OpenFoam().prepare(gang, OpenFoamParams(size=size))
    assert list(volume.iterdir()) == []


# -- the real solver -----------------------------------------------------------------------------

needs_openfoam = pytest.mark.skipif(
    shutil.which("icoFoam") is None, reason="needs OpenFOAM: apt-get install openfoam openmpi-bin"
)


def measured(params: OpenFoamParams, scratch: Path) -> tuple[Output, dict[tuple[str, str], float]]:
    benchmark, gang = OpenFoam(), Gang([LocalHost()], Shape(), 120, str(scratch))
    benchmark.prepare(gang, params)
    value = benchmark.measure(gang, params)
    return value, values(value, params)


@needs_openfoam
def test_the_real_solver_alone_and_in_parallel(tmp_path: Path) -> None:
    params, one = measured(
        OpenFoamParams(cells=10, time_steps=4, pressure_iterations=50), tmp_path / "one"
    )
    assert params.tool.startswith("OpenFOAM ")
    assert one["wall_time", "value"] > one["solve_time", "value"] > 0
    parallel = OpenFoamParams(
        cells=10, time_steps=4, pressure_iterations=50, procs=2, oversubscribe=True
    )
    params, two = measured(parallel, tmp_path / "two")
    assert params.facts["point_to_point"] == "ob1"
    assert two["pressure_iterations", "value"] == one["pressure_iterations", "value"]


@needs_openfoam
@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        (
            {"cells": 12, "time_steps": 40, "delta_t": 0.5, "pressure_iterations": 1},
            Failed,
            "diverged",
        ),
        (
            {
                "cells": 10,
                "time_steps": 2,
                "solver": "GAMG",
                "stop": "tolerance",
                "tolerance": 1e-30,
            },
            Invalid,
            "after 5000 iterations, above the tolerance 1e-30",
        ),
        ({"cells": 10, "procs": 512}, Skip, "CPUs for 512 processes"),
    ],
)
def test_a_real_run_without_a_result_names_the_reason(
    params: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        measured(OpenFoamParams(**params), tmp_path)
