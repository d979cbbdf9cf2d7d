"""The images that nodes lack, which pods of their own pull before the first sample."""

from collections.abc import Iterator, Mapping, Sequence

from perfdag.kube.node_fit import accepts, nodes_with, takes, without_simulated
from perfdag.kube.placement import of_roles
from perfdag.kube.pod_patch import image
from perfdag.kube.resources import Object
from perfdag.shape import Shape

MAX_PULLS = 1000
"""Most pods that pull images before a run. Beyond them, the pods of the batches pull."""


def missing_images(
    nodes: Sequence[Object], shapes: Mapping[int, Shape], images: str, policy: str
) -> list[dict[str, str]]:
    """Return each image that the pods of a shape need and that a node of theirs does not list.

    An item has the image, the node and the number of the shape, whose tolerations the pod needs.
    With the pull policy Always, a tag may have moved: then no listed image counts.
    """
    if policy == "Never":
        return []
    pairs: dict[tuple[str, str], str] = {}
    for number, shape in shapes.items():
        references = {image(name, images) for name in (None, shape.image)}  # None: credentials, MTU
        for node in _nodes_of(shape, nodes):
            listed = () if policy == "Always" else set(_listed(node))
            for reference in sorted(references):
                if _full_name(reference) not in listed:
                    pairs.setdefault((reference, node["metadata"]["name"]), str(number))
    items = [
        {"image": reference, "node": node, "shape": number}
        for (reference, node), number in pairs.items()
    ]
    return items[:MAX_PULLS]


def _nodes_of(shape: Shape, nodes: Sequence[Object]) -> list[Object]:
    """Return the nodes that may run pods of this shape now."""
    candidates = without_simulated(nodes)
    for name in shape.resources.both:
        if "/" in name:
            candidates = nodes_with(name, candidates)
    roles = of_roles(shape).values() or [shape]
    return [
        node for node in candidates if accepts(node) and any(takes(node, role) for role in roles)
    ]


def _listed(node: Object) -> Iterator[str]:
    """Yield the names of a node's images: it lists only the largest ones, 50 by default."""
    for item in node["status"].get("images") or []:
        yield from item.get("names") or []


def _full_name(reference: str) -> str:
    """Return an image reference as nodes list it: with a registry, and a tag or a digest."""
    name, _, digest = reference.partition("@")
    registry, slash, _ = name.partition("/")
    if not slash:
        name = f"docker.io/library/{name}"
    elif not {".", ":"} & set(registry) and registry != "localhost":
        name = f"docker.io/{name}"
    path, _, last = name.rpartition("/")
    base, colon, tag = last.partition(":")
    return f"{path}/{base}@{digest}" if digest else f"{path}/{base}:{tag if colon else 'latest'}"
