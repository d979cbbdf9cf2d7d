"""How a lead watches its peer while busy loops use every CPU: no live peer may be given up, a dead
one within 15 s.

Each run is a lead and a peer (sshd) on loopback. The lead watches the peer for a while, then every process of the peer stops
without closing a connection, as on a node that is lost. Needs openssh-server. Exit 1 where a limit
is not held. Usage: python benchmarks/peer_watch.py [RUNS] [SECONDS]
"""  # noqa: E501

import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from limits import at_most

from perfdag.hosts.local import descendants
from perfdag.hosts.ssh import SshHost
from perfdag.steps.loop import GangLost
from perfdag.steps.pods.lead import GangPool
from perfdag.steps.pods.peer import client_config, make_keys, serve

RUNS, SECONDS, AT_ONCE, LOOPS_A_CPU = 50, 30.0, 10, 2
LIMIT_S, PATIENCE = 15.0, 60.0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _keys(folder: Path) -> Path:
    """Return the files of a lead and of a peer whose host key is signed."""
    make_keys(folder)
    sign = ["-s", f"{folder}/ca", "-I", "peer", "-h", "-n", "127.0.0.1", f"{folder}/host.pub"]
    for words in (["-t", "ed25519", "-N", "", "-f", f"{folder}/host"], sign):
        subprocess.run(["ssh-keygen", "-q", *words], check=True)
    return folder


def watch(seconds: float) -> float | None:
    """Return after how many seconds the lead noticed that the peer stopped, or None for a false
    alarm.
    """
    with tempfile.TemporaryDirectory() as folder:
        home, port = Path(folder), _free_port()
        keys = _keys(home / "keys")
        peer = os.fork()
        if not peer:
            os._exit(serve(keys, home / "peer", ["127.0.0.1"], port, PATIENCE))
        host = SshHost("127.0.0.1", "peer", client_config(keys, home / "lead"), port)
        pids: list[int] = []
        try:
            host.connect(PATIENCE)
            gang = GangPool(peers=[host])
            with gang.watched():
                time.sleep(seconds)
            pids = [*descendants(peer), peer]
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            start = time.monotonic()
            with contextlib.suppress(GangLost), gang.watched():
                time.sleep(PATIENCE)
            return time.monotonic() - start
        except GangLost as error:
            print(error, file=sys.stderr)
            return None
        finally:
            for pid in pids or [*descendants(peer), peer]:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(peer, 0)
            host.close()


@contextlib.contextmanager
def full_load() -> Iterator[None]:
    """Keep every CPU busy with several loops."""
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(LOOPS_A_CPU * (os.cpu_count() or 1))
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> int:
    """Print how many live peers were given up and when dead ones were; 1 where a limit is not
    held.
    """
    if sys.argv[1:2] == ["--one"]:
        delay = watch(float(sys.argv[2]))
        print("lost" if delay is None else delay)
        return 0
    words = sys.argv[1:]
    runs = int(words[0]) if words else RUNS
    seconds = float(words[1]) if words[1:] else SECONDS

    def run(_: int) -> str:
        argv = [sys.executable, __file__, "--one", str(seconds)]
        return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    with full_load(), ThreadPoolExecutor(AT_ONCE) as pool:
        ends = [*pool.map(run, range(runs))]
    delays = [float(end) for end in ends if end != "lost"]
    print(f"{runs} runs of {seconds:g} s, {AT_ONCE} at once, load {os.getloadavg()[0]:.0f}:")
    ok = at_most("live peers given up", len(ends) - len(delays), 0)
    if delays:
        print(f"    dead peers noticed: median {statistics.median(delays):.1f} s")
        ok &= at_most("dead peers noticed, slowest", max(delays), LIMIT_S, "s")
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
