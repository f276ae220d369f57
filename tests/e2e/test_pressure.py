"""The front end under load and with bad company.

Symptoms: health probes pile up or starve, long prompts starve HTTP, body limits differ between routes, a slow reader
makes the server buffer without bound.
"""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from denizen.bench.processes import idle_cpu
from denizen.bench.stats import percentile

from .conftest import STUB
from .waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Serve
    from .running import Running

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def small(builtin: str) -> Iterator[Running]:
    """A stub with small limits."""
    from .running import Running

    limits = ["--max-body", "1", "--max-in-flight", "4"]
    with Running(
        [*STUB, "--model", f"stub={builtin}", *limits], model="stub", env={"DENIZEN_STUB": '{"step_ms": 5}'}
    ) as server:
        yield server


def test_health_answers_while_long_prompts_are_tokenized(stub: Running) -> None:
    """Long prompts must not starve HTTP: a probe never waits for the tokenizer's queue to empty."""
    body = {"model": "stub", "messages": [{"role": "user", "content": "lorem ipsum dolor " * 40_000}]}
    content = json.dumps(body).encode()
    begun = time.monotonic()
    with ThreadPoolExecutor(32) as pool:
        posted = [pool.submit(stub.http.post, CHAT, content=content) for _ in range(32)]
        probes: list[float] = []
        while not all(future.done() for future in posted):
            start = time.monotonic()
            assert stub.get("/health") == 200
            probes.append(time.monotonic() - start)
        whole = time.monotonic() - begun
        assert {future.result().status_code for future in posted} == {400}
    assert len(probes) > 10
    # Relative to the run itself: a probe that had queued behind the prompts would have taken most of it.
    assert percentile(sorted(probes), 99) < whole / 4


def test_health_answers_while_a_model_loads_and_ready_says_what_it_waits_for(serve: Serve, builtin: str) -> None:
    """Loading tokenizers and weights must not starve the probe, or an orchestrator restarts the server for ever."""
    slow = {"DENIZEN_STUB": '{"load_ms": 2000}'}
    server = serve([*STUB, "--model", f"stub={builtin}"], model="stub", ready=False, env=slow)
    eventually(lambda: server.get("/health") == 200, "/health answers")
    loading = 0
    while server.get("/ready") != 200:
        assert server.get("/health") == 200
        reasons = server.http.get("/ready").json()
        assert reasons["status"] == "ready" or reasons["reasons"]
        loading += 1
    assert loading > 5, "there was a time of loading to look at"


@pytest.mark.parametrize("probe", ["/health", "/ready"])
def test_probes_do_not_enqueue_work(stub: Running, probe: str) -> None:
    before = stub.metrics()
    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(lambda _: stub.get(probe), range(200))) == {200}
    after = stub.metrics()
    for name in ("denizen_steps_total", "denizen_requests_total"):
        assert after.get(name, 0) == before.get(name, 0)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize("chunked", [False, True])
def test_the_body_limit_is_the_same_on_every_route_and_exact(small: Running, path: str, chunked: bool) -> None:
    limit = 1 << 20

    def post(size: int) -> tuple[int, dict[str, object]]:
        content = b'{"model": "' + b"x" * (size - 13) + b'"}'
        assert len(content) == size
        sent = iter([content[: size // 2], content[size // 2 :]]) if chunked else content
        response = small.http.post(path, content=sent, headers={"Content-Type": "application/json"})
        return response.status_code, response.json()["error"]

    assert post(limit)[0] == 404  # read as a whole: there is no such model
    status, error = post(limit + 1)
    assert status == 413
    assert "1" in str(error["message"])


def test_more_requests_than_the_limit_get_429_with_retry_after(small: Running) -> None:
    body = {"prompt": "one", "max_tokens": 4000, "ignore_eos": True}
    streams = [small.stream("/v1/completions", body) for _ in range(4)]
    for stream in streams:
        next(stream)
    response = small.http.post("/v1/completions", json={"model": "stub", **body})
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) > 0
    assert response.json()["error"]["type"] == "rate_limit_error"
    assert small.get("/health") == 200
    for stream in streams:
        stream.close()
    small.settles()
    assert small.complete("one", max_tokens=2)["usage"]["completion_tokens"] == 2


def test_a_reader_that_stands_still_holds_up_nobody_else(stub: Running) -> None:
    """A client that asks for 30 MB and reads nothing: others are served meanwhile, and its going frees everything."""
    body = {"prompt": "word " * 50, "n": 8, "max_tokens": 7000, "ignore_eos": True, "logprobs": 20, "stream": True}
    content = json.dumps({"model": "stub", **body}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    before = stub.metrics()["denizen_output_tokens_total"]
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", stub.port))
        client.sendall(head % len(content) + content)
        # Far more than the sockets' buffers and the server's own hold.
        eventually(lambda: stub.metrics()["denizen_output_tokens_total"] > before + 20_000, "it is generated")
        assert stub.complete("hello", max_tokens=3, ignore_eos=True)["usage"]["completion_tokens"] == 3
        eventually(lambda: stub.metrics()["denizen_http_in_flight"] == 1, "only the reader is left")
    stub.settles()


def test_an_idle_server_uses_no_cpu(stub: Running, smol: Running, tiny_server: Running) -> None:
    """Symptom: 100 % CPU while idle."""
    for server in (stub, smol, tiny_server):
        server.settles()
        assert idle_cpu(server.pid, 2.0) < 5
