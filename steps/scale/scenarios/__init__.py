"""Scenarios: VMI bursts, steady state, and workloads through the scheduler."""
