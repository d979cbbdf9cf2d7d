"""The programs of `perfdag queue`."""
