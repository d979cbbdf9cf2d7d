"""Statistics of benchmark runs: spread, verdicts, paired tests, change points, nodes."""
