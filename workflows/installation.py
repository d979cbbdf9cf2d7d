"""An installation: its options, and its objects beside the templates.

`installation.yaml.j2` has the objects.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import orjson
import yaml
from jinja2 import StrictUndefined, Template

from perfdag import IMAGES
from perfdag.benchmark.contract import Rights
from perfdag.kube.client import Object
from perfdag.kube.patch import (
    HELPER,
    LEVEL,
    MEASURING,
    PRIORITY_CLASSES,
    SSH_PORT,
    STORE,
    account_of,
    hardened,
    image_of,
    pod_security,
    store_root,
    store_volume,
)

SITE = "perfdag-site"
"""The name of what serves the site: a Deployment, a Service and an account."""
SITE_PORT = 8600
SHARED = {"app.kubernetes.io/name": "perfdag", "app.kubernetes.io/managed-by": "perfdag"}
"""The labels of objects that all installations of a cluster share."""


@dataclass(frozen=True)
class Installation:
    """The options of `perfdag install`. Times are in seconds."""

    namespace: str = "default"
    images: str = IMAGES
    store: str = ""
    store_secret: str = "perfdag-store"
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    namespaced: bool = False
    lock_namespace: str = "perfdag"
    """Installations with the same one measure in turn. The namespace need not exist."""
    parallel_batches: int = 1
    deadline: int = 7 * 86400
    pending_limit: int = 600
    """How long a pod that does not measure may wait to start."""
    keep: int = 7 * 86400
    """How long a Workflow stays after its end."""
    keep_pods: int = 600
    """How long a pod stays after its end, with its log and the claim that is its own."""
    network_policy: bool = True
    allow: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Benchmarks with rights of their own, and the namespaces where these hold."""
    site: bool = False
    """Whether a Deployment serves the site of the store."""
    site_hosts: tuple[str, ...] = ()
    """Names by which browsers reach the site, beside those of its Service."""

    @property
    def labels(self) -> Object:
        """The labels of its own objects."""
        return {**SHARED, "app.kubernetes.io/instance": self.namespace}


Grant = tuple[Rights, tuple[str, ...]]
"""The rights of a benchmark that is allowed, and the namespaces of its objects."""


def supporting_objects(
    installation: Installation, granted: Mapping[str, Grant] | None = None
) -> list[Object]:
    """Return what an installation needs beside its templates.

    `granted` has the rights of the benchmarks that are allowed, by name. `install --namespaced`
    leaves out whatever is cluster-wide.
    """
    grants = sorted((granted or {}).items())
    places = [places for _, (rights, places) in grants if rights.creates]
    created = [] if installation.namespaced else sorted({*chain.from_iterable(places)})
    template = Template(
        Path(__file__).with_name("installation.yaml.j2").read_text(),
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    text = template.render(
        vars(installation),
        labels=installation.labels,
        shared=SHARED,
        baseline={LEVEL: "baseline", **SHARED},
        granted=grants,
        created_namespaces=created,
        measuring={MEASURING: "true"},
        priority_classes=PRIORITY_CLASSES,
        ssh_port=SSH_PORT,
        site_name=SITE,
        site_port=SITE_PORT,
        site_image=image_of("finish", installation.images),
        store_root=store_root(installation.store),
        store_volume=store_volume(installation.store),
        store_folder=STORE,
        helper=HELPER,
        pod_security=pod_security(),
        hardened=hardened(),
        account_of=account_of,
        json=lambda value: orjson.dumps(value).decode(),
    )
    return [*yaml.load_all(text, yaml.CSafeLoader)]
