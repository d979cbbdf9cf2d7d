"""Measure the control plane at scale: VMI scenarios and scheduling scenarios.

`generate` creates objects on a schedule, `watch` observes them, and `rows` turns what was seen into
one row for each object and stage. `scenario` runs these for the benchmarks `vmi` and `workloads`,
and `runai` for the commands of Run:ai's tool.
"""
