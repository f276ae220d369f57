"""`denizen transcribe` with real weights: what the server would say, without one."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from denizen.bench.server import find_binary

from .conftest import CPU
from .hearing import post
from .sounds import wav

if TYPE_CHECKING:
    from pathlib import Path

    from tests.models.real_whisper import Clip

    from .running import Running


def test_it_says_what_the_server_says(ears: Running, tiny_ears_model: Path, clips: list[Clip], tmp_path: Path) -> None:
    files = [clip.file for clip in clips[1:3]]
    command = [find_binary(), "transcribe", *map(str, files), "--model", str(tiny_ears_model), *CPU]
    command += ["--format", "srt", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    for clip, file in zip(clips[1:3], files, strict=True):
        expected = post(ears, wav(clip.pcm), response_format="srt").text
        assert (tmp_path / f"{file.stem}.srt").read_text(encoding="utf-8") == expected


def test_it_reads_stdin_and_loses_no_text_unsaid(tiny_ears_model: Path, clips: list[Clip], tmp_path: Path) -> None:
    """Of a folder it says what to do; where its own output is full, it does not end well."""
    command = [find_binary(), "transcribe", "--model", str(tiny_ears_model), *CPU]
    with clips[1].file.open("rb") as stdin:
        done = subprocess.run(
            [*command, str(tmp_path), "-"], stdin=stdin, capture_output=True, text=True, check=False, timeout=240
        )
    assert done.returncode == 1
    assert f"{tmp_path}: is a folder; name the files in it" in done.stderr
    assert "==> - <==\nHe was not" in done.stdout
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*command, str(clips[1].file)], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=240
        )
    assert done.returncode == 1
    assert "error: stdout: " in done.stderr
