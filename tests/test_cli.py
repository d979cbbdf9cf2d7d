"""The command line: examples in the help run, help is fast, every verb has one."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import orjson
import pytest
import yaml

from perfdag.commands.main import VERBS, main, parser
from perfdag.plan import make_plan
from perfdag.suite.load import parse_suite
from perfdag.suite.model import json_schema
from tests.conftest import CommandLine, SuiteWriter
from tests.fakes.process import PERFDAG

ROOT = Path(__file__).parent.parent


def examples_of(verb: str, cli: CommandLine) -> list[str]:
    """The examples at the end of the help of a verb."""
    examples = cli([verb, "--help"]).out.partition("examples:")[2].replace("\\\n     ", "")
    return re.findall(r"^  (perfdag .*)$", examples, re.M)


@pytest.mark.parametrize("verb", [*VERBS, "step"])
def test_help_ends_with_examples_of_that_verb(verb: str, cli: CommandLine) -> None:
    examples = examples_of(verb, cli)
    assert examples, f"perfdag {verb} --help has no examples"
    assert all(example.split()[1] == verb for example in examples)
    for example in examples:
        command = re.split(r" [|>] ", example)[0]
        assert parser(verb).parse_args(shlex.split(command)[1:]).run, example


@pytest.mark.parametrize("verb", ["run", "plan", "benchmarks", "doctor"])
def test_examples_run(verb: str, cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples that need no cluster and no earlier run are executed from the checkout; `run` as
    a dry run.
    """
    monkeypatch.chdir(ROOT)
    for example in examples_of(verb, cli):
        words = shlex.split(example)[1:]
        if "--cluster" in words or "--resume" in words or "s3:" in example:
            continue
        if verb == "run" and "--dry-run" not in words:
            words.insert(1, "--dry-run")
        assert main(words) in ((0, 1) if verb == "doctor" else (0,)), example


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from perfdag.commands.main import main\ntry: main(['--help'])\n"
        "except SystemExit: pass\nprint([m for m in ('pydantic', 'yaml', 'rich', 'numpy', "
        "'pyarrow') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"


HINTS = """\
name: s
entries:
  - benchmark: fio
    rw: read
    permutations: {bs: [4KiB]}
"""


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["stauts"], "perfdag: no verb stauts; did you mean status?"),
        (["rum", "s.yaml"], "perfdag: no verb rum; did you mean run?"),
        (["prun"], "perfdag: no verb prun; did you mean run?"),
        (["frobnicate"], "perfdag: no verb frobnicate; `perfdag --help` lists the verbs"),
        (["run", "sleep", "1"], "to measure a command: perfdag run -- sleep 1"),
        (["run", "ls", "-l"], "to measure a command: perfdag run -- ls -l"),
        (["run", "sleep"], "to measure a command: perfdag run -- sleep"),
        (["run", "--", "nosuch"], "perfdag run: no program 'nosuch' here; install it"),
        (["run", "--", "ls | wc"], "no shell reads it, so write bash -c 'ls | wc'"),
        (["run", "s.yaml", "--repetitions", "3"], "write --set repetitions=3"),
        (["run", "--onyl", "a", "s.yaml"], "no option --onyl; did you mean --only?"),
        (["plan", "t.yaml"], "t.yaml: no such file; did you mean s.yaml?"),
        (["plan", "s.yaml"], "s.yaml:4: entries[0].rw: unknown key; it is a parameter of fio: write `params: {rw: ...}`"),  # noqa: E501
        (["plan", "s.yaml"], "s.yaml:5: entries[0].permutations.bs: unknown key; write `product: {bs: ...}`"),  # noqa: E501
        (["plan", "r.yaml"], r"found unknown escape character; put text with a backslash in single quotes, as in '\d+'"),  # noqa: E501
        (["run", "c.yaml"], "c.yaml:2: entries[0].params.argv: no program 'nosuch' here; install it, or say `optional: true`"),  # noqa: E501
        (["run", "c.yaml", "--set", "command.argv=[nope]"], "--set: command.argv: no program 'nope' here"),  # noqa: E501
    ],
)  # fmt: skip
def test_a_mistake_at_the_prompt_or_in_a_suite_gets_the_way_out(
    argv: list[str], message: str, cli: CommandLine
) -> None:
    Path("s.yaml").write_text(HINTS)
    Path("r.yaml").write_text('name: "\\d"\n')
    Path("c.yaml").write_text(
        "name: c\nentries: [{benchmark: command, params: {argv: [nosuch]}}]\n"
    )
    assert message in cli(argv, 2).err
    assert not Path("perfdag-results").exists()


