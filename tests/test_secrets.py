"""Secrets stay with perfdag's own processes, whatever a measured command reads."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from perfdag import redaction
from perfdag.hosts.local import LocalHost
from perfdag.kube.patch import Context, patch, store_variables
from perfdag.plan import make_plan
from perfdag.redaction import is_secret, map_texts, redact, redact_json, register
from perfdag.shape import Shape
from perfdag.steps.pods.context import take_store_variables
from perfdag.suite.document import BadDocument
from perfdag.suite.load import parse_suite
from perfdag.workflows.installation import Installation
from perfdag.workflows.templates import host
from tests.conftest import CommandLine
from tests.fakes.process import PERFDAG

STORE = {"AWS_SECRET_ACCESS_KEY": "the-store-key", "EXTRA_OF_STORE": "me:pw@proxy"}


def test_a_measured_process_has_no_variable_of_perfdag_or_of_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_SESSION_TOKEN", "PERFDAG_WEBHOOK", "PERFDAG_STORE"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("EDITOR", "vi")
    for name in ("PERFDAG_IPS", "PERFDAG_SSH_CONFIG", "PERFDAG_SSH_PORTS"):  # only a lead has them
        monkeypatch.delenv(name, raising=False)
    lines = LocalHost().run(["env"], timeout=20, env={"OWN": "1"}).stdout.splitlines()
    names = {line.partition("=")[0] for line in lines}
    assert {"EDITOR", "OWN", "PATH"} <= names
    assert not [name for name in names if name.startswith(("AWS_", "PERFDAG_"))]


def test_a_lead_takes_the_variables_of_the_store_and_leaves_none_to_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pod: Any = host(Installation(store_secret="keys"))
    sources = pod.env_from
    assert [source.secret_ref.name for source in sources] == ["keys", "keys-measure"], (
        "a credential for measuring comes last, so it replaces that of the other steps"
    )
    for name, value in STORE.items():
        monkeypatch.setenv(name, "unset")
        monkeypatch.setenv(f"{sources[0].prefix}{name}", value)
    take_store_variables()
    assert {name: os.environ[name] for name in STORE} == STORE
    seen = LocalHost().run(["env"], timeout=20).stdout
    assert not [text for text in STORE.values() if text in seen]
    # a program may print what the step holds; no name tells that this value is secret
    assert redact(f"via {STORE['EXTRA_OF_STORE']}!") == "via [redacted]!"


SUITE = """\
name: hiding
entries:
  - {benchmark: command, params: {argv: [sh, -c, 'env; echo $API_TOKEN >&2; exit 3'], exit_code: 3}}
  - {benchmark: command, name: broken, params: {argv: [sh, -c, 'echo $API_TOKEN; exit 4']}}
  - {benchmark: command, name: leak, params: {argv: [sh, -c, 'env; echo $GITHUB_TOKEN; exit 5']}}
