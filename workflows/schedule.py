"""Schedules of cron as Argo reads them (robfig/cron, standard parser): whether they can be, and the longest time between two runs."""

import re
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from itertools import pairwise

_MONTHS = dict(
    zip(
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
        range(1, 13),
        strict=True,
    )
)
_DAYS = dict(zip(["sun", "mon", "tue", "wed", "thu", "fri", "sat"], range(7), strict=True))
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("weekday", 0, 6, _DAYS),
)
_WORDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_DAY = 24 * 60
_CYCLE = 8 * 366 + 1  # days that hold every leap day, beginning at one
_BEGIN = date(2096, 2, 28)  # 2100 has no leap day: the longest wait there is


@dataclass(frozen=True)
class Cron:
    """One schedule: the minutes of a day at which it comes, in order, and the days on which it does."""

    minutes: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either: bool
    """Day and weekday are both given, and one of them is enough."""

    def on(self, day: date) -> bool:
        """Whether it comes on that day."""
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return day.month in self.months and (
            (by_day or by_weekday) if self.either else (by_day and by_weekday)
        )


def parse(text: str) -> Cron:
    """Read five fields, or a word such as @daily. Raises ValueError that names each field that is wrong and what it may be."""
    fields = _WORDS.get(text.strip(), text).split()
    if text.strip().startswith("@") and text.strip() not in _WORDS:
        raise ValueError(
            f"schedule {text!r}: there is {', '.join(_WORDS)}, or five fields such as '0 2 * * *'"
        )
    if len(fields) != 5:
        raise ValueError(
            f"schedule {text!r}: five fields are wanted (minute hour day month weekday), for example '0 2 * * *'"
        )
    found, wrong = [], []
    for field, (name, low, high, names) in zip(fields, _FIELDS, strict=True):
        try:
            found.append(
                frozenset(
                    value for part in field.split(",") for value in _part(part, low, high, names)
                )
            )
        except ValueError as error:
            wrong.append(f"{name} {field!r}: {error}")
    if wrong:
        raise ValueError(f"schedule {text!r}: {'; '.join(wrong)}")
    minutes, hours, days, months, weekdays = found
    either = not any(
        part.removesuffix("/1") in ("*", "?") for i in (2, 4) for part in fields[i].split(",")
    )
    made = Cron(
        tuple(60 * hour + minute for hour in sorted(hours) for minute in sorted(minutes)),
        days,
        months,
        weekdays,
        either,
    )
    if not any(made.on(_BEGIN + timedelta(days=i)) for i in range(_CYCLE)):
        raise ValueError(f"schedule {text!r}: no month has such a day")
    return made


def _part(part: str, low: int, high: int, names: dict[str, int]) -> range:
    """Values of `*`, `5`, `1-5`, `mon-fri`, `*/2`, `10-40/5` or `10/5`."""
    said = f"{low} to {high}" + (f" or {', '.join(names)}" if names else "")
    found = re.fullmatch(r"([*?]|\w+)(?:-(\w+))?(?:/(\w+))?", part)
    if found is None or (found[2] and found[1] in "*?"):
        raise ValueError(f"{part!r} is none of {said}, a list, a range (1-5) or a step (*/5)")

    def value(word: str) -> int:
        number = names.get(word.lower(), int(word) if word.isdecimal() else -1)
        if not low <= number <= high:
            raise ValueError(f"{word} is not {said}")
        return number

    if found[3] and (not found[3].isdecimal() or int(found[3]) == 0):
        raise ValueError(f"a step is 1 or more, not {found[3]}")
    step = int(found[3] or 1)
    if found[1] in "*?":
        return range(low, high + 1, step)
    first = value(found[1])
    last = value(found[2]) if found[2] else high if found[3] else first
    if last < first:
        raise ValueError(f"the range {part} ends before it begins")
    return range(first, last + 1, step)


def longest_gap(schedules: list[str]) -> float:
    """Hours of the longest wait between two runs of schedules taken together. Raises ValueError."""
    crons = [parse(each) for each in schedules]

    @cache
    def moments(coming: tuple[bool, ...]) -> tuple[list[int], int]:
        """Minutes of a day, and the longest wait within it, by which schedules come."""
        minutes = sorted(
            {
                minute
                for cron, comes in zip(crons, coming, strict=True)
                if comes
                for minute in cron.minutes
            }
        )
        return minutes, max((b - a for a, b in pairwise(minutes)), default=0)

    longest, last = 0, None
    for i in range(_CYCLE):
        minutes, inside = moments(tuple(cron.on(_BEGIN + timedelta(days=i)) for cron in crons))
        if minutes:
            waited = i * _DAY + minutes[0] - last if last is not None else 0
            longest, last = max(longest, inside, waited), i * _DAY + minutes[-1]
    return longest / 60