def test_fio_reads_sizes_as_fio_writes_them() -> None:
    entry = "{benchmark: fio, params: {size: 1G}, permutations: {product: {bs: [4k, 1m]}}}"
    points = make_plan(parse_suite(f"name: s\nentries:\n  - {entry}\n")).points
    assert [(p.params["bs"], p.params["size"]) for p in points] == [
        (4096, 1 << 30),
        (1 << 20, 1 << 30),
    ]


INSTALLING = (["render", "--base"], ["install", "--store", "s3://bench/results"])
RIGHTS = "no benchmark of that name declares Kubernetes rights; these do: "


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["plan", "suite.yaml", "--store", "s3://b/r"], "no option --store"),
        (["benchmarks", "iperff"], "did you mean iperf?"),
        (["logs", "last", "--tail", "x"], "argument --tail: invalid int value: 'x'"),
        (["ls", "--newest", "x"], "argument --newest: invalid int value: 'x'"),
        (["run", "suite.yaml", "--", "sleep", "1"], "not both"),
        (["run", "--resume", "last", "--", "sleep", "1"], "leave out COMMAND"),
        (["run", "--"], "name a suite file"),
        (["run", "--set", "repetitions=x", "--", "sleep"], "repetitions"),
        *(
            (["render", "--base", "--parallel-batches", number], f"--parallel-batches: {text}")
            for number, text in (("0", "0 is too little"), ("-1", "-1"), ("many", "invalid number"))
        ),
        (
            ["render", "--base", "--keep-pods", "59s"],
            "argument --keep-pods: 59s is too little; write 60s or more",
        ),
        *(
            ([*argv, "--allow", f"{name}=a"], f"perfdag {argv[0]}: --allow {name}: {RIGHTS}")
            for argv in INSTALLING
            for name in ("iperf", "vmi-brust")
        ),
    ],
)
def test_words_without_a_meaning_are_refused(
    argv: list[str], message: str, cli: CommandLine
) -> None:
    assert message in cli(argv, 2).err


def test_a_command_is_measured_without_a_suite(cli: CommandLine) -> None:
    argv = ["run", "--set", "repetitions=2", "--json", "--no-report", "--", "sleep", "0.01"]
    result = orjson.loads(cli(argv).out)
    assert (result["suite"], result["statuses"]) == ("sleep", {"ok": 2})
    [point] = result["points"]
    assert point["params"]["argv"] == ["sleep", "0.01"]
    wall = point["metrics"][0]
    assert (wall["n"], wall["low"] <= wall["median"]) == (2, True)
    assert "checks  none: the suite has no threshold" in cli(["check", "last"]).out
    argv[-1] = "0.02"
    assert orjson.loads(cli(argv).out)["gate"]["runs"] == 1, "another command has another past"
    assert len(re.findall(r"  first run\b", cli(["ls"]).out)) == 2


def test_a_variable_at_the_prompt_is_a_text_and_a_time_has_its_unit(cli: CommandLine) -> None:
    Path("s.yaml").write_text(
        "name: s\nentries:\n  - benchmark: command\n"
        "    params: {argv: ['true'], expected: 100ms, env: {RA: 'x'}}\n"
    )
    for given, text in (("128", "128"), ("010", "010"), ('"1e3"', "1e3"), ("", "")):
        plan = orjson.loads(
            cli(["plan", "s.yaml", "--json", "--set", f"command.env.RA={given}"]).out
        )
        assert plan["points"][0]["params"]["env"] == {"RA": text}
        assert plan["points"][0]["params"]["expected"] == 0.1


