"""Fixtures that several rooms' tests share."""

import gc
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import pytest
from hypothesis import settings

from perfdag import redaction
from perfdag.commands.main import main
from perfdag.commands.options import log_to_stderr
from perfdag.hosts import disturbance
from tests.fakes.api_server import ApiServer
from tests.fakes.process import CANARY

# Tests are collected faster if the garbage of so many modules is looked for less often.
gc.set_threshold(50_000, 20, 50)
# a busy machine may take longer than the default of 200 ms for one example
settings.register_profile("perfdag", deadline=None, max_examples=40)
settings.load_profile("perfdag")
log_to_stderr()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests of a cluster without one, and begin with the slow ones.

    With several workers one of the slow ones would hold up all at the end.
    """
    if "KUBECONFIG" not in os.environ:
        no_cluster = pytest.mark.skip(reason="KUBECONFIG is not set: no cluster to test against")
        for item in items:
            if any(mark.name in ("cluster", "argo") for mark in item.iter_markers()):
                item.add_marker(no_cluster)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    gc.freeze()  # what stays until the end need not be looked through again and again


@pytest.fixture
def termination_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that Kubernetes reads the message of an ended container from."""
    message = tmp_path / "termination-log"
    message.touch()
    monkeypatch.setattr("perfdag.steps.pods.context.TERMINATION_MESSAGE", message)
    return message


@pytest.fixture
def write_suite(tmp_path: Path) -> "SuiteWriter":
    return SuiteWriter(tmp_path)


class SuiteWriter:
    """Writes suite files of the `command` benchmark, which needs no tool."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, text: str, name: str = "suite.yaml") -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def sleeps(
        self, points: int = 3, repetitions: int = 2, seconds: float = 0.01, extra: str = ""
    ) -> Path:
        """A suite of `points` sleeps that differ in one environment variable."""
        variants = ", ".join(f"{{POINT: '{i}'}}" for i in range(points))
        return self(
            f"name: sleeps\nrepetitions: {repetitions}\n{extra}entries:\n  - benchmark: command\n"
            f"    params: {{argv: [sleep, '{seconds}'], expected: {seconds}}}\n"
            f"    permutations: {{product: {{env: [{variants}]}}}}\n"
        )


class Printed(NamedTuple):
    """What a command printed."""

    out: str
    err: str


class CommandLine:
    """Runs a command of perfdag in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, argv: Sequence[str], code: int = 0) -> Printed:
        """Run `perfdag ARGV`, check that it exits with `code`, and return what it printed."""
        self.capsys.readouterr()
        try:
            exit_code = main(list(argv))
        except SystemExit as refused:  # by the parser of the options
            exit_code = cast(int, refused.code)
        printed = Printed(*self.capsys.readouterr())
        assert exit_code == code, printed
        return printed


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@pytest.fixture(scope="session", autouse=True)
def no_flush() -> Iterator[None]:
    """Files are not flushed to the disk: tests end processes, but no machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_lock_of_the_machine() -> Iterator[None]:
    """Runs of other workers, and of the processes of a test, measure at the same time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFDAG_LOCK", "none")
        yield


@pytest.fixture(scope="session", autouse=True)
def canary_figures() -> Iterator[None]:
    """Rounds have the figures of a canary without its load."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disturbance, "canary", CANARY.copy)
        yield


@pytest.fixture(autouse=True)
def in_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes ./perfdag-results into the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def no_secret_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers as secret is not removed from the output of the next."""
    monkeypatch.setattr(redaction, "_values", {})


@pytest.fixture
def server() -> ApiServer:
    """An API server in memory."""
    return ApiServer()


@pytest.fixture
def s3_root() -> str:
    """A fresh prefix on the S3 server that AWS_ENDPOINT_URL names."""
    if "AWS_ENDPOINT_URL" not in os.environ:
        pytest.skip("no S3 here: AWS_ENDPOINT_URL is not set")
    return f"s3://{os.environ.get('PERFDAG_TEST_BUCKET', 'perfdag')}/tests/{secrets.token_hex(6)}"
