"""Read the tables that IMB-MPI1 prints."""

import re
from collections.abc import Mapping

from perfdag.outcome import Failed, Measurement
from perfdag.steps.imb.operations import COLLECTIVES, PAIRS, STREAMS, SYNCS
from perfdag.steps.imb.params import ImbParams

_HEADER = re.compile(r"^# Benchmarking (\S+)\s*$", re.M)
_PROCESSES = re.compile(r"# #processes = (\d+)")
_EXIT_LINE = re.compile(
    r"^\s*(\d+)\s+(out-of-mem|time-out|int-overflow)\.?;\s*(?:needed X=\s*([\d.]+) GB)?"
)
_COLUMNS = {
    "#bytes": "bytes",
    "#repetitions": "repetitions",
    "t[usec]": "t_avg",
    "t_min[usec]": "t_min",
    "t_max[usec]": "t_max",
    "t_avg[usec]": "t_avg",
    "Mbytes/sec": "bandwidth",
    "Msg/sec": "rate",
}


def read(
    log: str, params: ImbParams, texts: Mapping[str, str]
) -> tuple[list[dict[str, float]], str | None]:
    """Return the rows of the requested benchmark's table, and why IMB left out larger sizes.

    The reason is None if every size is present. Raises Failed if the table is absent, cut,
    garbled, or of another number of ranks.
    """
    body = _body(log, params, texts).splitlines()
    name = params.benchmark
    head = next((i for i, line in enumerate(body) if "#repetitions" in line), None)
    if head is None:
        raise Failed(f"the table of {name} has no header", texts)
    titles = body[head].split()
    unknown = [title for title in titles if title not in _COLUMNS]
    if unknown:
        raise Failed(f"unknown columns in the table of {name}: {' '.join(unknown)}", texts)
    columns = [_COLUMNS[title] for title in titles]
    rows: list[dict[str, float]] = []
    stop = None
    for line in body[head + 1 :]:
        cells = line.split()
        if not cells or cells[0].startswith("#"):
            if rows:
                break
            continue
        stop = _EXIT_LINE.match(line)
        if stop:
            break
        try:
            rows.append(dict(zip(columns, map(float, cells), strict=True)))
        except ValueError:
            raise Failed(
                f"cannot read this line of the table of {name}: {line.strip()[:80]}", texts
            ) from None
    _complete(rows, params, texts, int(stop[1]) if stop else None)
    return rows, _stop_reason(stop, params) if stop else None


def _body(log: str, params: ImbParams, texts: Mapping[str, str]) -> str:
    """Return what IMB printed of the requested benchmark on the requested number of ranks."""
    sections = list(_HEADER.finditer(log))
    section = next((header for header in sections if header[1] == params.benchmark), None)
    if section is None:
        ran = ", ".join(header[1] for header in sections) or "nothing"
        raise Failed(f"IMB printed no table of {params.benchmark}; it ran {ran}", texts)
    following = next(
        (header.start() for header in sections if header.start() > section.start()), len(log)
    )
    body = log[section.end() : following]
    ranks = _PROCESSES.search(body)
    if ranks is None or int(ranks[1]) != params.ranks:
        raise Failed(
            f"{params.ranks} ranks were requested, IMB says {ranks[1] if ranks else 'nothing'}",
            texts,
        )
    return body


def _complete(
    rows: list[dict[str, float]], params: ImbParams, texts: Mapping[str, str], end: int | None
) -> None:
    """Raise Failed if a size below `end` is missing; IMB reports that it stopped at `end`."""
    sync = params.benchmark in SYNCS
    expected = [None] if sync else [size for size in params.sizes() if end is None or size < end]
    sizes = [None if sync else row.get("bytes") for row in rows]
    absent = [size for size in expected if size not in sizes]
    if absent or len(sizes) != len(expected):
        first = absent[0] if absent else "none"
        what = (
            "its row" if sync else f"{len(absent)} of {len(expected)} message sizes, first {first}"
        )
        raise Failed(f"the table of {params.benchmark} lacks {what}", texts)


def _stop_reason(stop: re.Match[str], params: ImbParams) -> str:
    size, reason, gigabytes = int(stop[1]), stop[2], stop[3]
    advice = {
        "out-of-mem": f"its buffers need {gigabytes} GiB a rank, more than there is;"
        " lower max_log or the ranks of a host",
        "time-out": f"the time of all sizes by time_per_size {params.time_per_size:g} s was over;"
        " raise it, or lower iterations or max_log",
        "int-overflow": "ranks x size is more than IMB can count; lower max_log or ranks",
    }[reason]
    sizes = params.sizes()
    lost = sum(candidate >= size for candidate in sizes)
    return (
        f"IMB left out {lost} of {len(sizes)} message sizes, from {size} B on ({reason}): {advice}"
    )


def by_size(rows: list[dict[str, float]], params: ImbParams) -> list[Measurement]:
    """Return latency, bandwidth and message rate of each row."""
    measurements: list[Measurement] = []
    for row in rows:
        coords = {"message_bytes": int(row["bytes"])} if "bytes" in row else {}
        n = int(row["repetitions"])
        for column, stat in (("t_avg", "mean"), ("t_min", "min"), ("t_max", "max")):
            if column in row:
                measurements.append(Measurement("latency", row[column] * 1e-6, stat, coords, n))
        bandwidth = _bandwidth(row, params)
        if bandwidth:
            measurements.append(Measurement("bandwidth", bandwidth, "value", coords, n))
        if "rate" in row:
            measurements.append(Measurement("message_rate", row["rate"], "value", coords, n))
    return measurements


def _bandwidth(row: dict[str, float], params: ImbParams) -> float | None:
    """Return the bandwidth in B/s, or None if the row has none.

    IMB's user guide defines it as the bytes that a rank sends and receives by the time of the
    slowest rank. It is computed from the time: the printed figure has two decimals, too few for
    small messages, and old versions print units of 2^20 bytes. Tables without a time (Uniband,
    Biband) come from versions that print 10^6 bytes.
    """
    size, messages = row.get("bytes", 0), {"Sendrecv": 2, "Exchange": 4}.get(params.benchmark, 1)
    if "bandwidth" not in row or size == 0:
        return None
    time = row.get("t_max", row.get("t_avg", 0))
    return messages * size / time * 1e6 if time else row["bandwidth"] * 1e6


def headlines(rows: list[dict[str, float]], params: ImbParams) -> list[Measurement]:
    """Return the headline figures of a whole table; the printed columns decide which exist."""
    measurements = []
    first, last = rows[0], rows[-1]
    if params.benchmark in (*PAIRS, *STREAMS) and "t_avg" in first:
        measurements.append(
            Measurement("zero_byte_latency", first["t_avg"] * 1e-6, n=int(first["repetitions"]))
        )
    if params.benchmark in (*COLLECTIVES, *SYNCS):
        measurements.append(
            Measurement("operation_time", last["t_avg"] * 1e-6, n=int(last["repetitions"]))
        )
    speeds = [(_bandwidth(row, params), int(row.get("bytes", 0))) for row in rows]
    fast = [(speed, size) for speed, size in speeds if speed]
    if fast:
        peak = max(fast)[0]
        measurements.append(Measurement("peak_bandwidth", peak))
        measurements.append(
            Measurement(
                "half_bandwidth_size",
                min(size for bandwidth, size in fast if bandwidth >= peak / 2),
            )
        )
    return measurements
