"""The user's ImageNet folder and LoadGen's accuracy log."""

import json
import struct
from pathlib import Path

import pytest

from perfdag.steps.resnet50.imagenet import labelled, top1


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_a_folder_a_class(tmp_path: Path) -> None:
    touch(tmp_path, "n02/b.JPEG", "n01/a.JPEG", "n01/notes.txt", "n02/c.jpg")
    assert [(file.name, label) for file, label in labelled(str(tmp_path))] == [("a.JPEG", 0), ("b.JPEG", 1), ("c.jpg", 1)]


def test_val_map(tmp_path: Path) -> None:
    touch(tmp_path, "x.JPEG", "with space.JPEG")
    (tmp_path / "val_map.txt").write_text("x.JPEG 65\nwith space.JPEG 970\n\n")
    assert [(file.name, label) for file, label in labelled(str(tmp_path))] == [("x.JPEG", 65), ("with space.JPEG", 970)]


@pytest.mark.parametrize(("line", "said"), [("x.JPEG", "expected"), ("x.JPEG 1000", "0 to 999"), ("gone.JPEG 1", "is not in")])
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, line: str, said: str) -> None:
    touch(tmp_path, "x.JPEG")
    (tmp_path / "val_map.txt").write_text(f"x.JPEG 1\n{line}\n")
    with pytest.raises(ValueError, match=f"line 2: .*{said}"):
        labelled(str(tmp_path))


def test_no_folder_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such folder"):
        labelled(str(tmp_path / "gone"))
    with pytest.raises(ValueError, match="neither val_map"):
        labelled(str(tmp_path))


def log(*answers: tuple[int, int]) -> str:
    return json.dumps(
        [{"seq_id": i, "qsl_idx": at, "data": struct.pack("<i", label).hex().upper()} for i, (at, label) in enumerate(answers)]
    )


def test_top1() -> None:
    assert top1(log((1, 7), (0, 970), (2, 5)), [970, 7, 9]) == (pytest.approx(2 / 3), 3)


def test_images_answered_twice_or_not_at_all() -> None:
    with pytest.raises(ValueError, match="twice"):
        top1(log((0, 1), (0, 1)), [1, 2])
    with pytest.raises(ValueError, match="1 of 2"):
        top1(log((0, 1)), [1, 2])
