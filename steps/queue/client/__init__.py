"""The client of a work queue, which sends items."""
