"""Read single values from measurements."""

from collections.abc import Iterable
from typing import Any

from perfdag.benchmark.contract import Measurement


def values(
    measurements: Iterable[Measurement], metric: str, stat: str | None = None, **coords: Any
) -> list[float]:
    """Return the values of a metric, of a statistic and with some coordinates where given."""
    return [
        measurement.value
        for measurement in measurements
        if measurement.metric == metric
        and stat in (None, measurement.stat)
        and coords.items() <= measurement.coords.items()
    ]
