"""The backend of a work queue, which processes items."""
