"""The verbs of perfdag: each with its options, its work and its text in one module."""
