"""Servers that tests run in memory in place of the real ones."""
