"""Antagonists: load beside a measured program."""
