"""OpenFOAM: the case, the parameters, the parser on recorded logs, and the real solver where it
is installed.
"""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark.contract import Failed, Gang, Invalid, SampleError, Skip
from perfdag.hosts.local import LocalHost
from perfdag.shape import Shape
from perfdag.steps import mpi, openfoam
from perfdag.steps.openfoam import OpenFoam, OpenFoamParams, environment, version
from tests.recorded.recordings import CASES

RECORDED = Path(__file__).parent.parent / "recorded" / "openfoam"
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
    case = OpenFoamParams(**params).case
    assert case.cells == cells
    assert case.delta_t == pytest.approx(delta_t)
    if time_steps:
        assert (case.time_steps, case.pressure_iterations) == (time_steps, iterations)


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
    files = openfoam.files(params)
    fixed = openfoam.files(OpenFoamParams(size="S", pressure_iterations=77))
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
    ("params", "shape", "code"),
    [
        (RDMA, {"hosts": {"count": 2}}, "no-rdma"),
        (RDMA, {"hosts": {"count": 2}, "resources": {"rdma/hca": 1}}, None),
        ({"procs": 2, "nodes": 2}, {"hosts": {"count": 3}}, "own-hosts"),
        ({"size": "M"}, {"resources": {"memory": "4Gi"}}, "little-memory"),
        ({"size": "M"}, {"resources": {"memory": "8Gi"}, "volume": {"size": "1GiB"}}, None),
        ({}, {"volume": {"size": "1GiB", "mode": "Block"}}, "block-volume"),
        # ranks that spin under a quota are throttled, and oversubscribe would not help
        (SIXTEEN, FOUR_CPUS, "cpu-quota"),
        ({**SIXTEEN, "oversubscribe": True}, FOUR_CPUS, None),
        ({"procs": 8, "nodes": 2}, FOUR_CPUS, None),
    ],
)
def test_what_does_not_fit_is_refused_when_planning(
    params: dict[str, Any], shape: dict[str, Any], code: str | None
) -> None:
    problems = OpenFoam().check(OpenFoamParams(**params), Shape.model_validate(shape))
    assert [problem.code for problem in problems] == [code] * bool(code)


def test_mpirun_names_hosts_with_slots_and_the_transport() -> None:
    hosts = [LocalHost("10.0.0.1", "a"), LocalHost("10.0.0.2", "b")]
    argv = mpi.openmpi_mpirun(Gang(hosts, Shape(), 1, "/tmp"), "mpirun", 8, "tcp")
    assert argv[argv.index("--host") + 1] == "10.0.0.1:4,10.0.0.2:4"
    assert argv[argv.index("--map-by") + 1] == "ppr:4:node"
    assert argv[argv.index("plm_rsh_agent") + 1] == "perfdag step rsh"
    assert "self,vader,tcp" in argv
    rdma = mpi.openmpi_mpirun(Gang(hosts, Shape(), 1, "/tmp"), "mpirun", 8, "rdma")
    assert rdma[rdma.index("pml") + 1] == "ucx"
    assert "UCX_TLS=rc,dc,ud,self,sm" in rdma
    alone = mpi.openmpi_mpirun(Gang([LocalHost()] * 2, Shape(), 1, "/tmp"), "mpirun", 4, "tcp")
    assert alone[alone.index("--host") + 1] == "127.0.0.1:4"
    assert not {"plm_rsh_agent", "--map-by"} & set(alone)


# -- recorded logs -------------------------------------------------------------------------------


def values(name: str, log: str = "", **params: Any) -> dict[tuple[str, str], float]:
    """Return the values of a recording, of another log or with other params."""
    _, recorded, output, parse = CASES[f"openfoam/{name}"].load()
    texts = output.texts | ({"stdout": log} if log else {})
    rows = parse(texts, recorded.model_copy(update=params))
    return {(row.metric, row.stat): row.value for row in rows if not row.coords}


