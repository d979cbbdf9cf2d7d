"""Kinds of objects and changes of them."""

from dataclasses import dataclass
from urllib.parse import quote

from perfdag.kube.objects import Object


@dataclass(frozen=True)
class Resource:
    """Where the objects of a kind are served."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool

    def path(
        self, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """The URL path of the collection or of one object; without a namespace, the collection over all namespaces."""
        root = (
            f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        )
        where = f"/namespaces/{quote(namespace, safe='')}" if self.namespaced and namespace else ""
        one = f"/{quote(name, safe='')}" if name else ""
        return f"{root}{where}/{self.plural}{one}{f'/{subresource}' if subresource else ''}"


@dataclass(slots=True)
class Event:
    """One change. `type` is ADDED, MODIFIED, DELETED or BOOKMARK; `received_ns` is time.monotonic_ns() when its bytes
    arrived;
    `listed` is true where a list told of it (the first one, or the one after a 410), so the change itself was not
    seen.
    """

    type: str
    object: Object
    received_ns: int
    listed: bool = False
