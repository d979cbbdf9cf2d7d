"""The measuring loop: the samples of a plan in turn, over the hosts of a machine or of a gang."""