@pytest.mark.parametrize(
    ("name", "params", "pattern", "by", "error"),
    [
        ("xs-2-procs", {"time_steps": 21}, "", "", Failed),
        ("xs-2-procs", {"procs": 3}, "", "", Failed),
        ("gamg-tolerance", {"tolerance": 1e-9}, "", "", Invalid),
        ("xs-2-procs", {}, r"(Courant Number mean: \S+ max: )\S+", r"\g<1>nan", Failed),
        ("xs-2-procs", {}, r"(Solving for p.*?Final residual = )1", r"\g<1>1x1", Failed),
        ("gamg-tolerance", {}, r"(Solving for p.*?Final residual = )\S+?,", r"\g<1>nan,", Failed),
        *(
            ("xs-1-proc", {}, r"perfdag-rank.*", line, Failed)
            for line in (
                "perfdag-rank max_rss_bytes=",
                "perfdag-rank max_rss_bytes=nan user_s=1 system_s=1",
                "perfdag-rank max_rss_bytes=1 user_s=1",
                "perfdag-rank max_rss_bytes=1 user_s=1 system_s=1.2.3",
            )
        ),
    ],
)
def test_a_log_that_is_not_what_was_asked_is_no_sample(
    name: str, params: dict[str, Any], pattern: str, by: str, error: type[SampleError]
) -> None:
    recorded = (RECORDED / f"{name}.stdout").read_text()
    log, count = re.subn(pattern, by, recorded, count=1)
    assert count
    with pytest.raises(error) as wrong:
        values(name, log, **params)
    assert bool(wrong.value.measurements) == (error is Invalid)


@pytest.mark.parametrize("name", ["xs-2-procs", "xs-2-procs-openmpi5"])
def test_the_point_to_point_layer_is_read(name: str) -> None:
    assert mpi.openmpi_layer((RECORDED / f"{name}.stderr").read_text()) == "ob1"


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


def test_a_mesh_that_fails_leaves_no_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = stand_in(tmp_path, monkeypatch, 3)
    gang = Gang([LocalHost()], Shape(), 20, str(tmp_path / "s"), volume=str(volume))
    with pytest.raises(Failed, match="blockMesh"):
        OpenFoam().run(gang, OpenFoamParams(size="XS"))
    assert list(volume.iterdir()) == []


# -- the real solver -----------------------------------------------------------------------------

needs_openfoam = pytest.mark.skipif(
    shutil.which("icoFoam") is None, reason="needs OpenFOAM: apt-get install openfoam openmpi-bin"
)


def measured(scratch: Path, **params: Any) -> dict[tuple[str, str], float]:
    gang, options = Gang([LocalHost()], Shape(), 120, str(scratch)), OpenFoamParams(**params)
    OpenFoam().require(gang, options)
    rows = OpenFoam().run(gang, options)
    assert gang.output.tool.startswith("OpenFOAM ")
    return {(row.metric, row.stat): row.value for row in rows if not row.coords}


SMALL: dict[str, Any] = {"cells": 10, "time_steps": 4, "pressure_iterations": 50}


@needs_openfoam
def test_the_real_solver_alone_and_in_parallel_in_an_activated_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mpirun, which is first on PATH, is Intel MPI's."""
    monkeypatch.setenv("PATH", f"{sys.prefix}/bin:{os.environ['PATH']}")
    one = measured(tmp_path / "one", **SMALL)
    assert one["wall_time", "value"] > one["solve_time", "value"] > 0
    two = measured(tmp_path / "two", **SMALL, procs=2, oversubscribe=True)
    assert two["pressure_iterations", "value"] == one["pressure_iterations", "value"]


@needs_openfoam
@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"cells": 12, "time_steps": 40, "delta_t": 0.5, "pressure_iterations": 1}, Failed),
        ({**SMALL, "solver": "GAMG", "stop": "tolerance", "tolerance": 1e-30}, Invalid),
        ({"cells": 10, "procs": 512}, Skip),
    ],
)
def test_a_real_run_without_a_result_is_no_sample(
    params: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error):
        measured(tmp_path, **params)


@pytest.mark.parametrize(
    ("head", "known"),
    [
        ("Build  : OPENFOAM=1912 patch=200506", "1912"),
        ("Build  : _a0f1846504-20231220 OPENFOAM=2312 patch=240220 version=2312", "2312"),
        ("Build  : 11-7bb0de2dd2d6", "11-7bb0de2dd2d6"),  # of the Foundation
    ],
)
def test_the_version_is_in_the_head_of_the_log(head: str, known: str) -> None:
    assert version(f"0.1\t{head}\n") == known
