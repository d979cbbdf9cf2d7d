"""Times, sizes and rates with their units: `10s`, `5m`, `4KiB`, `1MB`, `10Gbit/s`.

Inside perfdag they are seconds, bytes and bit/s. People read three significant digits and the units
of their field, such as `46.2 kIOPS`, on every page and terminal.

Kubernetes quantities (`500m`, `4Gi`, `1e3`) are something else: they have no dimension, and go to
Kubernetes as written.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from perfdag.problems import Form

# The syntax of k8s.io/apimachinery/pkg/api/resource, without a sign: no resource is negative.
_KUBERNETES_QUANTITY = re.compile(
    r"(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|(?P<exponent>[eE][+-]?[0-9]+))?"
)
_FACTORS = {
    **{
        suffix: Decimal(1000) ** power
        for power, suffix in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), start=-3)
    },
    **{f"{prefix}i": Decimal(1024) ** power for power, prefix in enumerate("KMGTPE", start=1)},
}
_LARGEST = 2**63 - 1

MAX_CPUS = 8192
"""The most CPUs that Linux supports (NR_CPUS of x86-64)."""


def parse_quantity(value: str | int | float) -> Decimal:
    """Return the amount of a quantity: `500m` is 0.5, `1Ki` is 1024. Raises ValueError."""
    try:
        match = _KUBERNETES_QUANTITY.fullmatch(str(value))
        if match is None:
            raise ValueError
        amount = (
            Decimal(match["number"] + (match["exponent"] or "")) * _FACTORS[match["suffix"] or ""]
        )
    except (ValueError, ArithmeticError):
        raise ValueError(
            f"not a quantity of Kubernetes: {value!r}; write it as 2, 500m, 4Gi or 1e3"
        ) from None
    if amount > _LARGEST:
        raise ValueError(f"{value} is more than 2^63 - 1, the largest quantity of Kubernetes")
    return amount


def _check_quantity(value: str | int | float) -> str | int | float:
    parse_quantity(value)
    return value


def parse_cpu_list(text: str) -> set[int]:
    """Return the CPUs of a list as taskset and the kernel write it.

    Raises ValueError for another form, a range that ends before it begins, and CPUs that no machine
    has.
    """
    cpus: set[int] = set()
    for part in text.split(","):
        start, _, end = part.partition("-")
        first = int(start)
        last = int(end or start)
        if last < first:
            raise ValueError(f"{part} ends before it begins: {last}-{first}")
        if last >= MAX_CPUS:
            raise ValueError(f"{part}: CPUs are numbered from 0 to at most {MAX_CPUS - 1}")
        cpus |= set(range(first, last + 1))
    return cpus


def _check_cpu_list(text: str) -> str:
    parse_cpu_list(text)
    return text


Quantity = Annotated[str | int | float, AfterValidator(_check_quantity)]
CpuList = Annotated[
    str,
    Form("a CPU list such as 0 or 2-3", r"^[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*$"),
    AfterValidator(_check_cpu_list),
]


BASE_UNITS = ("1", "s", "B", "B/s", "bit/s", "1/s", "Hz", "W", "J", "degC", "currency")
"""Units of stored values."""
RATES = ("B/s", "bit/s", "1/s", "Hz")


def impossible(value: float, unit: str, better: str) -> str:
    """Return why no measurement has this value in a base unit, or nothing where one may have it.

    What prints it did not work: work takes time, and a rate of it that should be high is not 0.
    """
    if unit == "s" and value <= 0:
        return f"{value:g} s is no time"
    if unit in RATES and better == "higher" and value <= 0:
        return f"{value:g} {unit} is no rate"
    return ""


_QUANTITY = re.compile(
    r"\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*"
    r"([A-Za-z\N{MICRO SIGN}\N{GREEK SMALL LETTER MU}/]*)\s*"
)
_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_MICRO_SIGN, _GREEK_MU = "\N{MICRO SIGN}", "\N{GREEK SMALL LETTER MU}"  # they look alike
_WORDS = {
    "nsec": "ns",
    "usec": "us",
    f"{_MICRO_SIGN}sec": "us",
    "msec": "ms",
    "sec": "s",
    "nanosecond": "ns",
    "microsecond": "us",
    "millisecond": "ms",
    "second": "s",
    "minute": "min",
    "hour": "h",
    "day": "d",
    "byte": "B",
    "Byte": "B",
}
"""Units by the words of people and tools; a plural has an s."""
_BIT_RATE_WORDS = re.compile(r"([kKMGTP]?)(bps|b/s|bits?/s)")
_BYTE_WORDS = re.compile(r"([kKMGTP]i?)?(Bps|[Bb]ytes?)(/s)?")


def symbol(unit: str) -> str:
    """Return the symbol of a unit as people and tools write it, or the unit as it is.

    `usecs` is us, `MB/sec` and `MBytes/s` are MB/s, `Mbps` and `Mbits/sec` are Mbit/s.
    """
    unit = unit.replace(_GREEK_MU, _MICRO_SIGN)
    amount, slash, time = unit.partition("/")
    if slash and _WORDS.get(time) == "s":
        unit = f"{amount}/s"
    if bits := _BIT_RATE_WORDS.fullmatch(unit):
        return f"{bits[1]}bit/s"
    if size := _BYTE_WORDS.fullmatch(unit):
        per_second = "/s" if size[2] == "Bps" or size[3] else ""
        return f"{size[1] or ''}B{per_second}"
    return _WORDS.get(unit) or _WORDS.get(unit.removesuffix("s"), unit)


_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {
    f"{prefix}i": 2 ** (10 * power)
    for power, prefix in enumerate(("K", "M", "G", "T", "P"), start=1)
}
_BYTES = {
    **{f"{p}B": factor for p, factor in _DECIMAL.items()},
    **{f"{p}B": factor for p, factor in _BINARY.items()},
    **_BINARY,
    "KB": 10**3,
    "": 1,
}
_BITS = {f"{p}bit/s": factor for p, factor in _DECIMAL.items()} | {"": 1, "Kbit/s": 10**3}


def _read(text: Any, units: Mapping[str, float], kind: str, examples: str) -> float:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(f"a {kind} is a number or text such as {examples}")
    if isinstance(text, str):
        match = _QUANTITY.fullmatch(text)
        if match is None:
            raise ValueError(f"not a {kind}: {text!r}; write it as {examples}")
        unit = symbol(match[2])
        if unit not in units:
            names = ", ".join(unit for unit in units if unit)
            similar = " or ".join(match[1] + unit for unit in _similar_units(match[2], units))
            hint = f"; did you mean {similar}?" if similar else ";"
            raise ValueError(f"unknown unit {match[2]!r} in {text!r}{hint} a {kind} takes {names}")
        value = float(match[1]) * units[unit]
    else:
        value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError(f"a {kind} cannot be {text!r}; it is zero or more")
    return value


def _similar_units(wrong: str, units: Mapping[str, float]) -> list[str]:
    """Return units that may be meant: of other capitals, or of this prefix (`4k`)."""
    if "B" in wrong and any("bit" in unit for unit in units):
        return []  # bytes instead of bits would be off by a factor of eight
    prefix = wrong.casefold()
    forms = [prefix + ending for ending in ("", "ib", "b", "bit/s", "it/s") if prefix]
    by_form = {unit.casefold(): unit for unit in reversed([*units])}  # `kB` before `KB`
    return [by_form[form] for form in forms if form in by_form]


def seconds(text: Any) -> float:
    """Return seconds from `10s`, `500ms`, `5m`, `2h` or a bare number of seconds.

    Raises ValueError with the allowed units.
    """
    return _read(text, _SECONDS, "duration", "10s, 500ms, 5m")


def go_seconds(text: Any) -> float:
    """Return the seconds of a duration of Go, such as `1h30m`. Raises ValueError."""
    parts = re.findall(r"\d+(?:\.\d+)?(?:ms|us|ns|h|m|s)", str(text))
    if not parts or "".join(parts) != text:
        raise ValueError(f"{text!r} is no duration; write it as 10m, 90s or 1h30m")
    return sum(map(seconds, parts))


def size_bytes(text: Any) -> int:
    """Return bytes from `4KiB`, `1MB` (10^6), `1GiB`, `4Ki` or a bare number of bytes.

    Raises ValueError with the allowed units.
    """
    return round(_read(text, _BYTES, "size", "4KiB, 1MB, 1GiB"))


def bits_per_second(text: Any) -> float:
    """Return bit/s from `10Gbit/s`, `500Mbit/s` or a bare number.

    Raises ValueError with the allowed units.
    """
    return _read(text, _BITS, "bit rate", "10Gbit/s, 500Mbit/s")


_ANY = (
    {"": (1.0, "")}
    | {unit: (factor, "s") for unit, factor in _SECONDS.items()}
    | {unit: (float(factor), "B") for unit, factor in _BYTES.items() if unit}
    | {unit: (float(factor), "bit/s") for unit, factor in _BITS.items() if unit}
    | {f"{unit}/s": (float(factor), "B/s") for unit, factor in _BYTES.items() if unit}
    | {f"{unit}/s": (float(factor), "1/s") for unit, factor in _DECIMAL.items()}
)


def quantity(text: str) -> tuple[float, str]:
    """Return (value, base unit) of `15ms`, `9Gbit/s`, `200MB/s`, `4KiB` or `20k/s`.

    The unit is empty if none is written.

    Raises ValueError with examples.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or symbol(match[2]) not in _ANY:
        raise ValueError(
            f"not a quantity: {text!r}; write a time (15ms), a size (4KiB), "
            "a rate (9Gbit/s, 200MB/s, 20k/s) or a bare number"
        )
    factor, unit = _ANY[symbol(match[2])]
    return float(match[1]) * factor, unit


