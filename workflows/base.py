"""All objects of an installation."""

from collections.abc import Mapping

from perfdag.kube.resources import Object
from perfdag.workflows import age, rights, templates
from perfdag.workflows.rights import Grant
from perfdag.workflows.templates import Installation


def objects(installation: Installation, granted: Mapping[str, Grant] | None = None) -> list[Object]:
    """Return the objects of an installation, in an order that can be applied."""
    return [
        *rights.objects(installation, granted),
        age.template(installation),
        templates.document(installation),
    ]
