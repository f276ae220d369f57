"""The bare HTTP client against a server that sends exactly the bytes that a test says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from denizen.bench.errors import BenchError
from denizen.bench.http1 import Pool

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Kept:
    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""

    def begin(self, status: int, headers: dict[str, str]) -> None:
        self.status, self.headers = status, headers

    def feed(self, data: bytes) -> None:
        assert data, "nothing to feed"
        self.body += data


def exchange(
    answer: bytes, *, step: int | None = None, close: bool = False, requests: int = 1
) -> tuple[list[Kept], int]:
    """Asks `requests` times, one after the other; returns the answers and how many connections were made.

    `step`: the server flushes after so many bytes. `close`: it closes after an answer.
    """
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await reader.read(65536):
            for part in _cut(answer, step):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            if close:
                break
        writer.close()

    async def ask() -> list[Kept]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        pool = Pool(f"http://127.0.0.1:{port}/v1")
        answers = []
        for _ in range(requests):
            answers.append(Kept())
            async with asyncio.timeout(30):
                await pool.request("/x", answers[-1], b"{}")
        pool.close()
        server.close()
        return answers

    return asyncio.run(ask()), connections


def _cut(data: bytes, step: int | None) -> Sequence[bytes]:
    return [data] if step is None else [data[start : start + step] for start in range(0, len(data), step)]


@pytest.mark.parametrize("step", [None, 1, 2, 3, 7])
@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (_CHUNKED + b"5\r\nhello\r\n6;name=value\r\n world\r\n0\r\n\r\n", b"hello world"),
        (_CHUNKED + b"A\r\n0\r\n\r\n56789\r\n0\r\nTrailer: x\r\nOther: y\r\n\r\n", b"0\r\n\r\n56789"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
    ],
)
def test_an_answer_may_be_cut_anywhere_and_its_connection_is_kept(answer: bytes, body: bytes, step: int | None) -> None:
    answers, connections = exchange(answer, step=step, requests=3)
    assert [kept.body for kept in answers] == [body] * 3
    assert {kept.status for kept in answers} == {204 if b" 204 " in answer else 200}
    assert connections == 1


def test_an_answer_without_length_ends_with_its_connection() -> None:
    answers, connections = exchange(b"HTTP/1.1 200 OK\r\n\r\nall of it", close=True, requests=2)
    assert [kept.body for kept in answers] == [b"all of it"] * 2
    assert connections == 2


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nConnection: close", b"HTTP/1.0 200 OK"])
def test_a_connection_that_the_server_will_close_is_not_used_again(head: bytes) -> None:
    _, connections = exchange(head + b"\r\nContent-Length: 2\r\n\r\nok", requests=2)
    assert connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        _CHUNKED + b"5\r\nhel",
        _CHUNKED + b"5\r\nhello\r\n",
        _CHUNKED + b"5\r\nhello\r\n0\r\n",
    ],
)
def test_an_answer_that_breaks_off_is_an_error(answer: bytes) -> None:
    with pytest.raises(ConnectionError):
        exchange(answer, close=True)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nlonger",
        _CHUNKED + b"zz\r\nhello\r\n",
    ],
)
def test_what_is_not_http_is_an_error(answer: bytes) -> None:
    with pytest.raises(ValueError, match=r"not HTTP|invalid literal|longer than its"):
        exchange(answer)


def test_what_a_sink_raises_ends_the_exchange() -> None:
    class Refuses(Kept):
        def feed(self, data: bytes) -> None:
            raise LookupError("no more")

    async def ask() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(65536)
            writer.write(_CHUNKED + b"2\r\nok\r\n")  # and never ends
            await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        pool = Pool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with asyncio.timeout(30):
            await pool.request("/x", Refuses(), b"{}")

    with pytest.raises(LookupError):
        asyncio.run(ask())


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", "http://host:port"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BenchError, match="--url"):
        Pool(url)
