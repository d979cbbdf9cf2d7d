"""What the suites of an installation may ask for beyond PodSecurity `restricted`.

The installation decides (`install --permit`), and the plan step refuses the rest. Its own images
need no permit.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from perfdag.plan.plan import Plan
from perfdag.shape import Shape
from perfdag.suite.yaml_document import BadDocument, Document, parse_document

FLAGS = ("hostNetwork", "nodePort", "preemption")
"""Permits without a value."""
PRIVILEGES = ("block", "mtu", "rdma")
PATTERNS = ("images", "claims", "tolerations", "networks", "runtimeClasses")
"""Permits whose value is a name; `*` in it stands for any text."""
FORM = (
    f"KEY or KEY=VALUE, comma-separated: hostPath=/FOLDER, {', '.join(FLAGS)}, "
    f"privileges={'|'.join(PRIVILEGES)}, {', '.join(f'{key}=PATTERN' for key in PATTERNS)}"
)
_TEXT = r"[^\s,{}$]"
PERMIT = (
    rf"({'|'.join(FLAGS)}|hostPath=/{_TEXT}*|privileges=({'|'.join(PRIVILEGES)})"
    rf"|({'|'.join(PATTERNS)})={_TEXT}+)"
)
"""A regular expression for one permit, also for Helm."""
_IMAGE = "[a-z0-9-]+"


@dataclass(frozen=True)
class Demand:
    """What a suite asks for: its dotted key, and the permit that allows it."""

    key: str
    permit: str


def is_permitted(demand: Demand, permits: Iterable[str]) -> bool:
    """Return whether a demand is permitted by texts such as `hostNetwork` and `hostPath=/data`."""
    key, _, wanted = demand.permit.partition("=")
    values = [value for name, _, value in (item.partition("=") for item in permits) if name == key]
    if key == "hostPath":
        return any(_is_folder(folder, wanted) for folder in values)
    if key in PATTERNS:
        return any(matches(pattern, wanted) for pattern in values)
    return wanted in values


def parse_permits(text: str) -> tuple[str, ...]:
    """Return the permits of a `--permit`; a bare word continues the values of its key.

    `privileges=mtu,rdma,hostNetwork` are three. Raises ValueError.
    """
    items, key = [], ""
    for word in text.split(","):
        name, separator, _ = word.partition("=")
        key = name if separator else key
        item = word if separator or word in FLAGS or not key else f"{key}={word}"
        if not re.fullmatch(PERMIT, item):
            raise ValueError(f"{item!r} is no permit; write {FORM}")
        items.append(item)
    return tuple(items)


def matches(pattern: str, text: str) -> bool:
    """Return whether a text matches a pattern, in which `*` stands for any text."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.S) is not None


def own_image(image: str | None, images: str) -> bool:
    """Return whether an image of a shape is one of the installation, whose pattern is `images`.

    A bare name is inserted into the pattern.
    """
    pattern = re.escape(images).replace(re.escape("{name}"), _IMAGE)
    return not image or re.fullmatch(rf"{_IMAGE}|{pattern}", image) is not None


def demands(shape: Shape, images: str) -> Iterator[Demand]:
    """Yield what a shape asks for that needs a permit."""
    network, volume = shape.network, shape.volume
    if shape.image and not own_image(shape.image, images):
        yield Demand("image", f"images={shape.image}")
    if network.host:
        yield Demand("network.path" if network.path else "network.host", "hostNetwork")
    if network.path == "nodeport":
        yield Demand("network.path", "nodePort")
    if network.name:
        yield Demand("network.name", f"networks={network.name}")
    for name in network.also:
        yield Demand("network.also", f"networks={name}")
    if volume and volume.kind == "hostPath":
        yield Demand("volume.path", f"hostPath={volume.path}")
    if volume and volume.claim:
        yield Demand("volume.claim", f"claims={volume.claim}")
    if volume and volume.claim_template:
        for name in volume.claim_template.existing():
            yield Demand("volume.claim_template", f"claims={name}")
    for toleration in shape.tolerations:  # one without a key tolerates every taint
        yield Demand("tolerations", f"tolerations={toleration.key or '*'}")
    for privilege in shape.privileges:
        yield Demand("privileges", f"privileges={privilege}")
    if shape.runtime_class:
        yield Demand("runtime_class", f"runtimeClasses={shape.runtime_class}")


def refusals(plan: Plan, permits: Sequence[str], images: str) -> Iterator[tuple[str, Demand]]:
    """Yield what a plan asks for and the installation does not permit, with the entry.

    The shapes are those of all batches, whatever a stored plan says of its points.
    """
    all_demands: dict[tuple[str, Demand], None] = {}
    if plan.options.get("priority", 0) > 0:
        all_demands["", Demand("priority", "preemption")] = None
    for number, shape in enumerate(plan.shapes):
        entries = {point.entry for point in plan.points if point.shape == number}
        for demand in demands(Shape.model_validate(shape), images):
            all_demands |= dict.fromkeys((entry, demand) for entry in sorted(entries) or [""])
    return (item for item in all_demands if not is_permitted(item[1], permits))


def check_permits(
    plan: Plan, permits: Sequence[str], images: str, allowed: Iterable[str] = ()
) -> None:
    """Raise BadDocument if a plan asks for what the installation does not permit.

    `allowed` names the benchmarks with rights of their own: these only use own images.
    """
    refused = [
        (
            entry,
            demand.key,
            f"{demand.permit} is not permitted here; an admin may add it: "
            f"perfdag install ... --permit '{demand.permit}'",
        )
        for entry, demand in refusals(plan, permits, images)
    ]
    for point in plan.points:
        image = plan.shapes[point.shape].get("image")
        if point.benchmark in allowed and not own_image(image, images):
            why = f"{point.benchmark} has rights of its own here, so {image} may not be its image"
            refused.append((point.entry, "image", f"{why}; leave image out"))
    if refused:
        document = parse_document(plan.suite_text, "suite")
        raise BadDocument(
            document.problem(_where(document, entry, key), text) for entry, key, text in refused
        )


def _is_folder(pattern: str, path: str) -> bool:
    """Return whether a path is that folder; `*` stands for a part of one name.

    A folder below it would not do: a pod that writes to the folder makes links there, and the
    kubelet follows them to any folder of the node.
    """
    return ".." not in PurePosixPath(path).parts and PurePosixPath(path).match(pattern)


def _where(document: Document, entry: str, key: str) -> tuple[str | int, ...]:
    """Return the path of a shape's key in a suite: in its entry, else in the defaults."""
    path: tuple[str | int, ...] = tuple(key.split("."))
    for number, item in enumerate((document.data or {}).get("entries") or []):
        if entry == (item.get("name") or item.get("benchmark")):
            own, default = ("entries", number, *path), ("defaults", *path)
            return default if own not in document.lines and default in document.lines else own
    return (entry, *path) if entry else path  # an entry of an included file, or the suite
