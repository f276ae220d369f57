"""`/metrics`: the names that are documented, in a format that Prometheus reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tests.e2e.waiting import eventually

if TYPE_CHECKING:
    from .conftest import Stub

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
NAME = re.compile(r"(?:denizen_|vllm:)[a-z_]+")
SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^{}]*\})? (\S+)$")


def test_the_document_and_the_server_name_the_same_metrics(stub: Stub) -> None:
    """Symptom: a dashboard shows nothing after an update."""
    server = stub()
    text = server.http.get("/metrics").text
    families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    documented = {name for row in rows for name in NAME.findall(row)}
    assert families == documented


def test_every_line_is_one_that_prometheus_reads(stub: Stub) -> None:
    server = stub()
    server.complete("abc", max_tokens=5)
    typed: dict[str, str] = {}
    for line in server.http.get("/metrics").text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in typed, "a family in two pieces"
            typed[name] = kind
        elif not line.startswith("# HELP "):
            found = SAMPLE.match(line)
            assert found, line
            float(found[3])
            family = re.sub(r"_(bucket|sum|count)$", "", found[1]) if found[1] not in typed else found[1]
            assert family in typed, line


def test_the_gateway_sees_who_waits_and_who_runs(stub: Stub) -> None:
    server = stub("--max-rows", "1", "--kv-tokens", "1024", step_ms=20)
    stream = server.stream("/v1/completions", {"prompt": "abc", "max_tokens": 509})
    next(stream)
    eventually(lambda: server.metrics()["vllm:num_requests_running"] == 1, "it runs")
    with server.http.stream(
        "POST", "/v1/completions", json={"model": "bytes", "prompt": "abc", "max_tokens": 5, "stream": True}
    ):
        eventually(lambda: server.metrics()["vllm:num_requests_waiting"] == 1, "one waits")
        metrics = server.metrics()
        assert metrics["vllm:num_requests_running"] == 1
        assert metrics["vllm:kv_cache_usage_perc"] == 0.5
        assert metrics["vllm:gpu_cache_usage_perc"] == 0.5
    stream.close()
    server.settles()


def test_an_output_that_a_stop_string_ends_is_counted_as_one(stub: Stub) -> None:
    """Symptom: a dashboard says that clients run away, while each of them has its whole answer."""
    server = stub(step_ms=5)
    for stream in (False, True):
        body = {"model": "bytes", "prompt": "abcdef", "max_tokens": 400, "stop": "cd", "stream": stream}
        assert server.http.post("/v1/completions", json=body).status_code == 200
    server.settles()
    counted = server.http.get("/metrics").text
    assert 'denizen_requests_total{model="bytes",outcome="stop"} 2' in counted
    assert 'denizen_requests_total{model="bytes",outcome="abort"} 0' in counted
