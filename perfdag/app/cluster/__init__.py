"""Runs on a cluster: install, submit, watch, resume and prune."""
