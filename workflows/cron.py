"""The schedule of a suite: two CronWorkflows, and the ConfigMap with the suite that they read."""

import json
from collections.abc import Sequence
from pathlib import Path

from perfdag.kube.resources import Object
from perfdag.plan.plan import make_plan
from perfdag.store.open import check_cluster_address
from perfdag.suite.model import Entry, LoadedSuite, Suite
from perfdag.suite.text import load_model, suite_text
from perfdag.units import seconds
from perfdag.workflows import age, runs

AnySuite = Suite | Entry | str | Path
"""A suite, one entry as a suite of its own, or a suite file."""


def schedule(
    suite: AnySuite,
    *schedules: str,
    namespace: str,
    store: str = "",
    max_age: str | None = None,
    cluster_scope: bool = False,
) -> list[Object]:
    """Return the manifests of a suite on a schedule, for `kubectl apply`.

    `schedules` have five fields, in UTC. `store` is another store than that of the installation.
    The second CronWorkflow fails if the newest run is older than `max_age`, such as `26h` (default
    for a daily schedule: 26 h plus twice the expected length of a run).

    Raises BadDocument, AddressError, and ValueError for a schedule that is not daily without
    `max_age`, or a suite that is too large for a ConfigMap.
    """
    loaded = load_model(suite)
    expected = make_plan(loaded).seconds()
    if store:
        check_cluster_address(store)
    age_limit = int(seconds(max_age)) if max_age else default_max_age(schedules, expected)
    return scheduled(loaded, schedules, namespace, store, age_limit, cluster_scope)


def scheduled(
    loaded: LoadedSuite,
    schedules: Sequence[str],
    namespace: str,
    store: str,
    max_age: int,
    cluster_scope: bool,
) -> list[Object]:
    """Return the ConfigMap with the suite, the check of its age (in seconds), and its schedule.

    Raises ValueError if Kubernetes would refuse one of them.
    """
    suite = loaded.suite
    config_map = runs.config_map(namespace, suite.name, suite_text(loaded))
    # `kubectl apply` keeps the object as JSON in an annotation
    size = len(json.dumps(config_map, ensure_ascii=False).encode())
    if size > runs.MAX_BYTES:
        raise ValueError(
            f"{loaded.document.file}: its ConfigMap has {size:,} bytes, more than "
            f"{runs.MAX_BYTES:,}; split the suite, or put the file into the store and give the "
            "CronWorkflow its key as the parameter url"
        )
    check = age.cron(namespace, suite.name, max_age, store, cluster_scope)
    cron = runs.cron(
        namespace,
        suite.name,
        list(schedules),
        store=store,
        priority=suite.priority,
        cluster_scope=cluster_scope,
    )
    return [config_map, check, cron]


def default_max_age(schedules: Sequence[str], expected: float) -> int:
    """Return the seconds after which the newest run of a daily schedule is too old.

    `expected` is the length of a run in seconds. Rows are stored when a run ends, and a run may
    wait two hours for the lock. Raises ValueError for a schedule that is not daily.
    """
    if not any(
        schedule in ("@daily", "@midnight") or schedule.split()[2:] == ["*"] * 3
        for schedule in schedules
    ):
        raise ValueError(
            f"schedule {', '.join(schedules)}: does not run daily; "
            "set the maximum age of the newest run with --max-age"
        )
    return round(26 * 3600 + 2 * expected)
