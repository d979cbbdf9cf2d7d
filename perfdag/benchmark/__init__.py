"""The contract of a benchmark, and the registry that finds benchmarks."""
