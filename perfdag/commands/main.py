"""The command line: the verbs and their modules, the exit codes, and the errors of a user.

The function of a verb has the decorator `verb`, with its help and its options. Only the module of
the chosen verb is imported: `--help` stays fast.
"""

import argparse
import atexit
import errno
import gc
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NoReturn, TextIO, cast

from perfdag import __version__
from perfdag.commands.options import (
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_REACH,
    HelpFormatter,
    Parser,
    add_parser,
    log_to_stderr,
    option,
    verb,
)
from perfdag.problems import PerfdagError
from perfdag.redaction import redact

GROUPS = {
    "measure": {
        "init": "write a suite with comments, for this machine or a cluster",
        "plan": "show the points, order, shapes and expected time of a suite",
        "doctor": "check what a suite needs, here or on a cluster",
        "run": "run a suite, or one command, on this machine",
        "ab": "compare two variants of a suite in interleaved blocks",
        "suites": "list the suites that come with perfdag",
        "benchmarks": "list the benchmarks with their params, clock and metrics",
        "scale": "measure workloads and VMIs at scale",
        "queue": "measure whether work on a queue grows with its backends",
    },
    "understand": {
        "ls": "list the runs of a store",
        "show": "show the results of a run as a table",
        "report": "draw the charts and the one-file HTML report of a run",
        "open": "open the report of a run in a browser",
        "compare": "compare two runs or selections",
        "site": "write pages over all runs of a store, and serve them",
        "history": "show series over runs, with their change points",
        "check": "check a run against its thresholds and its history",
    },
    "cluster": {
        "install": "install the templates and rights on a cluster",
        "submit": "run a suite on a cluster",
        "status": "show the progress of a run on a cluster",
        "logs": "print the logs of a run's pods",
        "render": "print the manifests, for kubectl or GitOps",
    },
    "more": {
        "rm": "remove a run: its results, or its objects on a cluster",
        "prune": "remove the results of old runs",
        "collect": "write a run's Parquet file from its samples",
        "baseline": "name runs to compare with, and show the names",
        "acks": "store the acknowledgements that runs on a cluster read",
        "import": "write a suite from another tool's files, or store earlier figures",
        "new": "write the files of a new benchmark",
        "completion": "print a script that completes verbs and options in a shell",
    },
}
"""The verbs by group, as the help lists them, with their summaries."""
VERBS = {name: summary for verbs in GROUPS.values() for name, summary in verbs.items()}
MODULES = {
    **{name: name for name in (*VERBS, "step")},  # containers call `step`, which is not listed
    **dict.fromkeys(("init", "new", "suites"), "benchmarks"),
    **dict.fromkeys(("ls", "show", "report", "open", "collect", "rm", "prune"), "runs"),
    **dict.fromkeys(("check", "acks", "compare", "baseline"), "history"),
    **dict.fromkeys(("plan", "ab"), "run"),
    "completion": "main",
    "import": "imports",
    **dict.fromkeys(("install", "submit", "status", "logs", "render"), "cluster"),
}
"""The module of each verb."""
DESTRUCTIVE = ("rm", "prune")
"""Verbs that no misspelt verb is taken for."""

DESCRIPTION = """perfdag runs benchmarks on a Kubernetes cluster or on a single machine, keeps every
result, and tells you when something became slower."""
START = f"""{DESCRIPTION}

start here:
  perfdag run -- sleep 0.1     measure one command
  perfdag init                 write a suite for this machine, suite.yaml
  perfdag run suite.yaml       measure every point of it, and draw the report
  perfdag open last            look at the report
  perfdag --help               all verbs, and the exit codes
"""
EPILOG = """examples:
  perfdag run -- sleep 0.1
  perfdag plan quick
  perfdag run quick
  perfdag open last

exit codes:
  0    no sample failed
  1    a sample failed, is invalid or is missing, or nothing was measured
  2    the input is wrong; nothing was started
  3    a gate failed, or its data is absent
  4    the store, the cluster or the webhook cannot be reached; a run on a
       cluster has no plan; objects remain after rm; or there is no space for
       temporary files or standard output
  130  interrupted; continue with --resume
"""


