"""Audio as it arrives: headers, parts, silence, and a player of it."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import soundfile
from denizen.bench.pcm import BadAudio, Pcm, Player, read_file, read_header

from .tts_peer import RATE, tone, wav_header


def s16(samples: np.ndarray) -> bytes:
    return (samples * 32767).astype("<i2").tobytes()


def heard(kind: str, data: bytes, step: int | None = None, rate: int | None = RATE, floor: float = -50.0) -> Pcm:
    """Feeds `data` in parts of `step` bytes and ends it."""
    assert kind in ("pcm", "wav")
    pcm = Pcm(kind, rate, floor, keep=True)  # type: ignore[arg-type]
    for at in range(0, len(data), step or len(data) or 1):
        pcm.feed(data[at : at + (step or len(data))])
    pcm.end()
    return pcm


def wav(form: bytes, samples: bytes, size: int | None = None, before: bytes = b"") -> bytes:
    chunks = before + struct.pack("<4sI", b"fmt ", len(form)) + form
    chunks += struct.pack("<4sI", b"data", len(samples) if size is None else size) + samples
    return b"RIFF" + struct.pack("<I", 0xFFFFFFFF) + b"WAVE" + chunks


@pytest.mark.parametrize("step", [None, 1, 2, 3, 45, 46, 1000])
@pytest.mark.parametrize("size", ["told", "all ones", "zero"])
def test_a_wav_may_be_cut_anywhere(step: int | None, size: str) -> None:
    samples = s16(tone(0.25))
    told = {"told": len(samples), "all ones": 0xFFFFFFFF, "zero": 0}[size]
    pcm = heard("wav", wav_header(told) + samples, step)
    assert (pcm.frames, pcm.rate, pcm.seconds) == (6000, RATE, 0.25)
    assert s16(pcm.samples() * 32768 / 32767) == samples


@pytest.mark.parametrize("step", [None, 1, 3, 480])
def test_sound_is_found_where_it_starts_however_it_is_cut(step: int | None) -> None:
    quiet = np.zeros(round(0.125 * RATE), np.float32)
    pcm = heard("pcm", s16(np.concatenate([quiet, tone(0.1)])), step)
    assert pcm.sound == 2880  # windows of 240: the one from 2,880 on is half silence, half tone
    assert heard("pcm", s16(tone(0.1)), step).sound == 0


def test_the_floor_tells_sound_from_silence() -> None:
    faint = s16(tone(0.1) * 0.01)  # some −60 dB
    with pytest.raises(BadAudio, match="silent"):
        heard("pcm", faint)
    assert heard("pcm", faint, floor=-70).sound == 0


def test_a_sound_shorter_than_a_window_counts() -> None:
    assert heard("pcm", s16(tone(0.005, RATE) + np.float32(0.1))).sound == 0


def test_float_and_stereo_and_extensible_formats() -> None:
    mono = tone(0.1)
    stereo = np.stack([mono, -mono], axis=1)
    two = heard("wav", wav(struct.pack("<HHIIHH", 3, 2, RATE, RATE * 8, 8, 32), (stereo + 0.25).tobytes()), 7)
    assert two.frames == len(mono)
    assert np.allclose(two.samples(), 0.25, atol=1e-6)
    extensible = struct.pack("<HHIIHHHHIH14s", 0xFFFE, 1, RATE, RATE * 2, 2, 16, 22, 16, 4, 1, bytes(14))
    assert heard("wav", wav(extensible, s16(mono))).frames == len(mono)


def test_other_chunks_around_the_samples_are_no_samples() -> None:
    form = struct.pack("<HHIIHH", 1, 1, RATE, RATE * 2, 2, 16)
    samples = s16(tone(0.1))
    before = struct.pack("<4sI", b"LIST", 5) + b"12345\0"
    after = struct.pack("<4sI", b"LIST", 4) + b"abcd"
    assert heard("wav", wav(form, samples + after, len(samples), before), 11).frames == 2400


@pytest.mark.parametrize(
    ("form", "why"),
    [
        (struct.pack("<HHIIHH", 1, 1, RATE, RATE * 2, 4, 16), "contradicts itself"),
        (struct.pack("<HHIIHH", 1, 1, RATE, RATE, 2, 16), "contradicts itself"),
        (struct.pack("<HHIIHH", 1, 0, RATE, 0, 0, 16), "0 channels"),
        (struct.pack("<HHIIHH", 1, 1, 0, 0, 2, 16), "at 0 Hz"),
        (struct.pack("<HHIIHH", 1, 1, RATE, RATE * 3, 3, 24), "24-bit"),
        (struct.pack("<HHIIHH", 1, 1, 16_000, 32_000, 2, 16), "16000 Hz instead of 24000"),
        (b"short", "cut off"),
    ],
)
def test_a_wrong_header_is_refused(form: bytes, why: str) -> None:
    with pytest.raises(BadAudio, match=why):
        heard("wav", wav(form, s16(tone(0.1))))


@pytest.mark.parametrize(
    ("kind", "data", "why"),
    [
        ("wav", b"", "empty body"),
        ("wav", b"RIFF\0\0", "cut off"),
        ("wav", b"\x01\x02\x03\x04\x05\x06", "no WAV file"),
        ("wav", wav_header(0), "without samples"),
        ("wav", wav_header(4800) + s16(tone(0.05)), "2400 more bytes"),
        ("wav", wav_header(0xFFFFFFFF) + s16(tone(0.05))[:-1], "last sample"),
        ("wav", wav_header(48_000)[:12] + wav_header(48_000)[36:], "without a format"),
        ("wav", wav_header(0)[:36] + struct.pack("<4sI", b"junk", 1 << 20), "without samples"),
        ("pcm", b"", "empty body"),
        ("pcm", b"\x01", "last sample"),
        ("pcm", wav_header(0) + s16(tone(0.05)), "a WAV file"),
        ("pcm", s16(np.zeros(100, np.float32)), "silent"),
    ],
)
def test_what_is_no_audio_says_why(kind: str, data: bytes, why: str) -> None:
    with pytest.raises(BadAudio, match=why):
        heard(kind, data)


def test_floats_must_be_finite() -> None:
    form = struct.pack("<HHIIHH", 3, 1, RATE, RATE * 4, 4, 32)
    with pytest.raises(BadAudio, match="finite"):
        heard("wav", wav(form, np.array([0, np.nan], "<f4").tobytes()))


def test_a_header_waits_for_the_rest_of_it() -> None:
    header = wav_header(48_000)
    assert all(read_header(header[:size]) is None for size in range(1, len(header)))
    assert read_header(header) == (44, RATE, 1, "s16", 48_000)


def test_a_player_runs_dry_when_parts_come_late() -> None:
    player = Player(0.1)
    assert player.arrive(10.0, 0.2) == pytest.approx(10.1)  # plays until 10.3
    assert player.arrive(10.25, 0.1) == pytest.approx(10.3)  # in time: until 10.4
    assert (player.underruns, player.stalled) == (0, 0)
    assert player.arrive(10.65, 0.1) == pytest.approx(10.65)  # a quarter of a second late: until 10.75
    assert player.arrive(10.70, 0.1) == pytest.approx(10.75)
    assert (player.underruns, player.stalled) == (1, pytest.approx(0.25))


def test_a_jitter_buffer_bridges_a_gap_of_its_size() -> None:
    def underruns(jitter: float) -> int:
        player = Player(jitter)
        for now in (0.0, 0.3, 0.4):
            player.arrive(now, 0.1)
        return player.underruns

    assert underruns(0.0) == 1
    assert underruns(0.15) == 1
    assert underruns(0.25) == 0


def test_a_file_that_does_not_say_how_long_it_is_is_read_to_its_end() -> None:
    file = io.BytesIO()
    soundfile.write(file, tone(3), RATE, format="FLAC")
    data = bytearray(file.getvalue())
    # STREAMINFO follows "fLaC" and a block header of 4 bytes; its byte 13's low half and bytes 14 to 17 are the number
    # of samples, of which 0 stands for "unknown" (RFC 9639, 8.2).
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    samples, rate = read_file(bytes(data))
    assert (len(samples), rate) == (3 * RATE, RATE)


@pytest.mark.parametrize("data", [b"", b"fLaC", b"\x00" * 100])
def test_a_file_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(BadAudio, match=r"cannot be read|empty body"):
        read_file(data)
