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
from perfdag.hosts import stale_files
from perfdag.hosts.local import LocalHost
from perfdag.outcome import Failed, Invalid, Skip
from perfdag.shape import Shape
from perfdag.steps.mpi import openmpi
from perfdag.steps.openfoam import case, footprint
from perfdag.steps.openfoam import params as openfoam_params
from perfdag.steps.openfoam.benchmark import OpenFoam, environment, version
from perfdag.steps.openfoam.params import OpenFoamParams

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


def test_published_sizes_and_time_steps() -> None:
    assert [OpenFoamParams(size=size).cavity().cells ** 3 for size in ("S", "M", "XL", "XXL")] == [
        10**6,
        8 * 10**6,
        64 * 10**6,
        512 * 10**6,
    ]
    sizes = ("S", "M", "XL", "XXL")
    published = [OpenFoamParams(size=size).cavity() for size in sizes]  # type: ignore[arg-type]
    assert [item.delta_t for item in published] == [1e-3, 2.5e-4, 6.25e-5, 6.25e-5]
    assert [item.time_steps for item in published] == [500, 2000, 100, 100]
    assert [item.pressure_iterations for item in published] == [250, 650, 1300, 2600]
    assert [case.default_delta_t(n) for n in (100, 200, 400)] == pytest.approx(
        [1e-3, 2.5e-4, 6.25e-5]
    )
    assert OpenFoamParams().cavity().cells == 100
    assert OpenFoamParams(cells=30).cavity().cells == 30


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            {"procs": 7, "nodes": 2},
            r"procs \(7\) is not divisible by nodes \(2\); nodes may be 1, 7",
        ),
        ({"procs": 8, "nodes": 2, "procs_per_node": 3}, "procs_per_node"),
        ({"size": "S", "cells": 10}, "not both"),
        ({"cells": 4, "procs": 64, "decomposition": "simple"}, None),
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
def test_bad_parameters_are_refused(bad: dict[str, Any], message: str | None) -> None:
    if message is None:
        OpenFoamParams(**bad)
        return
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
    assert case.split(procs) == parts


def test_the_dictionaries_say_what_was_asked() -> None:
    files = case.files(
        OpenFoamParams(size="M", procs=8, solver="GAMG", stop="tolerance", tolerance=1e-5).cavity()
    )
    assert "(200 200 200)" in files["system/blockMeshDict"]
    assert "n (2 2 2)" in files["system/decomposeParDict"]
    assert "solver GAMG" in files["system/fvSolution"]
    assert "tolerance 1e-05" in files["system/fvSolution"]
    assert (
        "U { solver PBiCGStab; preconditioner DILU; tolerance 1e-15; relTol 0; maxIter 5; }"
        in files["system/fvSolution"]
    )
    fixed = case.files(OpenFoamParams(size="S", pressure_iterations=77).cavity())[
        "system/fvSolution"
    ]
    assert "minIter 77; maxIter 77;" in fixed


def test_rdma_needs_a_device_and_hosts_follow_nodes() -> None:
    benchmark = OpenFoam()
    rdma = OpenFoamParams(procs=4, nodes=2, transport="rdma")
    assert benchmark.shape(rdma) == {"hosts": {"count": 2}, "privileges": ["rdma"]}
    assert (
        "needs an RDMA network"
        in benchmark.check(rdma, Shape.model_validate(benchmark.shape(rdma)))[0]
    )
    assert (
        benchmark.check(
            rdma, Shape.model_validate(benchmark.shape(rdma) | {"resources": {"rdma/hca": 1}})
        )
        == []
    )
    gpu = Shape.model_validate(benchmark.shape(rdma) | {"resources": {"nvidia.com/gpu": 1}})
    assert "needs an RDMA network" in benchmark.check(rdma, gpu)[0]
    assert (
        "hosts.count is 3"
        in benchmark.check(
            OpenFoamParams(procs=2, nodes=2), Shape.model_validate({"hosts": {"count": 3}})
        )[0]
    )


def test_mpirun_names_hosts_with_slots_and_the_transport() -> None:
    hosts = [LocalHost("10.0.0.1", "a"), LocalHost("10.0.0.2", "b")]
    argv = openmpi.mpirun(Gang(hosts, Shape(), 1, "/tmp"), 8, "tcp")
    assert argv[argv.index("--host") + 1] == "10.0.0.1:4,10.0.0.2:4"
    assert argv[argv.index("--map-by") + 1] == "ppr:4:node"
    assert argv[argv.index("plm_rsh_agent") + 1] == "perfdag step rsh"
    assert "self,vader,tcp" in argv
    rdma = openmpi.mpirun(Gang(hosts, Shape(), 1, "/tmp"), 8, "rdma")
    assert rdma[rdma.index("pml") + 1] == "ucx"
    assert "UCX_TLS=rc,dc,ud,self,sm" in rdma
    alone = openmpi.mpirun(Gang([LocalHost()] * 2, Shape(), 1, "/tmp"), 4, "tcp")
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