def _positive(value: float) -> float:
    if value <= 0:
        raise ValueError("must be more than zero")
    return value


_KINDS = [{"type": "number", "minimum": 0}, {"type": "string"}]
_TIME, _SIZE_OF, _BIT_RATE = (
    WithJsonSchema({"title": title, "anyOf": _KINDS}) for title in ("time", "size", "bit rate")
)


@dataclass(frozen=True)
class Unit:
    """The base unit of a parameter or of a key of a shape, as its annotation holds it."""

    name: str


Duration = Annotated[float, BeforeValidator(seconds), _TIME, Unit("s")]
PositiveDuration = Annotated[
    float, BeforeValidator(lambda v: _positive(seconds(v))), _TIME, Unit("s")
]
GoDuration = Annotated[float, BeforeValidator(go_seconds)]
Size = Annotated[int, BeforeValidator(size_bytes), _SIZE_OF, Unit("B")]
BitRate = Annotated[float, BeforeValidator(bits_per_second), _BIT_RATE, Unit("bit/s")]


def short_seconds(value: float) -> str:
    """Return a duration for people: `850 ms`, `12.3 s`, `4 min 10 s`, `2 h 5 min`."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    if value < 3600:
        return f"{int(value // 60)} min {int(value % 60)} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60)} min"


def _decimal(unit: str) -> list[tuple[float, str]]:
    return [(float(factor), prefix + unit) for prefix, factor in _DECIMAL.items()]


_STEPS = {
    "s": [(1e-6, "µs"), (1e-3, "ms"), (1.0, "s")],
    "B": [(1.0, "B"), *((float(factor), f"{prefix}B") for prefix, factor in _BINARY.items())],
    "1": [(1.0, "")],
    "1/s": _decimal("op/s"),
    "IOPS": _decimal("IOPS"),
    "%": [(0.01, "%")],
}
"""Factors and names of a unit. Any other has every decimal prefix if it is a rate, else none."""


def rate_unit(counts: str) -> str:
    """Return the unit for people of a rate in 1/s by what it counts: `samples/s`, `IOPS` of I/Os.

    A rate that does not say what it counts keeps `1/s`, which `scaled` prints as `op/s`.
    """
    if counts == "I/Os":
        return "IOPS"
    return f"{counts}/s" if counts else "1/s"


def scaled(unit: str, largest: float) -> tuple[float, str]:
    """Return (factor, name) of the unit that suits values up to `largest`.

    `unit` is a base unit or a `rate_unit`. For example, ("bit/s", 2e10) gives (1e9, "Gbit/s"), and
    ("IOPS", 4e4) gives (1e3, "kIOPS").
    """
    steps = _STEPS.get(unit) or (_decimal(unit) if unit.endswith("/s") else [(1.0, unit)])
    fitting = [step for step in steps if step[0] <= abs(largest)] if math.isfinite(largest) else []
    return fitting[-1] if fitting else steps[0]


def digits(value: float) -> str:
    """Return a number of three significant digits without an exponent where that is readable."""
    text = f"{value:.3g}"
    return f"{float(text):.0f}" if "e+" in text and abs(value) < 1e9 else text


NEVER_ALERTS = "neither direction is better, so no change alerts"
"""What is said of series without a direction."""


def usual_direction(unit: str) -> Literal["higher", "none"]:
    """Return which direction of a figure is better, where nobody says it.

    Of a rate more is better, such as `1/s`, `bit/s`, or `ops/s` of a user's own. Of others nothing
    is known: a time may be one of waiting, or of being up.
    """
    return "higher" if re.search(r"/s(ec(ond)?)?$|^(rps|tps|qps|iops)$", unit, re.I) else "none"


def short(value: float | None, unit: str) -> str:
    """Return a value with its unit, such as `23.4 Gbit/s` or `812 µs`. None is `-`."""
    if value is None:
        return "-"
    factor, name = scaled(unit, value)
    return f"{digits(value / factor)} {name}".rstrip()


def with_spread(middle: float, low: float, high: float, unit: str) -> str:
    """Return a median with its spread, if any, in one unit: `9.96 (9.89 to 9.99) Gbit/s`."""
    if low == high:
        return short(middle, unit)
    factor, name = scaled(unit, middle)
    spread = f"({digits(low / factor)} to {digits(high / factor)})"
    return f"{digits(middle / factor)} {spread} {name}".rstrip()


_WRITTEN = re.compile(r"=(\d+)([kKMGTP]i?B|[kMGTP]bit/s)(?= |$)")


def written(value: Any, unit: str) -> str:
    """Return a setting in B or bit/s as a suite writes it, where that is exact: 4KiB, 50Mbit/s.

    Another unit, or an empty one, leaves it as it is.
    """
    text = str(value)
    if unit not in ("B", "bit/s") or not re.fullmatch(r"\d{4,}", text):
        return text
    factor, prefix = scaled(unit, float(text))
    return f"{int(text) // factor:.0f}{prefix}" if int(text) % factor == 0 else text


def readable(value: Any, unit: str) -> str:
    """Return a setting for people: `4 KiB`, `50 Mbit/s`, `10 s`, `taskset -c 0` of a list."""
    text = str(value).strip("[]").replace('","', " ").strip('"')
    amount = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z/]*)", text) if unit else None
    if amount is None or amount[2]:
        return f"{amount[1]} {amount[2]}" if amount else text
    factor, name = scaled(unit, float(text))
    if unit == "B" and float(text) % factor:
        return f"{text} B"
    return f"{float(text) / factor:g} {name}"


def plain(text: str) -> str:
    """Return the name of a series with its sizes and bit rates as numbers: `bs=4096`."""
    return _WRITTEN.sub(lambda match: f"={quantity(match[1] + match[2])[0]:.0f}", text)


def to_base(unit: str) -> tuple[str, float]:
    """Return the SI base unit of a unit that a tool prints, and the factor to it: `ms`: s, 0.001.

    Raises ValueError for an unknown unit.
    """
    name = symbol(unit)
    if name in BASE_UNITS:
        return name, 1.0
    if name in _ANY and name not in ("", "/s"):
        factor, base = _ANY[name]
        return base, factor
    examples = "1, 1/s, s, ms, us, B, MB, MiB, MB/s, MiB/s, bit/s, Gbit/s, Hz, W, J"
    raise ValueError(f"unknown unit {unit!r}; write one such as {examples}")


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 point`, `1,200 points`, `2 batches`."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"


BARS = "▁▂▃▄▅▆▇█"


def spark(values: Sequence[float], limit: int = 12) -> str:
    """Return the newest values as bars of letters, the lowest and the highest at the ends."""
    newest = [value for value in values if value == value][-limit:]
    if len(newest) < 2:
        return ""
    low = min(newest)
    width = max(newest) - low
    return "".join(BARS[round(7 * (value - low) / width)] if width else BARS[3] for value in newest)
