"""The benchmarks of IMB-MPI1 by kind, and the buffers that they need."""

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
"""Elements of a buffer that IMB counts in an int: bytes, or floats of a reduction."""


def buffers(benchmark: str, ranks: int) -> int:
    """Return how many messages a rank's send and receive buffers hold together.

    A message size needs as many times its bytes in memory.

    Source: SENDBUF_SIZE_* and RECVBUF_SIZE_* in MPI1_benchmark.cpp of the Intel MPI Benchmarks.
    """
    if benchmark in EXCHANGES:
        return 2 * ranks
    if benchmark in (*SPREADS, *SCATTERED):
        return ranks + 1
    return 0 if benchmark in SYNCS else 3 if benchmark == "Exchange" else 2


def too_large(benchmark: str, ranks: int, size: int) -> bool:
    """Whether a buffer for messages of `size` bytes has more elements than IMB can count."""
    if benchmark in (*EXCHANGES, *SPREADS):
        return ranks * size > LARGEST_BUFFER
    return benchmark in SCATTERED and ranks * size // 4 > LARGEST_BUFFER
