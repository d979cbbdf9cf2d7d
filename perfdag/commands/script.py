"""Suites in Python: build, plan, run and save one. `perfdag.Suite` is the class of this module."""

import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from perfdag.commands.options import log_to_stderr
from perfdag.commands.result_text import RunResult
from perfdag.commands.run import run_plan
from perfdag.plan.plan import Plan, make_plan
from perfdag.suite import model
from perfdag.suite.document import parse_document
from perfdag.suite.load import load_model, load_suite, model_text, suite_text


class Suite(model.Suite):
    """A suite of benchmarks, with the keys of a suite file as arguments."""

    @classmethod
    def read(cls, file: str | Path) -> "Suite":
        """Return the suite of a file, with the entries of its includes. Raises BadDocument."""
        loaded = load_suite(file)
        return cls.model_validate(parse_document(suite_text(loaded), str(file)).data)

    def plan(self, only: Sequence[str] = ()) -> Plan:
        """Return the points and the order of their samples. Raises BadDocument.

        `only` are patterns of points, as in `perfdag run --only`.
        """
        return make_plan(load_model(self), only=only)

    def run(
        self, store: str | Path | None = None, *, only: Sequence[str] = (), charts: bool = True
    ) -> RunResult:
        """Measure the suite on this machine, as `perfdag run` does, and return its result.

        `store` is a folder or an address (default: the store of the suite, else
        ./perfdag-results). Progress goes to the logger `perfdag`, and to standard error unless that
        has a handler. Raises BadDocument, StoreError, and CommandError if the run ends
        before its last sample.
        """
        root = self.store if store is None else str(store)
        log_to_stderr()
        before = signal.getsignal(signal.SIGTERM)
        try:
            return run_plan(self.plan(only), root, charts=charts)
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)

    def save(self, file: str | Path) -> None:
        """Write the suite as a file that `perfdag run` and `perfdag submit` read.

        Raises BadDocument if the suite has an error, and OSError.
        """
        self.plan()
        Path(file).write_text(model_text(self), encoding="utf-8")
