"""Keep an antagonist running beside a measured program."""

import contextlib
import time
from collections.abc import Iterator

from perfdag.benchmark.contract import Gang, Tool
from perfdag.hosts.base import Host, Server
from perfdag.outcome import Failed
from perfdag.steps.resnet50 import launch
from perfdag.steps.resnet50.copies import Copy, await_ready
from perfdag.steps.resnet50.overhead_params import AntagonistParams


@contextlib.contextmanager
def running(host: Host, gang: Gang, antagonist: AntagonistParams) -> Iterator[None]:
    """Run the antagonist in the block: a command after it settled, a model once it is warm.

    Raises Failed if it ends before the block does, since the program was then alone in part.
    """
    model, folder = antagonist.model, f"{gang.scratch}/antagonist"
    argv = launch.copy_argv(folder, model) if model else antagonist.command
    try:
        if model:
            # It is stopped with the block, so it must last longer than any run.
            spec = launch.program_input(model, duration=gang.timeout)
            host.put(f"{folder}/spec", spec)
        with host.serve(argv) as server:
            if model:
                copy = Copy(host, folder, server)
                await_ready(copy, "the antagonist", time.monotonic() + gang.timeout, model)
                host.put(f"{folder}/go", b"")
            else:
                time.sleep(antagonist.settle)
            _check(server, antagonist)
            yield
            _check(server, antagonist)
    finally:
        if model:
            host.remove(folder)


def _check(server: Server, antagonist: AntagonistParams) -> None:
    if server.alive():
        return
    exit_state = server.stop(0)
    raise Failed(
        f"antagonist {antagonist.title} ended with code {exit_state.code} before the run did:"
        f" {exit_state.tail() or 'no message'}; give a command that lasts until it is stopped",
        exit_state.texts(),
    )


def missing(host: Host, antagonist: AntagonistParams) -> list[Tool]:
    """Return what the antagonist needs and the host lacks."""
    if antagonist.model:
        return launch.missing_packages(host, antagonist.model, " for the antagonist")
    program = antagonist.command[0]
    if host.which(program):
        return []
    return [Tool(program, {}, f"`antagonist` begins with it: install it on {host.name}")]
