"""The schedule of a suite: two CronWorkflows, and the ConfigMap with the suite that they read."""

import re
from collections.abc import Sequence
from pathlib import Path

from perfdag.kube.client import Object
from perfdag.plan.plan import make_plan
from perfdag.suite.load import load_model
from perfdag.suite.model import Entry, LoadedSuite, Suite
from perfdag.units import seconds
from perfdag.workflows import runs

AnySuite = Suite | Entry | str | Path
"""A suite, one entry as a suite of its own, or a suite file."""


def schedule(
    suite: AnySuite,
    *schedules: str,
    namespace: str,
    max_age: str | None = None,
) -> list[Object]:
    """Return the manifests of a suite on a schedule, for `kubectl apply`.

    `schedules` have five fields, in UTC. The second CronWorkflow fails if the newest run is older
    than `max_age`, such as `26h` (default for a daily schedule: 26 h plus twice the expected length
    of a run).

    Raises BadDocument, and ValueError for a schedule that is not daily without `max_age`.
    """
    age_limit = int(seconds(max_age)) if max_age else None
    return scheduled(load_model(suite), schedules, namespace, age_limit)


def scheduled(
    loaded: LoadedSuite,
    schedules: Sequence[str],
    namespace: str,
    max_age: int | None,
) -> list[Object]:
    """Return the ConfigMap with the suite, the check of its age (in seconds), and its schedule.

    Without `max_age` it is that of a daily schedule. Raises BadDocument, and ValueError if
    Kubernetes would refuse one of them.
    """
    for each in schedules:
        check_schedule(each)
    max_age = max_age or default_max_age(schedules, make_plan(loaded).seconds())
    name, priority = loaded.suite.name, loaded.suite.priority
    held = runs.config_map(namespace, f"perfdag-suite-{name}", loaded)
    map_name = held["metadata"]["name"]
    times = list(schedules)
    return [
        held,
        runs.age_cron(namespace, name, max_age),
        runs.cron(namespace, name, map_name, times, priority=priority),
    ]


_FIELDS = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of month", 1, 31),
    ("month", 1, 12),
    ("day of week", 0, 6),
)
_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec"
_DAYS = "sun mon tue wed thu fri sat"
_NUMBERS = {name: f"{number}" for number, name in enumerate(_MONTHS.split(), 1)} | {
    name: f"{number}" for number, name in enumerate(_DAYS.split())
}
_SHORTHANDS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")


def check_schedule(schedule: str) -> None:
    """Raise ValueError for a text that Argo cannot read as a schedule.

    Kubernetes takes any text, and the CronWorkflow then never starts a run.
    """
    if schedule in _SHORTHANDS:
        return
    texts = schedule.lower().split()
    if len(texts) != len(_FIELDS):
        raise ValueError(
            f"schedule {schedule!r}: write five fields, minute, hour, day of month, month and day"
            " of week, for example '41 4 * * *'"
        )
    for text, (name, lowest, highest) in zip(texts, _FIELDS, strict=True):
        for part in text.split(","):
            match = re.fullmatch(r"(?:[*?]|([0-9a-z]+)(?:-([0-9a-z]+))?)(?:/[1-9][0-9]*)?", part)
            words = [_NUMBERS.get(word, word) for word in match.groups() if word] if match else []
            ends = [int(word) if word.isdecimal() else -1 for word in words]
            if not match or ends != sorted(ends) or not {*ends} <= {*range(lowest, highest + 1)}:
                how = f"write {lowest} to {highest}, *, */2, 1-5 or 1,3"
                raise ValueError(f"schedule {schedule!r}: {name} {part!r}: {how}")


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
