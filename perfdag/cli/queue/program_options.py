"""Options of the programs of `perfdag queue`, which also work with one dash."""

import argparse
from typing import Any


def add_program(
    programs: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    summary: str,
    examples: str,
) -> argparse.ArgumentParser:
    """Add and return the parser of a program."""
    return programs.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:],
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_option(
    parser: argparse.ArgumentParser, name: str, default: Any, text: str, **more: Any
) -> None:
    """Add an option of the type of its default. A default of False makes it a flag."""
    if isinstance(default, bool):
        more["action"] = "store_true"
    elif default is not None:
        more.setdefault("type", type(default))
    help_text = f"{text} (default: {default})" if default not in (None, "", False) else text
    parser.add_argument(f"--{name}", f"-{name}", default=default, help=help_text, **more)


def after_dashes(argv: list[str]) -> list[str]:
    """Return the words without a leading `--`."""
    return argv[1:] if argv[:1] == ["--"] else argv
