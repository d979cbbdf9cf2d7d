"""Comparison of runs, change points, and the gate of a daily run."""
