"""Numbers, units and settings for people. The site needs them where nothing draws."""

import re
from typing import Any

from perfdag.units import scaled, short

OPERATIONS = {
    "iops": "IOPS",
    "message_rate": "messages/s",
    "samples_rate": "samples/s",
    "throughput": "items/s",
    "rate": "samples/s",
}
"""What a metric in 1/s counts; others count operations."""
_SIZE = re.compile(r"bs|.*size|.*_?bytes|window|length|block|message")
_COUNTED = ("batch_size", "scale_size")
_LARGE = re.compile(r"\b([A-Za-z_]\w*)=(\d{4,})\b")


def unit_for(largest: float, unit: str, metric: str = "") -> tuple[float, str]:
    """Return (factor, name) of the unit for values up to `largest`: kIOPS, µs, GB/s."""
    factor, name = scaled(unit, largest)
    if unit == "1/s":
        name = name.removesuffix("/s") + OPERATIONS.get(metric, "op/s")
    return factor, "µs" if name == "us" else name


def digits(value: float) -> str:
    """Return a number of three significant digits without an exponent where that is readable."""
    text = f"{value:.3g}"
    return f"{float(text):.0f}" if "e+" in text and abs(value) < 1e9 else text


def amount(value: float, unit: str, metric: str = "") -> str:
    """Return a value for people, such as `46.2 kIOPS`. The space does not break."""
    factor, name = unit_for(value, unit, metric)
    return f"{digits(value / factor)}\u00a0{name}".rstrip("\u00a0")


def word(name: str, value: Any) -> str:
    """Return a setting as a suite writes it: `bs=4KiB`, `reverse`, `rate=50Mbit/s`."""
    if value is True or value == "true":
        return name
    return f"{name}={setting(name, value)}"


def setting(name: str, value: Any) -> str:
    """Return the value of a setting with its unit: 4KiB, 50Mbit/s."""
    text = str(value)
    number = re.fullmatch(r"\d{4,}", text) and name not in _COUNTED
    if number and _SIZE.fullmatch(name):
        return short(float(text), "B").replace(" ", "")
    return short(float(text), "bit/s").replace(" ", "") if number and name == "rate" else text


def readable(text: str) -> str:
    """Return the name of a series with the settings in it as a suite writes them."""
    return _LARGE.sub(lambda match: word(match[1], match[2]), text)
