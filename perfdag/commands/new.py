"""`perfdag init` and `new`: write a suite, or the files of a new benchmark."""

import argparse
import keyword
import os
import re
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from perfdag.benchmark import registry
from perfdag.commands.options import EXIT_OK, CommandError, Verbs, add_verb, option
from perfdag.hosts.local import LocalHost
from perfdag.suite.load import suite_name

INIT_EPILOG = """examples:
  perfdag init
  perfdag init net.yaml --cluster
"""


def add_init(sub: Verbs) -> None:
    """Register the verb."""
    add_verb(
        sub,
        "init",
        run_init,
        "Write a small suite with comments, as a beginning. It measures this machine "
        "with the tools that are installed, or with --cluster two nodes of a cluster.",
        INIT_EPILOG,
        option("file", nargs="?", metavar="FILE", default="suite.yaml", help="new file"),
        option("--cluster", action="store_true", help="for a cluster, not this machine"),
    )


def run_init(args: argparse.Namespace) -> int:
    """Write the suite and print the command that runs it."""
    print(f"wrote {args.file}; run it: {write_suite(args.file, args.cluster)}")
    return EXIT_OK


NEW_EPILOG = """examples:
  perfdag new sysbench
  perfdag new sysbench --folder ../sysbench
"""


def add_new(sub: Verbs) -> None:
    """Register the verb."""
    add_verb(
        sub,
        "new",
        run_new,
        "Write a package with one benchmark: its entry point, its code, its "
        "Containerfile, a test that records the tool, and a suite. It measures dd until you "
        "change it.",
        NEW_EPILOG,
        option("name", metavar="NAME", help="name of the benchmark in suites"),
        option(
            "--folder", metavar="FOLDER", help="new folder of the package (default: ./perfdag-NAME)"
        ),
    )


def run_new(args: argparse.Namespace) -> int:
    """Write the files and print what to do next."""
    files = write_benchmark(args.name, args.folder)
    for file in files:
        print(file)
    root = args.folder or f"perfdag-{args.name}"
    print(f"next: pip install -e {root} && perfdag run {root}/suite.yaml")
    return EXIT_OK


def _templates() -> Environment:
    """Return the templates of the files that `init` and `new` write."""
    environment = Environment(
        loader=PackageLoader("perfdag.commands"),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    return environment


def write_suite(file: str, cluster: bool) -> str:
    """Write a suite with comments, and return the command that runs it.

    For this machine, a benchmark whose tools are absent is a comment. Raises CommandError if the
    file exists or cannot be written.
    """

    def usable(text: str, benchmark: str) -> str:
        tools = registry.get(benchmark).tools
        if cluster or all(LocalHost().which(tool.program) for tool in tools):
            return text
        advice = "  # not installed here: `perfdag doctor` says how to get it\n"
        return advice + "".join(f"  #{line[1:]}" for line in text.splitlines(keepends=True))

    templates = _templates()
    templates.filters["usable"] = usable
    name = suite_name(Path(file).stem)
    text = templates.get_template("suite.yaml.j2").render(name=name, cluster=cluster)
    try:
        with Path(file).open("x") as output:
            output.write(text)
    except FileExistsError:
        raise CommandError(f"{file} exists; name another file") from None
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}; name another file") from None
    return f"perfdag {'submit' if cluster else 'run'} {file}"


NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def write_benchmark(name: str, folder: str | None) -> list[Path]:
    """Write the files of a benchmark called `name` into a new folder, and return them.

    The default folder is ./perfdag-NAME. Raises CommandError for a name that is no name or is
    taken, and for a folder that exists.
    """
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        raise CommandError(f"{name!r}: a name has a-z, 0-9 and -, and begins with a letter")
    if name in registry.names():
        raise CommandError(f"package {registry.package(name)} has a benchmark {name}; rename yours")
    root = Path(folder or f"perfdag-{name}")
    if os.path.lexists(root):
        raise CommandError(f"{root} exists; remove it, or name another folder with --folder")
    module = f"perfdag_{name.replace('-', '_')}"
    cls = "".join(part.capitalize() for part in name.split("-"))
    names = {"name": name, "module": module, "cls": cls}
    templates, files = _templates(), []
    try:
        for template in templates.list_templates(filter_func=lambda path: "benchmark/" in path):
            path = template.removeprefix("benchmark/").removesuffix(".j2")
            files.append(root / path.replace("package/", f"{module}/"))
            files[-1].parent.mkdir(parents=True, exist_ok=True)
            files[-1].write_text(templates.get_template(template).render(names))
    except OSError as error:
        raise CommandError(f"cannot write {error.filename or root}: {error.strerror}") from None
    return files
