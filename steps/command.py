"""command: the wall time of any command, for what has no benchmark of its own."""

import re
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from perfdag.benchmark.contract import Benchmark, Gang, Metric, Output, Params, Tool
from perfdag.outcome import Failed, Measurement, Skip

VARIABLE = r"^[A-Za-z_][A-Za-z0-9_.-]*$"
_FIELDS = re.compile(r"^wall_s=(\S+)$", re.M)


class CommandParams(Params):
    """`argv` runs as it is, without a shell."""

    argv: Annotated[
        list[str], Field(min_length=1, description="program and arguments; no shell reads them")
    ]
    env: dict[Annotated[str, StringConstraints(pattern=VARIABLE)], str] = Field(
        {}, description="added to the environment"
    )
    expected: float = Field(1.0, gt=0, description="expected wall time in seconds, for the plan")
    exit_code: int = Field(0, ge=0, le=255, description="the exit code that counts as success")


class Command(Benchmark[CommandParams]):
    """Wall time of any command.

    Clock: starts just before the process is created. It stops when the process has exited and
    its output is read.
    """

    name: ClassVar[str] = "command"
    Params: ClassVar[type[CommandParams]] = CommandParams
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("wall_time", "s", "lower", "wall time of the command", headline=True),
    )
    tools: ClassVar[tuple[Tool, ...]] = ()
    pins: ClassVar[tuple[str, ...]] = ("client",)

    def seconds(self, params: CommandParams) -> float:
        return params.expected

    def require(self, gang: Gang, params: CommandParams) -> None:
        if gang.hosts[0].which(params.argv[0]) is None:
            raise Skip(f"{params.argv[0]} is not on {gang.hosts[0].name}")

    def run(self, gang: Gang, params: CommandParams) -> Output:
        host = gang.hosts[0]
        self.require(gang, params)
        finished = host.run(
            params.argv, timeout=gang.timeout, env=params.env, cpus=gang.shape.hosts.cpus.client
        )
        if finished.timed_out or finished.code != params.exit_code:
            what = (
                f"did not end within {gang.timeout:g} s"
                if finished.timed_out
                else f"exited {finished.code}, not {params.exit_code}"
            )
            raise Failed(
                f"{params.argv[0]} {what}: {finished.tail()}".rstrip(": "), finished.texts()
            )
        texts = {**finished.texts(), "timing": f"wall_s={finished.seconds!r}\n"}
        return Output(texts, [params.argv], params.argv[0])

    def parse(self, output: Output, params: CommandParams) -> list[Measurement]:
        match = _FIELDS.search(output.texts.get("timing", ""))
        if match is None:
            raise Failed("no timing of the command", output.texts)
        try:
            return [Measurement("wall_time", float(match[1]))]
        except ValueError:
            raise Failed(f"the timing is not a number: {match[1]}", output.texts) from None
