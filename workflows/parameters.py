"""The parameters of a Workflow, which everybody who may submit one may set.

Argo and the kubelet expand text, and a podSpecPatch gives rights. So a value reaches a pod only
where an expression of the template has matched it. Another value is replaced by a harmless one, and
the first pod names the parameter and ends the run.
"""

from collections.abc import Iterable

from perfdag.plan.names import RUN_ID
from perfdag.store.base import KEY_NAME
from perfdag.store.open import BUCKET, CLAIM, CLUSTER_ADDRESS

_BASE64 = r"[A-Za-z0-9+/=\n\r ]*"
_SUITE = "[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?"
_CONFIG_MAP = "[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_FORMS = {
    "suite": (_BASE64, "base64"),
    "configmap": (_CONFIG_MAP, "the name of a ConfigMap"),
    "url": (f"({BUCKET}|{KEY_NAME}(/{KEY_NAME})*)?", "a key of the store"),
    "run": (f"({RUN_ID})?", "a run id such as 20260101T020000Z-0a1b2c3d"),
    "store": (f"{CLUSTER_ADDRESS}?", "s3://bucket/prefix or claim://NAME"),
    "options": (_BASE64, "base64"),
    "trigger": ("(manual|cron)", "manual or cron"),
    "suitename": (_SUITE, "the name of a suite"),
    "maxage": ("[0-9]{1,9}([.][0-9]{1,9})?(s|m|min|h|d)", "an age such as 26h"),
}


RUN = ("suite", "configmap", "url", "run", "store", "options", "trigger")
"""The parameters of the template of a run."""
AGE = ("suitename", "maxage", "store")
"""The parameters of the template that checks the age of a run."""


def refused(names: Iterable[str]) -> str:
    """Return a text for Argo: what parameters must be whose values are not allowed, or nothing."""
    texts = (f"({_matches(name)} ? '' : '{name} must be {_FORMS[name][1]}; ')" for name in names)
    return f"{{{{={' + '.join(texts)}}}}}"


def allowed(names: Iterable[str]) -> str:
    """Return a condition for Argo: whether the values of all these parameters are allowed."""
    return f"{{{{={' && '.join(map(_matches, names))}}}}} == true"


def value(name: str, otherwise: str = "") -> str:
    """Return a text for Argo: the value of a parameter, or `otherwise` if it is not allowed."""
    return f"{{{{={_matches(name)} ? workflow.parameters.{name} : '{otherwise}'}}}}"


def is_claim() -> str:
    """Return an expression: whether the store is a claim."""
    return f"workflow.parameters.store matches '^{CLAIM}$'"


def _matches(name: str) -> str:
    return f"workflow.parameters.{name} matches '^({_FORMS[name][0]})$'"
