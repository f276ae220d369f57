"""The part of a pass in which all users are busy, and when a client is called too slow."""

from __future__ import annotations

import pytest
from denizen.bench.schema import LoadSummary, Record
from denizen.bench.strain import Strain
from denizen.bench.summary import full_load, overload, pass_wall, summarize


def record(scheduled: float, first: float, gaps: list[float], *, tokens_an_event: int = 1, lag: float = 0.0) -> Record:
    events = len(gaps) + 1
    return Record(
        index=0,
        max_tokens=events,
        scheduled=scheduled,
        sent=scheduled + lag,
        first=first,
        last=first + sum(gaps),
        end=first + sum(gaps),
        gaps=gaps,
        events=events,
        completion_tokens=events * tokens_an_event,
        finish_reason="length",
    )


def test_a_wave_is_at_full_load_from_the_last_first_token_to_the_first_end() -> None:
    records = [record(0, 1.0, [1.0] * 4), record(0, 2.0, [1.0] * 9)]  # tokens at 1..5 and at 2..11
    found = full_load(records, 2)
    assert found is not None
    assert found.seconds == 3.0  # 2 to 5
    assert found.output_tokens == 6  # at 3, 4, 5 of both
    assert found.output_tokens_per_s == 2.0
    assert pass_wall(records) == 11.0


def test_a_loop_is_at_full_load_until_a_user_has_nothing_left_to_send() -> None:
    records = [record(0, 1.0, [1.0] * 3), record(0, 1.0, [1.0] * 9), record(4, 5.0, [1.0] * 2)]
    found = full_load(records, 2)
    assert found is not None
    assert found.seconds == 6.0  # from 1 to 7, where the third ends
    assert found.output_tokens == 3 + 6 + 3


def test_events_of_several_tokens_count_as_their_tokens() -> None:
    found = full_load([record(0, 1.0, [1.0] * 4, tokens_an_event=3)], 1)
    assert found is not None
    assert found.output_tokens == 12


@pytest.mark.parametrize("records", [[], [record(0, 1.0, [1.0])], [record(0, 1.0, [0.5]), record(0, 9.0, [1.0])]])
def test_there_may_have_been_no_full_load(records: list[Record]) -> None:
    assert full_load(records, 2) is None


def summary(lag: float = 0.0, strain: Strain | None = None) -> LoadSummary:
    return summarize([record(0, 1.0, [1.0], lag=lag)], 2.0, [strain or Strain([0.001], cpu=0.1, wall=2.0)], 1)


def test_a_client_that_keeps_up_is_no_problem() -> None:
    assert overload([summary(0.01)], 0.02) == []


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (summary(lag=0.05), "sent requests 50.0 ms late"),
        (summary(strain=Strain([0.001, 0.05], cpu=0.1, wall=2.0)), "came back to its answers"),
        (summary(strain=Strain([0.001], cpu=1.95, wall=2.0)), "used 98 % of a CPU"),
    ],
)
def test_a_client_that_does_not_keep_up_is_refused(found: LoadSummary, message: str) -> None:
    problems = overload([found, summary(), found], 0.02)
    assert len(problems) == 1
    assert message in problems[0]
    assert "--processes" in problems[0]


def test_a_client_is_judged_by_its_slow_moments() -> None:
    """Three of a hundred requests were late: the median knows nothing of them."""
    late = [record(0, 1.0, [1.0], lag=0.05 if index < 3 else 0.001) for index in range(100)]
    assert "50.0 ms late" in overload([summarize(late, 2.0)], 0.02)[0]
    assert overload([summarize(late[2:], 2.0)], 0.02) == []
