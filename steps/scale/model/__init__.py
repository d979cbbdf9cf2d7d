"""Records, stages, templates and schedules of the scale benchmarks."""
