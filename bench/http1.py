"""A bare HTTP/1.1 client: one request at a time a connection, each read handed on as it arrives.

The stream machinery of a general client costs more than the answers that it carries here, and at tens of thousands of
events a second the client must not become what is measured.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol
from urllib.parse import urlsplit

from denizen.bench.errors import BenchError

#: Bytes that the kernel keeps for a connection that reads slowly.
_SLOW_BUFFER = 4096


class Sink(Protocol):
    """What takes an answer. An exception in either method ends the exchange with it."""

    def begin(self, status: int, headers: dict[str, str]) -> None:
        """The head has arrived; names and values in lower case."""
        ...

    def feed(self, data: bytes) -> None:
        """A part of the body has arrived."""
        ...


class Connection(asyncio.Protocol):
    """One connection. `reusable` once the answer is complete and the server keeps the connection open."""

    def __init__(self, pace: float | None = None) -> None:
        """`pace`: bytes a second at which it reads; None = as they come."""
        self._pace = pace
        self.reusable = False
        self._transport: asyncio.Transport | None = None
        self._sink: Sink | None = None
        self._done: asyncio.Future[None] | None = None
        self._rest = b""
        self._in_body = self._chunked = self._keep = False
        self._left: int | None = 0
        """Bytes of a body of known length yet to come; None = the body ends with the connection."""

    def exchange(self, request: bytes, sink: Sink) -> asyncio.Future[None]:
        """Sends `request`; the result is set when the whole answer has been fed to `sink`.

        Fails with what `sink` raises, ValueError for an answer that is not HTTP, ConnectionError if it breaks off.
        """
        assert self._transport is not None, "not connected"
        self.reusable = self._in_body = False
        self._sink, self._done = sink, asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._done

    def close(self) -> None:
        self.reusable = False
        self._done = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        if self._in_body and not self._chunked and self._left is None and exc is None:
            self._finish()
        else:
            self._fail(exc or ConnectionResetError("the server closed it before the end of the answer"))

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._done.done():  # given up, or nothing was asked
            self.close()
            return
        try:
            if self._rest:
                data, self._rest = self._rest + data, b""
            if self._in_body or (data := self._head(data)) or self._in_body:
                self._body(data)
        except Exception as error:
            self._fail(error)
            self.close()
            return
        if self._pace is not None and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(len(data) / self._pace, self._resume)

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _head(self, data: bytes) -> bytes:
        """Reads the head if it is complete; returns what follows it."""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._rest = data
            return b""
        status_line, *lines = data[:end].decode("latin-1").split("\r\n")
        version, _, rest = status_line.partition(" ")
        if not version.startswith("HTTP/1."):
            raise ValueError("the answer is not HTTP/1.1")
        status = int(rest[:3])
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip().lower()
        data = data[end + 4 :]
        if 100 <= status < 200:
            return self._head(data)
        self._chunked = headers.get("transfer-encoding") == "chunked"
        length = headers.get("content-length")
        self._left = 0 if status in (204, 304) else int(length) if length is not None else None
        self._keep = headers.get("connection") != "close" and version == "HTTP/1.1"
        self._in_body = True
        assert self._sink is not None
        self._sink.begin(status, headers)
        return data

    def _body(self, data: bytes) -> None:
        if self._chunked:
            self._chunks(data)
            return
        if data:
            assert self._sink is not None
            self._sink.feed(data)
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                raise ValueError("the answer is longer than its content-length")
            if self._left == 0:
                self._finish()

    def _chunks(self, data: bytes) -> None:
        """Feeds all complete chunks at once: what came in one read has one time."""
        parts = []
        start = 0
        last = False
        while (line_end := data.find(b"\r\n", start)) >= 0:
            size = int(data[start:line_end].partition(b";")[0], 16)
            if size == 0:
                # Trailers, if any, end with an empty line.
                last = data.find(b"\r\n\r\n", line_end) >= 0
                break
            begin = line_end + 2
            if len(data) < begin + size + 2:
                break
            parts.append(data[begin : begin + size])
            start = begin + size + 2
        self._rest = b"" if last else data[start:]
        if parts:
            assert self._sink is not None
            self._sink.feed(parts[0] if len(parts) == 1 else b"".join(parts))
        if last:
            self._finish()

    def _finish(self) -> None:
        self._in_body = False
        self.reusable = self._keep and self._transport is not None and not self._transport.is_closing()
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


class Pool:
    """Connections to one server; as many as there are requests at once. `url` is its base, its path ignored."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise BenchError(f"--url {url}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BenchError(f"--url {url}: expected http://HOST:PORT or https://HOST")
        self._tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, port or (443 if self._tls else 80)
        netloc = parts.netloc.rpartition("@")[2]
        lines = {"Host": netloc, "Accept": "*/*", **(headers or {})}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._idle: list[Connection] = []

    async def request(
        self,
        path: str,
        sink: Sink,
        body: bytes | None = None,
        content_type: str = "application/json",
        pace: float | None = None,
    ) -> None:
        """GET, or POST of a `body`; with a `pace` over a connection of its own that reads so many bytes a second.

        Raises what :meth:`Connection.exchange` does, OSError, and TimeoutError."""
        head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\n{self._headers}"
        if body is not None:
            head += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        connection = await self._connect() if pace is None else await self._connect_slow(pace)
        try:
            await connection.exchange(head.encode("latin-1") + b"\r\n" + (body or b""), sink)
        except BaseException:
            connection.close()
            raise
        if connection.reusable and pace is None:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _connect(self) -> Connection:
        while self._idle:
            if (connection := self._idle.pop()).reusable:
                return connection
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(Connection, self._host, self._port, ssl=self._tls or None)
        return made

    async def _connect_slow(self, pace: float) -> Connection:
        """With a small receive buffer, so that what is not read soon waits at the server."""
        loop = asyncio.get_running_loop()
        [(family, kind, protocol, _, address), *_] = await loop.getaddrinfo(
            self._host, self._port, type=socket.SOCK_STREAM
        )
        ours = socket.socket(family, kind, protocol)
        try:
            ours.setblocking(False)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER)
            await loop.sock_connect(ours, address)
            name = self._host if self._tls else None
            _, made = await loop.create_connection(
                lambda: Connection(pace), sock=ours, ssl=self._tls or None, server_hostname=name
            )
        except BaseException:
            ours.close()
            raise
        return made
