"""SIGTERM: what runs finishes, what is new is refused, and a second signal means now.

Symptoms: SIGTERM cuts streams; the flag that drains also stops the output.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from .conftest import STUB
from .running import arena_objects, gone
from .waiting import eventually

if TYPE_CHECKING:
    from .conftest import Serve
    from .running import Running

PATH = "/v1/completions"


@pytest.fixture
def server(serve: Serve, builtin: str) -> Running:
    """A stub whose steps take 20 ms, so that a stream lasts while signals come."""
    return serve([*STUB, "--model", f"stub={builtin}"], model="stub", env={"DENIZEN_STUB": '{"step_ms": 20}'})


class Stream:
    """A stream in a thread of its own."""

    def __init__(self, server: Running, tokens: int) -> None:
        self.events: list[dict[str, Any]] = []
        self.failure: Exception | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(server, tokens))
        self._thread.start()
        assert self._begun.wait(60), "the stream has not begun"

    def _run(self, server: Running, tokens: int) -> None:
        body = {"prompt": "one two three four", "max_tokens": tokens, "ignore_eos": True}
        try:
            for event in server.stream(PATH, body):
                self.events.append(event)
                self._begun.set()
        except Exception as error:
            self.failure = error
            self._begun.set()

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive(), "the stream hangs"


def test_sigterm_lets_a_stream_finish_and_refuses_new_requests(server: Running) -> None:
    tokens = 150
    stream = Stream(server, tokens)
    workers = server.workers()
    server.process.send_signal(signal.SIGTERM)
    eventually(lambda: server.get("/ready") == 503, "/ready says 503")
    at_drain = len(stream.events)
    assert at_drain < tokens
    assert server.get("/health") == 200
    refused = server.http.post(PATH, json={"model": "stub", "prompt": "x", "max_tokens": 1})
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "shutting_down"
    stream.join()
    assert stream.failure is None
    assert len(stream.events) > at_drain, "output goes on while it drains"
    assert stream.events[-1]["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(60) == 0
    assert all(gone(worker) for worker in workers)


def test_a_second_sigterm_means_now(server: Running) -> None:
    stream = Stream(server, 8000)
    workers = server.workers()
    server.process.send_signal(signal.SIGTERM)
    eventually(lambda: server.get("/ready") == 503, "/ready says 503")
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(60)
    stream.join()
    assert stream.failure is not None or "error" in stream.events[-1]
    for worker in workers:
        eventually(lambda worker=worker: gone(worker), "no worker outlives the front end")


def test_a_drain_that_takes_too_long_is_cut(serve: Serve, builtin: str) -> None:
    server = serve(
        [*STUB, "--model", f"stub={builtin}", "--drain-timeout", "1"],
        model="stub",
        env={"DENIZEN_STUB": '{"step_ms": 20}'},
    )
    stream = Stream(server, 8000)
    server.process.send_signal(signal.SIGTERM)
    stream.join()
    assert stream.failure is not None or "error" in stream.events[-1]
    server.process.wait(60)


def test_an_idle_server_stops_cleanly(serve: Serve, builtin: str) -> None:
    before = arena_objects()
    server = serve([*STUB, "--model", f"stub={builtin}"], model="stub")
    for signal_number in (signal.SIGTERM,):
        server.process.send_signal(signal_number)
    assert server.process.wait(60) == 0
    assert arena_objects() <= before
