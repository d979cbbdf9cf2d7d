"""The claims that a Workflow may name as its store.

Everybody who may submit a Workflow sets its parameters, and the steps check them. Only the claim is
checked here: a podSpecPatch mounts it before any step runs.
"""

import re
from collections.abc import Iterable


def is_claim(store: str, permits: Iterable[str]) -> str:
    """Return an expression: whether the parameter `store` is a claim that is allowed.

    Allowed are the store of the installation, and what `claims=PATTERN` permits.
    """
    own = store.replace("claim://", "claims=")
    names = (
        permit.removeprefix("claims=").replace("*", "[a-z0-9-]*")
        for permit in (own, *permits)
        if re.fullmatch("claims=[a-z0-9*-]+", permit)
    )
    # no claim has the name -
    return f"workflow.parameters.store matches '^claim://({'|'.join(names) or '-'})$'"
