"""The verbs of a cluster, on their way into `commands`."""