def parser(*used: str) -> Parser:
    """Return the parser, with the arguments of the verbs in `used`. The help lists every verb."""
    lists = [
        "\n".join([f"{group}:", *(f"  {name:<11} {summary}" for name, summary in verbs.items())])
        for group, verbs in GROUPS.items()
    ]
    top = Parser(
        prog="perfdag",
        usage="perfdag [-h] [--version] VERB ...",
        description="\n\n".join([DESCRIPTION, *lists]),
        epilog=EPILOG,
        formatter_class=HelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"perfdag {__version__}")
    verbs = top.add_subparsers(
        prog="perfdag",
        dest="verb",
        metavar="VERB",
        required=True,
        help=argparse.SUPPRESS,
    )
    for name in used:
        import_module(f"perfdag.commands.{MODULES[name]}")
        add_parser(verbs, name, VERBS.get(name, ""))
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    An error that the user can cause is printed to stderr in one or two lines.
    """
    log_to_stderr()
    # Plans and histories are millions of objects without cycles, in which looking for cycles after
    # every 700 of them finds nothing and costs 10 % or more.
    gc.set_threshold(100_000)
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        print(START, end="", file=sys.stderr)
        return EXIT_INPUT
    # The bytes of a name that is not UTF-8 (PEP 383).
    if bytes_names := [text for text in arguments if re.search("[\udc80-\udcff]", text)]:
        print(f"perfdag: {bytes_names[0]!r} is not UTF-8; use another name", file=sys.stderr)
        return EXIT_INPUT
    name = next((argument for argument in arguments if not argument.startswith("-")), None)
    if name is not None and name not in MODULES:
        from perfdag.suite.document import nearest

        harmless = [verb for verb in VERBS if verb not in DESTRUCTIVE]
        hint = nearest(name, harmless) or "; `perfdag --help` lists the verbs"
        print(f"perfdag: no verb {name}{hint}", file=sys.stderr)
        return EXIT_INPUT
    try:
        args = parser(*[name] if name else []).parse_args(arguments)
        return int(args.run(args) or EXIT_OK)
    except KeyboardInterrupt as interrupt:
        if interrupt.args:
            print(f"perfdag {name}: {interrupt}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except Exception as error:
        return _explain(error, name)


class OutputStream:
    """A text stream that drops what is written after its reader has ended, as of `| head -1`.

    A command goes on to its end, so that it has its exit code. `error` is why a stream that still
    has a reader took nothing more: it is full, or was closed before the start.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text and return its length."""
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        self._try(self._stream.flush)

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.error = error.strerror or str(error)
            # what the stream still has in its buffer goes nowhere too
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def program() -> NoReturn:
    """Run `main`, then end the process without the finalizer of the interpreter.

    The finalizer sometimes aborts in a native library after the run has ended, and the exit code
    is lost: 3 of 360 short runs on a loaded machine, see apache/arrow#34314.
    """
    output, errors = _output(1, sys.stdout), _output(2, sys.stderr)
    sys.stdout, sys.stderr = cast(TextIO, output), cast(TextIO, errors)
    try:
        code = main()
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else EXIT_INPUT if exit.code else EXIT_OK
    atexit._run_exitfuncs()
    output.flush()
    if output.error:
        print(f"perfdag: standard output: {output.error}; it is incomplete", file=sys.stderr)
        code = code or EXIT_REACH
    errors.flush()
    os._exit(code)


def _output(number: int, stream: TextIO | None) -> OutputStream:
    """Return a stream for the command, where it is None one that takes nothing.

    Python has no stream for a descriptor that was closed before the start. Another file, such as a
    sample, would get its number and what is printed.
    """
    if stream is None:
        os.dup2(os.open(os.devnull, os.O_RDONLY), number)
        stream = os.fdopen(number, "w", closefd=False)
    cast(io.TextIOWrapper, stream).reconfigure(errors="backslashreplace")
    return OutputStream(stream)


def _explain(error: Exception, verb: str | None) -> int:
    """Print an expected error and return its exit code. Raise any other error again."""
    if isinstance(error, PerfdagError):
        from perfdag.suite.document import BadDocument

        # each problem of a document begins with its file and line
        text = str(error) if isinstance(error, BadDocument) else f"perfdag {verb}: {error}"
        print(redact(text), file=sys.stderr)
        return error.exit_code
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "hera":
        print("perfdag: hera is not installed: pip install 'perfdag[argo]'", file=sys.stderr)
        return EXIT_INPUT
    # tempfile raises a plain OSError where no temporary folder can be written.
    if isinstance(error, OSError) and (
        error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
        or "temporary directory" in str(error)
    ):
        advice = "free some space, or name another folder with TMPDIR"
        print(f"perfdag: no space for temporary files: {error}; {advice}", file=sys.stderr)
        return EXIT_REACH
    raise error


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


@verb(
    "completion",
    "Print a script that completes verbs, options, file names and runs in a shell. "
    "The file that takes it depends on the shell; a new shell reads it.",
    """
    examples:
      perfdag completion bash > ~/.local/share/bash-completion/completions/perfdag
      perfdag completion zsh > ~/.zfunc/_perfdag
      perfdag completion fish > ~/.config/fish/completions/perfdag.fish

    zsh reads ~/.zfunc if ~/.zshrc has `fpath+=~/.zfunc` before `compinit`.
    """,
    option("shell", choices=("bash", "zsh", "fish"), help="the shell"),
)
def run_completion(args: argparse.Namespace) -> None:
    """Print the script of a shell."""
    import shtab

    top = parser(*VERBS)
    verbs: Any = next(action for action in top._actions if action.dest == "verb")
    verbs.help = "what to do"
    completions = {
        **dict.fromkeys(("SUITE", "SUITE_B", "FILE"), shtab.FILE),
        **dict.fromkeys(("ROOT", "DIR"), shtab.DIRECTORY),
        **dict.fromkeys(("RUN", "A", "B"), COMPLETE_RUNS),
    }
    parsers = [top]
    for parser_of_verb in parsers:  # which grows
        for action in parser_of_verb._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
            elif action.metavar in completions:
                action.complete = completions[action.metavar]  # type: ignore[attr-defined]
    print(shtab.complete(top, args.shell))
