"""`denizen-bench tts` against a peer that misbehaves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from denizen.bench.__main__ import main
from denizen.bench.figures import figures_of

from .tts_peer import SECONDS_A_CHARACTER, TtsBehaviour, speaking

if TYPE_CHECKING:
    from pathlib import Path

    from .tts_peer import TtsPeer


def bench(peer: TtsPeer, tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Runs a small benchmark; returns its exit status and its result file."""
    out = tmp_path / "result.json"
    words = ["tts", "--url", peer.url, "--json", str(out), "--max-client-lag", "60000", "--requests", "3", *arguments]
    return main(words), json.loads(out.read_text(encoding="utf-8"))


def rows_of(peer: TtsPeer, tmp_path: Path, *arguments: str) -> list[dict[str, Any]]:
    """The measured requests of such a run."""
    out = tmp_path / "records.jsonl"
    bench(peer, tmp_path, "--records", str(out), *arguments)
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["measured_pass"]]


@pytest.mark.parametrize(
    "flags",
    [
        ["--format", "pcm"],
        ["--format", "wav"],
        ["--format", "pcm", "--stream", "sse"],
        ["--format", "wav", "--stream", "sse"],
        ["--format", "pcm", "--stream", "none"],
        ["--format", "wav", "--stream", "none"],
        ["--format", "flac", "--stream", "none"],
    ],
)
def test_a_sound_server_gives_a_valid_result(tmp_path: Path, flags: list[str]) -> None:
    with speaking(TtsBehaviour(delay=0.05)) as peer:
        load = ["--concurrency", "1", "3", "--passes", "3", "--requests", "6"]
        status, result = bench(peer, tmp_path, *load, *flags)
    assert status == 0
    assert (result["valid"], result["schema"], result["kind"]) == (True, "denizen.bench/1", "tts")
    assert [level["load"]["concurrency"] for level in result["results"]] == [1, 3]
    assert len(peer.requests) == 2 * 3 * 6
    assert peer.most == 3
    whole = "none" in flags
    for number, level in enumerate(result["results"]):
        summary = level["summary"]
        sent = peer.requests[18 * number + 6 : 18 * number + 18]  # the first pass is dropped
        characters = sum(len(body["input"]) for body in sent)
        assert (summary["requests"], summary["failed"], summary["characters"]) == (12, 0, characters)
        assert summary["audio_seconds"] == pytest.approx(characters * SECONDS_A_CHARACTER, abs=1e-3)
        assert summary["audio_seconds_per_s"] == pytest.approx(summary["audio_seconds"] / summary["wall"])
        assert summary["audio_s"]["count"] == summary["e2e"]["count"] == summary["rtf"]["count"] == 12
        if whole:
            assert summary["ttfb"] is summary["first_playable"] is summary["first_audible"] is None
            assert summary["underruns"] is summary["interrupted"] is None
        else:
            assert summary["ttfb"]["min"] >= 0.05
            assert summary["first_playable"]["count"] == summary["first_audible"]["count"] == 12


def test_bodies_carry_what_the_options_say(tmp_path: Path) -> None:
    flags = ["--voice", "anna", "--language", "de", "--instructions", "low", "--field", "speed=1.5", "--field", "x=y"]
    with speaking() as peer:
        bench(peer, tmp_path, *flags)
        bench(peer, tmp_path, "--no-seed", "--stream", "none")
    body, plain = peer.requests[0], peer.requests[-1]
    assert isinstance(body.pop("seed"), int)
    assert body.pop("input").endswith(".")
    assert body == {
        "model": "mouth",
        "response_format": "pcm",
        "stream_format": "audio",
        "voice": "anna",
        "language": "de",
        "instructions": "low",
        "speed": 1.5,
        "x": "y",
    }
    assert set(plain) == {"model", "input", "response_format"}


