"""Statistics of benchmark runs on numpy arrays: spread, verdicts, paired tests, change points, nodes."""
