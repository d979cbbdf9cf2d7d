"""command: the wall time of any command and figures that it prints, without code of your own."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import (
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from perfdag.benchmark.contract import (
    VERDICT,
    Benchmark,
    Better,
    CommandResult,
    Failed,
    Form,
    Gang,
    Measurement,
    Metric,
    Output,
    Params,
    PositiveDuration,
    ShortForm,
    Skip,
    read_report,
)
from perfdag.units import to_base, usual_direction

_SPELLING = 1.2
"""Two units whose factors are closer are one prefix: a TB is 0.91 TiB."""
WALL_TIME = Metric("wall_time", "s", "lower", "wall time of the command", headline=True)
_USAGE = (
    Metric(
        "cpu_time",
        "s",
        "lower",
        "CPU time of the command and of the children that it waited for, "
        "which the load of other programs hardly changes",
        elapsed=False,
        label="CPU time",
    ),
    Metric(
        "user_time",
        "s",
        "lower",
        "part of the CPU time outside the kernel, by its ticks",
        elapsed=False,
    ),
    Metric(
        "system_time",
        "s",
        "lower",
        "part of the CPU time in the kernel, by its ticks",
        elapsed=False,
    ),
    Metric("involuntary_switches", "1", "lower", "how often another program took the CPU from it"),
    Metric(
        "peak_memory",
        "B",
        "lower",
        "largest resident set of one process, where it exceeds that of perfdag",
    ),
)
"""What a process used, which is known of one on the machine of perfdag or in its pod."""


class Figure(Params):
    """A figure in the output: its place, its unit and its better direction."""

    model_config = ConfigDict(populate_by_name=True)

    regex: str | None = Field(
        None, description="Python regular expression; its one group is the number; last match"
    )
    json_path: str | None = Field(
        None,
        alias="json",
        description="keys (they may hold dots) and indices in JSON on stdout: jobs.0.read.bw",
    )
    unit: str = Field(
        "1",
        description="unit that the tool prints: 1, s, ms, B, MiB/s, Gbit/s, 1/s; another one of its"
        " kind that follows the number (GB/s) is read with it",
    )
    better: Better | None = Field(
        None,
        description="higher, lower or none; without it a rate is better higher, others none",
        exclude_if=lambda better: better is None,
    )

    @model_validator(mode="after")
    def _check_place(self) -> "Figure":
        to_base(self.unit)
        if (self.regex is None) == (self.json_path is None):
            raise ValueError("give either regex or json")
        try:
            groups = re.compile(self.regex).groups if self.regex is not None else 1
        except re.error as error:
            raise ValueError(f"regex: {error}") from None
        if groups != 1:
            raise ValueError(f"regex has {groups} groups; put ( ) around the number alone")
        return self

    def read(self, texts: Mapping[str, str]) -> float:
        """Return the figure in its SI base unit. Raises ValueError if it is not there."""
        if self.regex is not None:
            return self._read_match(texts, self.regex)
        return self._read_json(texts.get("stdout", ""), self.json_path or "")

    def _read_match(self, texts: Mapping[str, str], regex: str) -> float:
        for role in ("stdout", "stderr"):
            text = texts.get(role, "")
            matches = [*re.finditer(regex, text, re.M)]
            if matches:
                last = matches[-1]
                return self._value_of(last[1], text[last.end(1) :])
        raise ValueError(f"nothing matches {regex!r}")

    def _read_json(self, text: str, path: str) -> float:
        report = read_report("the command", text)
        value = next(_lookup(report, path.split(".")), None)
        if value is None:
            raise ValueError(f"no {path!r} in the JSON")
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError(f"{path} is no number")
        return self._value_of(str(value))

    def _value_of(self, printed: str, after: str = "") -> float:
        """Return what a tool prints as a number, whose unit is part of that or follows it."""
        number_and_unit = r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s.,]*)\s*"
        number = re.fullmatch(number_and_unit, printed)
        if number is None:
            raise ValueError(f"{printed!r} is no number")
        return float(number[1]) * self._factor(number[2] or after)

    def _factor(self, after: str) -> float:
        """Return the factor to the base unit, by the unit that follows a number.

        A tool that prints `976 MB/s` and then `1.1 GB/s` says which one it is. Where no unit of the
        same kind follows, or one that only spells the same prefix otherwise (KB of 1024 B), the
        figure is in `unit`.
        """
        base, factor = to_base(self.unit)
        unit = r"[ \t]?([A-Za-z\N{MICRO SIGN}\N{GREEK SMALL LETTER MU}]+(/[a-z]+)?)"
        printed = re.match(unit, after)
        if printed is None:
            return factor
        try:
            printed_base, printed_factor = to_base(printed[1])
        except ValueError:
            return factor
        if printed_base != base or printed_factor == factor:
            return factor
        ratio = printed_factor / factor
        return factor if 1 / _SPELLING < ratio < _SPELLING else printed_factor


def _lookup(node: Any, keys: Sequence[str]) -> Iterator[Any]:
    """Yield what is at a path. A key may hold dots, as fio's "99.000000"; shorter keys go first."""
    if not keys:
        yield node
    elif isinstance(node, list):
        if re.fullmatch(r"-?\d+", keys[0]) and -len(node) <= int(keys[0]) < len(node):
            yield from _lookup(node[int(keys[0])], keys[1:])
    elif isinstance(node, dict):
        for end in range(1, len(keys) + 1):
            if (key := ".".join(keys[:end])) in node:
                yield from _lookup(node[key], keys[end:])


