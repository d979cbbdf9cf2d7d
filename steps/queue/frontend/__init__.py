"""The frontend of a work queue."""
