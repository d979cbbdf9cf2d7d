"""The code that runs in containers: one package a benchmark, and the steps of a run."""
