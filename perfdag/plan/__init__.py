"""The plan of a run: its points, their order and their batches."""