@pytest.mark.parametrize("options", [[], ["--cluster"]])
def test_init_writes_a_suite_that_can_be_planned(options: list[str], cli: CommandLine) -> None:
    verb = "submit" if options else "run"
    assert f"run it: perfdag {verb} My_net.yaml" in cli(["init", "My_net.yaml", *options]).out
    text = Path("My_net.yaml").read_text()
    assert "command" in cli(["plan", "My_net.yaml"]).out
    assert (
        cli(["init", "My_net.yaml"], 2).err
        == "perfdag init: My_net.yaml exists; name another file\n"
    )
    assert Path("My_net.yaml").read_text() == text


def test_init_leaves_out_what_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["init"]) == 0
    text = Path("suite.yaml").read_text()
    assert "  # - benchmark: iperf" in text
    assert "`perfdag doctor` says how to get it" in text
    points = orjson.loads(cli(["plan", "suite.yaml", "--json"]).out)["points"]
    assert [point["benchmark"] for point in points] == ["command"]


def test_the_checked_in_schema_is_the_current_one() -> None:
    committed = orjson.loads((ROOT / "suites/suite.schema.json").read_bytes())
    if committed != orjson.loads(orjson.dumps(json_schema())):  # an assert would print all of both
        pytest.fail("`make generated` writes the schema anew; read the diff")


def test_the_schema_accepts_the_ready_suites() -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    for file in sorted((ROOT / "suites").glob("*.yaml")):
        validator.validate(yaml.safe_load(file.read_text()))


def test_plan_notes_what_only_a_cluster_refuses(write_suite: SuiteWriter, cli: CommandLine) -> None:
    suite = str(write_suite.sleeps(2, 501, extra="isolation: pod\n"))
    assert cli(["plan", suite]).err.startswith(
        "note: a cluster does not take it: 1,002 batches are more than 1,000"
    )
    assert main(["render", suite]) == 2


def test_pods_are_kept_as_long_as_an_option_says(cli: CommandLine) -> None:
    assert "deleteDelayDuration: 60s" in cli(["render", "--base", "--keep-pods", "60s"]).out


def test_benchmarks_as_json_are_complete(cli: CommandLine) -> None:
    described = orjson.loads(cli(["benchmarks", "--json"]).out)
    assert {"name", "clock", "metrics", "params", "tools"} <= set(described[0])


def test_parameters_with_units_are_described_as_a_suite_writes_them(cli: CommandLine) -> None:
    text = " ".join(cli(["benchmarks", "fio"]).out.split())
    assert " bs size (4KiB, 1MB, 1GiB) 4KiB bytes of one I/O" in text
    assert " runtime time (10s, 500ms, 5m) 10s seconds to measure" in text
    assert " directory an absolute path without $ ; # \\ or a space at its end (none)" in text


def test_without_hera_one_line_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['hera.workflows'] = None; from perfdag.commands.main import main; "
        "sys.exit(main(['render', '--base']))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert result.stderr == "perfdag: hera is not installed: pip install 'perfdag[argo]'\n"


def test_an_interpreter_that_aborts_at_its_end_does_not_change_the_exit_code() -> None:
    """As a native library's thread makes it do now and then."""
    code = (
        "import ctypes, sys; libc = ctypes.CDLL(None); libc.__cxa_atexit(libc.abort, None, "
        "None); sys.argv[1:] = {!r}; {}"
    )
    for argv, expected in ((["--version"], 0), (["no-such"], 2)):
        result = subprocess.run(
            [sys.executable, "-c", code.format(argv, "import perfdag.__main__")],
            capture_output=True,
            check=False,
        )
        assert result.returncode == expected, argv
        assert result.stdout or result.stderr
    for closed in ("1", "2"):
        result = subprocess.run(
            ["sh", "-c", f'exec "$0" -m perfdag no-such {closed}>&-', sys.executable],
            capture_output=True,
            check=False,
        )
        assert result.returncode == 2, result.stderr
    aborted = subprocess.run(
        [sys.executable, "-c", code.format([], "pass")], capture_output=True, check=False
    )
    assert aborted.returncode == -signal.SIGABRT


