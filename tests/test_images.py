"""The images: none runs as root, and each is built on something that is named with its version."""

from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[1] / "images").glob("*/Containerfile"))


def words(file: Path, instruction: str) -> list[str]:
    """What follows an instruction, line by line; lines that are continued are one."""
    text = file.read_text().replace("\\\n", " ")
    return [
        line.split(maxsplit=1)[1]
        for line in text.splitlines()
        if line.upper().startswith(f"{instruction} ")
    ]


def test_there_are_images() -> None:
    assert {file.parent.name for file in FILES} >= {"base", "finish", "fio", "imb", "iperf"}


def test_the_base_runs_as_nobody_else_than_1000() -> None:
    assert words(FILES[0].parents[1] / "base/Containerfile", "USER") == ["1000"]


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


def test_loadgen_is_the_same_with_and_without_the_model() -> None:
    small, whole = (
        (FILES[0].parents[1] / name / "requirements.txt").read_text().splitlines()
        for name in ("loadgen", "resnet50")
    )
    assert set(small) <= set(whole)


def test_only_root_may_write_etc_passwd() -> None:
    """A measured command could add a uid 0 there; libnss-extrausers names no uid below 500."""
    text = (FILES[0].parents[1] / "base/Containerfile").read_text()
    assert "/etc/passwd" not in text
    assert "libnss-extrausers" in text
