"""`perfdag scale submit` and `sample`: workloads of Run:ai and KAI."""
