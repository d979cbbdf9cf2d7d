"""Command lines of Intel MPI and Open MPI."""
