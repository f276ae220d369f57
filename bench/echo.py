"""The child process that baselines are measured against: sends back what it gets.

`python -m denizen.bench.echo arena|socket|http FD`; ends when the other side closes (`http`: when it is killed). Of an
arena message with an attachment only the envelope goes back, so that a flow of blobs is measured in one direction.
`http` listens on FD and answers every POST with its own body, by the least HTTP that a client takes.
"""

from __future__ import annotations

import asyncio
import socket
import sys


def arena(fd: int) -> None:
    from denizen._native import Arena, PeerGone

    with Arena.attach(fd) as peer:
        peer.set_phase(4)
        try:
            while True:
                for envelope, _ in peer.recv():
                    peer.send(envelope)
        except PeerGone:
            return


def plain_socket(fd: int) -> None:
    with socket.socket(fileno=fd) as peer:
        while message := peer.recv(1 << 16):
            peer.send(message)


class _Http(asyncio.Protocol):
    """HTTP/1.1 with keep-alive and Content-Length, nothing else."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].lower()
            start = head.find(b"content-length:")
            size = int(head[start + 15 :].split(b"\r\n", 1)[0]) if start >= 0 else 0
            if len(self._received) < end + 4 + size:
                return
            body, self._received = self._received[end + 4 : end + 4 + size], self._received[end + 4 + size :]
            self._transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (size, body)
            )


def http(fd: int) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(_Http, sock=socket.socket(fileno=fd))
        await server.serve_forever()

    asyncio.run(serve())


if __name__ == "__main__":
    {"arena": arena, "socket": plain_socket, "http": http}[sys.argv[1]](int(sys.argv[2]))
