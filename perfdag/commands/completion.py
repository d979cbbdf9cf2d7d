"""`perfdag completion`: print a script that completes verbs and options in a shell."""

import argparse
from typing import Any

from perfdag.commands.options import EXIT_OK, Verbs, add_verb, option

EPILOG = """examples:
  perfdag completion bash > ~/.local/share/bash-completion/completions/perfdag
  perfdag completion zsh > ~/.zfunc/_perfdag
  perfdag completion fish > ~/.config/fish/completions/perfdag.fish

zsh reads ~/.zfunc if ~/.zshrc has `fpath+=~/.zfunc` before `compinit`.
"""
FILES = ("SUITE", "SUITE_B", "FILE")
FOLDERS = ("ROOT", "DIR")
RUNS = ("RUN", "A", "B")
_STORED = "last last~1 $(perfdag ls 2>/dev/null | awk 'NR > 1 { print $1 }')"
COMPLETE_RUNS: dict[str, Any] = {
    "bash": "_perfdag_runs",
    "zsh": "_perfdag_runs",
    "fish": "(_perfdag_runs)",
    "preamble": {
        "bash": f'_perfdag_runs() {{ compgen -W "{_STORED}" -- $1; }}',
        "zsh": f"_perfdag_runs() {{ compadd {_STORED}; }}",
        "fish": f"function _perfdag_runs; string split ' ' {_STORED}; end",
    },
}
"""Shell functions that complete the runs of the store, in the form that shtab takes."""


def add_completion(sub: Verbs) -> None:
    """Register the verb."""
    add_verb(
        sub,
        "completion",
        run,
        "Print a script that completes verbs, options, file names and runs in a shell. "
        "The file that takes it depends on the shell; a new shell reads it.",
        EPILOG,
        option("shell", choices=("bash", "zsh", "fish"), help="the shell"),
    )


def run(args: argparse.Namespace) -> int:
    """Print the script of a shell."""
    import shtab

    from perfdag.commands.main import VERBS, parser

    top = parser(*VERBS)
    verbs: Any = next(action for action in top._actions if action.dest == "verb")
    verbs.help = "what to do"
    for name, summary in VERBS.items():
        verbs._choices_actions.append(verbs._ChoicesPseudoAction(name, (), summary))
    _complete_paths(top)
    print(shtab.complete(top, args.shell))
    return EXIT_OK


def _complete_paths(parser: argparse.ArgumentParser) -> None:
    """Mark the arguments of a parser and of its verbs that are files, folders or runs."""
    import shtab

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                _complete_paths(verb)
        elif action.metavar in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.metavar in RUNS:
            action.complete = COMPLETE_RUNS  # type: ignore[attr-defined]
