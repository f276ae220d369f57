"""A server that runs short of something: descriptors, a reader of its log, the means to start a worker."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.running import Running
from tests.e2e.waiting import eventually

from .conftest import STUB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Stub

FILES = 256


class Unread(Running):
    """A server whose stderr is a full pipe."""

    def start(self) -> None:
        self.pipe, end = os.pipe()
        os.set_blocking(end, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(end, bytes(4096))
        os.set_blocking(end, True)
        self._process = subprocess.Popen(
            self.command, stdout=subprocess.DEVNULL, stderr=end, env=self._env, start_new_session=True
        )
        os.close(end)

    def read(self) -> str:
        """Makes room, and returns what the server has been waiting to say until it says no more."""
        with open(self.pipe, "rb") as pipe:
            return pipe.read().lstrip(b"\0").decode()


@pytest.fixture
def arguments(checkpoint: Path) -> list[str]:
    return ["--model", f"bytes={checkpoint}", *STUB]


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    opened: list[socket.socket] = []
    yield opened
    for one in opened:
        one.close()


def kill_worker(server: Running) -> None:
    [worker] = server.workers()
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: server.workers() not in ([], [worker]), "another worker is started")
    server.wait_ready()
    assert server.complete("abc", max_tokens=2)["choices"][0]["text"] == "ab"


def test_idle_connections_take_no_descriptor_that_the_server_needs(
    arguments: list[str], sockets: list[socket.socket]
) -> None:
    """Probes are answered, and a worker that dies is started again, however many connections there are."""
    limit = f'ulimit -n {FILES} && exec "$@"'
    server = Running(arguments, model="bytes")
    server.command = ["sh", "-c", limit, "sh", *server.command]
    with server:
        for index in range(2 * FILES):
            one = socket.create_connection(("127.0.0.1", server.port), timeout=60)
            sockets.append(one)
            if index % 2:
                one.sendall(b"GET /health HTTP/1.1\r\nHost: ")
        assert server.get("/health") == 200
        kill_worker(server)


def test_a_log_that_nobody_reads_holds_up_nobody(arguments: list[str]) -> None:
    with Unread(arguments, model="bytes") as server:
        kill_worker(server)
        assert server.get("/health") == 200
        os.kill(server.pid, signal.SIGTERM)
        assert server.process.wait(60) == 0


def test_a_log_that_is_read_late_is_whole(arguments: list[str]) -> None:
    with Unread(arguments, model="bytes") as server:
        kill_worker(server)
        os.kill(server.pid, signal.SIGTERM)
        log = server.read()
    assert "it was killed by SIGKILL" in log
    assert log.splitlines()[-1].startswith("shutting down")


def test_a_worker_that_cannot_be_started_again_for_a_while_is_tried_again(stub: Stub, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    server = stub("--python", str(python))
    python.chmod(0o600)
    [worker] = server.workers()
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: "cannot be started" in server.log(), "it cannot be started")
    python.chmod(0o755)
    server.wait_ready()
    assert server.complete("abc", max_tokens=2)["choices"][0]["text"] == "ab"


def memory(server: Running) -> int:
    """Resident bytes of the front end."""
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_readers_that_stand_still_take_bounded_memory(checkpoint: Path, sockets: list[socket.socket]) -> None:
    """Symptom: 187 GB for clients that read slowly. Here each has 4 MiB, what is on its way to the socket, and the
    allocator's share; without a bound it would be 22 MiB."""
    readers, allowance = 30, 8 << 20
    # Every event has the model's name, so few tokens make many bytes: 24 MB a reader.
    model = "m" * 60_000
    body = {"model": model, "prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with Running(["--model", f"{model}={checkpoint}", *STUB], model=model) as server:
        before, most = memory(server), 0
        for _ in range(readers):
            one = socket.create_connection(("127.0.0.1", server.port), timeout=60)
            sockets.append(one)
            one.sendall(post("/v1/completions", body))

        def generated() -> bool:
            nonlocal most
            most = max(most, memory(server))
            metrics = server.metrics()
            return metrics["denizen_output_tokens_total"] == readers * 400 and metrics["denizen_worker_running"] == 0

        eventually(generated, "all tokens are generated")
        assert before < most < before + readers * allowance
        for one in sockets:
            one.close()
        server.settles()


def post(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    return f"{head}\r\n\r\n".encode() + content
