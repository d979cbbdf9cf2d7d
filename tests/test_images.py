"""The images: none runs as root, and each is built on something that is named with its version."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdag.commands.main import main
from tests.fakes.files import write_programs

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "images").glob("*/Containerfile"))


def words(file: Path, instruction: str) -> list[str]:
    """What follows an instruction, line by line; lines that are continued are one."""
    text = file.read_text().replace("\\\n", " ")
    return [
        line.split(maxsplit=1)[1]
        for line in text.splitlines()
        if line.upper().startswith(f"{instruction} ")
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_it_does_not_run_as_root(file: Path) -> None:
    users = words(file, "USER") or ["1000"]  # the user of the base
    assert users[-1].isdigit(), "a name would not show the kubelet that it is not root"
    assert int(users[-1]) > 0


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_what_it_is_built_on_has_a_version(file: Path) -> None:
    arguments = dict(each.split("=", 1) for each in words(file, "ARG"))
    built_on = [each.split()[0] for each in words(file, "FROM")]
    assert built_on
    for image in (
        arguments[each.strip("${}")] if each.startswith("$") else each for each in built_on
    ):
        tag = image.rpartition("/")[2].partition(":")[2]
        assert "@sha256:" in image or tag not in ("", "latest"), f"{image} has no version"


PROGRAMS = {
    # uv makes the folder or the wheel that it is asked for
    "uv": """while [ $# -gt 0 ]; do case $1 in
--target|--prefix) mkdir -p "$2/bin"; : >"$2/package.py";;
-o) mkdir -p "$2"; : >"$2/perfdag.whl";;
esac; shift; done""",
    "buildah": """case $1 in
from) echo container;;
run) printf 'deb openssh-server 1:9.2p1-2\\npypi orjson 3.11.0\\n';;
push) while [ "$1" != --digestfile ]; do shift; done; printf 'sha256:0123' >"$2";;
esac""",
    "cosign": "",
}


def build(
    folder: Path, *names: str, stubs: dict[str, str] = PROGRAMS, **options: Any
) -> tuple[int, list[str]]:
    """Run images/build with programs that only write down how they are called."""
    programs, calls = folder / "programs", folder / "calls"
    scripts = {name: f'echo "{name} $*" >>{calls}\n{text}' for name, text in stubs.items()}
    write_programs(programs, scripts)
    result = subprocess.run(
        [str(ROOT / "images/build"), *names],
        env={"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), **options},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = calls.read_text().splitlines() if calls.exists() else [result.stderr]
    return result.returncode, lines


def test_a_build_checks_hashes_pins_debian_and_signs_what_it_pushed(tmp_path: Path) -> None:
    images = ("base", "finish", "imb", "loadgen")
    bill = tmp_path / "sbom"
    code, calls = build(tmp_path, *images, PUSH="1", SIGN="cosign.key", SBOM=str(bill))
    assert code == 0, calls
    installs = [call for call in calls if call.startswith("uv pip install")]
    assert len(installs) == 5
    for call in installs:  # the wheel of this checkout has no hash that is known before
        assert "--require-hashes" in call or re.search(r"--no-deps \S+/perfdag.whl$", call), call
    [backend] = [call for call in calls if call.startswith("uv build")]
    assert "--require-hashes --build-constraints" in backend
    [base] = [call for call in calls if "perfdag-base:1 -f" in call]
    assert re.search(r"DEBIAN=\S+@sha256:[0-9a-f]{64}\b", base)
    assert re.search(r"SNAPSHOT=\d{8}T\d{6}Z\b", base)
    signed = [call for call in calls if call.startswith("cosign sign")]
    assert signed == [
        f"cosign sign --yes --key cosign.key localhost/perfdag-{name}@sha256:0123"
        for name in images
    ]
    assert sum(call.startswith("cosign attest") for call in calls) == len(images)
    for name in images:
        document = json.loads((bill / f"{name}.spdx.json").read_text())
        assert document["spdxVersion"] == "SPDX-2.3"
        locators = {
            package["externalRefs"][0]["referenceLocator"] for package in document["packages"]
        }
        assert locators == {"pkg:deb/debian/openssh-server@1%3A9.2p1-2", "pkg:pypi/orjson@3.11.0"}


def test_a_release_has_the_image_of_every_folder(tmp_path: Path) -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yaml").read_text())
    matrices = {name: workflow["jobs"][name]["strategy"]["matrix"] for name in ("images", "large")}
    [others] = [each for each in matrices["images"]["include"] if each["arch"] == "amd64"]
    _, calls = build(tmp_path / "others", EXCEPT=others["except"])
    _, more = build(tmp_path / "large", *matrices["large"]["image"])
    images = re.findall(r"-t localhost/perfdag-(\S+):1", "\n".join([*calls, *more]))
    assert sorted(images) == [file.parent.name for file in FILES]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"DEBIAN": "localhost/debian:1"}, "--build-arg SNAPSHOT= --build-arg DEBIAN=localhost"),
        ({"SNAPSHOT": ""}, "--build-arg SNAPSHOT= --build-arg DEBIAN=docker.io/library/debian@"),
    ],
)
def test_another_debian_has_no_snapshot_of_this_one(
    tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    code, calls = build(tmp_path, "base", **options)
    assert code == 0, calls
    assert text in calls[-1]


def test_a_package_with_a_benchmark_is_put_into_base_and_its_image_is_built(tmp_path: Path) -> None:
    """`uv pip install` is a stand-in that unpacks the real wheel."""
    package = tmp_path / "package"
    assert main(["new", "mem-copy", "--folder", str(package)]) == 0
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(argv, cwd=package, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    built = tmp_path / "built"
    uv = 'case "$*" in *mem_copy*) theirs=1 ;; esac\n' + PROGRAMS["uv"].replace(
        ': >"$2/package.py"',
        f': >"$2/package.py"; [ -z "$theirs" ] || python3 -m zipfile -e {wheel} "$2"',
    )
    buildah = f'for each; do :; done; cp -r "$each" {built}-$(basename "$each")'
    programs = {**PROGRAMS, "uv": uv, "buildah": buildah}
    code, calls = build(tmp_path, "--with", str(wheel), stubs=programs)
    assert code == 0, calls
    images = re.findall(r"-t localhost/perfdag-(\S+):1", "\n".join(calls))
    assert images == ["base", "finish", "mem-copy"]
    site = tmp_path / "built-context-base/site"
    assert (site / "perfdag_mem_copy/__init__.py").exists()
    assert (site / "perfdag_mem_copy-0.1.0.dist-info/entry_points.txt").exists()
    assert (tmp_path / "built-context-mem-copy/Containerfile").exists()


@pytest.mark.parametrize(
    ("names", "options", "text"),
    [
        (("base",), {"SIGN": "key"}, "give PUSH=1 too"),
        (("base",), {"TORCH_INDEX": "http://index.example"}, "give TORCH_LOCK=FILE too"),
        (("--with", "nowhere.whl"), {}, "--with nowhere.whl: no such wheel or folder"),
        (("--with", ".", "finish"), {}, "build base too"),
    ],
)
def test_what_a_build_refuses(
    tmp_path: Path, names: tuple[str, ...], options: dict[str, Any], text: str
) -> None:
    code, calls = build(tmp_path, *names, **options)
    assert code == 2
    assert text in calls[-1] or len(calls) > 1
