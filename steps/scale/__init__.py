"""Measure the control plane at scale: VMI scenarios and scheduling scenarios.

One generator (`generator`) creates objects on a schedule. One observer (`observer`) watches them.
All other modules read their records.
"""
