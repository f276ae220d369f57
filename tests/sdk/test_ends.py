"""Whatever ends, and however: calls are aborted, rows are free, nothing is left in `/dev/shm`, others go on."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from denizen.shm import Busy, Client, ConnectError, RequestError, ServerGone, Timeout

from tests.arena.harness import ENVIRONMENT
from tests.e2e.running import arena_objects
from tests.e2e.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .conftest import Rendezvous, Serve

PEER = Path(__file__).with_name("peer.py")
LONG: Any = {"max_tokens": 3000, "temperature": 0, "ignore_eos": True}
PATIENCE = 60.0
KILLS = int(os.environ.get("DENIZEN_SDK_KILLS", "12"))
"""Clients that the kill test kills in each role."""


class Peer:
    """A client process of `peer.py`."""

    def __init__(self, server: Rendezvous, role: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PEER), str(server.socket), role],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )

    def ready(self) -> Peer:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == "ready\n", self.process.communicate()[1]
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def finish(self) -> str:
        """What it says until it has ended by itself, without complaint."""
        out, err = self.process.communicate(timeout=PATIENCE)
        assert (self.process.returncode, err) == (0, ""), (out, err)
        return out


@pytest.fixture
def peer() -> Iterator[Callable[[Rendezvous, str], Peer]]:
    peers: list[Peer] = []

    def start(server: Rendezvous, role: str) -> Peer:
        peers.append(Peer(server, role))
        return peers[-1]

    yield start
    for each in peers:
        if each.process.poll() is None:
            each.process.send_signal(signal.SIGCONT)
            each.kill()


Start = "Callable[[Rendezvous, str], Peer]"


def running(server: Rendezvous) -> float:
    return server.metrics()["denizen_worker_running"]


# --- cancelling ---


def test_leaving_a_stream_frees_its_row(slow: Rendezvous) -> None:
    with slow.connect() as client:
        streams = [client.generate("abc", stream=True, **LONG) for _ in range(4)]
        for stream in streams:
            next(stream)
        eventually(lambda: running(slow) == 4, "all run")
        streams[0].close()
        with streams[1]:
            pass
        eventually(lambda: running(slow) == 2, "the closed ones have ended")
        del stream, streams
        gc.collect()
        slow.settles()
        with pytest.raises(Timeout):
            client.generate("abc", timeout=0.2, **LONG)
        slow.settles()
        assert client.generate("abc", max_tokens=3, temperature=0).text == "abc"


def test_closing_a_client_frees_its_rows(slow: Rendezvous) -> None:
    client = slow.connect()
    stream = client.generate("abc", stream=True, **LONG)
    next(stream)
    client.close()
    slow.settles()


# --- dying clients ---


@pytest.mark.timeout(600)
@pytest.mark.parametrize("role", ["idle", "streams", "unread", "uploads"])
def test_killed_clients_leave_nothing(slow: Rendezvous, peer: Any, role: str) -> None:
    before = arena_objects()
    with slow.connect() as healthy:
        beside = healthy.generate("abc", stream=True, **LONG)
        for _ in range(KILLS):
            peer(slow, role).ready().kill()
            assert next(beside).index == 0
        beside.close()
        eventually(lambda: slow.metrics()["denizen_shm_clients"] == 1, "only the healthy one is left")
        slow.settles()
        eventually(lambda: arena_objects() <= before, "objects in /dev/shm are gone")
        assert healthy.generate("abc", max_tokens=3, temperature=0).text == "abc"


@pytest.mark.timeout(600)
def test_clients_killed_at_any_moment_leave_nothing(slow: Rendezvous, peer: Any) -> None:
    """While Python starts, while it connects, while it calls: wherever the time hits."""
    before = arena_objects()
    for number in range(KILLS):
        each = peer(slow, "streams")
        deadline = time.monotonic() + 0.03 * number
        eventually(lambda deadline=deadline: time.monotonic() >= deadline, "the moment has come")
        each.kill()
    eventually(lambda: slow.metrics()["denizen_shm_clients"] == 0, "all have gone")
    slow.settles()
    eventually(lambda: arena_objects() <= before, "objects in /dev/shm are gone")


@pytest.mark.parametrize("role", ["leaves", "drops"])
def test_a_program_may_end_with_open_calls(slow: Rendezvous, peer: Any, role: str) -> None:
    """It ends at once, with status 0 and not a word on standard error but of its own thread's stream."""
    each = peer(slow, role).ready()
    _, err = each.process.communicate(timeout=PATIENCE)
    assert each.process.returncode == 0, err
    assert "Fatal" not in err, err
    assert "panic" not in err, err
    slow.settles()


def test_forks_of_a_client_harm_it_not(slow: Rendezvous, peer: Any) -> None:
    each = peer(slow, "forks").ready()
    assert each.finish() == "abc\n"


