"""Verbs of runs on a cluster, and the options that they share."""
