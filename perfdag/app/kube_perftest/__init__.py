"""Import of kube-perftest's resources as a suite."""
