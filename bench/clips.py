"""The recordings of a run: a manifest, a folder of audio with texts, or LibriSpeech's layout."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from denizen.bench.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

#: Content types by suffix: what counts as audio in a folder, and what an upload is labelled.
TYPES = {
    ".wav": "audio/wav",
    ".flac": "audio/flac",
    ".mp3": "audio/mpeg",
    ".ogg": "audio/ogg",
    ".oga": "audio/ogg",
    ".opus": "audio/ogg",
    ".m4a": "audio/mp4",
    ".mp4": "audio/mp4",
    ".aac": "audio/aac",
    ".webm": "audio/webm",
}
_COLUMNS = ("path", "text", "language", "duration")
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Clip:
    """One recording."""

    name: str
    path: Path
    seconds: float
    text: str | None = None
    """Its reference; an empty one says that it is silent."""
    language: str | None = None


def read(source: Path) -> list[Clip]:
    """Clips of a manifest (`.jsonl`, `.tsv`) or a folder, in the order in which they stand there, folders by name.

    Raises BenchError naming the file, and the line of a manifest.
    """
    if source.is_dir():
        clips = _librispeech(source) if any(source.rglob("*.trans.txt")) else _folder(source)
        if not clips:
            raise BenchError(f"{source}: no audio in it ({', '.join(TYPES)})")
        return clips
    readers = {".jsonl": _json_rows, ".tsv": _tsv_rows}
    if source.suffix not in readers:
        raise BenchError(f"{source}: expected a folder, a .jsonl or a .tsv manifest")
    try:
        lines = source.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"{source}: {error}") from error
    clips = [_from_row(source, number, row) for number, row in readers[source.suffix](source, lines)]
    if not clips:
        raise BenchError(f"{source}: no clips in it")
    return clips


def sha256(clips: Sequence[Clip]) -> str:
    """Of all recordings, references and languages, in order."""
    digest = hashlib.sha256()
    for clip in clips:
        digest.update(json.dumps([clip.text, clip.language]).encode())
        with clip.path.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()


def _json_rows(source: Path, lines: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BenchError(f"{source}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise BenchError(f"{source}, line {number}: expected an object with `path` and `text`")
        yield number, row


def _tsv_rows(source: Path, lines: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    header = lines[0].split("\t") if lines else []
    if "path" not in header or set(header) - set(_COLUMNS):
        raise BenchError(f"{source}, line 1: expected a header with `path` and any of {', '.join(_COLUMNS[1:])}")
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        cells = line.split("\t")
        if len(cells) != len(header):
            raise BenchError(f"{source}, line {number}: {len(cells)} columns, but the header has {len(header)}")
        row: dict[str, Any] = dict(zip(header, cells, strict=True))
        for name in ("language", "duration"):  # an empty cell says nothing; an empty text says: silence
            if not row.get(name):
                row.pop(name, None)
        if "duration" in row:
            try:
                row["duration"] = float(row["duration"])
            except ValueError as error:
                raise BenchError(f"{source}, line {number}: `duration` is not a number of seconds") from error
        yield number, row


def _from_row(source: Path, number: int, row: dict[str, Any]) -> Clip:
    where = f"{source}, line {number}"
    path, text = row.get("path", row.get("audio_filepath")), row.get("text")
    language, seconds = row.get("language"), row.get("duration")
    if not isinstance(path, str) or not path:
        raise BenchError(f"{where}: `path` is missing")
    for name, value in (("text", text), ("language", language)):
        if value is not None and not isinstance(value, str):
            raise BenchError(f"{where}: `{name}` is not a string")
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0):
        raise BenchError(f"{where}: `duration` is not a positive number of seconds")
    file = source.parent / path
    if not file.is_file():
        raise BenchError(f"{where}: there is no file {file}")
    return Clip(path, file, duration(file) if seconds is None else float(seconds), text, language)


def _folder(folder: Path) -> list[Clip]:
    """Audio with `NAME.txt` beside `NAME.wav`; what has no text has no reference."""
    clips = []
    for file in _audio(folder.rglob("*")):
        beside = file.with_suffix(".txt")
        try:
            text = beside.read_text(encoding="utf-8").strip() if beside.is_file() else None
        except UnicodeDecodeError as error:
            raise BenchError(f"{beside}: {error}") from error
        clips.append(Clip(str(file.relative_to(folder)), file, duration(file), text))
    return clips


def _librispeech(folder: Path) -> list[Clip]:
    """Each `*.trans.txt` has lines `ID TEXT`, with `ID.flac` (or another audio file) beside it."""
    clips = []
    for listing in sorted(folder.rglob("*.trans.txt")):
        files = {file.stem: file for file in _audio(listing.parent.iterdir())}
        for number, line in enumerate(listing.read_text(encoding="utf-8").splitlines(), 1):
            name, _, text = line.strip().partition(" ")
            if not name:
                continue
            if name not in files:
                raise BenchError(f"{listing}, line {number}: there is no audio file {listing.parent / name}.flac")
            clips.append(Clip(name, files[name], duration(files[name]), text.strip()))
    return clips


def _audio(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.suffix.lower() in TYPES and path.is_file())


def duration(file: Path) -> float:
    """Seconds of audio in a WAV, FLAC, MP3, Vorbis or Opus file. Raises BenchError for what cannot be read."""
    import soundfile  # type: ignore[import-untyped]

    try:
        info = soundfile.info(str(file))
        seconds = float(info.frames) / float(info.samplerate)
    except (soundfile.SoundFileError, RuntimeError, ZeroDivisionError) as error:
        raise BenchError(
            f"{file}: its length cannot be read ({error}); give `duration` in seconds in a manifest"
        ) from error
    if seconds <= 0:
        raise BenchError(f"{file}: it holds no audio")
    return seconds
