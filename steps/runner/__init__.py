"""What the pods of a run do: plan, lead, peer, watchdog, confirm and finish."""
