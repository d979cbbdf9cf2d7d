"""How clients reach the servers of a host through a Service.

As a program it runs in pods: `connect SECONDS ADDRESS PORT...` waits until each address answers.
`listen ADDRESS PORT...` is what answers.
"""

import contextlib
import socket
import sys
import time
from collections.abc import Sequence

PROGRAM = ("python3", "-m", "perfdag.hosts.forwarding")


def listen(address: str, ports: Sequence[int]) -> None:
    """Accept connections until the process ends. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.ExitStack() as servers:
        for port in ports:
            server = socket.create_server((address, port), family=family, backlog=4096)
            servers.enter_context(server)
        time.sleep(600)


def connect(seconds: float, targets: Sequence[tuple[str, int]]) -> str | None:
    """Connect to each address and port. Return which did not answer within `seconds`, or None."""
    deadline = time.monotonic() + seconds
    for target in targets:
        while True:
            try:
                socket.create_connection(target, timeout=1.0).close()
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    return f"{target[0]} port {target[1]}: {error}"
                time.sleep(0.1)
    return None


if __name__ == "__main__":
    first, *rest = sys.argv[2:]
    if sys.argv[1] == "listen":
        listen(first, list(map(int, rest)))
    sys.exit(connect(float(first), list(zip(rest[::2], map(int, rest[1::2]), strict=True))))
