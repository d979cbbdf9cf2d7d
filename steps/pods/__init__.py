"""What the pods of a run on a cluster do: plan, measure, watch, and say why they ended."""
