"""The verbs of `perfdag scale`."""
