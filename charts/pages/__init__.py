"""Pages: the report of a run, comparisons and histories."""
