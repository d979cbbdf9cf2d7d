"""Validation of the throughput of a queue against a scaling limit."""
