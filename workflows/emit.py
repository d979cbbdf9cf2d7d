"""YAML of manifests as people write it. Never Hera's own writer, which joins lines at `{{`."""

from collections.abc import Iterable
from typing import Any

import yaml

from perfdag.kube.client import Object

LINE = 130
"""Most characters of a list or mapping that is written in one line."""


class _Readable(yaml.SafeDumper):
    longest = LINE

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_sequence(self, tag: str, sequence: Any, flow_style: Any = None) -> Any:
        node = super().represent_sequence(tag, sequence, False)
        node.flow_style = _length(node) <= self.longest
        return node

    def represent_mapping(self, tag: str, mapping: Any, flow_style: Any = None) -> Any:
        node = super().represent_mapping(tag, mapping, False)
        node.flow_style = _length(node) <= self.longest
        return node


def _length(node: yaml.Node) -> int:
    """Return about how long a node is in one line; much more than any line for a text of lines."""
    if isinstance(node, yaml.ScalarNode):
        return 10**6 if "\n" in node.value else len(node.value) + 2
    parts = [
        part
        for each in node.value
        for part in (each if isinstance(node, yaml.MappingNode) else [each])
    ]
    return 2 + sum(map(_length, parts))


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Readable.add_representer(str, _text)


def dump(documents: Iterable[Object], line: int = LINE) -> str:
    """Manifests as one YAML stream, a list or mapping in one `line` where it fits.

    Raises ValueError where YAML does not give back what went in.
    """
    dumper = type("Dumper", (_Readable,), {"longest": line})
    texts = []
    for document in documents:
        text = yaml.dump(document, Dumper=dumper, sort_keys=False, width=10**9, allow_unicode=True)
        if yaml.safe_load(text) != document:
            raise ValueError(f"{document.get('kind')} does not survive YAML")
        texts.append(text)
    return "---\n".join(texts)
