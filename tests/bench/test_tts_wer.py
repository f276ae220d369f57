"""`denizen-bench tts-wer` against a peer that hears what it has said."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from denizen.bench import clips
from denizen.bench.__main__ import main

from .asr_peer import hearing
from .tts_peer import TtsBehaviour, conversing, speaking

if TYPE_CHECKING:
    from pathlib import Path

    from .tts_peer import Parrot

TEXTS = ["Ten of clubs.", "The farmer sold a heavy suitcase.", "My brother washed the kitchen table."]


def wer(peer: Parrot, tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Runs it over `TEXTS`; returns its exit status and its result file."""
    out, texts = tmp_path / "result.json", tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS), encoding="utf-8")
    words = ["tts-wer", "--url", peer.url, "--model", "mouth", "--asr-model", "ears", "--json", str(out)]
    status = main([*words, "--texts", str(texts), *arguments])
    return status, json.loads(out.read_text(encoding="utf-8"))


def test_what_is_heard_as_it_was_said_has_no_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with conversing() as peer:
        status, result = wer(peer, tmp_path)
    assert status == 0
    assert (result["valid"], result["kind"]) == (True, "tts-wer")
    quality = result["results"][1]["summary"]["quality"]
    assert quality["wer"]["rate"] == 0
    assert (quality["wer"]["references"], quality["wer"]["words"]) == (3, 3 + 6 + 6)
    assert [level["load"]["name"] for level in result["results"]] == ["speaking", "hearing"]
    assert [level["summary"]["requests"] for level in result["results"]] == [3, 3]
    assert sorted(body["input"] for body in peer.requests) == sorted(TEXTS)
    assert "WER %" in capsys.readouterr().out


def test_wrong_words_are_counted_and_the_worst_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with conversing(lambda text: text.replace("a heavy", "the light").replace("Ten ", "")) as peer:
        status, result = wer(peer, tmp_path)
    assert status == 0
    quality = result["results"][1]["summary"]["quality"]
    assert quality["wer"]["rate"] == pytest.approx(3 / 15)
    assert [found["errors"] for found in quality["worst"]] == [2, 1]
    assert "the farmer sold the light suitcase" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("", "all 3 transcripts are empty"),
        (" ... ", "all 3 transcripts are empty"),
        ("you", "all 3 transcripts are 'you'"),
    ],
)
def test_a_server_that_does_not_hear_makes_the_result_invalid(tmp_path: Path, said: str, problem: str) -> None:
    with conversing(lambda _: said) as peer:
        status, result = wer(peer, tmp_path)
    assert status == 1
    assert any(problem in found for found in result["problems"])


def test_texts_without_words_make_the_result_invalid(tmp_path: Path) -> None:
    texts = tmp_path / "dots.txt"
    texts.write_text("...\n!?\n", encoding="utf-8")
    with conversing() as peer:
        status, result = wer(peer, tmp_path, "--texts", str(texts))
    assert status == 1
    assert result["problems"] == ["no text has a word: there is nothing to compare"]


def test_failures_on_either_side_make_the_result_invalid(tmp_path: Path) -> None:
    with conversing(behaviour=TtsBehaviour(silent={1})) as peer:
        status, result = wer(peer, tmp_path)
        assert (status, len(peer.uploads)) == (1, 2)
        assert result["problems"] == ["speaking: 1 requests failed: 1 × the audio is silent"]
    with conversing(lambda text: None if "farmer" in text else text) as peer:
        status, result = wer(peer, tmp_path)
        assert status == 1
        assert result["problems"] == ["hearing: 1 requests failed: 1 × HTTP 500: deaf"]
        assert result["results"][1]["summary"]["quality"]["wer"]["references"] == 2
    with conversing(behaviour=TtsBehaviour(refuse={0, 1, 2})) as peer:
        status, result = wer(peer, tmp_path)
        assert (status, peer.uploads) == (1, [])
        assert "hearing: there is nothing to send" in result["problems"]


def test_audio_is_kept_with_a_manifest_that_asr_reads(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with conversing() as peer:
        wer(peer, tmp_path, "--wav-dir", str(kept), "--voice", "anna", "--language", "en")
        assert main(["tts-wer", "--url", peer.url, "--wav-dir", str(kept)]) == 2
    found = clips.read(kept / "manifest.jsonl")
    assert sorted(clip.text or "" for clip in found) == sorted(TEXTS)
    assert {clip.language for clip in found} == {"en"}
    assert all(clips.duration(clip.path) == pytest.approx(0.02 * len(clip.text or "")) for clip in found)
    assert {upload["language"] for upload in peer.uploads} == {"en"}


def test_voices_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = tmp_path / "voices.jsonl"
    rows = [{"text": text, "voice": "bob" if "farmer" in text else "anna"} for text in TEXTS]
    texts.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with conversing(lambda text: text.replace("farmer", "father")) as peer:
        _, result = wer(peer, tmp_path, "--texts", str(texts))
    rates = {voice: one["wer_rate"] for voice, one in result["figures"]["by_voice"].items()}
    assert rates == {"anna": 0, "bob": pytest.approx(1 / 6)}
    assert ["bob", "1", "16.67", "–", "0"] in [line.split() for line in capsys.readouterr().out.splitlines()]


def test_two_servers_and_drawn_sentences(tmp_path: Path) -> None:
    out, records = tmp_path / "result.json", tmp_path / "records.jsonl"
    with speaking() as mouth, hearing() as ears:
        words = ["tts-wer", "--url", mouth.url, "--asr-url", ears.url, "--requests", "5", "--seed", "7"]
        status = main([*words, "--json", str(out), "--records", str(records)])
    assert status == 1  # these ears always hear "a voice"
    assert (len(mouth.requests), len(ears.uploads)) == (5, 5)
    rows = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    assert [row["level"] for row in rows] == ["speaking"] * 5 + ["hearing"] * 5
    assert all(row["text"] == "a voice" for row in rows[5:])


def test_a_server_that_cannot_be_asked_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with conversing() as peer:
        assert main(["tts-wer", "--url", peer.url]) == 2
        assert "--model is needed" in capsys.readouterr().err
        assert main(["tts-wer", "--url", peer.url, "--model", "mouth"]) == 2
        assert "--asr-model is needed" in capsys.readouterr().err
        assert main(["tts-wer", "--url", peer.url, "--model", "mouth", "--asr-url", "http://127.0.0.1:9"]) == 2
        assert "is --asr-url right?" in capsys.readouterr().err
    assert not peer.requests
