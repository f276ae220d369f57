"""Bounds on latencies, and goodput."""

from __future__ import annotations

import argparse

import pytest
from denizen.bench.errors import BenchError
from denizen.bench.schema import Attempt, Record
from denizen.bench.slo import Slo, bound


def record(ttft: float, gaps: list[float], **changes: object) -> Record:
    last = ttft + sum(gaps)
    values: dict[str, object] = {
        "index": 0,
        "max_tokens": len(gaps) + 1,
        "scheduled": 0.0,
        "first": ttft,
        "last": last,
        "end": last,
        "gaps": gaps,
        "events": len(gaps) + 1,
        "completion_tokens": len(gaps) + 1,
    }
    return Record(**{**values, **changes})  # type: ignore[arg-type]


def slo(*bounds: str) -> Slo:
    return Slo([bound(text) for text in bounds])


@pytest.mark.parametrize("text", ["ttft", "ttft=1", "ttft_p99", "ttft_p99=0", "ttft_p99=x", "ttft_p101=1", "_p9=1"])
def test_a_bound_that_is_none_is_named(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=text):
        bound(text)


def test_a_bound_is_taken_apart() -> None:
    found = bound("first_playable_p99.9=0.25")
    assert (found.measure, found.statistic, found.limit) == ("first_playable", "p99.9", 0.25)
    assert bound("e2e_mean=2").of([1.0, 2.0, 6.0]) == 3.0
    assert bound("e2e_max=2").of([1.0, 6.0, 2.0]) == 6.0
    assert bound("e2e_p50=2").of([6.0, 1.0, 2.0]) == 2.0


def test_a_measure_that_the_requests_lack_is_refused() -> None:
    with pytest.raises(BenchError, match=r"--slo rtf_p95: 'rtf' is not one of ttft, tpot, itl, e2e"):
        slo("rtf_p95=1").check(Record)
    slo("itl_p99=1", "tpot_mean=1").check(Record)
    with pytest.raises(BenchError, match="'ttft' is not one of e2e"):
        slo("ttft_p99=1").check(Attempt)


def test_goodput_counts_requests_that_keep_every_bound() -> None:
    records = [
        record(0.1, [0.01, 0.01]),
        record(0.9, [0.01, 0.01]),  # late first token
        record(0.1, [0.01, 0.5]),  # slow tokens
        record(0.1, [0.01, 0.01], error="HTTP 500"),
    ]
    found = slo("ttft_p50=0.5", "tpot_p99=0.1").judge(records, wall=2.0)
    assert found is not None
    assert (found.good, found.share, found.requests_per_s) == (1, 0.25, 0.5)
    # As a whole the load keeps the bound on the median TTFT, and breaks the other.
    assert found.misses == ["tpot_p99"]
    assert found.values["ttft_p50"] == pytest.approx(0.1)


def test_a_bound_without_a_sample_is_broken_as_a_whole_and_kept_by_each() -> None:
    found = slo("tpot_p99=0.1").judge([record(0.1, [])], wall=1.0)
    assert found is not None
    assert (found.good, found.misses, found.values) == (1, ["tpot_p99"], {"tpot_p99": None})


def test_gaps_count_within_a_request_by_the_bounds_statistic() -> None:
    one = record(0.1, [0.01] * 9 + [1.0])
    assert slo("itl_p50=0.1").keeps(one)
    assert not slo("itl_max=0.1").keeps(one)


def test_clients_that_leave_or_read_slowly_are_in_no_goodput() -> None:
    records = [record(0.1, [0.01]), record(0.1, [9.0], slow=True), record(0.1, [], cancelled=True)]
    found = slo("e2e_max=1").judge(records, wall=1.0)
    assert found is not None
    assert (found.good, found.share, found.misses) == (1, 1.0, [])


def test_without_bounds_there_is_no_goodput() -> None:
    assert Slo().judge([record(0.1, [])], wall=1.0) is None
