"""A folder of ImageNet validation images that the user has: files with their classes, and top-1 from LoadGen's accuracy log."""

import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TOP1_FP32 = 0.76456
"""Top-1 of the reference model on all 50,000 validation images, fp32 (mlcommons/inference, vision/classification_and_detection)."""
SHARE = 0.99
"""Part of a reference that MLPerf asks."""
IMAGES, CLASSES = 50_000, 1000
"""Of the validation set; a published figure is of all of them."""
_WORDNET = re.compile(r"n\d{8}").fullmatch
_SUFFIXES = {".jpeg", ".jpg", ".png"}


@dataclass(frozen=True)
class Published:
    """Top-1 (0 to 1) on all validation images, and pixels of the shorter side before the middle 224 x 224 is taken."""

    top1: float
    resize: int


KNOWN = {
    "0676ba61": Published(0.7613, 256),
    "11ad3fa6": Published(0.80858, 232),
    "19c8e357": Published(0.7615, 256),
}
"""By how the SHA-256 of torchvision's own files begins, resnet50-0676ba61.pth and so on (torchvision.models.ResNet50_Weights and, the last,
the table of torchvision 0.8)."""


def published(sha256: str | None) -> Published:
    """What weights of this digest are published with; of others the reference model's."""
    return KNOWN.get((sha256 or "")[:8], Published(TOP1_FP32, 256))


def reached(top1: float, images: int, reference: float) -> bool | None:
    """Whether a top-1 is MLPerf's share of the reference; None of fewer images, for which nothing is published."""
    return top1 >= SHARE * reference if images == IMAGES else None


def labelled(folder: str) -> list[tuple[Path, int]]:
    """Files and classes, sorted: `val_map.txt` (lines `FILE CLASS`) or one folder a class in sorted order (torchvision's ImageFolder).

    Raises ValueError where there is neither, the folders are not those of all 1000 classes, a line is not of that form, or a listed file is not
    there.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"imagenet {folder}: no such folder")
    listing = root / "val_map.txt"
    if listing.is_file():
        return [
            _entry(root, line, number)
            for number, line in enumerate(listing.read_text().splitlines(), 1)
            if line.strip()
        ]
    classes = sorted(
        (each for each in root.iterdir() if each.is_dir()),
        key=lambda each: (each.name.zfill(4), each.name),
    )
    found = [
        (file, label)
        for label, each in enumerate(classes)
        for file in sorted(each.iterdir())
        if file.suffix.lower() in _SUFFIXES
    ]
    if not found:
        raise ValueError(
            f"imagenet {folder}: neither val_map.txt nor folders of .jpeg files, one a class"
        )
    names = [each.name for each in classes]
    if len(names) != CLASSES or not (
        all(map(_WORDNET, names))
        or [*map(str, range(CLASSES))] == [name.lstrip("0") or "0" for name in names]
    ):
        raise ValueError(
            f"imagenet {folder}: {len(names)} folders ({names[0]} to {names[-1]}), from which the classes follow where they are all {CLASSES}, named "
            "n01440764 to n15075141 or 0 to 999; else name them in val_map.txt, a line `FILE CLASS` each"
        )
    return found


def _entry(root: Path, line: str, number: int) -> tuple[Path, int]:
    name, _, label = line.strip().rpartition(" ")
    if not name or not label.isdigit() or int(label) > 999:
        raise ValueError(
            f"{root / 'val_map.txt'}, line {number}: `FILE CLASS` with a class of 0 to 999 expected, not {line[:80]!r}"
        )
    if not (root / name).is_file():
        raise ValueError(f"{root / 'val_map.txt'}, line {number}: {name} is not in {root}")
    return root / name, int(label)


def top1(accuracy_log: str, labels: Sequence[int]) -> tuple[float, int]:
    """Top-1 (0 to 1) and the images counted, from mlperf_log_accuracy.json: `data` is the class as a hexadecimal int32, little endian.

    Raises ValueError where an image was answered twice or not at all, or the log is not of that form.
    """
    answers: dict[int, int] = {}
    for record in json.loads(accuracy_log):
        index = int(record["qsl_idx"])
        if index in answers:
            raise ValueError(f"image {index} was answered twice")
        answers[index] = struct.unpack("<i", bytes.fromhex(record["data"]))[0]
    missing = len(labels) - len(answers)
    if missing or not labels:
        raise ValueError(f"{len(answers)} of {len(labels)} images were answered")
    return sum(answers[index] == label for index, label in enumerate(labels)) / len(labels), len(
        labels
    )
