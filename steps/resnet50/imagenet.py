"""A user's folder of ImageNet validation images with their classes, and LoadGen's top-1."""

import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TOP1_FP32 = 0.76456
"""Top-1 of the reference model on all 50,000 validation images, fp32.

Source: mlcommons/inference, vision/classification_and_detection."""
SHARE = 0.99
"""Share of the reference that MLPerf requires."""
IMAGES, CLASSES = 50_000, 1000
"""Images of the validation set; published figures cover all of them."""
_WORDNET = re.compile(r"n\d{8}").fullmatch
_SUFFIXES = {".jpeg", ".jpg", ".png"}


@dataclass(frozen=True)
class PublishedModel:
    """Top-1 (0 to 1) on all validation images, and pixels of the shorter side before cropping."""

    top1: float
    resize: int


KNOWN = {
    "0676ba61": PublishedModel(0.7613, 256),
    "11ad3fa6": PublishedModel(0.80858, 232),
    "19c8e357": PublishedModel(0.7615, 256),
}
"""Published accuracy by the first digits of the SHA-256 of torchvision's files.

Source: torchvision.models.ResNet50_Weights; for the last one the table of torchvision 0.8."""


def published(sha256: str | None) -> PublishedModel:
    """Return the published accuracy of these weights, or the reference model's if unknown."""
    return KNOWN.get((sha256 or "")[:8], PublishedModel(TOP1_FP32, 256))


def reached(top1: float, images: int, reference: float) -> bool | None:
    """Whether a top-1 reaches MLPerf's share; None for fewer images, as none is published."""
    return top1 >= SHARE * reference if images == IMAGES else None


def labelled(folder: str) -> list[tuple[Path, int]]:
    """Return files and classes, sorted.

    They come from `val_map.txt` (lines `FILE CLASS`), or from one folder a class in sorted order
    (torchvision's ImageFolder). Raises ValueError if both are absent, a class has no folder, a
    line has another form, or a listed file does not exist.
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
        (entry for entry in root.iterdir() if entry.is_dir()),
        key=lambda entry: (entry.name.zfill(4), entry.name),
    )
    images = [
        (file, label)
        for label, entry in enumerate(classes)
        for file in sorted(entry.iterdir())
        if file.suffix.lower() in _SUFFIXES
    ]
    if not images:
        raise ValueError(
            f"imagenet {folder}: neither val_map.txt nor folders of .jpeg files, one a class"
        )
    names = [entry.name for entry in classes]
    if len(names) != CLASSES or not (
        all(map(_WORDNET, names))
        or [*map(str, range(CLASSES))] == [name.lstrip("0") or "0" for name in names]
    ):
        raise ValueError(
            f"imagenet {folder}: {len(names)} folders ({names[0]} to {names[-1]}),"
            f" from which the classes follow where they are all {CLASSES}, named "
            "n01440764 to n15075141 or 0 to 999; else name them in val_map.txt,"
            " a line `FILE CLASS` each"
        )
    return images


def _entry(root: Path, line: str, number: int) -> tuple[Path, int]:
    name, _, label = line.strip().rpartition(" ")
    if not name or not label.isdigit() or int(label) > 999:
        raise ValueError(
            f"{root / 'val_map.txt'}, line {number}: `FILE CLASS` with a class of 0 to 999"
            f" expected, not {line[:80]!r}"
        )
    if not (root / name).is_file():
        raise ValueError(f"{root / 'val_map.txt'}, line {number}: {name} is not in {root}")
    return root / name, int(label)


def top1(accuracy_log: str, labels: Sequence[int]) -> tuple[float, int]:
    """Return top-1 (0 to 1) and the number of images, from mlperf_log_accuracy.json.

    `data` is the class as a little-endian hexadecimal int32. Raises ValueError if an image has
    no answer or two, or the log has another form.
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