def test_a_parallel_log_and_its_residuals() -> None:
    measured = OpenFoam().parse(output("xs-2-procs.stdout"), TWO)
    result = {(m.metric, m.stat): m.value for m in measured if not m.coords}
    assert result["memory", "value"] == 141291520
    assert result["memory", "max"] == 70676480
    assert result["user_time", "value"] == pytest.approx(3.671781 + 3.280954)
    assert result["system_time", "value"] == pytest.approx(0.124662 + 0.113244)
    used = result["user_time", "value"] + result["system_time", "value"]
    assert result["cpu", "value"] == pytest.approx(used / result["wall_time", "value"])
    assert result["decompose_time", "value"] == 0.5
    assert {m.coords["field"]: m.value for m in measured if m.metric == "residual"} == {
        "Ux": 0.000113342,
        "Uy": 0.000262942,
        "Uz": 0.000329927,
        "p": 0.000264805,
    }


def test_size_s_and_a_tolerance() -> None:
    for name, procs in (("s-1-proc.stdout", 1), ("s-2-procs.stdout", 2)):
        result = values(output(name), OpenFoamParams(size="S", time_steps=3, procs=procs))
        assert result["cell_steps_rate", "value"] == pytest.approx(
            3e6 / result["solve_time", "value"]
        )
        assert result["pressure_iterations", "value"] == 3 * 2 * 250
    gamg = OpenFoamParams(cells=16, time_steps=5, solver="GAMG", stop="tolerance", tolerance=1e-6)
    assert values(output("gamg-tolerance.stdout"), gamg)["pressure_iterations", "value"] == 65


def test_a_gang_of_two_pods_has_a_rank_in_each() -> None:
    params = OpenFoamParams(
        cells=16, time_steps=5, pressure_iterations=50, procs=2, nodes=2, oversubscribe=True
    )
    assert (
        values(output("gang-2-pods.stdout", {"addresses": 2, "point_to_point": "ob1"}), params)[
            "memory", "value"
        ]
        > 0
    )
    with pytest.raises(Invalid, match=r"ran on hosts with \[1, 1\] processes, not 1 with 2"):
        OpenFoam().parse(output("gang-2-pods.stdout", {"addresses": 1}), params)


def test_a_run_of_many_hours_parses() -> None:
    later = re.sub(
        r"^(\d+\.\d+)\t",
        lambda result: f"{float(result[1]) * 10_000:.6f}\t",
        recorded("xs-2-procs.stdout"),
        flags=re.M,
    )
    assert values(output("", stdout=later), TWO)["solve_time", "value"] == pytest.approx(121_897.62)


def test_what_diverged_is_failed() -> None:
    with pytest.raises(Failed, match=r"diverged: Courant number 16.44 in time step 4"):
        OpenFoam().parse(
            output("runaway.stdout"), OpenFoamParams(cells=50, time_steps=8, pressure_iterations=8)
        )
    nan = recorded("xs-2-procs.stdout").replace("sum local = 7.25298e-16", "sum local = nan", 1)
    assert "nan" in nan
    with pytest.raises(Failed, match="not finite"):
        OpenFoam().parse(output("", stdout=nan), TWO)
    with pytest.raises(Failed, match="diverged: Courant number 6656 in time step 5"):
        OpenFoam().parse(
            output("diverged.stdout"),
            OpenFoamParams(cells=12, time_steps=40, delta_t=0.5, pressure_iterations=1),
        )