def test_texts_of_a_file_are_spoken_with_their_own_voices(tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    rows = ["Hello.", {"text": "Guten Tag.", "voice": "anna", "language": "de"}]
    texts.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with speaking() as peer:
        bench(peer, tmp_path, "--texts", str(texts), "--voice", "bob", "--requests", "4")
    measured = peer.requests[4:]
    said = sorted((body["input"], body["voice"], body.get("language")) for body in measured)
    assert said == [("Guten Tag.", "anna", "de")] * 2 + [("Hello.", "bob", None)] * 2


def test_of_several_voices_each_is_drawn(tmp_path: Path) -> None:
    with speaking() as peer:
        bench(peer, tmp_path, "--voice", "anna", "bob", "--requests", "20", "--concurrency", "4")
    assert {body["voice"] for body in peer.requests} == {"anna", "bob"}


def test_sound_is_heard_after_the_silence_that_leads_to_it(tmp_path: Path) -> None:
    """The whole answer comes at once, but a listener has to sit through its start."""
    with speaking(TtsBehaviour(leading=0.3)) as peer:
        rows = rows_of(peer, tmp_path)
    for row in rows:
        assert row["leading_silence"] == pytest.approx(0.3)
        assert row["first_playable"] >= row["ttfb"]
        assert row["first_audible"] == pytest.approx(row["first_playable"] + 0.3)
        assert row["rtf"] == pytest.approx(row["e2e"] / row["seconds"])


def test_a_header_is_not_playable(tmp_path: Path) -> None:
    with speaking(TtsBehaviour(header_first=0.2)) as peer:
        rows = rows_of(peer, tmp_path, "--format", "wav")
    assert all(row["first_playable"] > row["ttfb"] for row in rows)
    assert all(row["first_playable"] >= 0.2 for row in rows)


def test_a_stall_is_an_underrun_unless_the_buffer_bridges_it(tmp_path: Path) -> None:
    behaviour = TtsBehaviour(stall={4: 0.8})
    flags = ["--floor-db", "-60"]
    with speaking(behaviour) as peer:
        rows = rows_of(peer, tmp_path, *flags, "--jitter-ms", "50")
        _, result = bench(peer, tmp_path, *flags)  # no stall: other indices
    assert [row["underruns"] for row in rows] == [0, 1, 0]
    # A tenth of a second had been sent and playing began 50 ms late, so that 0.65 s at least were missing.
    assert rows[1]["stalled"] >= 0.6
    assert result["results"][0]["summary"]["underruns"] == 0
    with speaking(behaviour) as peer:
        assert [row["underruns"] for row in rows_of(peer, tmp_path, "--jitter-ms", "60000")] == [0, 0, 0]


def test_underruns_are_summed_up_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with speaking(TtsBehaviour(stall={3: 0.5, 5: 0.5})) as peer:
        status, result = bench(peer, tmp_path, "--jitter-ms", "0")
    assert status == 0  # an underrun is a finding
    summary = result["results"][0]["summary"]
    assert (summary["underruns"], summary["interrupted"], summary["stalled"]["count"]) == (2, 2, 2)
    assert "underruns" in capsys.readouterr().out


# Requests 0..2 are the warm-up, 3..5 the measured pass.
@pytest.mark.parametrize("stream", ["audio", "sse", "none"])
@pytest.mark.parametrize(
    ("behaviour", "message", "flags"),
    [
        (TtsBehaviour(refuse={4}), "HTTP 500: out of order", []),
        (TtsBehaviour(drop={3}), "broken connection", []),
        (TtsBehaviour(hang={5}), "no complete answer within 0.5 s", ["--timeout", "0.5"]),
        (TtsBehaviour(apology={4}), "application/json", []),
        (TtsBehaviour(silent={4}), "the audio is silent", []),
        (TtsBehaviour(silent={4}), "the audio is silent", ["--format", "wav"]),
        (TtsBehaviour(empty={4}), "an empty body", []),
        (TtsBehaviour(empty={4}), "an empty body", ["--format", "wav"]),
        (TtsBehaviour(odd={4}), "the last sample is cut off", []),
        (TtsBehaviour(short={4}), "s of audio for", []),
        (TtsBehaviour(headless={4}), "no WAV file", ["--format", "wav"]),
        (TtsBehaviour(wrong_sizes={4}), "promises 1000 more bytes", ["--format", "wav"]),
        (TtsBehaviour(wrong_frames={4}), "contradicts itself", ["--format", "wav"]),
    ],
)
def test_failures_make_the_result_invalid(
    tmp_path: Path,
    behaviour: TtsBehaviour,
    message: str,
    flags: list[str],
    stream: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with speaking(behaviour) as peer:
        status, result = bench(peer, tmp_path, "--stream", stream, *flags)
    assert status == 1
    assert result["valid"] is False
    [failure] = result["results"][0]["failures"]
    assert message in failure
    summary = result["results"][0]["summary"]
    assert (summary["requests"], summary["failed"]) == (3, 1)
    assert summary["e2e"]["count"] == summary["audio_s"]["count"] == 2
    assert "INVALID" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (TtsBehaviour(no_end={3}), "without speech.audio.done"),
        (TtsBehaviour(error_event={3}), "error event: worker died"),
    ],
)
def test_events_that_do_not_end_well_are_failures(tmp_path: Path, behaviour: TtsBehaviour, message: str) -> None:
    with speaking(behaviour) as peer:
        status, result = bench(peer, tmp_path, "--stream", "sse")
    assert status == 1
    assert message in result["results"][0]["failures"][0]


