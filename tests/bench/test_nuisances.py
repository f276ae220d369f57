"""Clients that leave or read slowly, conversations, shared prefixes; and a stall that must show."""

from __future__ import annotations

import itertools
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from denizen.bench.__main__ import main
from denizen.bench.workload import Nuisances, Workload

from .peer import Behaviour, serving

if TYPE_CHECKING:
    from pathlib import Path

    from .peer import Peer


def bench(peer: Peer, tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
    """Exit status, result, and the records of the measured pass."""
    out, records = tmp_path / "result.json", tmp_path / "records.jsonl"
    words = ["text", "--url", peer.url, "--json", str(out), "--records", str(records), "--max-client-lag", "60000"]
    status = main([*words, *arguments])
    rows = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    return status, json.loads(out.read_text(encoding="utf-8")), [row for row in rows if row["measured_pass"] > 0]


def test_a_server_that_stalls_for_a_second_shows_it_in_p99(tmp_path: Path) -> None:
    """Coordinated omission, over real sockets: all that were due in that second waited, not one request a user."""
    stall, rate, count = 1.0, 100, 300
    with serving(Behaviour(stall={count + 50: stall})) as peer:
        arguments = ["--rate", str(rate), "--requests", str(count), "--output-len", "2"]
        status, result, records = bench(peer, tmp_path, *arguments)
    assert status == 0
    summary = result["results"][0]["summary"]
    for name in ("ttft", "e2e"):
        assert summary[name]["p99"] > 0.9 * stall
    # Of the hundred that were due in the second, those of its first half waited half of it or more.
    assert sum(record["e2e"] > stall / 2 for record in records) > 0.3 * rate * stall


def test_a_closed_loop_alone_would_hide_the_stall(tmp_path: Path) -> None:
    """The same stall under one user is one slow answer: why rates are measured by an open loop."""
    with serving(Behaviour(stall={350: 1.0})) as peer:
        _, result, records = bench(peer, tmp_path, "--requests", "300", "--output-len", "2")
    assert 1 <= sum(record["e2e"] > 0.5 for record in records) < 5
    assert result["results"][0]["summary"]["e2e"]["max"] > 0.9


def test_clients_that_leave_are_apart_from_the_rest(tmp_path: Path) -> None:
    with serving(Behaviour(token_s=0.005)) as peer:
        arguments = ["--requests", "12", "--concurrency", "4", "--output-len", "40", "--cancel", "0.5:3"]
        status, result, records = bench(peer, tmp_path, *arguments)
        left = [record for record in records if record["cancelled"]]
        deadline = time.monotonic() + 20
        while peer.left < len(left):
            assert time.monotonic() < deadline, "the server was not told"
            time.sleep(0.02)
    assert status == 0
    summary = result["results"][0]["summary"]
    assert 0 < summary["cancelled"] == len(left) < 12
    assert all(record["events"] == 3 for record in left)
    assert summary["e2e"]["count"] == 12 - len(left)
    assert summary["output_tokens"] == 40 * (12 - len(left))
    assert summary["failed"] == summary["unchecked"] == 0


def test_an_answer_that_ends_before_its_client_would_leave_counts(tmp_path: Path) -> None:
    with serving() as peer:
        status, result, _ = bench(peer, tmp_path, "--requests", "4", "--output-len", "3", "--cancel", "1:5")
    assert status == 0
    assert result["results"][0]["summary"]["cancelled"] == 0
    assert result["results"][0]["summary"]["output_tokens"] == 12


def test_slow_readers_read_slowly_and_are_apart_from_the_rest(tmp_path: Path) -> None:
    pace, size = 200_000, 20_000
    with serving(Behaviour(padding=size)) as peer:
        arguments = ["--requests", "8", "--concurrency", "8", "--output-len", "10", "--slow-readers", f"0.5:{pace}"]
        status, result, records = bench(peer, tmp_path, *arguments)
    assert status == 0
    summary = result["results"][0]["summary"]
    slow = [record for record in records if record["slow"]]
    assert 0 < summary["slow"] == len(slow) < 8
    assert summary["e2e"]["count"] == 8 - len(slow)
    # All but what fits into the last read.
    assert all(record["e2e"] > 0.8 * 10 * size / pace for record in slow)
    assert summary["e2e"]["p50"] < min(record["e2e"] for record in slow)


def test_slow_readers_that_are_cut_off_are_counted_and_those_refused_have_failed(tmp_path: Path) -> None:
    with serving(Behaviour(drop={4}, truncate={5})) as peer:
        arguments = ["--requests", "4", "--output-len", "6", "--slow-readers", "1:1000000"]
        status, result, records = bench(peer, tmp_path, *arguments)
    assert status == 0
    summary = result["results"][0]["summary"]
    assert (summary["slow"], summary["slow_cut"], summary["failed"]) == (4, 2, 0)
    assert sum(record["cut"] is not None for record in records) == 2
    with serving(Behaviour(refuse={4})) as peer:
        status, result, _ = bench(peer, tmp_path, *arguments)
    assert status == 1
    assert result["results"][0]["summary"]["failed"] == 1


@pytest.mark.parametrize("load", [["--concurrency", "2"], ["--rate", "200"]])
def test_turns_of_a_conversation_carry_what_was_said(tmp_path: Path, load: list[str]) -> None:
    with serving() as peer:
        status, _, records = bench(peer, tmp_path, "--requests", "6", "--turns", "3", "--output-len", "2:5", *load)
    assert status == 0
    bodies = peer.requests[6:]
    assert sorted(len(body["messages"]) for body in bodies) == [1, 1, 3, 3, 5, 5]
    answers = {body["messages"][-1]["content"]: "x" * body["max_tokens"] for body in bodies}
    for body in bodies:
        messages = body["messages"]
        assert [message["role"] for message in messages] == (["user", "assistant"] * 3)[: len(messages)]
        for question, answer in zip(messages[::2], messages[1::2], strict=False):
            assert answer["content"] == answers[question["content"]]
    for first in (0, 3):
        turns = records[first : first + 3]
        # No turn is due before the one that it follows has been answered.
        assert all(one["end"] <= two["scheduled"] for one, two in itertools.pairwise(turns))


def test_turns_carry_whole_answers_too(tmp_path: Path) -> None:
    with serving() as peer:
        assert bench(peer, tmp_path, "--requests", "2", "--turns", "2", "--output-len", "3", "--no-stream")[0] == 0
    assert peer.requests[3]["messages"][1] == {"role": "assistant", "content": "xxx"}


def test_after_a_turn_that_fails_its_conversation_ends(tmp_path: Path) -> None:
    with serving(Behaviour(refuse={3})) as peer:
        status, result, records = bench(peer, tmp_path, "--requests", "3", "--turns", "3", "--output-len", "2")
    assert status == 1
    assert len(peer.requests) == 4
    assert [record["error"] for record in records][1:] == ["not sent: an earlier turn of its conversation failed"] * 2
    assert result["results"][0]["summary"]["failed"] == 3


def test_prompts_share_their_prefixes_over_all_passes() -> None:
    workload = Workload(seed=1, requests=40, output_len=(2, 2), prompt_tokens=5, prefix_tokens=30, prefixes=3)
    prompts = [job.prompt.split() for number in range(3) for job in workload.jobs(0, number)]
    assert {len(prompt) for prompt in prompts} == {35}
    assert len({tuple(prompt[:30]) for prompt in prompts}) == 3
    assert len({tuple(prompt) for prompt in prompts}) == len(prompts)
    other = {tuple(job.prompt.split()[:30]) for job in workload.jobs(1, 0)}
    assert not other & {tuple(prompt[:30]) for prompt in prompts}


def test_nuisances_leave_the_requests_as_they_are() -> None:
    plain = Workload(seed=1, requests=400, output_len=(2, 9)).jobs(0, 1)
    workload = Workload(seed=1, requests=400, output_len=(2, 9), nuisances=Nuisances(0.25, 7, 0.1))
    odd = workload.jobs(0, 1)
    assert [(job.prompt, job.max_tokens, job.seed) for job in odd] == [
        (job.prompt, job.max_tokens, job.seed) for job in plain
    ]
    assert 0.2 < sum(job.cancel_after == 7 for job in odd) / 400 < 0.3
    assert 0.05 < sum(job.slow for job in odd) / 400 < 0.15


def test_extra_fields_are_sent(tmp_path: Path) -> None:
    with serving() as peer:
        bench(peer, tmp_path, "--requests", "1", "--extra", "top_k=20", "--extra", 'stop=["a"]')
    assert (peer.requests[0]["top_k"], peer.requests[0]["stop"]) == (20, ["a"])


def test_a_client_that_is_too_slow_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as peer:
        status, result, _ = bench(peer, tmp_path, "--requests", "4", "--max-client-lag", "0.000001")
    assert status == 1
    assert "the client was too slow" in result["problems"][0]
    assert "INVALID" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cancel", "0.5:3", "--no-stream"], "--cancel needs streamed answers"),
        (["--slow-readers", "0.5:100", "--no-stream"], "--slow-readers needs streamed answers"),
        (["--turns", "2", "--endpoint", "completions"], "--turns needs --endpoint chat"),
        (["--prefixes", "2"], "--prefixes needs --prefix-tokens"),
    ],
)
def test_options_that_contradict_each_other_are_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["text", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value"), [("--cancel", "2:3"), ("--cancel", "0.5"), ("--slow-readers", "0.5:x"), ("--extra", "a=b")]
)
def test_a_bad_value_is_named(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["text", flag, value])
    assert caught.value.code == 2
    assert flag in capsys.readouterr().err