def test_what_stopped_early_is_failed() -> None:
    whole = recorded("xs-2-procs.stdout")
    with pytest.raises(Failed, match=r"stopped early: 20 of 21 time steps"):
        OpenFoam().parse(
            output("", stdout=whole), OpenFoamParams(size="XS", procs=2, time_steps=21)
        )
    for cut in (0, 100, len(whole) // 3, len(whole) // 2, whole.index("End"), len(whole) - 120):
        with pytest.raises(Failed):
            OpenFoam().parse(output("", stdout=whole[:cut]), TWO)


def test_garbled_numbers_are_failed() -> None:
    with pytest.raises(Failed, match="where a number belongs"):
        OpenFoam().parse(
            output(
                "",
                stdout=recorded("xs-2-procs.stdout").replace(
                    "Initial residual = 1,", "Initial residual = 1x1,", 1
                ),
            ),
            TWO,
        )


def test_what_was_not_asked_is_invalid() -> None:
    with pytest.raises(Invalid, match="250 to 250 iterations, not 100"):
        OpenFoam().parse(
            output("xs-2-procs.stdout"), TWO.model_copy(update={"pressure_iterations": 100})
        )
    with pytest.raises(Invalid, match=r"ran on hosts with \[2\] processes, not 2 with 1") as wrong:
        OpenFoam().parse(
            output("xs-2-procs.stdout", {"addresses": 2}), TWO.model_copy(update={"nodes": 2})
        )
    assert wrong.value.measurements
    with pytest.raises(Invalid, match="Open MPI used ob1"):
        OpenFoam().parse(
            output("xs-2-procs.stdout", {"addresses": 1, "point_to_point": "ob1"}),
            TWO.model_copy(update={"transport": "rdma"}),
        )


@pytest.mark.parametrize(
    ("layer", "message"),
    [(None, "does not say what it used"), ("ucx", "used ucx, which is not transport: tcp")],
)
def test_over_several_hosts_the_transport_must_be_known(layer: str | None, message: str) -> None:
    params = OpenFoamParams(
        cells=16, time_steps=5, pressure_iterations=50, procs=2, nodes=2, oversubscribe=True
    )
    with pytest.raises(Invalid, match=f"Open MPI {message}") as wrong:
        OpenFoam().parse(
            output("gang-2-pods.stdout", {"addresses": 2, "point_to_point": layer}), params
        )
    assert wrong.value.measurements


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


def test_a_tolerance_that_was_not_reached_is_invalid() -> None:
    params = OpenFoamParams(cells=16, time_steps=5, solver="GAMG", stop="tolerance", tolerance=1e-6)
    assert values(output("gamg-tolerance.stdout"), params)["pressure_residual", "value"] <= 1e-6
    stricter = params.model_copy(update={"tolerance": 1e-9})
    with pytest.raises(
        Invalid,
        match=(
            r"a pressure solve ended at residual \S+ after \d+ iterations, above the tolerance "
            r"1e-09"
        ),
    ) as wrong:
        OpenFoam().parse(output("gamg-tolerance.stdout"), stricter)
    assert wrong.value.measurements
    lines = recorded("gamg-tolerance.stdout").splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if "Solving for p" in line)
    lines[last] = re.sub(r"Final residual = \S+,", "Final residual = nan,", lines[last])
    with pytest.raises(Failed, match="not finite in time step 5"):
        OpenFoam().parse(output("", stdout="".join(lines)), params)


@pytest.mark.parametrize("name", ["xs-2-procs", "xs-2-procs-openmpi5"])
def test_the_point_to_point_layer_is_read(name: str) -> None:
    assert openmpi.selected_layer(recorded(f"{name}.stderr")) == "ob1"
    assert openmpi.selected_layer("") is None


def test_a_run_with_open_mpi_5_has_every_headline() -> None:
    params = OpenFoamParams(size="XS", time_steps=5, procs=2)
    found = values(output("xs-2-procs-openmpi5.stdout"), params)
    assert found["solve_time", "value"] == pytest.approx(1.704, abs=0.001)
    assert found["memory", "value"] == 150913024
    assert openmpi.wrong_transport(recorded("xs-2-procs-openmpi5.stderr"), "shm") is None


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
    faces = [3 * n**2 * (n + 1) for n in (openfoam_params.MAX_CELLS, openfoam_params.MAX_CELLS + 1)]
    assert faces[0] < 2**31 <= faces[1]


