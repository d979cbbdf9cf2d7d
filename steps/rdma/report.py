"""Read what perftest prints: its JSON if it is valid, else the tables of its text."""

import json
import re
from collections.abc import Mapping, Sequence

from perfdag.benchmark.contract import Output
from perfdag.outcome import Failed
from perfdag.steps.rdma.params import RdmaParams

_PAIR = re.compile(
    r"^ ?(Device|Number of qps|Transport type|Connection type|Mtu|Link type|GID index|rdma_cm QPs"
    r"|TX depth)\s*: (.+?)\s*$"
)


def read_info(text: str) -> dict[str, str]:
    """Return what a report's head says of the link: device, transport, connection, MTU, type."""
    info = {}
    for line in text.splitlines():
        for part in re.split(r"\t{2,}", line):
            pair = _PAIR.match(part)
            if pair:
                info[pair[1].lower().replace(" ", "_")] = pair[2]
    return info


def option_mismatch(output: Output, requested: Mapping[str, str | None]) -> str | None:
    """Return what the run's head reports other than requested, or None.

    A requested value of None matches anything. perftest lowers an MTU without an error.
    """
    for name, text in output.texts.items():
        info = read_info(text) if name.startswith("client") else {}
        for key, value in requested.items():
            if value is not None and info.get(key, value) != value:
                label = key.replace("_", " ")
                return f"{value} was requested as {label}, perftest used {info[key]}"
    return None


def read_table(text: str, columns: int) -> list[tuple[str, list[float]]]:
    """Return the rows of a report's last table, each with its header line.

    `columns` is how many numbers a whole row has; the CPU use may add one.
    Raises Failed if a row is cut or not numeric.
    """
    rows: list[tuple[str, list[float]]] = []
    header = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#bytes"):
            header = line
        elif header and line.startswith("---"):
            header = ""
        elif header and line.strip():
            cells = line.split()
            if not cells[0].isdigit():
                continue  # a warning line between the rows
            try:
                values = [float(word) for word in cells]
            except ValueError:
                raise Failed(
                    f"perftest's table has a row that is not numbers: {line.strip()}"
                ) from None
            if not columns <= len(values) <= columns + 1 or any(
                value != value or abs(value) == float("inf") for value in values
            ):
                raise Failed(
                    f"perftest's table has a row of {len(values)} numbers, not {columns}:"
                    f" {line.strip()}"
                )
            rows.append((header, values[:columns]))
    return rows


def read_json(text: str) -> dict[str, float] | None:
    """Return `results` of perftest's JSON; None if absent or, as in 4.5, not JSON."""
    try:
        results = json.loads(text)["results"]
    except (ValueError, KeyError, TypeError):
        return None
    return {name: float(value) for name, value in results.items() if isinstance(value, int | float)}


def rows_of(
    output: Output, params: RdmaParams, keys: Sequence[str]
) -> list[tuple[str, list[float]]]:
    """Return header and numbers of every row of every run. A JSON row has an empty header.

    `keys` are the JSON's names of the columns. Raises Failed if a row is cut or garbled.
    """
    rows = []
    for number, size in enumerate(params.runs()):
        results = read_json(output.texts.get(f"json{number}", "")) if size is not None else None
        if results is not None and set(keys) <= results.keys():
            rows.append(("", [results[key] for key in keys]))
        else:
            rows += read_table(output.texts.get(f"client{number}", ""), len(keys))
    return rows


def check_sizes(params: RdmaParams, sizes: Sequence[int], texts: dict[str, str]) -> None:
    """Raise Failed if a size that the params imply is missing or appears twice."""
    absent = sorted(params.expected_sizes() - set(sizes))
    if absent:
        raise Failed(
            f"no row for {len(absent)} of {len(params.expected_sizes())} message sizes:"
            f" {', '.join(map(str, absent[:5]))}",
            texts,
        )
    if len(set(sizes)) != len(sizes):
        raise Failed("perftest's table has a message size twice", texts)
