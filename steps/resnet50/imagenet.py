"""A folder of ImageNet validation images that the user has: files with their classes, and top-1 from LoadGen's accuracy log."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path

TOP1_FP32 = 0.76456
"""Top-1 of the reference model on all 50,000 validation images, fp32 (mlcommons/inference, vision/classification_and_detection)."""
TARGET = 0.99 * TOP1_FP32
_SUFFIXES = {".jpeg", ".jpg", ".png"}


def labelled(folder: str) -> list[tuple[Path, int]]:
    """Files and classes, sorted: `val_map.txt` (lines `FILE CLASS`) or one folder a class in sorted order (torchvision's ImageFolder).

    Raises ValueError where there is neither, a line is not of that form, or a listed file is not there.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"imagenet {folder}: no such folder")
    listing = root / "val_map.txt"
    if listing.is_file():
        return [_entry(root, line, number) for number, line in enumerate(listing.read_text().splitlines(), 1) if line.strip()]
    classes = sorted(each for each in root.iterdir() if each.is_dir())
    found = [(file, label) for label, each in enumerate(classes) for file in sorted(each.iterdir()) if file.suffix.lower() in _SUFFIXES]
    if not found:
        raise ValueError(f"imagenet {folder}: neither val_map.txt nor folders of .jpeg files, one a class")
    if len(classes) > 1000:
        raise ValueError(f"imagenet {folder}: {len(classes)} folders, but ImageNet has 1000 classes")
    return found


def _entry(root: Path, line: str, number: int) -> tuple[Path, int]:
    name, _, label = line.strip().rpartition(" ")
    if not name or not label.isdigit() or int(label) > 999:
        raise ValueError(f"{root / 'val_map.txt'}, line {number}: `FILE CLASS` with a class of 0 to 999 expected, not {line[:80]!r}")
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
    return sum(answers[index] == label for index, label in enumerate(labels)) / len(labels), len(labels)
