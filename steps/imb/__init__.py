"""Intel MPI Benchmarks: latency and bandwidth of MPI operations."""
