"""A TCP proxy before a server, whose connections break on demand and which can be away."""

import contextlib
import socket
import threading


class Proxy:
    """Listens on a free port of `host` and passes on what comes to `upstream`."""

    def __init__(self, upstream: tuple[str, int], host: str = "127.0.0.1") -> None:
        self.upstream, self.away = upstream, False
        self._listener = socket.create_server((host, 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.away:
                client.close()
                continue
            server = socket.create_connection(self.upstream)
            self._open += [client, server]
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.close()

    def cut(self) -> None:
        """Break the connections that stand."""
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def leave(self) -> None:
        """Refuse connections and break those that stand."""
        self.away = True
        self.cut()

    def close(self) -> None:
        """End it."""
        self._listener.close()
        self.cut()
