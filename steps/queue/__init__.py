"""A work queue that shows whether a device scales: frontend, backends, clients and the validator of their throughput."""