"""


def test_secret_values_are_in_nothing_that_a_run_stores_or_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    suite, root = tmp_path / "suite.yaml", tmp_path / "store"
    suite.write_text(SUITE)
    hidden = {
        "AWS_SECRET_ACCESS_KEY": "bucket-secret",
        "GITHUB_TOKEN": "a-token-of-the-user",
        "API_TOKEN": "suite-secret",
    }
    for name, value in hidden.items():
        monkeypatch.setenv(name, value)
    printed = "".join(
        line for options in ([], ["--json"]) for line in cli(["plan", str(suite), *options])
    )
    result = subprocess.run(
        [*PERFDAG, "run", str(suite), "--store", str(root)],
        capture_output=True,
        text=True,
        check=False,
    )
    printed += result.stdout + result.stderr
    files = {file: file.read_bytes() for file in root.rglob("*") if file.is_file()}
    results = [file for file in files if file.suffix == ".parquet" and "results" in file.parts]
    tables = [pq.read_table(file).to_pylist() for file in results]
    everything = printed.encode() + b"".join(files.values()) + repr(tables).encode()
    for value in hidden.values():
        assert value.encode() not in everything
    assert {file.name for file in files} >= {"plan.json", "report.html"}
    rows = {row["entry"]: row for row in tables[0]}
    assert rows["command"]["status"] == "ok"
    assert "sh exited 4, not 0: [redacted]" in rows["broken"]["error"], "the process has the value"
    assert "a-token" not in (rows["leak"]["error"] or "a-token")


@pytest.mark.parametrize(
    ("entry", "where"),
    [
        ("params: {argv: [id], env: {API_TOKEN: x}}", "entries[0].params.env"),
        (
            "params: {argv: [id]}, permutations: {product: {env: [{DB_PASSWORD: y}]}}",
            "entries[0].permutations.product.env",
        ),
    ],
)
def test_a_suite_that_holds_a_secret_is_refused(entry: str, where: str) -> None:
    suite = parse_suite(f"name: s\nentries:\n  - {{benchmark: command, {entry}}}\n")
    with pytest.raises(
        BadDocument, match=f"suite.yaml:3: {re.escape(where)}.*is the name of a secret"
    ):
        make_plan(suite)


def test_a_command_in_a_pod_has_the_variables_of_the_secret_of_its_shape() -> None:
    """And those of the store, since a patch replaces the whole list."""
    spec = patch(Shape.model_validate({"secret": "keys"}), Context("r", "uid", "r/{name}:1"))
    [main] = spec["containers"]
    assert main["envFrom"] == [*store_variables("perfdag-store"), {"secretRef": {"name": "keys"}}]


# No character of these stands in the mark, so that what is left of a value is recognised.
_CHARACTERS = "0123456789XYZ%{}'\"\\"
_PIECE = st.text(_CHARACTERS, min_size=1, max_size=8)


@given(core=st.text(_CHARACTERS, min_size=6, max_size=12), ends=st.tuples(_PIECE, _PIECE))
def test_no_secret_survives_nor_the_rest_of_one_that_contains_another(
    core: str, ends: tuple[str, str]
) -> None:
    """`abc123xyz` does not become `[redacted]xyz` where `abc123` is a secret too."""
    outer = core.join(ends)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redaction, "_values", {})
        register([core, outer])
        assert redact(f"via {outer}!") == "via [redacted]!"
        assert redact(f"via {core}!") == "via [redacted]!"
        data = {"text": f"{outer} {core}", outer: [core, {"deep": outer}], "number": 7}
        expected = {
            "text": "[redacted] [redacted]",
            "[redacted]": ["[redacted]", {"deep": "[redacted]"}],
            "number": 7,
        }
        assert map_texts(data, redact) == expected
        assert orjson.loads(redact_json(orjson.dumps(data))) == expected


def test_redaction_changes_texts_and_no_numbers() -> None:
    register(["123456", 'a"quote\n'])
    data = orjson.dumps({"n": 123456, "text": 'x 123456, a"quote\n!', "123456": [1.5, None]})
    assert orjson.loads(redact_json(data)) == {
        "n": 123456,
        "text": "x [redacted], [redacted]\n!",
        "[redacted]": [1.5, None],
    }


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        *(
            (name, True)
            for name in ("API_TOKEN", "aws_secret_access_key", "apikey", "DB_PASSWORD2")
        ),
        *((name, True) for name in ("DB_PASS", "GITHUB_PAT", "npm_auth", "PASS", "AUTH_HEADER")),
        *((name, True) for name in ("DATABASE_URL", "TEST_DATABASE_URL", "SENTRY_DSN", "DB_PWD")),
        *((name, False) for name in ("PATH", "PWD", "OLDPWD", "PATTERN", "BYPASS", "AUTHOR")),
        *((name, False) for name in ("SSH_AUTH_SOCK", "XAUTHORITY", "GIT_ASKPASS", "BASE_URL")),
        *((name, True) for name in ("PERFDAG_WEBHOOK", "AWS_SESSION_TOKEN", "CREDENTIALS")),
        *((name, False) for name in ("AWS_ACCESS_KEY_ID", "TOKENIZERS_PARALLELISM", "KEY_FILE")),
    ],
)
def test_names_tell_secrets(name: str, secret: bool) -> None:
    assert is_secret(name) == secret


def test_a_launcher_starts_its_own_rank_in_the_pod_itself() -> None:
    """Its process is a measured one, and has what `perfdag step rsh` needs of the pod's
    variables.
    """
    code = (
        "import sys\nfrom perfdag.hosts.local import LocalHost\n"
        "argv = [sys.executable, '-m', 'perfdag', 'step', 'rsh', '10.0.0.7', 'echo', 'here']\n"
        "print(LocalHost().run(argv, timeout=60).stdout)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PERFDAG_IPS": "fd00::7,10.0.0.7", "PERFDAG_SSH_CONFIG": "/none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.split() == ["here"], result.stderr
