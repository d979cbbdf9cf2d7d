"""YAML of manifests. Never Hera's own writer: it joins lines that hold `{{` without `}}`."""

from collections.abc import Iterable
from typing import Any

import yaml

from perfdag.kube.client import Object


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump(documents: Iterable[Object]) -> str:
    """Manifests as one YAML stream.

    Raises ValueError where YAML does not give back what went in.
    """
    texts = []
    for document in documents:
        text = yaml.dump(document, Dumper=_Plain, sort_keys=False, width=10**9, allow_unicode=True)
        if yaml.safe_load(text) != document:
            raise ValueError(f"{document.get('kind')} does not survive YAML")
        texts.append(text)
    return "---\n".join(texts)
