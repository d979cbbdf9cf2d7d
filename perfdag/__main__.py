"""`python -m perfdag`."""

from perfdag.cli import program

program()
