"""Control plane at scale: objects created on a schedule, their life observed, VMI scenarios and scheduling scenarios.

One generator (`generator`) creates, one observer (`observer`) watches; everything else reads their records.
"""
