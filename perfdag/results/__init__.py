"""Samples of a run, and the Parquet rows that they become."""
