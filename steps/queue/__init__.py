"""A work queue that measures the scaling of devices: frontend, backends, clients and validator."""
