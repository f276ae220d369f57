"""P29 and its kind: a client that goes away frees all that its request held, at once and in every phase.

Symptoms: the KV cache is held until max_tokens after a disconnect, above all without streaming or while queued; an
abort is lost because it raced the end; an abort that meets a late result leaks pages.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from .calling import Caller
from .conftest import CPU
from .waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Serve
    from .running import Running

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "count to a thousand"}]},
    "/v1/completions": {"prompt": "one two three"},
}


def call(server: Running, path: str, body: dict[str, Any]) -> Caller:
    content = json.dumps({"model": server.model, "ignore_eos": True, **body}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return Caller(server, f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)


def running(server: Running) -> float:
    return server.metrics()["denizen_worker_running"]


def aborted(server: Running) -> float:
    """Sequences that ended by an abort so far."""
    lines = server.http.get("/metrics").text.splitlines()
    counters = [line for line in lines if line.startswith("denizen_requests_total{") and 'outcome="abort' in line]
    return sum(float(line.rpartition(" ")[2]) for line in counters)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("reset", [False, True])
def test_p29_a_stream_that_is_cut_frees_everything(tiny_server: Running, path: str, reset: bool) -> None:
    before = aborted(tiny_server)
    callers = [call(tiny_server, path, {**BODIES[path], "max_tokens": 1900, "stream": True}) for _ in range(32)]
    for caller in callers:
        caller.read_events(3)
    for caller in callers:
        caller.vanish(reset=reset)
    tiny_server.settles()
    # They did not simply run to their end.
    eventually(lambda: aborted(tiny_server) == before + 32, "all are counted as aborted")


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("reset", [False, True])
def test_p29_a_request_without_streaming_that_is_cut_frees_everything(
    tiny_server: Running, path: str, reset: bool
) -> None:
    before = aborted(tiny_server)
    callers = [call(tiny_server, path, {**BODIES[path], "max_tokens": 1900}) for _ in range(8)]
    eventually(lambda: running(tiny_server) == 8, "all run")
    for caller in callers:
        caller.vanish(reset=reset)
    tiny_server.settles()
    eventually(lambda: aborted(tiny_server) == before + 8, "all are counted as aborted")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_during_prefill_frees_everything(smol: Running, stream: bool) -> None:
    prompt = [1000 + index % 5000 for index in range(6000)]
    before = aborted(smol)
    caller = call(smol, "/v1/completions", {"prompt": prompt, "max_tokens": 64, "stream": stream})
    eventually(lambda: running(smol) == 1, "it runs")
    caller.vanish()
    smol.settles()
    eventually(lambda: aborted(smol) == before + 1, "it is counted as aborted")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_while_queued_frees_its_place(serve: Serve, hybrid_model: Path, stream: bool) -> None:
    server = serve([*CPU, "--model", f"tiny={hybrid_model}", "--max-rows", "2"], model="tiny")
    body = {"prompt": "one", "max_tokens": 1900}
    busy = [call(server, "/v1/completions", {**body, "stream": True}) for _ in range(2)]
    for caller in busy:
        caller.read_events(1)
    queued = [call(server, "/v1/completions", {**body, "stream": stream}) for _ in range(5)]
    eventually(lambda: server.metrics()["denizen_requests_in_flight"] == 7, "two run, five wait")
    for caller in queued:
        caller.vanish()
    eventually(lambda: server.metrics()["denizen_requests_in_flight"] == 2, "those that waited are gone")
    for caller in busy:
        caller.read_events(1)  # the others go on
        caller.vanish()
    server.settles()


def test_an_abort_that_races_the_end_is_settled_once(tiny_server: Running) -> None:
    """Requests of a few tokens, cut at every moment around their end."""

    def cut(number: int) -> None:
        caller = call(tiny_server, "/v1/completions", {"prompt": "x", "max_tokens": 1 + number % 4, "stream": True})
        caller.read_events(1 + number % 3)
        caller.vanish(reset=number % 2 == 0)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(cut, number) for number in range(160)]:
            # A stream that ended before its third event closes: that is the race, too.
            assert future.exception() is None or isinstance(future.exception(), AssertionError)
    tiny_server.settles()
    assert tiny_server.complete("still there", max_tokens=3)["usage"]["completion_tokens"] >= 1