@pytest.mark.parametrize("kind", ["pcm", "wav", "flac"])
def test_another_rate_than_the_one_that_is_asked_for_is_a_failure(tmp_path: Path, kind: str) -> None:
    flags = ["--format", kind, "--stream", "none" if kind == "flac" else "audio", "--sample-rate", "24000"]
    with speaking(TtsBehaviour(rate=16_000, rate_header=True)) as peer:
        status, result = bench(peer, tmp_path, *flags)
        assert status == 1
        assert "16000 Hz instead of 24000" in result["results"][0]["failures"][0]
        status, result = bench(peer, tmp_path, *flags[:-2])
    assert status == 0  # the server's own word counts


def test_latency_counts_from_the_scheduled_time(tmp_path: Path) -> None:
    with speaking(TtsBehaviour(delay=0.25)) as peer:
        rows = rows_of(peer, tmp_path, "--rate", "400")
    for row in rows:
        assert row["scheduled"] <= row["sent"] <= row["first_byte"] <= row["first_sample"] <= row["end"]
        assert row["ttfb"] == pytest.approx(row["first_byte"] - row["scheduled"])
        assert row["ttfb"] >= 0.25


def test_speech_is_compared_by_what_is_good_when_it_is_small(tmp_path: Path) -> None:
    with speaking() as peer:
        _, result = bench(peer, tmp_path)
    found = figures_of(result["results"][0])
    assert [name for name, figure in found.items() if figure.higher_is_better] == ["audio_seconds_per_s"]
    assert {"first_playable.p50", "first_audible.p50", "rtf.p50", "e2e.p50"} <= found.keys()
    assert "audio_s.p50" not in found  # neither long nor short speech is a merit


def test_several_processes_share_the_texts(tmp_path: Path) -> None:
    with speaking() as peer:
        status, _ = bench(peer, tmp_path, "--concurrency", "4", "--requests", "12", "--processes", "2")
    assert status == 0
    assert len(peer.requests) == 24
    assert len({body["seed"] for body in peer.requests}) == 24


def test_the_same_seed_sends_the_same_requests(tmp_path: Path) -> None:
    def sent(seed: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        with speaking() as peer:
            _, result = bench(peer, tmp_path, "--seed", seed, "--voice", "anna", "bob")
        return peer.requests, result["data"]

    assert sent("5") == sent("5")
    assert sent("5") != sent("6")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--floor-db", "3"], "--floor-db"),
        (["--jitter-ms", "-1"], "--jitter-ms"),
        (["--field", "speed"], "--field"),
        (["--format", "tape"], "--format"),
    ],
)
def test_a_bad_flag_is_named(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["tts", *flags])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_server_without_a_list_of_models_is_asked_for_the_one_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with speaking(TtsBehaviour(listed=False)) as peer:
        assert main(["tts", "--url", peer.url]) == 2
        assert "--model is needed" in capsys.readouterr().err
        status, _ = bench(peer, tmp_path, "--model", "any")
    assert status == 0
    assert {body["model"] for body in peer.requests} == {"any"}


def test_a_run_that_cannot_start_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with speaking() as peer:
        assert main(["tts", "--url", peer.url, "--format", "flac"]) == 2
        assert "--format flac cannot be streamed" in capsys.readouterr().err
        assert main(["tts", "--url", peer.url, "--texts", str(tmp_path / "absent")]) == 2
        assert "absent" in capsys.readouterr().err
    assert not peer.requests
