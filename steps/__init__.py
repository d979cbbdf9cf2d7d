"""What runs inside a container: one module a benchmark, and the lead, peer and plan steps."""
