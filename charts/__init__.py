"""Rows of the schema to pictures, and the one-file HTML report."""