@pytest.mark.parametrize("left", ["output", "both"])
def test_a_reader_that_has_left_hides_neither_samples_nor_the_exit_code(
    left: str, write_suite: SuiteWriter
) -> None:
    names = ", ".join(f"{{NAME: {'n' * 250}{number}}}" for number in range(40))
    suite = write_suite(
        "name: failing\nrepetitions: 1\nentries:\n  - benchmark: command\n"
        "    params: {argv: ['false']}\n"
        f"    permutations: {{product: {{env: [{names}]}}}}\n"  # more than a stream's buffer
    )
    reader, writer = os.pipe()
    os.close(reader)
    argv = [*PERFDAG, "run", str(suite), "--no-report"]
    errors = writer if left == "both" else subprocess.PIPE
    result = subprocess.run(argv, stdout=writer, stderr=errors, text=True, check=False)
    os.close(writer)
    assert (result.returncode, "Traceback" in (result.stderr or "")) == (1, False), result.stderr
    [run] = Path("perfdag-results/runs").iterdir()
    assert len(list(run.glob("parts/*-1.json"))) == 40


@pytest.mark.parametrize(
    ("verb", "unbuffered", "redirect", "cause"),
    [
        ("init", "", ">/dev/full", "No space left on device"),
        ("plan --schema", "", ">/dev/full", "No space left on device"),
        ("--version", "", ">&-", "Bad file descriptor"),
        ("run --help", "1", ">/dev/full", "No space left on device"),
    ],
)
def test_a_stdout_that_takes_nothing_is_named_with_its_cause(
    verb: str, redirect: str, cause: str, unbuffered: str
) -> None:
    """Also without a buffer, where the first line fails and not the flush at the end."""
    command = f"PYTHONUNBUFFERED={unbuffered} {sys.executable} -m perfdag {verb} {redirect}"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    lines = [f"perfdag: standard output: {cause}; it is incomplete"]
    assert (result.returncode, result.stderr.splitlines()) == (4, lines)


BASH = """source {script}
try() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_perfdag; echo "${{COMPREPLY[@]}}"; }}
try perfdag com; try perfdag run --res; cd {folder}; try perfdag run some
perfdag() {{ echo run suite; echo 20261122T2 s; echo 20261123T1 s; }}
try perfdag show 2026; try perfdag compare last 20261123; try perfdag show la"""


def test_bash_completes_verbs_options_suites_and_runs(tmp_path: Path, cli: CommandLine) -> None:
    script = tmp_path / "perfdag.bash"
    script.write_text(cli(["completion", "bash"]).out)
    (tmp_path / "some.yaml").touch()
    argv = ["bash", "-c", BASH.format(script=script, folder=tmp_path)]
    answers = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [answer.split() for answer in answers] == [
        ["compare", "completion"],
        ["--resume"],
        ["some.yaml"],
        ["20261122T2", "20261123T1"],
        ["20261123T1"],
        ["last", "last~1"],
    ]
    assert "_shtab_perfdag_step" not in script.read_text(), "the verb of containers"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_reads_its_script_of_all_verbs(
    shell: str, tmp_path: Path, cli: CommandLine
) -> None:
    text = cli(["completion", shell]).out
    assert [verb for verb in VERBS if not re.search(rf"\b{verb}\b", text)] == []
    if shutil.which(shell):
        (tmp_path / "script").write_text(text)
        subprocess.run([shell, "-n", tmp_path / "script"], check=True)
