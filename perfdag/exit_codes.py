"""Exit codes of the command line."""

EXIT_OK = 0
EXIT_FAILED = 1
"""A sample has no valid value."""
EXIT_INPUT = 2
"""The suite, an option or a file is wrong."""
EXIT_GATE = 3
"""The gate failed: a regression, a broken threshold or absent data."""
EXIT_REACH = 4
"""The store, the cluster or the webhook is out of reach."""
EXIT_INTERRUPTED = 130