@pytest.mark.timeout(600)
def test_a_stopped_client_holds_up_nobody(serve: Serve, peer: Any) -> None:
    server = serve(step_ms=1)
    with server.connect() as healthy:
        stopped = peer(server, "streams").ready()
        stopped.process.send_signal(signal.SIGSTOP)
        for _ in range(20):
            assert (
                healthy.generate("abc", max_tokens=100, temperature=0, ignore_eos=True).usage.completion_tokens == 100
            )
        stopped.process.send_signal(signal.SIGCONT)
        stopped.kill()
        server.settles()


# --- many clients ---


def test_fifty_clients(fast: Rendezvous) -> None:
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(50) as pool:
        clients = [stack.enter_context(fast.connect()) for _ in range(50)]
        assert fast.metrics()["denizen_shm_clients"] == 50
        start = threading.Barrier(50)

        def use(number: int) -> bool:
            start.wait()
            text = f"client {number} "
            for turn in range(10):
                size = len(text) * (1 + turn % 3)
                stream = clients[number].generate(text, stream=True, max_tokens=size, temperature=0, ignore_eos=True)
                if stream.result().text != text * (size // len(text)):
                    return False
            return True

        assert all(pool.map(use, range(50)))


def test_one_client_too_many_is_told_so(serve: Serve) -> None:
    server = serve("--shm-clients", "2")
    with server.connect() as first, server.connect():
        with pytest.raises(ConnectError, match="clients"):
            server.connect()
        assert first.generate("abc", max_tokens=3, temperature=0).text == "abc"
    eventually(lambda: server.metrics()["denizen_shm_clients"] == 0, "both have gone")
    with server.connect() as third:
        assert third.generate("abc", max_tokens=3, temperature=0).text == "abc"


def test_a_full_server_is_busy(serve: Serve) -> None:
    server = serve("--max-in-flight", "3", step_ms=20)
    with server.connect() as client:
        streams = [client.generate("abc", stream=True, **LONG) for _ in range(3)]
        for stream in streams:
            next(stream)
        with pytest.raises(Busy) as raised:
            client.generate("abc")
        body = {"model": "text", "prompt": "abc"}
        response = server.http.post("/v1/completions", json=body)
        error = response.json()["error"]
        assert (raised.value.status, raised.value.code, raised.value.message) == (429, error["code"], error["message"])
        assert raised.value.retry_after == float(response.headers["retry-after"])
        for stream in streams:
            stream.close()
        server.settles()


# --- dying servers ---


def test_death_of_the_server_ends_all_calls(serve: Serve, peer: Any) -> None:
    server = serve(step_ms=20)
    each = peer(server, "ends").ready()
    client = server.connect()
    stream = client.generate("abc", stream=True, **LONG)
    next(stream)
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(ServerGone):
        stream.result()
    with pytest.raises(ServerGone):
        client.generate("abc")
    client.close()
    assert each.finish().split() == ["ServerGone"] * 3
    with pytest.raises(ConnectError, match="no server listens"):
        server.connect()


def test_a_server_that_stops_lets_calls_finish(serve: Serve) -> None:
    server = serve(step_ms=5)
    with server.connect() as client:
        stream = client.generate("abc", stream=True, max_tokens=100, temperature=0, ignore_eos=True)
        next(stream)
        os.kill(server.pid, signal.SIGTERM)

        def refused() -> bool:
            try:
                client.generate("abc", max_tokens=1)
            except (Busy, ServerGone):
                return True
            return False

        eventually(refused, "new calls are refused")
        assert stream.result().usage.completion_tokens == 100
        eventually(lambda: client.closed, "the server has said goodbye")
        with pytest.raises(ServerGone, match="shut"):
            client.generate("abc")


def test_a_worker_that_dies_fails_its_calls_only(serve: Serve, tmp_path: Path) -> None:
    fault = {"kind": "kill", "after_tokens": 5, "times": 1, "counter": str(tmp_path / "count")}
    server = serve(fault=fault)
    with server.connect() as client:
        with pytest.raises(RequestError) as raised:
            client.generate("abc", max_tokens=50, temperature=0, ignore_eos=True)
        assert raised.value.status in (500, 503)

        def again() -> Any:
            with contextlib.suppress(Busy):
                return client.generate("abc", max_tokens=3, temperature=0).text

        assert eventually(again, "the worker is back") == "abc"


def test_a_name_that_is_taken_is_refused(fast: Rendezvous) -> None:
    from .conftest import NAME

    command = [fast.command[0], "serve", "--port", "0", *fast.command[6:]]
    env = {**os.environ, "DENIZEN_RUN_DIR": str(fast.run_dir), "VIRTUAL_ENV": sys.prefix}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode != 0
    assert "--shm-name" in done.stderr
    assert NAME in done.stderr
    with Client(path=fast.socket) as client:
        assert client.generate("abc", max_tokens=3, temperature=0).text == "abc"
