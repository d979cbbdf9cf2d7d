"""`perfdag doctor`: what is missing for a suite or a cluster, and the command that adds it."""
