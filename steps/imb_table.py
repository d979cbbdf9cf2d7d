"""IMB-MPI1's benchmarks, what each asks of a host, and the tables that they print."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from perfdag.benchmark import Failed, Measurement

if TYPE_CHECKING:
    from perfdag.steps.imb import ImbParams

PAIRS = (
    "PingPong",
    "PingPing",
    "PingPongSpecificSource",
    "PingPongAnySource",
    "PingPingSpecificSource",
    "PingPingAnySource",
)
STREAMS = ("Sendrecv", "Exchange")
BANDS = ("Uniband", "Biband")
SYNCS = ("Barrier",)
EXCHANGES = ("Alltoall", "Alltoallv")
SPREADS = ("Allgather", "Allgatherv", "Gather", "Gatherv", "Scatter", "Scatterv")
SCATTERED = ("Reduce_scatter", "Reduce_scatter_block")
REDUCTIONS = ("Reduce", "Reduce_local", *SCATTERED, "Allreduce")
COLLECTIVES = ("Bcast", *SPREADS, *EXCHANGES, *REDUCTIONS)
KNOWN = (*PAIRS, *STREAMS, *BANDS, *COLLECTIVES, *SYNCS)
LARGEST_BUFFER = 2**31 - 1
"""Elements (bytes, or floats of a reduction) of a buffer that IMB counts in an int."""
_HEADER = re.compile(r"^# Benchmarking (\S+)\s*$", re.M)
_PROCESSES = re.compile(r"# #processes = (\d+)")
_ENDED = re.compile(
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


def buffers(benchmark: str, ranks: int) -> int:
    """Messages that a rank's send and receive buffers hold together; a size needs so many times its bytes in memory.

    Source: SENDBUF_SIZE_* and RECVBUF_SIZE_* in MPI1_benchmark.cpp of the Intel MPI Benchmarks.
    """
    if benchmark in EXCHANGES:
        return 2 * ranks
    if benchmark in (*SPREADS, *SCATTERED):
        return ranks + 1
    return 0 if benchmark in SYNCS else 3 if benchmark == "Exchange" else 2


def too_large(benchmark: str, ranks: int, size: int) -> bool:
    """Whether a buffer of messages of that size in bytes has more elements than IMB can count."""
    if benchmark in (*EXCHANGES, *SPREADS):
        return ranks * size > LARGEST_BUFFER
    return benchmark in SCATTERED and ranks * size // 4 > LARGEST_BUFFER


def read(
    log: str, params: "ImbParams", texts: Mapping[str, str]
) -> tuple[list[dict[str, float]], str | None]:
    """Rows of the table of the benchmark asked for, and why IMB left out the larger sizes (None: every size that params imply is there).

    Raises Failed where the table is absent, cut, garbled, or of another number of ranks.
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
    ended = None
    for line in body[head + 1 :]:
        words = line.split()
        if not words or words[0].startswith("#"):
            if rows:
                break
            continue
        ended = _ENDED.match(line)
        if ended:
            break
        try:
            rows.append(dict(zip(columns, map(float, words), strict=True)))
        except ValueError:
            raise Failed(
                f"cannot read this line of the table of {name}: {line.strip()[:80]}", texts
            ) from None
    _complete(rows, params, texts, int(ended[1]) if ended else None)
    return rows, _why(ended, params) if ended else None


def _body(log: str, params: "ImbParams", texts: Mapping[str, str]) -> str:
    """What IMB printed of the benchmark asked for, by the number of ranks asked for."""
    sections = list(_HEADER.finditer(log))
    section = next((found for found in sections if found[1] == params.benchmark), None)
    if section is None:
        ran = ", ".join(found[1] for found in sections) or "nothing"
        raise Failed(f"IMB printed no table of {params.benchmark}; it ran {ran}", texts)
    following = next(
        (found.start() for found in sections if found.start() > section.start()), len(log)
    )
    body = log[section.end() : following]
    ranks = _PROCESSES.search(body)
    if ranks is None or int(ranks[1]) != params.ranks:
        raise Failed(
            f"{params.ranks} ranks were asked, IMB says {ranks[1] if ranks else 'nothing'}", texts
        )
    return body


