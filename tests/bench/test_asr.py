"""`denizen-bench asr` against a peer that misbehaves."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from denizen.bench.__main__ import main
from denizen.bench.asr_client import subtitle_text

from .asr_peer import AsrBehaviour, hearing
from .test_clips import tone

if TYPE_CHECKING:
    from pathlib import Path

    from .asr_peer import AsrPeer

SPEECH = {"a.wav": "Ten of clubs.", "b.flac": "Mr. Dashwood smiled.", "c.wav": ""}


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """A manifest of three clips of 1, 2 and 3 s, the last one silent."""
    rows = []
    for seconds, (name, text) in enumerate(SPEECH.items(), 1):
        tone(tmp_path / "audio" / name, seconds)
        rows.append({"path": name, "text": text, "language": "en"})
    manifest = tmp_path / "audio" / "list.jsonl"
    manifest.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return manifest


def heard(recordings: Path, **changes: str) -> dict[str, str]:
    """What a perfect server hears, but for `changes` by the file's stem."""
    return {
        hashlib.sha256((recordings.parent / name).read_bytes()).hexdigest(): changes.get(name.partition(".")[0], text)
        for name, text in SPEECH.items()
    }


def bench(peer: AsrPeer, tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Runs a small benchmark; returns its exit status and its result file."""
    out = tmp_path / "result.json"
    words = ["asr", "--url", peer.url, "--json", str(out), "--max-client-lag", "60000", *arguments]
    return main(words), json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", ["json", "text", "verbose_json", "vtt"])
def test_a_sound_server_gives_a_valid_result(tmp_path: Path, recordings: Path, kind: str) -> None:
    with hearing(AsrBehaviour(texts=heard(recordings), delay=0.05)) as peer:
        load = ["--concurrency", "1", "3", "--passes", "3", "--requests", "6", "--response-format", kind]
        status, result = bench(peer, tmp_path, "--data", str(recordings), *load)
    assert status == 0
    assert result["valid"] is True
    assert (result["schema"], result["kind"]) == ("denizen.bench/1", "asr")
    assert [level["load"] for level in result["results"]] == [
        {"mode": "closed", "concurrency": 1},
        {"mode": "closed", "concurrency": 3},
    ]
    assert len(peer.uploads) == 2 * 3 * 6
    assert peer.most == 3
    for level in result["results"]:
        summary = level["summary"]
        assert summary["requests"] == 12  # the first pass is dropped
        assert summary["audio_seconds"] == 2 * 2 * (1 + 2 + 3)
        assert summary["audio_seconds_per_s"] == pytest.approx(summary["audio_seconds"] / summary["wall"])
        assert summary["requests_per_s"] == pytest.approx(12 / summary["wall"])
        assert summary["e2e"]["count"] == 12
        quality = summary["quality"]
        assert quality["wer"]["rate"] == 0
        assert quality["wer"]["words"] == 4 * (3 + 3)
        assert (quality["silent"], quality["on_silence"], quality["empty"]) == (4, 0, 0)
    assert result["data"]["clips"] == 3
    assert result["data"]["clip_seconds"]["mean"] == 2


def test_files_travel_as_they_are_with_their_form(tmp_path: Path, recordings: Path) -> None:
    with hearing() as peer:
        bench(peer, tmp_path, "--data", str(recordings), "--field", "temperature=0", "--field", "prompt=a=b")
    by_name = {upload.filename: upload for upload in peer.uploads}
    assert set(by_name) == set(SPEECH)
    for name, upload in by_name.items():
        assert upload.content == (recordings.parent / name).read_bytes()
        assert upload.content_type == ("audio/flac" if name.endswith("flac") else "audio/wav")
        assert upload.fields == {
            "model": "ears",
            "response_format": "json",
            "language": "en",
            "temperature": "0",
            "prompt": "a=b",
        }


def test_a_language_is_sent_only_if_one_is_known(tmp_path: Path) -> None:
    folder = tone(tmp_path / "audio/a.wav").parent
    with hearing() as peer:
        bench(peer, tmp_path, "--data", str(folder))
        bench(peer, tmp_path, "--data", str(folder), "--language", "de")
        bench(peer, tmp_path, "--synthetic", "--clips", "1", "--language", "fr")
    assert [upload.fields.get("language") for upload in peer.uploads] == [None, None, "de", "de", "fr", "fr"]


def test_wrong_words_and_invented_ones_are_counted(
    tmp_path: Path, recordings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = heard(recordings, a="ten lamps clubs", b=" ", c="Thanks for watching!")
    with hearing(AsrBehaviour(texts=texts)) as peer:
        status, result = bench(peer, tmp_path, "--data", str(recordings))
    assert status == 0  # a bad transcript is a finding, not a failure of the run
    quality = result["results"][0]["summary"]["quality"]
    assert quality["wer"]["rate"] == pytest.approx((1 + 3 + 3) / 6)
    assert (quality["empty"], quality["on_silence"]) == (1, 1)
    printed = capsys.readouterr().out
    table = printed[printed.index("Quality") :].splitlines()
    cells = dict(zip(re.split(r"  +", table[1]), re.split(r"  +", table[3]), strict=True))
    assert (cells["WER %"], cells["WER words"]) == ("116.7", "6")
    assert (cells["WER wrong"], cells["WER missing"], cells["WER added"]) == ("1", "3", "3")
    assert (cells["empty"], cells["on silence"], cells["silent"]) == ("1", "1", "1")
    assert re.search(r"b\.flac .* 3$", printed, re.MULTILINE)


# Requests 0..2 are the warm-up, 3..5 the measured pass.
@pytest.mark.parametrize(
    ("behaviour", "message", "flags"),
    [
        (AsrBehaviour(refuse={4}), "HTTP 500: out of order", []),
        (AsrBehaviour(drop={3}), "broken connection", []),
        (AsrBehaviour(hang={5}), "no complete answer within 0.5 s", ["--timeout", "0.5"]),
        (AsrBehaviour(garble={3}), "not OpenAI's", []),
        (AsrBehaviour(textless={3}), "not OpenAI's (KeyError: 'text')", ["--response-format", "verbose_json"]),
        (AsrBehaviour(short={4}), "tokens instead of", ["--output-tokens", "5:9"]),
    ],
)
def test_failures_make_the_result_invalid(
    tmp_path: Path,
    recordings: Path,
    behaviour: AsrBehaviour,
    message: str,
    flags: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with hearing(behaviour) as peer:
        status, result = bench(peer, tmp_path, "--data", str(recordings), *flags)
    assert status == 1
    assert result["valid"] is False
    [failure] = result["results"][0]["failures"]
    assert message in failure
    summary = result["results"][0]["summary"]
    assert (summary["requests"], summary["failed"]) == (3, 1)
    assert summary["e2e"]["count"] == 2
    assert summary["audio_seconds"] < 6  # what failed must not count as work done
    assert "INVALID" in capsys.readouterr().out


def test_latency_counts_from_the_scheduled_time(tmp_path: Path, recordings: Path) -> None:
    """An open loop at a server that takes a quarter of a second for each: everything that waits is charged."""
    records = tmp_path / "records.jsonl"
    with hearing(AsrBehaviour(delay=0.25)) as peer:
        bench(peer, tmp_path, "--data", str(recordings), "--rate", "400", "--records", str(records))
    rows = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    assert [row["measured_pass"] for row in rows] == [0] * 3 + [1] * 3
    for row in rows:
        assert row["scheduled"] <= row["sent"] <= row["end"]
        assert row["e2e"] == pytest.approx(row["end"] - row["scheduled"])
        assert row["e2e"] >= 0.25
        assert row["text"] == "a voice"


def test_several_processes_share_the_clips(tmp_path: Path, recordings: Path) -> None:
    with hearing(AsrBehaviour(texts=heard(recordings))) as peer:
        load = ["--concurrency", "4", "--requests", "12", "--processes", "2"]
        status, result = bench(peer, tmp_path, "--data", str(recordings), *load)
    assert status == 0
    assert len(peer.uploads) == 24
    assert result["results"][0]["summary"]["quality"]["wer"]["rate"] == 0


def test_a_client_that_lags_is_refused(tmp_path: Path, recordings: Path) -> None:
    with hearing() as peer:
        status, result = bench(peer, tmp_path, "--data", str(recordings), "--max-client-lag", "1e-6")
    assert status == 1
    assert any("the client was too slow" in problem for problem in result["problems"])


def test_synthetic_clips_with_forced_lengths(tmp_path: Path) -> None:
    flags = ["--synthetic", "--clips", "8", "--seconds", "0.5:2:1", "--output-tokens", "12:60:27", "--format", "wav"]
    with hearing() as peer:
        status, result = bench(peer, tmp_path, *flags)
    assert status == 0
    assert result["data"]["without_reference"] == 8
    measured = [int(upload.fields["max_tokens"]) for upload in peer.uploads[8:]]
    assert all(12 <= count <= 60 for count in measured)
    assert all(upload.fields["ignore_eos"] == "true" for upload in peer.uploads)
    summary = result["results"][0]["summary"]
    assert summary["output_tokens"] == sum(measured)
    assert (summary["unchecked"], summary["quality"]["wer"]) == (0, None)


def test_forced_lengths_that_nobody_confirms_are_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--synthetic", "--clips", "2", "--seconds", "1:1", "--output-tokens", "5:5"]
    with hearing(AsrBehaviour(usage=False)) as peer:
        _, result = bench(peer, tmp_path, *flags)
    assert result["results"][0]["summary"]["unchecked"] == 2
    assert "2 answers had no usage" in capsys.readouterr().out


def test_words_that_are_heard_in_silence_are_a_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hearing() as peer:  # it hears "a voice" in everything
        status, result = bench(peer, tmp_path, "--silence", "4", "--seconds", "0.5:1")
    assert status == 0
    quality = result["results"][0]["summary"]["quality"]
    assert (quality["silent"], quality["on_silence"], quality["on_silence_rate"]) == (4, 4, 1)
    assert {found["clip"].split("-")[2] for found in quality["worst"]} == {
        "digital.flac",
        "hiss.flac",
        "rumble.flac",
        "hum.flac",
    }
    assert quality["wer"] is None  # of no words
    assert "on silence %" in capsys.readouterr().out


def test_silence_goes_beside_recordings(tmp_path: Path, recordings: Path) -> None:
    with hearing(AsrBehaviour(texts=heard(recordings), otherwise="")) as peer:
        _, result = bench(peer, tmp_path, "--data", str(recordings), "--silence", "2", "--seconds", "0.5:1")
    assert len(peer.uploads) == 2 * 5
    quality = result["results"][0]["summary"]["quality"]
    assert (quality["silent"], quality["on_silence"], quality["on_silence_rate"]) == (3, 0, 0)
    assert quality["wer"]["rate"] == 0


def test_the_same_seed_sends_the_same_requests(tmp_path: Path) -> None:
    def sent(seed: str) -> tuple[list[tuple[bytes, str]], dict[str, Any]]:
        flags = ["--synthetic", "--clips", "3", "--seconds", "0.2:1", "--output-tokens", "5:50", "--seed", seed]
        with hearing() as peer:
            _, result = bench(peer, tmp_path, *flags)
        return [(upload.content, upload.fields["max_tokens"]) for upload in peer.uploads], result["data"]

    assert sent("5") == sent("5")
    assert sent("5") != sent("6")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--synthetic", "--seconds", "9:3"], "--seconds"),
        (["--synthetic", "--seconds", "1:3:5"], "--seconds"),
        (["--synthetic", "--output-tokens", "few"], "--output-tokens"),
        (["--synthetic", "--data", "x"], "not allowed with"),
        (["--synthetic", "--field", "temperature"], "--field"),
        (["--synthetic", "--silence", "none"], "--silence"),
    ],
)
def test_a_bad_flag_is_named(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["asr", *flags])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_run_that_cannot_start_says_why(tmp_path: Path, recordings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hearing() as peer:
        assert main(["asr", "--url", peer.url, "--data", str(tmp_path / "absent.jsonl")]) == 2
        assert "absent.jsonl" in capsys.readouterr().err
        assert main(["asr", "--url", peer.url]) == 2
        assert "asr needs recordings" in capsys.readouterr().err
        assert main(["asr", "--url", peer.url, "--silence", "3", "--output-tokens", "5:9"]) == 2
        assert "--silence: answers of forced length" in capsys.readouterr().err
        assert main(["asr", "--url", peer.url, "--data", str(recordings), "--model", "eyes"]) == 2
        assert "the server offers ears" in capsys.readouterr().err
    assert not peer.uploads


def test_words_of_subtitles() -> None:
    srt = "1\r\n00:00:00,000 --> 00:00:01,500\r\nHello,\r\nworld.\r\n\r\n2\r\n00:00:02,000 --> 00:00:03,000\r\n42\r\n"
    assert subtitle_text(srt) == "Hello, world. 42"
    vtt = "WEBVTT\n\nNOTE by hand\n\nintro\n00:00.000 --> 00:01.000\nHello.\n\n00:01.000 --> 00:02.000\nBye.\n"
    assert subtitle_text(vtt) == "Hello. Bye."
    assert subtitle_text("") == ""
