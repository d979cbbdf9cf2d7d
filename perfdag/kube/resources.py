"""Where kinds of objects are served, and changes of objects."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

Object = dict[str, Any]
"""A Kubernetes object, or a part of one, as its JSON."""


@dataclass(frozen=True)
class Resource:
    """The path of a kind of objects on the API server."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool

    def path(
        self, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """Return the URL path of the collection, or of one object.

        Without a namespace it is the collection over all namespaces.
        """
        root = (
            f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        )
        where = f"/namespaces/{quote(namespace, safe='')}" if self.namespaced and namespace else ""
        one = f"/{quote(name, safe='')}" if name else ""
        return f"{root}{where}/{self.plural}{one}{f'/{subresource}' if subresource else ''}"


@dataclass(slots=True)
class Event:
    """A change of an object.

    `type` is ADDED, MODIFIED, DELETED or BOOKMARK. `received_ns` is time.monotonic_ns() at arrival.
    `listed` is true if the event comes from a list (the first one, or one after a 410). `replayed`
    is true if the change happened before the watch reconnected.
    """

    type: str
    object: Object
    received_ns: int
    listed: bool = False
    replayed: bool = False
