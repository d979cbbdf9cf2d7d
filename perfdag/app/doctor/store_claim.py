"""A claim as the store of runs: whether it is there, and whether the pods that mount it at once can."""

from typing import TYPE_CHECKING

from perfdag.cli.doctor import Finding

if TYPE_CHECKING:
    from perfdag.kube.client import Kube


async def findings(client: "Kube", namespace: str, root: str, parallel: int) -> list[Finding]:
    """What is wrong with the claim of a `claim://` store; none for another store, or where claims may not be read.

    plan, the lead of a batch and finish mount it, one after the other; with `parallel` batches the leads at once. Raises KubeError.
    """
    from perfdag.kube.client import KubeError

    if not root.startswith("claim://"):
        return []
    name = root.removeprefix("claim://")
    try:
        claim = await client.get(
            await client.resource("v1", "PersistentVolumeClaim"), name, namespace
        )
    except KubeError as error:
        if error.status == 403:
            return []
        if error.status == 404:
            return [
                Finding(
                    "missing",
                    f"there is no claim {name} in {namespace}",
                    "make it, or give --store s3://bucket/prefix",
                )
            ]
        raise
    modes = (claim.get("status") or {}).get("accessModes") or claim["spec"].get("accessModes") or []
    if parallel > 1 and "ReadWriteMany" not in modes:
        why = f"claim {name} is {', '.join(modes)}, and {parallel} batches at once (--parallel-batches) may be on two nodes"
        return [
            Finding(
                "missing", why, "use a ReadWriteMany claim, an s3:// store, or one batch at a time"
            )
        ]
    return []
