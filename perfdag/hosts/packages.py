"""How to install a missing tool."""

import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec


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
    for manager, (program, command) in commands.items():
        if manager in packages and shutil.which(program):
            return f"{command} {packages[manager]}"
    return (
        ", ".join(
            f"{commands.get(manager, ('', manager))[1]} {package}"
            for manager, package in packages.items()
        )
        or "not packaged"
    )
