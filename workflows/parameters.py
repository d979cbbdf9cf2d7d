"""The parameters of a Workflow, which everybody who may submit one may set.

Argo and the kubelet expand text, and a podSpecPatch gives rights. So a value reaches a pod only
where an expression of the template has matched it. Another value is replaced by a harmless one, and
the first pod names the parameter and ends the run.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from perfdag.plan.names import RUN_ID
from perfdag.store.base import KEY_NAME
from perfdag.store.open import BUCKET

_BASE64 = r"[A-Za-z0-9+/=\n\r ]*"
_SUITE = "[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?"
_CONFIG_MAP = "[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_FORMS = {
    "suite": (_BASE64, "base64"),
    "configmap": (_CONFIG_MAP, "the name of a ConfigMap"),
    "url": (f"({BUCKET}|{KEY_NAME}(/{KEY_NAME})*)?", "a key of the store"),
    "run": (f"({RUN_ID})?", "a run id such as 20260101T020000Z-0a1b2c3d"),
    "store": (
        f"({BUCKET}|claim://(@CLAIMS@))?",
        "s3://bucket/prefix, or a claim://NAME that the installation permits (install --permit "
        "claims=NAME)",
    ),
    "options": (_BASE64, "base64"),
    "trigger": ("(manual|cron)", "manual or cron"),
    "suitename": (_SUITE, "the name of a suite"),
    "maxage": ("[0-9]{1,9}([.][0-9]{1,9})?(s|m|min|h|d)", "an age such as 26h"),
}


RUN = ("suite", "configmap", "url", "run", "store", "options", "trigger")
"""The parameters of the template of a run."""
AGE = ("suitename", "maxage", "store")
"""The parameters of the template that checks the age of a run."""


@dataclass(frozen=True)
class Parameters:
    """The expressions of an installation for the parameters of a Workflow."""

    claims: str
    """A regular expression for the names of the claims that may be its store."""

    def refused(self, names: Iterable[str]) -> str:
        """Return a text for Argo: what parameters must be whose values are not allowed."""
        texts = (
            f"({self._matches(name)} ? '' : '{name} must be {_FORMS[name][1]}; ')" for name in names
        )
        return f"{{{{={' + '.join(texts)}}}}}"

    def allowed(self, names: Iterable[str]) -> str:
        """Return an expression: whether the values of all these parameters are allowed."""
        return " && ".join(map(self._matches, names))

    def value(self, name: str, otherwise: str = "") -> str:
        """Return a text for Argo: the value of a parameter, or `otherwise` if it is not allowed."""
        return f"{{{{={self._matches(name)} ? workflow.parameters.{name} : '{otherwise}'}}}}"

    def is_claim(self) -> str:
        """Return an expression: whether the store is a claim that is allowed."""
        return f"workflow.parameters.store matches '^claim://({self.claims})$'"

    def _matches(self, name: str) -> str:
        pattern = _FORMS[name][0].replace("@CLAIMS@", self.claims)
        return f"workflow.parameters.{name} matches '^({pattern})$'"


def claim_names(store: str, permits: Iterable[str]) -> str:
    """Return a regular expression for the names of the claims that may be the store.

    These are the store of the installation, and what `claims=PATTERN` permits.
    """
    own = store.replace("claim://", "claims=")
    names = (
        permit.removeprefix("claims=").replace("*", "[a-z0-9-]*")
        for permit in (own, *permits)
        if re.fullmatch("claims=[a-z0-9*-]+", permit)
    )
    return "|".join(names) or "-"  # no claim has the name -
