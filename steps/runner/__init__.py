"""The steps of a run, one a pod: plan, lead, peer, watchdog, recheck and finish."""
