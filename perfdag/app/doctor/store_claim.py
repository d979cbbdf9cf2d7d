"""Check a claim that is the store of runs."""

from perfdag.app.doctor.finding import Finding
from perfdag.kube.client import Kube, KubeError


async def check_claim(client: Kube, namespace: str, root: str, parallel: int) -> list[Finding]:
    """Return what is wrong with the claim of a `claim://` store.

    The steps mount it one after the other; with `parallel` batches their leads mount it at once.
    Return nothing for another store, or if claims may not be read. Raises KubeError.
    """
    if not root.startswith("claim://"):
        return []
    name = root.removeprefix("claim://")
    try:
        resource = await client.resource("v1", "PersistentVolumeClaim")
        claim = await client.get(resource, name, namespace)
    except KubeError as error:
        if error.status == 403:
            return []
        if error.status != 404:
            raise
        return [
            Finding(
                "missing",
                f"there is no claim {name} in {namespace}",
                "create it, or use --store s3://bucket/prefix",
            )
        ]
    modes = (claim.get("status") or {}).get("accessModes") or claim["spec"].get("accessModes") or []
    if parallel == 1 or "ReadWriteMany" in modes:
        return []
    return [
        Finding(
            "missing",
            f"claim {name} is {', '.join(modes)}, and {parallel} batches at once "
            "(--parallel-batches) may be on two nodes",
            "use a ReadWriteMany claim, an s3:// store, or one batch at a time",
        )
    ]
