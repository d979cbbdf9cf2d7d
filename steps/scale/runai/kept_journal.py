"""The journal of a benchmark: the state of its session, in the store while it measures.

A killed pod leaves it there, so that `perfdag scale sample` can write the stages.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from perfdag.steps.scale.runai.run_file import write_journal
from perfdag.steps.scale.scenarios.session import Session
from perfdag.steps.scale.scenarios.vmi_spec import Spec
from perfdag.store.base import StoreError

PERIOD = 5.0
"""Seconds between two copies of a changed file."""


@contextmanager
def kept_journal(spec: Spec, folder: Path, keep: Callable[[str, bytes], None]) -> Iterator[None]:
    """Write the journal of each session to `folder`, and keep its files by `keep`.

    A thread copies them, because a slow store would delay the watches.
    """

    def write(session: Session) -> None:
        write_journal(folder / session.run, session)

    spec.journal, stop = write, threading.Event()
    copier = threading.Thread(target=_copy, args=(spec, folder, keep, stop), daemon=True)
    copier.start()
    try:
        yield
    finally:
        stop.set()
        copier.join()


def _copy(
    spec: Spec, folder: Path, keep: Callable[[str, bytes], None], stop: threading.Event
) -> None:
    seen: dict[Path, int] = {}
    while not stop.wait(PERIOD):
        try:
            for path in sorted(folder.glob("*/*.json*")):
                changed = path.stat().st_mtime_ns
                if seen.get(path) != changed:
                    keep(f"{path.parent.name}/{path.name}", path.read_bytes())
                    seen[path] = changed
        except (StoreError, OSError) as error:
            spec.log(f"the journal is not kept any more: {error}")
            return
