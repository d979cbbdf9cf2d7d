"""`perfdag completion`: print a script that completes verbs and options in a shell."""

import argparse
from typing import Any

from perfdag.exit_codes import EXIT_OK

EPILOG = """examples:
  perfdag completion bash > ~/.local/share/bash-completion/completions/perfdag
  perfdag completion zsh > ~/.zfunc/_perfdag
  perfdag completion fish > ~/.config/fish/completions/perfdag.fish

zsh reads ~/.zfunc if ~/.zshrc has `fpath+=~/.zfunc` before `compinit`.
"""
FILES = ("SUITE", "SUITE_B", "FILE")
FOLDERS = ("ROOT", "DIR")


def add(sub: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    parser = sub.add_parser(
        "completion",
        description="Print a script that completes verbs, options and file names in a shell. "
        "The file that takes it depends on the shell; a new shell reads it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the script of a shell."""
    import shtab

    from perfdag.cli import VERBS, parser

    top = parser(*VERBS)
    verbs: Any = next(action for action in top._actions if action.dest == "verb")
    verbs.help = "what to do"
    for name, summary in VERBS.items():
        verbs._choices_actions.append(verbs._ChoicesPseudoAction(name, (), summary))
    _complete_paths(top)
    print(shtab.complete(top, args.shell))
    return EXIT_OK


def _complete_paths(parser: argparse.ArgumentParser) -> None:
    """Mark the arguments of a parser and of its verbs that are files or folders."""
    import shtab

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                _complete_paths(verb)
        elif action.metavar in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