def _complete(
    rows: list[dict[str, float]], params: "ImbParams", texts: Mapping[str, str], end: int | None
) -> None:
    """Raise Failed where a size is absent, or one below `end`, at which IMB says that it stopped."""
    sync = params.benchmark in SYNCS
    expected = [None] if sync else [size for size in params.sizes() if end is None or size < end]
    got = [None if sync else row.get("bytes") for row in rows]
    absent = [size for size in expected if size not in got]
    if absent or len(got) != len(expected):
        what = (
            "its row"
            if sync
            else f"{len(absent)} of {len(expected)} message sizes, first {absent[0] if absent else 'none'}"
        )
        raise Failed(f"the table of {params.benchmark} lacks {what}", texts)


def _why(ended: re.Match[str], params: "ImbParams") -> str:
    size, reason, gigabytes = int(ended[1]), ended[2], ended[3]
    advice = {
        "out-of-mem": f"its buffers need {gigabytes} GiB a rank, more than there is; lower max_log or the ranks of a host",
        "time-out": f"the time of all sizes by time_per_size {params.time_per_size:g} s was over; raise it, or lower iterations or max_log",
        "int-overflow": "ranks x size is more than IMB can count; lower max_log or ranks",
    }[reason]
    sizes = params.sizes()
    return f"IMB left out {sum(each >= size for each in sizes)} of {len(sizes)} message sizes, from {size} B on ({reason}): {advice}"


def by_size(rows: list[dict[str, float]], params: "ImbParams") -> list[Measurement]:
    """Latency, bandwidth and message rate of each row."""
    made: list[Measurement] = []
    for row in rows:
        coords = {"message_bytes": int(row["bytes"])} if "bytes" in row else {}
        n = int(row["repetitions"])
        for column, stat in (("t_avg", "mean"), ("t_min", "min"), ("t_max", "max")):
            if column in row:
                made.append(Measurement("latency", row[column] * 1e-6, stat, coords, n))
        bandwidth = _bandwidth(row, params)
        if bandwidth:
            made.append(Measurement("bandwidth", bandwidth, "value", coords, n))
        if "rate" in row:
            made.append(Measurement("message_rate", row["rate"], "value", coords, n))
    return made


def _bandwidth(row: dict[str, float], params: "ImbParams") -> float | None:
    """B/s by IMB's own definition (its user guide: bytes that a rank sends and receives, by the slowest rank's time).

    Computed from the time: the printed figure has two decimals, none at all left for small messages, and its Mbyte was 2^20 bytes in
    old versions. Tables without a time (Uniband, Biband) are of versions where it is 10^6.
    """
    size, messages = row.get("bytes", 0), {"Sendrecv": 2, "Exchange": 4}.get(params.benchmark, 1)
    if "bandwidth" not in row or size == 0:
        return None
    time = row.get("t_max", row.get("t_avg", 0))
    return messages * size / time * 1e6 if time else row["bandwidth"] * 1e6


def headlines(rows: list[dict[str, float]], params: "ImbParams") -> list[Measurement]:
    """The figures people quote, of a whole table; which there are depends on the columns that the benchmark prints."""
    made = []
    first, last = rows[0], rows[-1]
    if params.benchmark in (*PAIRS, *STREAMS) and "t_avg" in first:
        made.append(
            Measurement("zero_byte_latency", first["t_avg"] * 1e-6, n=int(first["repetitions"]))
        )
    if params.benchmark in (*COLLECTIVES, *SYNCS):
        made.append(Measurement("operation_time", last["t_avg"] * 1e-6, n=int(last["repetitions"])))
    speeds = [(_bandwidth(row, params), int(row.get("bytes", 0))) for row in rows]
    fast = [(speed, size) for speed, size in speeds if speed]
    if fast:
        peak = max(fast)[0]
        made.append(Measurement("peak_bandwidth", peak))
        made.append(
            Measurement(
                "half_bandwidth_size",
                min(size for bandwidth, size in fast if bandwidth >= peak / 2),
            )
        )
    return made
