"""fio: throughput, operations and latency of a volume."""
