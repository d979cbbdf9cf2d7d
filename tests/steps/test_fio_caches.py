"""fio with drop_caches: when they are dropped, what is said where that is not allowed, and that
they are.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from perfdag.benchmark.contract import Gang
from perfdag.hosts.base import CommandResult
from perfdag.hosts.local import LocalHost, LocalProcess
from perfdag.outcome import Skip
from perfdag.shape import Shape
from perfdag.steps import fio
from perfdag.steps.fio import Fio, FioParams

DROP = Path("/proc/sys/vm/drop_caches")


class Recording(LocalHost):
    """This machine, on which caches are only said to be dropped: with exit code `code`."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code, self.did = code, []  # type: ignore[var-annotated]

    def run(self, argv: Any, **options: Any) -> CommandResult:
        if "drop_caches" in argv[-1]:
            self.did.append("drop")
            return CommandResult(
                list(argv), self.code, "", "Read-only file system" if self.code else "", 0.0
            )
        if argv[0] == "fio":
            self.did.append("measure")
        return super().run(argv, **options)

    def serve(self, argv: Any, **options: Any) -> LocalProcess:
        if argv[0] == "fio":
            assert "--create_only=1" in argv
            self.did.append("lay out")
        return super().serve(argv, **options)


@pytest.mark.skipif(shutil.which("fio") is None, reason="needs fio")
@pytest.mark.parametrize(
    ("drop", "code", "did"),
    [(True, 0, ["lay out", "drop", "measure"]), (False, 0, ["measure"]), (True, 1, None)],
)
def test_caches_are_dropped_between_laying_out_and_measuring(
    drop: bool, code: int, did: list[str] | None, tmp_path: Path
) -> None:
    host = Recording(code)
    params = FioParams(
        rw="read",
        size="64KiB",
        bs="4KiB",
        direct=False,
        ioengine="psync",
        runtime=1.0,
        drop_caches=drop,
        directory=str(tmp_path),
    )
    gang = Gang([host], Shape(), 30.0, str(tmp_path))
    if did is None:
        with pytest.raises(Skip, match=f"drop_caches: {host.name} does not allow it"):
            Fio().run(gang, params)
        assert host.did == ["lay out", "drop"], (
            "nothing is measured with warm caches under the name of cold ones"
        )
    else:
        Fio().run(gang, params)
        assert host.did == did
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(DROP, os.W_OK), reason="needs root outside a container"
)
def test_what_was_cached_is_cached_no_more(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(os.urandom(1 << 20) * 64)

    def cached() -> int:
        """Resident pages of the page cache, in bytes (proc(5), /proc/meminfo)."""
        text = Path("/proc/meminfo").read_text()
        return int(text.split("\nCached:")[1].split()[0]) * 1024

    assert len(file.read_bytes()) == 64 << 20
    before = cached()
    fio.drop_caches(Gang([LocalHost()], Shape(), 60.0, str(tmp_path)))
    assert cached() <= before - (32 << 20)
