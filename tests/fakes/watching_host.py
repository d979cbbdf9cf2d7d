"""A host of this machine that watches where servers listen and on which CPUs."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfdag.hosts.local import LocalHost


class WatchingHost(LocalHost):
    """This machine; keeps on which CPUs a server may run, once it listens, and on which commands
    were asked to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[str | None] = []
        self.serving: set[int] = set()
        self.listening: set[str] = set()

    def serve(self, argv: Sequence[str], **options: Any) -> Any:
        server = super().serve(argv, **options)
        self.serving = os.sched_getaffinity(server._popen.pid)
        port = f"{options['port']:04X}"
        rows = [
            line.split()[1].split(":")
            for table in ("tcp", "tcp6", "udp", "udp6")
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        ]
        self.listening = {address for address, number in rows if number == port}
        return server

    def run(self, argv: Sequence[str], **options: Any) -> Any:
        self.requests.append(options.get("cpus"))
        return super().run(argv, **options)