def test_a_custom_openfoam_reaches_the_ranks_on_other_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "controlDict").touch()
    for name, value in {
        "WM_PROJECT_DIR": str(tmp_path),
        "WM_OPTIONS": "linux64Gcc",
        "FOAM_LIBBIN": "/opt/of/lib",
        "FOAM_USER_LIBBIN": "",
    }.items():
        monkeypatch.setenv(name, value)
    result = environment()
    assert result["WM_PROJECT_DIR"] == str(tmp_path)
    assert (result["WM_OPTIONS"], result["FOAM_LIBBIN"], result["FOAM_SIGFPE"]) == (
        "linux64Gcc",
        "/opt/of/lib",
        "true",
    )
    assert "FOAM_USER_LIBBIN" not in result


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A blockMesh that only exits."""
    (folder / "bin").mkdir()
    (folder / "bin" / "blockMesh").write_text(f"#!/bin/sh\nexit {code}\n")
    (folder / "bin" / "blockMesh").chmod(0o755)
    (folder / "etc").mkdir()
    (folder / "etc" / "controlDict").touch()
    monkeypatch.setenv("WM_PROJECT_DIR", str(folder))
    monkeypatch.setenv("PATH", f"{folder}/bin:/usr/bin:/bin")


def test_two_runs_on_one_volume_have_cases_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, 0)
    volume = tmp_path / "volume"
    killed = volume / "perfdag-openfoam-killed"
    killed.mkdir(parents=True)
    (killed / stale_files.MARKER).write_bytes(stale_files.mark(-1, False))
    gangs = [
        Gang([LocalHost()], Shape(), 20, str(tmp_path / name / "s"), volume=str(volume))
        for name in ("one", "two")
    ]
    for gang in gangs:
        OpenFoam().prepare(gang, OpenFoamParams(cells=4))
    assert sorted(str(path) for path in volume.iterdir()) == sorted(
        gang.notes["case"] for gang in gangs
    )
    assert all((Path(gang.notes["case"]) / "system/controlDict").exists() for gang in gangs)


def test_a_mesh_that_fails_leaves_no_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, 3)
    (tmp_path / "volume").mkdir()
    with pytest.raises(Failed, match="blockMesh"):
        OpenFoam().prepare(
            Gang([LocalHost()], Shape(), 20, str(tmp_path / "s"), volume=str(tmp_path / "volume")),
            OpenFoamParams(cells=4),
        )
    assert list((tmp_path / "volume").iterdir()) == []


# -- the real solver -----------------------------------------------------------------------------

needs_openfoam = pytest.mark.skipif(
    shutil.which("icoFoam") is None, reason="needs OpenFOAM: apt-get install openfoam openmpi-bin"
)


def measured(params: OpenFoamParams, scratch: Path) -> tuple[Output, dict[tuple[str, str], float]]:
    benchmark, gang = OpenFoam(), Gang([LocalHost()], Shape(), 120, str(scratch))
    benchmark.prepare(gang, params)
    value = benchmark.run(gang, params)
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
    # the same physics, cut in two
    assert two["courant_max", "value"] == pytest.approx(one["courant_max", "value"], rel=1e-3)


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


@pytest.mark.parametrize(
    ("params", "shape", "message"),
    [
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
    ],
)
def test_a_case_that_does_not_fit_is_refused_when_planning(
    params: dict[str, Any], shape: dict[str, Any], message: str
) -> None:
    (problem,) = OpenFoam().check(OpenFoamParams(**params), Shape.model_validate(shape))
    assert message in problem
    (problem,) = OpenFoam().check(
        OpenFoamParams(), Shape.model_validate({"volume": {"size": "1GiB", "mode": "Block"}})
    )
    assert "volume.mode is Block" in problem
    fits = {"resources": {"memory": "8Gi"}, "volume": {"size": "1GiB"}}
    assert OpenFoam().check(OpenFoamParams(**params), Shape.model_validate(fits)) == []
    for result in (
        {"kind": "hostPath", "path": "/mnt/data"},
        {"claim": "kept"},
    ):  # the default of volume.size says nothing of them
        shape = Shape.model_validate({"hosts": {"count": 2}, "volume": result})
        assert OpenFoam().check(OpenFoamParams(size="M", procs=8, nodes=2), shape) == []


def test_more_processes_than_the_cpus_of_a_pod_are_refused_when_planning() -> None:
    params = OpenFoamParams(procs=16, nodes=2)
    shape = Shape.model_validate({"hosts": {"count": 2}, "resources": {"cpu": 4}})
    (problem,) = OpenFoam().check(params, shape)
    assert problem.startswith(
        "on a cluster 8 processes in each pod, and resources.cpu 4, would be throttled by "
        "its CPU quota; raise it to 8"
    )
    assert (
        "oversubscribe" not in problem
    )  # ranks that spin under a quota are throttled, and the sample is invalid
    assert "sets no quota" in problem
    assert OpenFoam().check(params.model_copy(update={"oversubscribe": True}), shape) == []
    assert OpenFoam().check(OpenFoamParams(procs=8, nodes=2), shape) == []


def test_a_case_that_does_not_fit_on_the_disk_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, 0)
    volume = tmp_path / "volume"
    volume.mkdir()
    local_gang = Gang([LocalHost()], Shape(), 20, str(tmp_path / "s"), volume=str(volume))
    monkeypatch.setattr(
        footprint, "filesystem", lambda host, path: {"mount": path, "free_bytes": 1 << 30}
    )
    with pytest.raises(
        Failed,
        match=(
            rf"{volume} on .* has 1 GiB free, the case of 64,000,000 cells needs 7.749 GiB; free "
            rf"some"
        ),
    ):
        OpenFoam().prepare(local_gang, OpenFoamParams(size="XL"))
    assert list(volume.iterdir()) == []
