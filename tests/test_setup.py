"""`make run` and `make torch`: one clear line, and what to install."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.fakes.files import write_programs

ROOT = Path(__file__).parent.parent


def folder_with(tmp_path: Path, *programs: str, **fakes: str) -> str:
    """A PATH of only these real programs and these fake ones (name -> script)."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in programs:
        (folder / program).symlink_to(str(shutil.which(program)))
    return str(
        write_programs(folder, {name.replace("_", "-"): text for name, text in fakes.items()})
    )


@pytest.mark.parametrize(
    ("manager", "words"),
    [
        ("dnf", ["dnf install iperf3 fio; until then their points are skipped"]),
        ("zypper", ["zypper install iperf3 fio; until then"]),
        ("pacman", ["pacman -S iperf3 fio; until then"]),
        ("brew", ["brew install iperf3 fio; until then"]),
        (None, ["dnf", "zypper", "pacman", "brew"]),
    ],
)
def test_without_apt_it_says_which_packages_to_install(
    tmp_path: Path, manager: str | None, words: list[str]
) -> None:
    path = folder_with(tmp_path, "sh", "id", **({manager: "exit 1"} if manager else {}))
    result = subprocess.run(
        [ROOT / "scripts/tools"], env={"PATH": path}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, "the rest still runs"
    assert [word for word in words if word not in result.stderr] == []


def venv(path: str, python: str, folder: Path) -> subprocess.CompletedProcess[str]:
    argv: list[str | Path] = [ROOT / "scripts/venv", python, folder, "requirements/run.txt"]
    return subprocess.run(argv, env={"PATH": path}, capture_output=True, text=True, check=False)


@pytest.mark.skipif(os.getuid() != 0, reason="apt-get is asked by root")
@pytest.mark.parametrize(
    ("there", "answer", "asked", "error"),
    [
        (["fio", "iperf3"], "", "", ""),
        (["fio"], "", "iperf3", ""),
        (
            [],
            '[ "$1" = update ] || echo "E: Unable to locate package fio" >&2; exit 100',
            "iperf3 fio",
            "apt-get could not install iperf3 fio (Unable to locate package fio); their points "
            "are skipped",
        ),
    ],
    ids=["nothing is missing", "one is missing", "no list, no package"],
)
def test_apt_installs_only_what_is_missing_and_says_why_it_could_not(
    there: list[str], answer: str, asked: str, error: str, tmp_path: Path
) -> None:
    log, known = tmp_path / "log", dict.fromkeys(there, "exit 0")
    path = folder_with(
        tmp_path, "sh", "id", "env", apt_get=f'echo "$@" >> {log}; {answer}', **known
    )
    result = subprocess.run(
        [ROOT / "scripts/tools"], env={"PATH": path}, capture_output=True, text=True, check=True
    )
    assert result.stderr.strip() == error
    assert log.exists() == bool(asked)
    assert not asked or re.search(f"install .*{asked}$", log.read_text())


def test_an_older_python_gets_one_clear_line(tmp_path: Path) -> None:
    shim = (
        "import sys; sys.version_info = (3, 9, 2); sys.version = '3.9.2 (old)'; "
        "exec(sys.stdin.read())"
    )
    write_programs(tmp_path, {"python3.9": f'exec {shutil.which("python3")} -c "{shim}"'})
    result = venv(os.environ["PATH"], str(tmp_path / "python3.9"), tmp_path / "venv")
    assert result.returncode == 1
    assert result.stderr.strip() == (
        "perfdag needs Python 3.11 or newer; this is 3.9.2. Name another: make run "
        "PYTHON=python3.12"
    )


@pytest.mark.parametrize(
    ("manager", "how"),
    [
        ("apt_get", "with apt-get install python3 python3-venv"),
        ("pacman", "with pacman -S python"),
        (None, "with your package manager"),
    ],
)
def test_without_python_it_says_how_to_get_one(
    tmp_path: Path, manager: str | None, how: str
) -> None:
    path = folder_with(tmp_path, "sh", "id", **({manager: "exit 1"} if manager else {}))
    result = venv(path, "python3", tmp_path / "venv")
    assert result.returncode == 1
    assert result.stderr.strip() == (
        f"python3 is not installed; get Python 3.11 or newer {how}, or name another: make "
        f"run PYTHON=python3.12"
    )


def test_without_venv_root_and_sudo_it_says_what_root_is_to_install(tmp_path: Path) -> None:
    path = folder_with(tmp_path, "sh", id="echo 1000", apt_get="exit 1", python3='[ "$1" = - ]')
    result = venv(path, "python3", tmp_path / "venv")
    assert result.returncode == 1
    assert result.stderr.strip() == "as root: apt-get install python3-venv; then run make again"


def test_without_venv_sudo_installs_it_and_pip_the_lock_with_its_hashes(tmp_path: Path) -> None:
    log, ready = tmp_path / "log", tmp_path / "ready"
    pip = f'#!/bin/sh\necho pip "$@" >> {log}; echo "Collecting numpy==2 (from -r run.txt)"\n'
    python = f"""case "$1 $2" in
        "- ") exit 0 ;;
        "-c import"*) [ -e {ready} ] ;;
        "-m venv") shift 3; mkdir -p "$1/bin"; printf '%s' '{pip}' > "$1/bin/pip"; chmod +x "$1/bin/pip" ;;
    esac"""  # noqa: E501
    fakes = {
        "sudo": f'echo sudo "$@" >> {log}; exec "$@"',
        "apt_get": f'[ "$1" = update ] && exit 100; : > {ready}',
        "python3": python,
    }
    path = folder_with(tmp_path, "sh", "env", "mkdir", "chmod", id="echo 1000", **fakes)
    result = venv(path, "python3", tmp_path / "venv")
    assert (result.returncode, result.stderr) == (0, "")
    assert f"installing perfdag into {tmp_path / 'venv'}\n  numpy==2\n" in result.stdout
    assert log.read_text().splitlines() == [
        "sudo apt-get update -qq",
        (
            "sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "
            "--no-install-recommends python3-venv"
        ),
        "pip install --progress-bar off --require-hashes -r requirements/run.txt",
        "pip install -q --no-deps --no-build-isolation -e .",
    ]


def test_a_package_that_cannot_be_installed_ends_the_installation(tmp_path: Path) -> None:
    python = """[ "$1" = -m ] && { mkdir -p "$4/bin"; printf '#!/bin/sh\nexit 1' >"$4/bin/pip"; chmod +x "$4/bin/pip"; }; exit 0"""  # noqa: E501
    path = folder_with(tmp_path, "sh", "mkdir", "chmod", id="echo 0", python3=python)
    assert venv(path, "python3", tmp_path / "venv").returncode == 1


def test_uv_is_used_where_it_is_there(tmp_path: Path) -> None:
    log = tmp_path / "log"
    path = folder_with(tmp_path, "sh", uv=f'echo "$@" >> {log}', python3='[ "$1" = - ]')
    folder = tmp_path / "venv"
    assert venv(path, "python3", folder).returncode == 0
    assert log.read_text().splitlines() == [
        f"venv -q --seed --python python3 {folder}",
        f"pip install --python {folder}/bin/python --require-hashes -r requirements/run.txt",
        f"pip install -q --python {folder}/bin/python --no-deps --no-build-isolation -e .",
    ]


def test_what_make_run_installs_is_enough_for_a_cluster() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    locked = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements/run.txt").read_text(), re.M))
    assert {
        re.split(r"[<>=;]", each)[0] for name in ("s3", "mpi", "argo") for each in extras[name]
    } <= locked


STUB = """case "$1" in
-) cat >/dev/null ;;
-m) mkdir -p "$4/bin"; for each in pip perfdag; do cp "$STUBS/$each" "$4/bin/$each"; done ;;
esac"""


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_a_second_make_run_installs_nothing(tmp_path: Path) -> None:
    log, checkout, stubs = tmp_path / "log", tmp_path / "checkout", tmp_path / "stubs"
    shutil.copytree(ROOT / "scripts", checkout / "scripts")
    for name in ("Makefile", "pyproject.toml", "requirements/run.txt"):
        (checkout / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    write_programs(stubs, {name: f'echo {name} "$1" >> {log}' for name in ("pip", "perfdag")})
    path = folder_with(
        tmp_path,
        "sh",
        "make",
        "id",
        "cat",
        "cp",
        "mkdir",
        "touch",
        python3=STUB,
        iperf3="exit 0",
        fio="exit 0",
    )

    def run() -> list[str]:
        log.write_text("")
        subprocess.run(
            ["make", "run"],
            cwd=checkout,
            env={"PATH": path, "STUBS": str(stubs)},
            capture_output=True,
            check=True,
        )
        return log.read_text().splitlines()

    whole = ["pip install", "pip install", "perfdag run"]
    assert run() == whole
    assert run() == ["perfdag run"]
    os.utime(checkout / ".venv/run.stamp", (0, 0))
    assert run() == whole, "a lock file that is newer is installed"