NAME_OF_FIGURE = Form(
    "the name of a metric: at most 63 of a-z, 0-9 and _, and a letter first",
    r"^[a-z][a-z0-9_]{0,62}$",
)
Figures = dict[Annotated[str, NAME_OF_FIGURE], Figure]
_FIGURES: TypeAdapter[Figures] = TypeAdapter(Figures)
VARIABLE = Form("the name of a variable", r"^[A-Za-z_][A-Za-z0-9_.-]*$")
SHELL_OPERATORS = ("|", "||", "&&", ">", ">>", "<", "2>&1", "&")


class CommandParams(Params):
    """`argv` runs as it is, without a shell."""

    argv: Annotated[
        list[str], Field(min_length=1, description="program and arguments; no shell reads them")
    ]
    env: dict[Annotated[str, VARIABLE], str] = Field({}, description="added to the environment")
    expected: PositiveDuration = Field(1.0, description="expected wall time, for the plan")
    exit_code: int = Field(0, ge=0, le=255, description="the exit code that counts as success")
    metrics: Figures = Field(
        {},
        description="figures that the command prints; they are the headlines",
        exclude_if=lambda figures: not figures,
    )

    @classmethod
    def declared(cls, params: Mapping[str, Any]) -> tuple[Metric, ...]:
        """Return the figures of `metrics`; they are the headlines in place of the wall time."""
        try:
            figures = _FIGURES.validate_python(params.get("metrics") or {})
        except ValidationError:  # reported with the entry
            return ()
        if not figures:
            return ()
        metrics = []
        for name, figure in figures.items():
            unit, _ = to_base(figure.unit)
            better = figure.better or usual_direction(unit)
            # nobody knows what it sums up, so it may exceed the wall time
            metrics.append(
                Metric(name, unit, better, name, headline=True, lowest=-math.inf, elapsed=False)
            )
        return (*metrics, replace(WALL_TIME, headline=False))

    @field_validator("argv")
    @classmethod
    def _refuse_shell(cls, argv: list[str]) -> list[str]:
        """Refuse an operator of a shell, which the program would get as an argument."""
        operators = [text for text in argv if text in SHELL_OPERATORS]
        if operators and Path(argv[0]).name not in ("[", "expr", "test"):
            raise ValueError(f"no shell reads {operators[0]!r}; write [bash, -c, 'a | b']")
        return argv

    @property
    def only_in_ids(self) -> Mapping[str, Any]:
        """A figure without a direction had none, whatever its unit, and keeps its history."""
        aimless = [name for name, figure in self.metrics.items() if figure.better is None]
        return {"metrics": {name: {"better": "none"} for name in aimless}} if aimless else {}

    @model_validator(mode="after")
    def _check_names(self) -> "CommandParams":
        if clashes := {WALL_TIME.name, VERDICT} & self.metrics.keys():
            raise ValueError(f"metrics: {clashes.pop()} is a metric of perfdag; use another name")
        return self


class Command(Benchmark[CommandParams]):
    """Wall time and CPU time of any command, and figures that it prints.

    Clock: starts just before the process is created. It stops when the process has exited and
    its output is read. CPU time is what the kernel counted until the process was waited for.
    """

    metrics = (WALL_TIME, *_USAGE)
    short_forms: ClassVar[Mapping[str, ShortForm]] = {
        "argv": "{}",
    }
    pins = ("client",)

    def seconds(self, params: CommandParams) -> float:
        return params.expected

    def require(self, gang: Gang, params: CommandParams) -> None:
        if gang.hosts[0].which(params.argv[0]) is None:
            raise Skip(f"{params.argv[0]} is not on {gang.hosts[0].name}")

    def run(self, gang: Gang, params: CommandParams) -> list[Measurement]:
        pins = gang.shape.hosts.cpus.client
        finished = gang.hosts[0].run(params.argv, timeout=gang.timeout, env=params.env, cpus=pins)
        texts = {**finished.texts(), "timing": _timing(finished)}
        gang.output = Output(texts, [params.argv], params.argv[0])
        if finished.timed_out or finished.code != params.exit_code:
            ending = f"exited {finished.code}, not {params.exit_code}"
            if finished.timed_out:
                ending = finished.overdue
            raise Failed(f"{params.argv[0]} {ending}: {finished.tail()}".rstrip(": "))
        return parse(texts, params)


def _timing(finished: CommandResult) -> str:
    """Return what the clock and the kernel say of a command, by metric and in its unit."""
    values: dict[str, float | None] = {WALL_TIME.name: finished.seconds}
    if (usage := finished.usage) is not None:
        values |= {
            "cpu_time": usage.user + usage.system,
            "user_time": usage.user,
            "system_time": usage.system,
            "involuntary_switches": usage.involuntary_switches,
            "peak_memory": usage.peak_memory,
        }
    return "".join(f"{name}={value!r}\n" for name, value in values.items() if value is not None)


def parse(texts: Mapping[str, str], params: CommandParams) -> list[Measurement]:
    """Return the figures, the wall time and what the process used.

    Raises Failed if a figure or the wall time is not there.
    """
    values = []
    for name, figure in params.metrics.items():
        try:
            values.append(Measurement(name, figure.read(texts)))
        except (ValueError, Failed) as error:
            raise Failed(f"metrics.{name}: {error}") from None
    timing = dict(re.findall(r"^(\w+)=(.+)$", texts.get("timing", ""), re.M))
    if WALL_TIME.name not in timing:
        raise Failed("no timing of the command")
    return [
        *values,
        *(
            Measurement(name, float(number))
            for name, number in timing.items()
            if name not in params.metrics  # the suite reads a figure of that name
        ),
    ]
