"""Options, errors and output that several verbs share.

@verb("ls", "List the runs of a store.", "examples: ...", STORE, JSON)
def run_ls(args: argparse.Namespace) -> None: ...
"""

import argparse
import logging
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from inspect import cleandoc
from textwrap import fill
from typing import Any, TypeAlias, TypeVar

from perfdag.problems import PerfdagError
from perfdag.redaction import logger as logger, redact
from perfdag.signals import (
    EXIT_FAILED as EXIT_FAILED,
    EXIT_GATE as EXIT_GATE,
    EXIT_INPUT as EXIT_INPUT,
    EXIT_INTERRUPTED as EXIT_INTERRUPTED,
    EXIT_OK as EXIT_OK,
    EXIT_REACH as EXIT_REACH,
    EXIT_UNCLEAR as EXIT_UNCLEAR,
    end_once as end_once,
)

Verbs: TypeAlias = "argparse._SubParsersAction[Any]"


class CommandError(PerfdagError):
    """A verb cannot do what it was asked to do.

    The message says why and what to do. `perfdag` prints it after its name and the verb.
    """


class HelpFormatter(argparse.HelpFormatter):
    """Wraps the paragraphs of a text. Lines that begin with a space stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return re.sub(r"(?m)^\S.*(?:\n\S.*)*", lambda paragraph: fill(paragraph[0], 79), text)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser with a hint for each word that it does not know.

    If `takes_command` is set, all words after the first `--` become `args.command`, a list.
    """

    takes_command = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the parsed arguments and the unknown words."""
        argv = list(args)
        # argparse would read options of the command as its own where they follow an argument.
        at = argv.index("--") if self.takes_command and "--" in argv else len(argv)
        parsed, unknown = super().parse_known_args(argv[:at], namespace)
        if self.takes_command:
            parsed.command = argv[at + 1 :]
        if unknown and self.get_default("run"):
            self.error(self._unknown(unknown, argv[:at], getattr(parsed, "suite", None)))
        return parsed, unknown

    def _unknown(self, unknown: list[str], argv: list[str], suite: str | None) -> str:
        """Return what is wrong with arguments of `argv` that the verb does not have."""
        from perfdag.suite.document import nearest
        from perfdag.suite.model import Suite

        if self.takes_command and suite and shutil.which(suite):
            command = shlex.join(argv[argv.index(suite) :])
            return f"{suite} is no suite file; to measure a command: perfdag run -- {command}"
        option = next((text for text in unknown if text.startswith("-")), None)
        if option is None:
            return f"unrecognized arguments: {' '.join(unknown)}"
        name, _, value = option.partition("=")
        key = name.lstrip("-").replace("-", "_")
        options = self._option_string_actions
        if "--set" in options and key in Suite.model_fields:
            after = argv[argv.index(option) + 1 :]
            return f"no option {name}; write --set {key}={value or ''.join(after[:1]) or 'V'}"
        return f"no option {name}{nearest(name, options)}"


@dataclass(frozen=True)
class Option:
    """An option or an argument: its names, and the keyword arguments of `add_argument`."""

    names: tuple[str, ...]
    settings: dict[str, Any]


def option(*names: str, **settings: Any) -> Option:
    """Return an option. Its type is that of its default, which its help names."""
    default = settings.get("default")
    if isinstance(default, int | float | str) and "action" not in settings:
        settings.setdefault("type", type(default))
        settings["help"] += f" (default: {default})" if default else ""
    return Option(names, settings)


W = TypeVar("W", bound=Callable[..., int | None])


@dataclass(frozen=True)
class Verb:
    """A verb or, with a space in its name, a command below one."""

    work: Callable[..., int | None]
    about: str
    epilog: str
    options: tuple[Option | list[Option] | str, ...]
    takes_command: bool
    settings: dict[str, Any]


COMMANDS: dict[str, Verb] = {}
"""What the modules imported so far have, by name."""


def verb(
    name: str,
    about: str,
    epilog: str,
    *options: Option | list[Option] | str,
    takes_command: bool = False,
    **settings: Any,
) -> Callable[[W], W]:
    """Make a function the work of a verb. It returns an exit code, or None for EXIT_OK.

    Options in a list exclude one another, and those after a text stand below it in the help. The
    function of a verb with commands runs them: each is `args.work`.
    """

    def register(work: W) -> W:
        COMMANDS[name] = Verb(work, about, cleandoc(epilog), options, takes_command, settings)
        return work

    return register


def run_work(args: argparse.Namespace) -> int:
    """Run the command below a verb."""
    return int(args.work(args) or EXIT_OK)


def add_parser(parsers: Verbs, name: str, summary: str) -> None:
    """Add the parser of a verb and of the commands below it."""
    command = COMMANDS[name]
    names = name.split()
    parser = parsers.add_parser(
        names[-1],
        help=summary,
        description=command.about,
        epilog=command.epilog,
        formatter_class=HelpFormatter,
        **command.settings,
    )
    parser.set_defaults(run=COMMANDS[names[0]].work, work=command.work)
    parser.takes_command = command.takes_command
    group = parser
    for item in command.options:
        if isinstance(item, str):
            group = parser.add_argument_group(item)
        elif isinstance(item, list):
            exclusive = group.add_mutually_exclusive_group()
            for option in item:
                exclusive.add_argument(*option.names, **option.settings)
        else:
            group.add_argument(*item.names, **item.settings)
    if below := [other for other in COMMANDS if other.startswith(f"{name} ")]:
        actions = parser.add_subparsers(dest="action", metavar="COMMAND", required=True)
        for command_name in below:
            add_parser(actions, command_name, COMMANDS[command_name].about)


SUITE_HELP = "suite file, or the name of one that `perfdag suites` lists"
RUN_HELP = (
    "run id, the beginning of one, name of its Workflow, its revision, `last`, `last~N` (N runs "
    "before) or `baseline:NAME`"
)
RUN = option("run_id", nargs="?", default="last", metavar="RUN", help=f"{RUN_HELP} (default: last)")
CLUSTER_RUN = option(
    "name",
    nargs="?",
    default="last",
    metavar="RUN",
    help="run id, name of its Workflow, the beginning of either, `last` or `last~N`",
)
STORE = option(
    "--store", metavar="ROOT", help="folder or s3://bucket/prefix (default: ./perfdag-results)"
)
HISTORY = option(
    "--history",
    metavar="ROOT",
    help="judge the run by the runs of this store, which stays as it is, instead of those of "
    "--store",
)
FORCE = option(
    "--force",
    action="store_true",
    help="do not wait for another run of yours on this machine; the trust says that it disturbs",
)
SUITE = option("--suite", metavar="NAME", help="suite, if the store has several")
SET = option(
    "--set",
    metavar="ENTRY.PARAM=V",
    action="append",
    default=[],
    dest="settings",
    help="set a parameter, a shape key, or a key of an entry or of the suite",
)
ONLY = option(
    "--only",
    metavar="GLOB",
    action="append",
    default=[],
    help="measure only points whose entry, entry/label or id matches GLOB; "
    "repeat the option to add more",
)
ACKS = option(
    "--acks",
    metavar="FILE",
    help="acknowledgements (default: ./acks.yaml, else acks.yaml in the store)",
)
WATCH = option(
    "--watch", action="store_true", help="follow the run to its end and return its exit code"
)
JSON = option("--json", action="store_true", help="print JSON")


def check_resume(args: argparse.Namespace) -> None:
    """Raise CommandError unless the command names a suite or --resume, and not both."""
    command = getattr(args, "command", None)
    if args.resume is None:
        if args.suite is None and not command:
            raise CommandError("name a suite file, or --resume RUN")
        return
    values = {"SUITE": args.suite, "COMMAND": command, "--set": args.settings, "--only": args.only}
    if names := [name for name, value in values.items() if value]:
        raise CommandError(
            f"--resume measures the rest of a run as it was planned; leave out {', '.join(names)}"
        )


def duration(text: str) -> int:
    """Return the whole seconds of a duration, at least 1. Raises argparse.ArgumentTypeError."""
    from perfdag.units import seconds

    try:
        value = int(seconds(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is too short; write 10m, 2h")
    return value


class _Lines(logging.Handler):
    """Writes a record as a line to standard error, of a terminal, a pipe or the log of a pod."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, on a terminal an error in red. A message for debugging has its time."""
        time = "%(asctime)s " if record.levelno < logging.INFO else ""
        text = redact(logging.Formatter(f"{time}%(message)s").format(record))
        if record.levelno >= logging.ERROR and sys.stderr.isatty():
            text = f"\x1b[1;31m{text}\x1b[0m"
        print(text, file=sys.stderr, flush=True)


def log_to_stderr() -> None:
    """Write what perfdag logs, progress and warnings, to standard error."""
    if not logger.handlers:
        logger.addHandler(_Lines())
        logger.setLevel(logging.INFO)


def print_json(data: Any) -> None:
    """Print plain data as indented JSON."""
    import orjson

    print(orjson.dumps(data, option=orjson.OPT_INDENT_2).decode())


def namespace(text: str) -> str:
    """Return the name of a namespace (RFC 1123 label). Raises argparse.ArgumentTypeError."""
    if not re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no name in Kubernetes: write at most 63 of a-z, 0-9 and -, and a letter"
            " or digit first and last"
        )
    return text


def object_name(text: str) -> str:
    """Return the name of an object (RFC 1123 subdomain). Raises argparse.ArgumentTypeError."""
    if len(text) > 253:
        raise argparse.ArgumentTypeError(f"{text[:20]}...: a name has at most 253 characters")
    for label in text.split("."):
        namespace(label)
    return text


NAMESPACE = option(
    *("--namespace", "-n"), type=namespace, default="perfdag", help="namespace of the installation"
)
