"""Exit codes of the command line."""

EXIT_OK, EXIT_FAILED, EXIT_INPUT, EXIT_GATE, EXIT_REACH, EXIT_INTERRUPTED = 0, 1, 2, 3, 4, 130
"""Success; a sample without a valid value; bad input; a failed gate; store or cluster out of reach;
interrupted."""
