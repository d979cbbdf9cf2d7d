"""Placeholders of a pod patch, which the template of a batch replaces."""

BATCH = "@BATCH@"
"""The number of the batch."""
ATTEMPT = "@ATTEMPT@"
"""The number of the attempt."""
PORT = "@PORT@"
"""The port of a rank's sshd on a host network."""
