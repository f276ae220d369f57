"""A client on a bare socket, to be cut off at will."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .running import Running


class Caller:
    """Sends a request that is written out already, or the first part of one."""

    def __init__(self, server: Running, request: bytes) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=120)
        self._socket.sendall(request)

    def read_events(self, count: int) -> None:
        """Reads until `count` events have come."""
        received = b""
        while received.count(b"\ndata:") < count:
            chunk = self._socket.recv(65536)
            assert chunk, f"the server closed the connection: {received!r}"
            received += chunk

    def vanish(self, *, reset: bool = False) -> None:
        """Closes the connection; with `reset` the way a crash does (RST), else the orderly way (FIN)."""
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._socket.close()
