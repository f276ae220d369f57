"""`denizen-bench mixed` against a peer that does all three."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from denizen.bench.__main__ import main
from denizen.bench.load import OpenLoop
from denizen.bench.mix import arrivals_within
from denizen.bench.report.result import read
from denizen.bench.stats import poisson_offsets

from .asr_peer import AsrBehaviour
from .mixed_peer import doing_all
from .peer import Behaviour
from .tts_peer import TtsBehaviour

if TYPE_CHECKING:
    from pathlib import Path

    from .mixed_peer import MixedPeer

TEXT = ["text", "--model", "tiny", "--output-len", "3", "--requests", "4"]
TTS = ["tts", "--model", "mouth", "--requests", "4"]
ASR = ["asr", "--model", "ears", "--synthetic", "--clips", "2", "--seconds", "0.5:1"]


def mixed(peer: MixedPeer, tmp_path: Path, *arguments: str, seconds: str = "0.4") -> tuple[int, dict[str, Any]]:
    """Runs it; returns its exit status and its result file."""
    out = tmp_path / "result.json"
    words = ["mixed", "--url", peer.url, "--json", str(out), "--max-client-lag", "60000", "--seconds", seconds]
    return main([*words, *arguments]), json.loads(out.read_text(encoding="utf-8"))


def test_each_class_has_its_own_load_and_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = {"tts": TtsBehaviour(delay=0.05), "asr": AsrBehaviour(delay=0.1)}
    with doing_all(**slow) as peer:
        classes = [*TEXT, "--concurrency", "2", "+", *TTS, "--concurrency", "3", "+", *ASR, "--rate", "20"]
        status, result = mixed(peer, tmp_path, *classes)
    assert status == 0
    assert (result["valid"], result["kind"]) == (True, "mixed")
    text, tts, asr = result["results"]
    assert [level["load"]["name"] for level in (text, tts, asr)] == [
        "text, concurrency 2",
        "tts, concurrency 3",
        "asr, rate 20 req/s",
    ]
    assert text["summary"]["output_tokens"] == 3 * text["summary"]["requests"]
    assert tts["summary"]["audio_seconds"] > 0
    assert asr["summary"]["requests"] == arrivals_within(OpenLoop(20, 2), 0.4)
    assert (peer.tts.most, peer.text.requests[0]["model"], peer.tts.requests[0]["model"]) == (3, "tiny", "mouth")
    assert set(result["data"]["classes"]) == {"text", "tts", "asr"}
    assert result["data"]["classes"]["asr"]["clips"] == 2
    assert result["options"]["classes"]["tts"]["requests"] == 4
    printed = capsys.readouterr().out
    assert "tts, concurrency 3 " in printed
    assert "Service level objective" not in printed


def test_classes_run_at_the_same_time_until_the_time_is_over(tmp_path: Path) -> None:
    records, seconds = tmp_path / "records.jsonl", 1.5
    with doing_all(tts=TtsBehaviour(delay=0.03), asr=AsrBehaviour(delay=0.03)) as peer:
        mixed(peer, tmp_path, "--records", str(records), *TEXT, "+", *TTS, "+", *ASR, seconds=str(seconds))
    rows = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    for one_pass in (0, 1):
        classes = [
            [row for row in rows if (row["level"], row["measured_pass"]) == (f"{name}, concurrency 1", one_pass)]
            for name in ("text", "tts", "asr")
        ]
        for own in classes:
            assert len(own) > 4  # more than one block of jobs
            assert [row["index"] for row in own] == list(range(len(own)))
            assert all(row["scheduled"] < seconds for row in own)
            assert own[-1]["end"] >= seconds
        # None waits for another one to end.
        assert max(own[0]["scheduled"] for own in classes) < min(own[-1]["scheduled"] for own in classes)


def test_no_job_is_sent_twice_whatever_the_number_of_processes(tmp_path: Path) -> None:
    for processes in ("1", "2"):
        with doing_all(tts=TtsBehaviour(delay=0.02)) as peer:
            status, _ = mixed(peer, tmp_path, "--processes", processes, *TTS, "--concurrency", "4", "+", *TEXT)
        assert status == 0
        seeds = [body["seed"] for body in peer.tts.requests]
        assert len(set(seeds)) == len(seeds) > 8
        assert peer.tts.most == 4


def test_records_are_found_by_the_names_of_their_classes(tmp_path: Path) -> None:
    with doing_all() as peer:
        mixed(peer, tmp_path, "--out", str(tmp_path / "out"), *TEXT, "+", *TTS, "--requests", "8")
    result = read(tmp_path / "out")
    for level, metric in zip(result.levels, ("ttft", "first_playable"), strict=True):
        assert len(result.samples(level, metric)) == level.summary["requests"] > 0


def test_two_classes_of_a_kind_send_different_things(tmp_path: Path) -> None:
    with doing_all(Behaviour()) as peer:
        _, result = mixed(peer, tmp_path, *TEXT, "--rate", "50", "+", *TEXT, "--rate", "50", "--output-len", "5")
    assert [level["load"]["name"] for level in result["results"]] == ["text, rate 50 req/s", "text 2, rate 50 req/s"]
    prompts = [body["messages"][0]["content"] for body in peer.text.requests]
    assert len(set(prompts)) == len(prompts)
    assert {body["max_tokens"] for body in peer.text.requests} == {3, 5}


def test_each_class_has_its_own_slo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with doing_all(tts=TtsBehaviour(delay=0.1)) as peer:
        classes = [*TEXT, "--slo", "e2e_p99=60", "+", *TTS, "--slo", "first_playable_p95=0.05", "+", *ASR]
        status, result = mixed(peer, tmp_path, *classes)
    assert status == 0  # a broken objective is a finding
    text, tts, asr = (level["summary"]["goodput"] for level in result["results"])
    assert (text["misses"], text["share"]) == ([], 1)
    assert (tts["misses"], tts["good"]) == (["first_playable_p95"], 0)
    assert asr is None
    assert "broken: first_playable_p95" in capsys.readouterr().out


def test_the_result_is_valid_only_if_every_class_is(tmp_path: Path) -> None:
    with doing_all(tts=TtsBehaviour(silent={0})) as peer:
        status, result = mixed(peer, tmp_path, *TEXT, "+", *TTS)
    assert status == 1
    assert result["problems"] == ["tts, concurrency 1: 1 requests failed, warm-up included: 1 × the audio is silent"]


def test_a_class_that_fails_again_and_again_ends_the_pass(tmp_path: Path) -> None:
    with doing_all(Behaviour(refuse=set(range(10_000)))) as peer:
        status, result = mixed(peer, tmp_path, *TEXT, "+", *TTS, seconds="60")
    assert status == 1
    assert len(peer.text.requests) == 100  # and there was no second pass
    assert "text: the pass ended after 100 failures: HTTP 500: out of order" in result["problems"]


def test_arrivals_within_a_time() -> None:
    for seed in range(5):
        offsets = poisson_offsets(7.0, 1000, random.Random(seed))
        assert arrivals_within(OpenLoop(7.0, seed), 10.0) == sum(offset < 10 for offset in offsets)
    assert arrivals_within(OpenLoop(0.001, 1), 0.1) == 1


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([], "expected a kind of requests (text, asr, tts)"),
        (["speech"], "'speech'"),
        ([*TEXT, "+"], "after +"),
        ([*TEXT, "--concurrency", "1", "2"], "text has one level of load only"),
        ([*TEXT, "--slo", "first_playable_p95=1"], "'first_playable' is not one of"),
        (["text"], "text: --model is needed"),
        ([*TTS, "--format", "flac"], "--format flac cannot be streamed"),
    ],
)
def test_what_cannot_be_run_says_why(classes: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with doing_all() as peer:
        assert main(["mixed", "--url", peer.url, *classes]) == 2
    assert message in capsys.readouterr().err
    assert not peer.text.requests


def test_a_bad_flag_of_a_class_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["mixed", "tts", "--voices", "anna"])
    assert caught.value.code == 2
    assert "--voices" in capsys.readouterr().err
