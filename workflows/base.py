"""All objects of an installation."""

from perfdag.kube.objects import Object
from perfdag.workflows import age, rights, templates
from perfdag.workflows.templates import Installation


def objects(made: Installation, api_rules: dict[str, list[Object]] | None = None) -> list[Object]:
    """Service accounts, Roles and what else is asked for, then the WorkflowTemplates; in an order that can be applied."""
    return [*rights.objects(made, api_rules), age.template(made), templates.document(made)]
