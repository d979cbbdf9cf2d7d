"""Render the manifests of an installation and of a suite as YAML."""

from collections.abc import Sequence

from perfdag.app.cluster.installation import Installation, installation_objects
from perfdag.app.cluster.manifest_suite import suite_manifests
from perfdag.store.open import check_cluster_address
from perfdag.workflows.emit import dump


def render(
    installation: Installation,
    suite: str | None,
    *,
    base: bool,
    schedules: Sequence[str] = (),
    max_age: int | None = None,
) -> str:
    """Return the objects of the installation (`base`) and the manifests of a suite file, if named.

    Raises CommandError, BadDocument, AddressError for a store that no cluster can have.
    """
    if installation.store:
        check_cluster_address(installation.store)
    manifests = installation_objects(installation) if base else []
    if suite:
        manifests += suite_manifests(suite, installation, schedules, max_age)
    return dump(manifests)
