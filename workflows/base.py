"""All objects of an installation."""

from perfdag.kube.resources import Object
from perfdag.workflows import age, rights, templates
from perfdag.workflows.templates import Installation


def objects(
    installation: Installation, api_rules: dict[str, list[Object]] | None = None
) -> list[Object]:
    """Return the objects of an installation, in an order that can be applied."""
    return [
        *rights.objects(installation, api_rules),
        age.template(installation),
        templates.document(installation),
    ]
