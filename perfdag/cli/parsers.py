"""The parser of perfdag and of each verb: messages in plain words, and a command after `--`."""

import argparse
import re
import shutil
from collections.abc import Callable
from textwrap import fill
from typing import Any, NoReturn

from perfdag.removed import removal_note


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose messages name no type of Python, and whose texts fit 80 columns.

    If `takes_command` is set, all words after the first `--` become `args.command`, a list.
    """

    takes_command = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.description, self.epilog = _wrapped(self.description), _wrapped(self.epilog)
        self.register("type", int, _number(int, "whole number"))
        self.register("type", float, _number(float, "number"))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the parsed arguments and the unknown words."""
        argv = list(args)
        at = argv.index("--") if self.takes_command and "--" in argv else len(argv)
        parsed, unknown = super().parse_known_args(argv[:at], namespace)
        if self.takes_command:
            parsed.command = argv[at + 1 :]
        if unknown and self.get_default("run"):
            self.error(self._unknown(unknown, argv[:at], getattr(parsed, "suite", None)))
        return parsed, unknown

    def _unknown(self, words: list[str], argv: list[str], suite: str | None) -> str:
        """Return what is wrong with words of `argv` that no option and no argument takes."""
        from perfdag.suite.document import nearest
        from perfdag.suite.model import Suite

        if self.takes_command and suite and shutil.which(suite):
            command = " ".join(argv[argv.index(suite) :])
            return f"{suite} is no suite file; to measure a command: perfdag run -- {command}"
        option = next((word for word in words if word.startswith("-")), None)
        if option is None:
            return f"unrecognized arguments: {' '.join(words)}"
        name, _, value = option.partition("=")
        key, options = name.lstrip("-").replace("-", "_"), self._option_string_actions
        if "--set" in options and key in Suite.model_fields:
            after = words[words.index(option) + 1 :]
            return f"no option {name}; write --set {key}={value or ''.join(after[:1]) or 'V'}"
        return f"no option {name}{nearest(name, options)}"

    def error(self, message: str) -> NoReturn:
        """Exit with the message, or with what replaces an option or a verb of 0.1."""
        words = re.findall(r"(?<=invalid choice: ')[^']+|--[\w-]+", message)
        super().error(removal_note(*words) or message)


def _wrapped(text: str | None) -> str:
    """Return a text with its paragraphs wrapped. Lines that begin with a space stay as they are."""
    return re.sub(r"(?m)^\S.*(?:\n\S.*)*", lambda paragraph: fill(paragraph[0], 79), text or "")


def _number(kind: type[int] | type[float], name: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no {name}") from None

    return read
