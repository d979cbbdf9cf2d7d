"""`perfdag import`: a suite from the files of another tool, or runs from earlier figures."""

import argparse
from pathlib import Path

from perfdag.commands.imports.history import (
    TOOLS,
    History,
    check_one_environment,
    import_history,
    read_figures,
    store_history,
    suite_of,
)
from perfdag.commands.imports.suites import READERS
from perfdag.commands.options import (
    EXIT_FAILED,
    EXIT_OK,
    STORE,
    CommandError,
    option,
    run_work,
    verb,
)
from perfdag.redaction import logger
from perfdag.suite.document import dump
from perfdag.suite.load import parse_suite, suite_name
from perfdag.suite.points import enumerate_points

verb(
    "import",
    "Print a suite with the semantics of another tool's files, or store the runs of a history.",
    """
    examples:
      perfdag import kube-perftest iperf-set.yaml fio.yaml > suite.yaml
      perfdag import perfscale-load-generator kubevirt-burst-100.yaml > suite.yaml
      perfdag import history boot.csv
      perfdag import pytest-benchmark .benchmarks/*/*.json

    What a suite cannot keep is listed on stderr. Exit code 1: a benchmark is left out.
    docs/kube-perftest.md compares the two.
    """,
)(run_work)


def import_suite(args: argparse.Namespace) -> int:
    """Print the suite of another tool's files, and what it does not keep.

    Return 1 if a benchmark is left out. Raises BadDocument, or CommandError if nothing is left.
    """
    read, _ = READERS[args.action]
    imported = read(args.files)
    names = [Path(file).name for file in args.files]
    entries = imported.entries
    if not entries:
        causes = "; ".join([*imported.left_out, *imported.notes()][:3])
        raise CommandError(f"{', '.join(names)}: nothing can be measured; {causes}")
    name = next(iter(entries)) if len(entries) == 1 else args.action.removeprefix("perfscale-")
    suite = {
        "name": suite_name(name),
        "description": f"Imported from {args.action}: {', '.join(names)}.",
        "entries": [*entries.values()],
    }
    text = dump([suite])
    if merged := enumerate_points(parse_suite(text)).merged:
        imported.lose(f"{merged} equal benchmarks are measured once; raise `repetitions`")
    print(text, end="")
    for note in imported.notes():
        logger.info(f"not kept: {note}")
    for benchmark in imported.left_out:
        logger.info(f"left out: {benchmark}")
    return EXIT_FAILED if imported.left_out else EXIT_OK


def import_results(args: argparse.Namespace) -> int:
    """Store the runs of another tool's files. Return 1 if figures were left out."""
    tool = TOOLS[args.action]
    files = [Path(file) for file in args.files]
    if args.action == "asv":
        check_one_environment(files)
    history = History(Path(args.action), suite_of(args, args.action))
    for file in files:
        for figure in read_figures(tool, file):
            history.add(file.name, figure)
    history.notes.append(f"not kept: {tool.not_kept}")
    return store_history(history, args)


for name, (_, source) in READERS.items():
    verb(
        f"import {name}",
        f"Print a suite from {source}.",
        "",
        option("files", nargs="+", metavar="FILE", help="YAML files"),
    )(import_suite)

verb(
    "import history",
    "Store earlier figures as runs, so that `history`, `check`, `compare` and `site` know them. "
    "What is unusual in the file is listed on stderr.",
    """
    examples:
      perfdag import history boot.csv
      perfdag import history boot.csv --suite nightly --store s3://bench/results

    The columns are time, series, value, unit and better. A time from 2000 to tomorrow is ISO 8601
    (UTC if it names no zone), 20260102153000, or s, ms, us or ns since 1970; it is cut to whole
    seconds. Values of equal times are one run, and
    several of one series are its repetitions. A unit such as ms or MiB/s becomes its base unit.
    better is higher, lower or none. The same file gives the same runs again. Exit code 1: a line
    has no time.
    """,
    option("file", metavar="FILE", help="CSV file with a line of column names"),
    STORE,
    option("--suite", metavar="NAME", help="suite of the runs (default: name of FILE)"),
)(import_history)

for name, tool in TOOLS.items():
    verb(
        f"import {name}",
        f"Store the results of {name} as runs, like `import history`. What is not kept is listed "
        "on stderr.",
        f"""
        FILE is made by `{tool.made_by}`. Results of one time are one run. The same files give the
        same runs again.
        """,
        option("files", nargs="+", metavar="FILE", help="JSON files"),
        STORE,
        option("--suite", metavar="NAME", help=f"suite of the runs (default: {name})"),
    )(import_results)
