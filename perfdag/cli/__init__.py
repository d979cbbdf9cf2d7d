"""The command line, one verb a module: the composition root, the only room that knows every other.

A verb module has `SUMMARY`, `add(parser)` and `run(args) -> exit code`. Only the chosen verb is imported, so `--help` starts fast.
"""

import argparse
import atexit
import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from perfdag.exit_codes import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_OK, EXIT_REACH

VERBS = {
    "run": "run a suite on this machine",
    "plan": "points, order, shapes, batches and expected time of a suite",
    "benchmarks": "what can be measured: params, clock, metrics",
    "doctor": "what is missing for a suite, and how to get it",
    "install": "put the templates and rights on a cluster",
    "submit": "run a suite on a cluster",
    "status": "where a run on a cluster stands",
    "logs": "what the pods of a run said",
    "delete": "remove a run's objects from the cluster",
    "render": "the manifests, for kubectl or GitOps",
    "collect": "write a run's Parquet file from its samples",
    "report": "charts and the one-file HTML report of a run",
    "compare": "two runs or selections: better, worse, no difference shown, inconclusive",
    "ab": "two variants of a suite in interleaved blocks",
    "history": "series over runs, with their change points",
    "check": "the gate of a daily run",
    "baseline": "named baselines",
    "acks": "acknowledged changes, as runs on a cluster read them",
    "scale": "workloads and VMIs at scale",
    "queue": "queue scaling: frontend, backend, client, validate",
    "step": "what containers run; not for people",
}

EPILOG = """examples:
  perfdag run suites/quick.yaml
  perfdag plan suites/quick.yaml
  perfdag benchmarks iperf
  perfdag report last

exit codes: 0 nothing failed; 1 a sample failed, is invalid or missing; 2 bad input, nothing started; 3 a gate failed or its
data is absent; 4 store, cluster or webhook out of reach, no plan made on a cluster, objects left after delete, or no
room for temporary files; 130 interrupted (continue with --resume)
"""


def _module(verb: str) -> str:
    return f"perfdag.cli.{verb}"


def parser(verb: str | None = None) -> argparse.ArgumentParser:
    """The parser, with the arguments of `verb` where it is known (the other verbs only by name and summary)."""
    from importlib import import_module

    from perfdag import __version__

    top = argparse.ArgumentParser(
        prog="perfdag",
        description="Is this cluster or machine as fast as it was, as fast as it should be, and where is it not?",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"perfdag {__version__}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, summary in VERBS.items():
        if name == verb:
            import_module(_module(name)).add(verbs)
        else:
            verbs.add_parser(name, help=None if name == "step" else summary, add_help=False)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. Errors a user can cause are one or two lines on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    verb = next((each for each in arguments if each in VERBS), None)
    try:
        args = parser(verb).parse_args(arguments)
        code: int = args.run(args)
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return EXIT_OK
    except Exception as error:
        return _explain(error)
    return code


def program() -> NoReturn:
    """The program: `main`, and then an end without the interpreter's own.

    That one aborts now and then in a native library after everything was measured ("terminate called without an active exception", in
    3 of 360 short runs on a loaded machine; apache/arrow#34314 tells the same), and the exit code would be lost.
    """
    try:
        code = main()
    except SystemExit as ended:
        code = (
            ended.code
            if isinstance(ended.code, int)
            else EXIT_OK
            if ended.code is None
            else EXIT_INPUT
        )
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it has gone
            if stream is not None:  # closed before the start
                stream.flush()
    os._exit(code)


def _explain(error: Exception) -> int:
    """Exit code of an error, said on stderr; one that nobody foresaw is raised again with its traceback."""
    from perfdag.kube.client import KubeError
    from perfdag.store.base import NotStoredError, StoreError
    from perfdag.suite.yaml_document import BadDocument

    if isinstance(error, BadDocument):
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return EXIT_INPUT
    if isinstance(error, StoreError | KubeError):
        print(f"perfdag: {error}", file=sys.stderr)
        return EXIT_INPUT if isinstance(error, NotStoredError) else EXIT_REACH
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "hera":
        print(
            "perfdag: hera, which makes the manifests, is not installed: pip install 'perfdag[argo]'",
            file=sys.stderr,
        )
        return EXIT_INPUT
    # tempfile's own error where every temporary folder is full or read-only has no better type
    if isinstance(error, OSError) and (
        error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
        or "temporary directory" in str(error)
    ):
        print(
            f"perfdag: no room to work in: {error}; free some space, or name another folder with TMPDIR",
            file=sys.stderr,
        )
        return EXIT_REACH
    raise error
