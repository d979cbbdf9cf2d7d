"""Hides pandas from the processes of process.py, which lies beside it.

perfdag does not need it, and Arrow takes a fifth of a second to import it where it is installed.
"""

raise ModuleNotFoundError("pandas")
