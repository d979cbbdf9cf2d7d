"""The type of a Kubernetes object."""

from typing import Any

Object = dict[str, Any]
"""A Kubernetes object, or a part of one, as its JSON."""
