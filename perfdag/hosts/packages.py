"""How to install a missing tool."""

import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec

MANAGERS = ("apt", "dnf", "zypper", "pacman", "brew", "pip")
"""Package managers that a tool may name; the first one on the machine is used."""


def install_command(packages: Mapping[str, str]) -> str:
    """Return the command that installs a tool with a package manager of this machine.

    `packages` maps package managers to names. Without one of these managers, return all commands.
    """
    # an environment that uv made has no pip
    pip = (
        f"{sys.executable} -m pip install"
        if find_spec("pip")
        else f"uv pip install --python {sys.executable}"
    )
    commands = {
        "apt": ("apt-get", "apt-get install"),
        "dnf": ("dnf", "dnf install"),
        "zypper": ("zypper", "zypper install"),
        "pacman": ("pacman", "pacman -S"),
        "brew": ("brew", "brew install"),
        "pip": (sys.executable, pip),
    }
    for manager in MANAGERS:
        program, command = commands[manager]
        if manager in packages and shutil.which(program):
            return f"{command} {packages[manager]}"
    every = [f"{commands[manager][1]} {package}" for manager, package in packages.items()]
    return ", ".join(every) or "not packaged"
