"""`perfdag scale submit`, `sample`, `plot` and `delete`: workloads and their files."""

import argparse

from perfdag.cli.options import log, print_now
from perfdag.cli.scale.command_options import (
    add_arrivals,
    add_command,
    add_context,
    add_folder,
    add_lock,
    add_variables,
)

PLOTS = ("general", "detailed", "timeline", "scurves", "ecdf", "order", "api-calls")
TYPES = ("training", "distributed", "interactive")


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the commands."""
    _add_submit(commands)
    _add_sample(commands)
    _add_plot(commands)
    _add_delete(commands)


def _add_submit(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = add_command(
        commands,
        "submit",
        "create workloads",
        "Create workloads on a schedule; write submitted.json and run.json.",
    )
    add_folder(parser)
    add_context(parser)
    parser.add_argument(
        "-t",
        "--workload-type",
        metavar="TYPE",
        choices=TYPES,
        default="training",
        help="training, distributed or interactive (default: training)",
    )
    parser.add_argument(
        "--template",
        metavar="NAME|FILE",
        help="instead of -t: vm, vmi, vmirs, pod, job, pytorchjob or a YAML file",
    )
    parser.add_argument(
        "-n", "--num-workloads", type=int, required=True, help="workloads to submit"
    )
    parser.add_argument(
        "-p", "--num-processes", type=int, default=8, help="submissions in parallel (default: 8)"
    )
    parser.add_argument(
        "--num-workers", type=int, default=1, help="workers of a distributed workload (default: 1)"
    )
    parser.add_argument("-g", "--num-gpus", default="1", help="GPUs a pod (default: 1)")
    parser.add_argument(
        "--delay",
        type=float,
        default=0.0,
        help="seconds between batches of -p, on an absolute schedule (default: 0)",
    )
    parser.add_argument("--project", help="project to submit to (default: project-0)")
    parser.add_argument("--pvc", action="store_true", help="add a claim to each workload")
    parser.add_argument(
        "--namespace",
        nargs="+",
        default=[],
        help="namespaces, used in turn (default: runai-<project>)",
    )
    parser.add_argument("--create-namespace", action="store_true", help="create missing namespaces")
    parser.add_argument(
        "--submitter",
        metavar="NAME",
        help="how to submit: api (default), kubectl or runai-cli",
    )
    add_variables(parser)
    add_arrivals(parser)
    add_lock(parser)
    parser.set_defaults(command_run=submit)


def _add_sample(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = add_command(
        commands,
        "sample",
        "observe workloads",
        "Observe the workloads and write sampled.json and stages.parquet. It can be repeated, also "
        "during the submission.",
    )
    add_folder(parser)
    add_context(parser)
    parser.add_argument(
        "-t",
        "--workload-type",
        metavar="TYPE",
        choices=TYPES,
        help="fail if the submission differs",
    )
    parser.add_argument("-p", "--project", help="fail if the submission differs")
    parser.add_argument(
        "--watch",
        type=float,
        metavar="SECONDS",
        help="watch until all are ready, at most SECONDS; needed for times below 1 s",
    )
    parser.set_defaults(command_run=sample)


def _add_plot(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = add_command(
        commands,
        "plot",
        "draw a chart",
        "Write times.csv and general.png or detailed.png from submitted.json and sampled.json.",
    )
    add_folder(parser)
    parser.add_argument(
        "--plot",
        metavar="TYPE",
        choices=PLOTS,
        default="general",
        help="general (default) or detailed; timeline, scurves, ecdf and order show "
        "stages.parquet, a picture for each run; api-calls shows the scenarios",
    )
    parser.add_argument(
        "--skip-errors",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="general, detailed: leave out workloads with erroneous times (default)",
    )
    parser.add_argument(
        "--head", type=int, metavar="N", help="only the first N workloads, in order of submission"
    )
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N of those")
    parser.set_defaults(command_run=plot)


def _add_delete(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = add_command(
        commands,
        "delete",
        "delete a run",
        "Delete all objects of a run, selected by folder or by id, and wait until they are gone.",
    )
    add_folder(parser)
    add_context(parser)
    parser.add_argument(
        "--run",
        dest="run_id",
        metavar="ID",
        help="delete all objects with this run's label, of any kind (logged at the start)",
    )
    parser.add_argument(
        "--namespace", help="with --run: only in this namespace (default: everywhere)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="how long to wait (default: 600)",
    )
    parser.set_defaults(command_run=delete)


def submit(args: argparse.Namespace) -> int:
    """Create the workloads."""
    from perfdag.app.scale import commands
    from perfdag.steps.scale.runai.submit import SubmitRequest

    session = commands.open_session(args.context, args.output_dir, args.settings, print_now, log)
    session.settings.project = args.project or session.settings.project
    session.settings.submitter = args.submitter or session.settings.submitter
    request = SubmitRequest(
        template=args.template or args.workload_type,
        count=args.num_workloads,
        parallel=args.num_processes,
        schedule=commands.schedule_of(
            args.arrival, args.rate, args.burst, args.seed, args.num_processes, args.delay
        ),
        folder=session.folder,
        settings=session.settings,
        workers=args.num_workers,
        gpus=args.num_gpus,
        pvc=args.pvc,
        namespaces=args.namespace,
        create_namespace=args.create_namespace,
        variables=commands.parse_variables(args.var),
        lock_timeout=args.lock_timeout,
        log=session.log,
    )
    return commands.submit(session, request)


def sample(args: argparse.Namespace) -> int:
    """Observe the workloads and write the files."""
    from perfdag.app.scale import commands

    return commands.sample(
        commands.open_session(args.context, args.output_dir, args.settings, print_now, log),
        watch=args.watch,
        workload_type=args.workload_type,
        project=args.project,
    )


def plot(args: argparse.Namespace) -> int:
    """Draw a chart."""
    from perfdag.app.scale import plots
    from perfdag.app.scale.commands import open_session

    session = open_session(None, args.output_dir, args.settings, print_now, log)
    return plots.plot(session, args.plot, args.skip_errors, args.head, args.tail)


def delete(args: argparse.Namespace) -> int:
    """Delete the objects of a run."""
    from perfdag.app.scale import commands

    if args.run_id and args.output_dir:
        raise ValueError("--run and -o both name a run; use one of them")
    session = commands.open_session(args.context, args.output_dir, args.settings, print_now, log)
    return commands.delete(session, args.run_id, args.namespace, args.timeout)
