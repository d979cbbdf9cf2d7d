"""`perfdag queue backend`: take items of a queue and run a command for each."""

import argparse

from perfdag.cli.options import log, print_json
from perfdag.cli.queue.program_options import add_option, add_program, after_dashes

EXAMPLES = """\
  perfdag queue backend --name sleep --backoff 0.2 -- sleep 2
  perfdag queue backend --name sleep --backoff 0 -- sleep 2  # until it is empty
  perfdag queue backend --once --report -- \\
      /usr/bin/ffmpeg -v error -i in.mp4 -f null -
  perfdag queue backend --name media --backoff 0.2 \\
      --glob '/dev/dri/renderD*' --ignore -- \\
      /usr/bin/sample_multi_transcode -hw -device FILENAME \\
      -i::h265 /data/in.h265 -o::h265 /dev/null -n 600
"""


def add(programs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the program."""
    parser = add_program(
        programs,
        "backend",
        "hold one slot of a device: take items of a queue and run a command for each",
        EXAMPLES,
    )
    for name, default, text in (
        ("faddr", "localhost:9999", "frontend's address for backends"),
        ("name", "sleep", "queue"),
        (
            "backoff",
            0.0,
            "0: exit when the queue is empty; above 0: stay, and ask again after N times so many "
            "seconds, with N empty answers in a row",
        ),
        ("backoff-max", 5.0, "longest such wait in seconds"),
        ("limit", 0.0, "seconds after which an item's process group is killed; 0: never"),
        ("glob", "", "the first file that matches replaces FILENAME, for example a device"),
        ("ignore", False, "ignore the arguments in clients' requests"),
        ("once", False, "run the command once and exit, to try it out"),
        ("report", False, "with --once: print what the item used as JSON, to size its pods"),
        ("dir", "", "working directory of the command"),
        ("null-in", False, "standard input from /dev/null"),
        ("null-out", False, "standard output and error to /dev/null"),
        ("node-env", "", "environment variable with the node's name (default: host name)"),
        ("pod-env", "", "environment variable with the pod's name (default: host name)"),
        ("verbose", False, "log all messages"),
    ):
        add_option(parser, name, default, text)
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help="absolute path or built-in (sleep, usl), with arguments",
    )
    parser.set_defaults(program_run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command for each item, or once."""
    from perfdag.app.queue import backend
    from perfdag.steps.queue.backend.workload import Workload, device

    workload = Workload(
        after_dashes(args.command),
        device=device(args.glob),
        limit=max(0.0, args.limit),
        ignore=args.ignore,
        directory=args.dir,
        null_in=args.null_in,
        null_out=args.null_out,
    )
    if args.once:
        code, used = backend.run_once(workload, args.glob, log)
        if args.report:
            print_json(used)
        return code
    if args.report:
        raise ValueError("--report needs --once")
    return backend.serve(
        workload,
        args.glob,
        args.faddr,
        args.name,
        pod_variable=args.pod_env,
        node_variable=args.node_env,
        backoff=args.backoff,
        backoff_max=max(args.backoff, args.backoff_max),
        report=log,
    )
