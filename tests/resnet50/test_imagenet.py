"""The user's ImageNet folder and LoadGen's accuracy log."""

import json
import struct
from pathlib import Path

import pytest

from perfdag.steps.resnet50.imagenet import PublishedModel, labelled, published, reached, top1


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def folders(root: Path, *names: str) -> str:
    for name in names:
        (root / name).mkdir()
    return str(root)


WORDNET = [f"n{number:08}" for number in range(1000)]


NUMBERS = [str(number) for number in range(1000)]
PADDED = [f"{number:03}" for number in range(1000)]


@pytest.mark.parametrize(
    ("classes", "files", "val_map", "labels"),
    [
        pytest.param(
            WORDNET,
            [f"{WORDNET[1]}/b.JPEG", f"{WORDNET[0]}/a.JPEG", f"{WORDNET[1]}/c.jpg"],
            "",
            {"a.JPEG": 0, "b.JPEG": 1, "c.jpg": 1},
            id="a folder a class",
        ),
        pytest.param(
            WORDNET,
            [f"{WORDNET[0]}/a.JPEG", f"{WORDNET[0]}/notes.txt"],
            "",
            {"a.JPEG": 0},
            id="other files are left out",
        ),
        pytest.param(
            NUMBERS,
            ["9/a.JPEG", "10/b.JPEG", "999/c.JPEG"],
            "",
            {"a.JPEG": 9, "b.JPEG": 10, "c.JPEG": 999},
            id="folders with the numbers of the classes",
        ),
        pytest.param(
            PADDED,
            ["009/a.JPEG", "010/b.JPEG", "999/c.JPEG"],
            "",
            {"a.JPEG": 9, "b.JPEG": 10, "c.JPEG": 999},
            id="numbers of equal width",
        ),
        pytest.param(
            [],
            ["x.JPEG", "with space.JPEG"],
            "x.JPEG 65\nwith space.JPEG 970\n\n",
            {"x.JPEG": 65, "with space.JPEG": 970},
            id="val_map.txt",
        ),
    ],
)
def test_each_image_has_its_class(
    classes: list[str], files: list[str], val_map: str, labels: dict[str, int], tmp_path: Path
) -> None:
    folders(tmp_path, *classes)
    touch(tmp_path, *files)
    if val_map:
        (tmp_path / "val_map.txt").write_text(val_map)
    assert [(file.name, label) for file, label in labelled(str(tmp_path))] == list(labels.items())


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["n01440764", "n02102040"], r"2 folders \(n01440764 to n02102040\)"),
        (WORDNET[:999], "999 folders"),
        ([*WORDNET, "n99999999"], "1001 folders"),
        ([str(number) for number in range(1, 1001)], r"1000 folders \(1 to 1000\)"),
        ([f"dog {number}" for number in range(1000)], r"1000 folders \(dog 0 to dog 999\)"),
    ],
)
def test_folders_that_do_not_tell_the_classes_are_refused(
    tmp_path: Path, names: list[str], message: str
) -> None:
    touch(Path(folders(tmp_path, *names)), f"{names[0]}/a.JPEG")
    with pytest.raises(
        ValueError, match=f"{message}.* else name them in val_map.txt, a line `FILE CLASS` each"
    ):
        labelled(str(tmp_path))


def test_weights_are_held_against_what_they_are_published_with() -> None:
    assert published("11ad3fa6" + 56 * "0") == PublishedModel(0.80858, 232)
    assert published("0676ba61" + 56 * "0") == PublishedModel(0.7613, 256)
    assert published("a" * 64) == published(None) == PublishedModel(0.76456, 256)


@pytest.mark.parametrize(
    ("top1", "images", "reference", "expected"),
    [
        (0.7537, 50000, 0.7613, True),
        (0.7536, 50000, 0.7613, False),
        (0.76, 50000, 0.80858, False),
        (0.99, 5000, 0.7613, None),
    ],
)
def test_a_verdict_is_of_all_images(
    top1: float, images: int, reference: float, expected: bool | None
) -> None:
    assert reached(top1, images, reference) is expected


@pytest.mark.parametrize(
    ("line", "message"),
    [("x.JPEG", "expected"), ("x.JPEG 1000", "0 to 999"), ("gone.JPEG 1", "is not in")],
)
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, line: str, message: str) -> None:
    touch(tmp_path, "x.JPEG")
    (tmp_path / "val_map.txt").write_text(f"x.JPEG 1\n{line}\n")
    with pytest.raises(ValueError, match=f"line 2: .*{message}"):
        labelled(str(tmp_path))


def test_no_folder_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such folder"):
        labelled(str(tmp_path / "gone"))
    with pytest.raises(ValueError, match="neither val_map"):
        labelled(str(tmp_path))


def log(*answers: tuple[int, int]) -> str:
    return json.dumps(
        [
            {"seq_id": i, "qsl_idx": at, "data": struct.pack("<i", label).hex().upper()}
            for i, (at, label) in enumerate(answers)
        ]
    )


def test_top1() -> None:
    assert top1(log((1, 7), (0, 970), (2, 5)), [970, 7, 9]) == (2 / 3, 3)


def test_images_answered_twice_or_not_at_all() -> None:
    with pytest.raises(ValueError, match="twice"):
        top1(log((0, 1), (0, 1)), [1, 2])
    with pytest.raises(ValueError, match="1 of 2"):
        top1(log((0, 1)), [1, 2])
