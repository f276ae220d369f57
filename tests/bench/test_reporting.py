"""Records to numbers, and the result file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from denizen.bench.schema import LoadResult, Record, Report
from denizen.bench.summary import check, failure_counts, summarize

if TYPE_CHECKING:
    from pathlib import Path


def record(**changes: object) -> Record:
    values: dict[str, object] = {
        "index": 0,
        "max_tokens": 5,
        "scheduled": 1.0,
        "sent": 1.25,
        "first": 2.0,
        "last": 4.0,
        "end": 4.5,
        "gaps": [0.5, 0.5, 0.5, 0.5],
        "events": 5,
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "finish_reason": "length",
    }
    return Record(**{**values, **changes})  # type: ignore[arg-type]


def test_latencies_count_from_the_scheduled_time() -> None:
    found = record()
    assert (found.ttft, found.tpot, found.e2e, found.lag) == (1.0, 0.5, 3.5, 0.25)


def test_one_token_has_no_time_per_further_token() -> None:
    assert record(completion_tokens=1, events=1, last=2.0, gaps=[]).tpot is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"finish_reason": "stop", "completion_tokens": 4, "events": 3}, None),  # the end id has no text
        ({"error": "HTTP 500: x"}, "HTTP 500: x"),
        ({"finish_reason": None}, "without a finish_reason"),
        ({"events": 6}, "6 events carried text"),
        ({"completion_tokens": 6}, "max_tokens was 5"),
        ({"completion_tokens": 4, "events": 4}, "4 tokens instead of 5"),
    ],
)
def test_what_counts_as_a_failure(changes: dict[str, object], why: str | None) -> None:
    found = check(record(**changes), ignore_eos=False, stream=True)
    assert (found is None) if why is None else (why in (found or ""))


def test_stopping_early_is_a_failure_only_where_lengths_are_fixed() -> None:
    early = record(finish_reason="stop", completion_tokens=4, events=4)
    assert check(early, ignore_eos=False, stream=True) is None
    assert "4 tokens instead of 5" in (check(early, ignore_eos=True, stream=True) or "")
    exact = record(finish_reason="stop")
    assert "although" in (check(exact, ignore_eos=True, stream=True) or "")


def test_failed_requests_are_in_no_latency_and_no_throughput() -> None:
    found = summarize([record(), record(error="x"), record(error="y"), record(error="x")], wall=2.0)
    assert (found.requests, found.failed, found.output_tokens, found.output_tokens_per_s) == (4, 3, 5, 2.5)
    assert found.e2e is not None
    assert found.e2e.count == 1
    assert failure_counts([record(), record(error="x"), record(error="y"), record(error="x")]) == ["2 × x", "1 × y"]


def test_the_result_file_round_trips_through_json(tmp_path: Path) -> None:
    summary = summarize([record()], 1.0)
    report = Report("text", {"cpu": "x"}, {}, results=[LoadResult({"mode": "closed", "concurrency": 1}, summary, [])])
    report.write(tmp_path / "new" / "result.json")
    read = json.loads((tmp_path / "new" / "result.json").read_text(encoding="utf-8"))
    assert read["valid"] is True
    assert read["results"][0]["summary"]["itl"]["count"] == 4
    report.problems.append("3 requests failed")
    assert report.to_json()["valid"] is False
