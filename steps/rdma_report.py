"""Reading what perftest prints: its JSON where it is JSON, else the tables of its text."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from perfdag.benchmark import Failed, Output

if TYPE_CHECKING:
    from perfdag.steps.rdma import RdmaParams

_PAIR = re.compile(
    r"^ ?(Device|Number of qps|Transport type|Connection type|Mtu|Link type|GID index|rdma_cm QPs|TX depth)\s*: (.+?)\s*$"
)


def read_info(text: str) -> dict[str, str]:
    """What the head of a report says of the link: device, transport, connection, mtu, link type."""
    found = {}
    for line in text.splitlines():
        for part in re.split(r"\t{2,}", line):
            pair = _PAIR.match(part)
            if pair:
                found[pair[1].lower().replace(" ", "_")] = pair[2]
    return found


def differs(output: Output, asked: Mapping[str, str | None]) -> str | None:
    """What the head of a run says that is not what was asked for (None: not asked for), or None. perftest lowers an MTU without an error."""
    for name, text in output.texts.items():
        told = read_info(text) if name.startswith("client") else {}
        for key, value in asked.items():
            if value is not None and told.get(key, value) != value:
                return f"{value} was asked as {key.replace('_', ' ')}, perftest used {told[key]}"
    return None


def read_table(text: str, columns: int) -> list[tuple[str, list[float]]]:
    """Rows of the last table of a report with their header line. `columns` is how many numbers a whole row has (one more: CPU use).

    Raises Failed where a row is cut or a number is not one.
    """
    rows: list[tuple[str, list[float]]] = []
    header = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#bytes"):
            header = line
        elif header and line.startswith("---"):
            header = ""
        elif header and line.strip():
            words = line.split()
            if not words[0].isdigit():
                continue  # a warning between the rows
            try:
                values = [float(word) for word in words]
            except ValueError:
                raise Failed(
                    f"perftest's table has a row that is not numbers: {line.strip()}"
                ) from None
            if not columns <= len(values) <= columns + 1 or any(
                value != value or abs(value) == float("inf") for value in values
            ):
                raise Failed(
                    f"perftest's table has a row of {len(values)} numbers, not {columns}: {line.strip()}"
                )
            rows.append((header, values[:columns]))
    return rows


def read_json(text: str) -> dict[str, float] | None:
    """`results` of perftest's JSON; None where it is absent or, as in 4.5, not JSON."""
    try:
        results = json.loads(text)["results"]
    except (ValueError, KeyError, TypeError):
        return None
    return {name: float(value) for name, value in results.items() if isinstance(value, int | float)}


def rows_of(
    output: Output, params: "RdmaParams", keys: Sequence[str]
) -> list[tuple[str, list[float]]]:
    """Header and numbers of every row of every run; `keys` are the JSON's names of the columns. A JSON row has an empty header.

    Raises Failed where a row is cut or garbled.
    """
    rows = []
    for number, size in enumerate(params.runs()):
        results = read_json(output.texts.get(f"json{number}", "")) if size is not None else None
        if results is not None and set(keys) <= results.keys():
            rows.append(("", [results[key] for key in keys]))
        else:
            rows += read_table(output.texts.get(f"client{number}", ""), len(keys))
    return rows


def check_sizes(params: "RdmaParams", sizes: Sequence[int], texts: dict[str, str]) -> None:
    """Raise Failed where a size that the params imply is absent or is there twice."""
    absent = sorted(params.expected_sizes() - set(sizes))
    if absent:
        raise Failed(
            f"no row for {len(absent)} of {len(params.expected_sizes())} message sizes: {', '.join(map(str, absent[:5]))}",
            texts,
        )
    if len(set(sizes)) != len(sizes):
        raise Failed("perftest's table has a message size twice", texts)
