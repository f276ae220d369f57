"""Recordings of a run: manifests, folders, LibriSpeech's layout."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import soundfile
from denizen.bench import clips
from denizen.bench.errors import BenchError

if TYPE_CHECKING:
    from pathlib import Path


def tone(path: Path, seconds: float = 0.5, rate: int = 16_000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(str(path), 0.1 * np.sin(np.arange(round(seconds * rate)) / 9), rate)
    return path


def test_a_json_manifest(tmp_path: Path) -> None:
    tone(tmp_path / "sound/a.wav", 1.5)
    tone(tmp_path / "b.flac", 0.25, 44_100)
    (tmp_path / "c.webm").write_bytes(b"whatever the harness cannot read")
    rows = [
        {"path": "sound/a.wav", "text": "Hello.", "language": "en"},
        {"audio_filepath": "b.flac", "text": ""},
        {"path": str(tmp_path / "c.webm"), "duration": 3},
    ]
    manifest = tmp_path / "list.jsonl"
    manifest.write_text("\n\n".join(map(json.dumps, rows)), encoding="utf-8")
    first, second, third = clips.read(manifest)
    assert (first.name, first.path, first.text, first.language) == (
        "sound/a.wav",
        tmp_path / "sound/a.wav",
        "Hello.",
        "en",
    )
    assert first.seconds == 1.5
    assert (second.text, second.language, second.seconds) == ("", None, 0.25)
    assert (third.text, third.seconds) == (None, 3.0)


def test_a_tab_separated_manifest(tmp_path: Path) -> None:
    tone(tmp_path / "a.wav")
    manifest = tmp_path / "list.tsv"
    manifest.write_text(
        "path\tduration\tlanguage\ttext\na.wav\t\tde\tÄpfel, Birnen\na.wav\t7.5\t\t\n", encoding="utf-8"
    )
    first, second = clips.read(manifest)
    assert (first.seconds, first.language, first.text) == (0.5, "de", "Äpfel, Birnen")
    assert (second.seconds, second.language, second.text) == (7.5, None, "")  # an empty text says: silence


def test_librispeech(tmp_path: Path) -> None:
    chapter = tmp_path / "test-clean/61/70968"
    for name in ("61-70968-0001", "61-70968-0000"):
        tone(chapter / f"{name}.flac")
    text = "61-70968-0000 HE BEGAN A CONFUSED COMPLAINT\n61-70968-0001 GIVE NOT SO EARNEST A MIND\n"
    (chapter / "61-70968.trans.txt").write_text(text, encoding="utf-8")
    tone(chapter / "stray.wav")
    found = clips.read(tmp_path)
    assert [(clip.name, clip.text) for clip in found] == [
        ("61-70968-0000", "HE BEGAN A CONFUSED COMPLAINT"),
        ("61-70968-0001", "GIVE NOT SO EARNEST A MIND"),
    ]


def test_a_folder_of_audio_with_texts_beside(tmp_path: Path) -> None:
    tone(tmp_path / "b/one.wav")
    (tmp_path / "b/one.txt").write_text(" ten of clubs \n", encoding="utf-8")
    tone(tmp_path / "a.flac")
    (tmp_path / "readme.md").write_text("x", encoding="utf-8")
    assert [(clip.name, clip.text) for clip in clips.read(tmp_path)] == [
        ("a.flac", None),
        ("b/one.wav", "ten of clubs"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("list.csv", "x", "expected a folder"),
        ("list.jsonl", "", "no clips in it"),
        ("list.jsonl", "{", "line 1: not JSON"),
        ("list.jsonl", "[]", "line 1: expected an object"),
        ("list.jsonl", '\n{"text": "x"}', "line 2: `path` is missing"),
        ("list.jsonl", '{"path": "absent.wav"}', "line 1: there is no file .*absent.wav"),
        ("list.jsonl", '{"path": "a.wav", "text": 5}', "line 1: `text` is not a string"),
        ("list.jsonl", '{"path": "a.wav", "duration": "long"}', "`duration` is not a positive number"),
        ("list.jsonl", '{"path": "a.wav", "duration": true}', "`duration` is not a positive number"),
        ("list.jsonl", '{"path": "list.jsonl"}', "its length cannot be read .*give `duration`"),
        ("list.tsv", "file\ttext\na.wav\tx", "line 1: expected a header"),
        ("list.tsv", "path\tspeaker\na.wav\tx", "line 1: expected a header"),
        ("list.tsv", "path\ttext\na.wav\tx\ty", "line 2: 3 columns, but the header has 2"),
        ("list.tsv", "path\tduration\na.wav\tlong", "line 2: `duration` is not a number"),
        ("empty", None, "no audio in it"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    tone(tmp_path / "a.wav")
    source = tmp_path / name
    if content is None:
        source.mkdir()
    else:
        source.write_text(content, encoding="utf-8")
    with pytest.raises(BenchError, match=message):
        clips.read(source)


def test_a_transcript_without_its_recording_is_named(tmp_path: Path) -> None:
    (tmp_path / "1-2.trans.txt").write_text("1-2-0000 WORDS\n", encoding="utf-8")
    with pytest.raises(BenchError, match=r"line 1: there is no audio file .*1-2-0000\.flac"):
        clips.read(tmp_path)


def test_the_hash_covers_sounds_and_references(tmp_path: Path) -> None:
    def digest(seconds: float, text: str) -> str:
        tone(tmp_path / "a.wav", seconds)
        (tmp_path / "a.txt").write_text(text, encoding="utf-8")
        return clips.sha256(clips.read(tmp_path))

    assert digest(0.5, "x") == digest(0.5, "x")
    assert len({digest(0.5, "x"), digest(0.5, "y"), digest(0.6, "x")}) == 3
