"""`python -m perfdag`."""

from perfdag.commands.main import program

program()
