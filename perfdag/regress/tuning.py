"""Which checks apply to a series, and how they tune the change-point detector."""

import fnmatch
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from perfdag.regress.series import SeriesInfo
from perfdag.stats.levels import MIN_EFFECT, MIN_FRACTION
from perfdag.stats.robust import Array
from perfdag.suite.model import Check

MIN_EFFECT_TAIL = 0.15


def covers(check: Check, info: SeriesInfo) -> bool:
    """Return whether a check applies to a series."""
    stat = check.stat or ("value" if check.op else "*")
    return (
        fnmatch.fnmatchcase(info.entry, check.entry or "*")
        and fnmatch.fnmatchcase(info.metric, check.metric)
        and fnmatch.fnmatchcase(info.stat, stat)
        and not info.canary
        and (not check.where or check.selects(*settings_by_kind(info)))
    )


def settings_by_kind(info: SeriesInfo) -> list[dict[str, Any]]:
    """Return the coordinates, parameters and shape of a series, which `where` looks through."""
    return [orjson.loads(text or "{}") for text in (info.coords, info.params, info.shape)]


def fraction(info: SeriesInfo, values: Array) -> bool:
    """Return whether a series is a fraction from 0 to 1 that touches 0, such as a loss.

    A relative change of such a series means nothing.
    """
    return bool(info.unit == "1" and values.size and values.min() == 0 and values.max() <= 1)


def is_tail(info: SeriesInfo) -> bool:
    """Return whether a series is the tail of a latency."""
    return info.unit == "s" and (info.stat == "max" or info.stat.startswith("p99"))


class Tuning:
    """Detector settings by series. The last check that covers a series wins, then the defaults."""

    def __init__(self, checks: Sequence[Check] = (), cluster: str | None = None) -> None:
        self.checks = [check for check in checks if check.on(cluster)]

    def effect(self, info: SeriesInfo, values: Array) -> tuple[float, bool]:
        """Return (min_effect, absolute) of a series.

        The default is 5 %, for tails of latency 15 %, and 0.01 for a fraction from 0 to 1 that
        touches 0.
        """
        for check in reversed(self.checks):
            if check.min_effect is not None and covers(check, info):
                return check.min_effect, check.absolute
        if fraction(info, values):
            return MIN_FRACTION, True
        return (MIN_EFFECT_TAIL if is_tail(info) else MIN_EFFECT), False

    def limits(self, info: SeriesInfo) -> dict[str, Any]:
        """Return the arguments of `levels_of` for a series.

        A level of a fraction that begins with 0 is judged by differences; see `effect`.
        """
        min_effect, absolute = self.effect(info, np.array([]))
        return {"min_effect": min_effect, "absolute": absolute, "fraction": info.unit == "1"}

    def pages(self, info: SeriesInfo) -> bool:
        """Return whether a change of this series alerts."""
        for check in reversed(self.checks):
            if check.page is not None and covers(check, info):
                return check.page
        return info.headline and not info.canary
