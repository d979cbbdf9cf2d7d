"""Scenarios: VMI bursts, steady state, workloads, gangs and GPU scheduling."""
