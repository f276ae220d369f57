"""Requests for speech, and the audio that comes back: streamed, as it is or in events, or whole."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from denizen.bench.api import Client, ErrorEvent, Target, Whole, error_text, path_of
from denizen.bench.pcm import BadAudio, Pcm, Player, read_file
from denizen.bench.speech_schema import Spoken
from denizen.bench.sse import Events

if TYPE_CHECKING:
    from pathlib import Path

    from denizen.bench.load import Clock

Stream = Literal["audio", "sse", "none"]
Format = Literal["pcm", "wav", "flac", "mp3", "opus"]
#: What the client can read as it arrives.
STREAMED: tuple[Format, ...] = ("pcm", "wav")
DEFAULT_RATE = 24_000
"""Of raw PCM that says no rate, as OpenAI's does not."""
#: An answer of such a type carries no audio, whatever its status is.
_NO_AUDIO = ("application/json", "text/html", "text/plain")
_RATE_HEADER = "x-sample-rate"
_RATE_PARAMETER = re.compile(r";\s*(?:rate|sample_?rate)=(\d+)")


@dataclass(frozen=True, slots=True)
class Job:
    """One text to be spoken."""

    index: int
    text: str
    voice: str | None = None
    language: str | None = None
    instructions: str | None = None
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class TtsTarget(Target):
    """A server of speech, and how it is listened to."""

    stream: Stream = "audio"
    """The body as it is made, server-sent events, or whole answers."""
    response_format: Format = "pcm"
    rate: int | None = None
    """Samples a second that every answer must have; None takes what the server says, of raw PCM else 24,000."""
    jitter: float = 0.1
    """Seconds that the player waits after the first sample before it starts."""
    floor_db: float = -50.0
    """Loudness, in dB of full scale, over which there is a sound."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of every body."""
    save: Path | None = None
    """Folder in which each answer becomes `INDEX.wav`."""

    def connect(self) -> TtsClient:
        return TtsClient(self)

    def body(self, job: Job) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model, "input": job.text, "response_format": self.response_format}
        for name in ("voice", "language", "instructions", "seed"):
            if (value := getattr(job, name)) is not None:
                body[name] = value
        if self.stream != "none":
            body["stream_format"] = self.stream
        return body | self.extra


class TtsClient(Client):
    """Sends texts to be spoken."""

    def __init__(self, target: TtsTarget) -> None:
        super().__init__(target)
        self._target = target
        self._path = path_of(target.route("/v1/audio/speech"))

    async def send(self, job: Job, scheduled: float, clock: Clock) -> Spoken:
        record = Spoken(index=job.index, scheduled=scheduled, text=job.text, voice=job.voice, language=job.language)
        payload = json.dumps(self._target.body(job)).encode()
        answer = _ANSWERS[self._target.stream](self._target, record, clock)
        await self.exchange(record, clock, self._path, payload, answer, answer.end)
        return record


class _Answer(Whole):
    """Audio in one piece."""

    def __init__(self, target: TtsTarget, record: Spoken, clock: Clock) -> None:
        super().__init__()
        self._target, self._record, self._clock = target, record, clock

    def begin(self, status: int, headers: dict[str, str]) -> None:
        super().begin(status, headers)
        kind = headers.get("content-type", "")
        if status == 200 and kind.startswith(_NO_AUDIO):
            self._record.error = f"the answer is {kind}, not audio"

    def end(self) -> None:
        """The whole body is there."""
        if self._record.error is not None:
            return
        try:
            self._finish()
        except BadAudio as error:
            self._record.error = str(error)

    def _finish(self) -> None:
        """Raises BadAudio."""
        data, target = self.content(), self._target
        if target.response_format in STREAMED:
            pcm = self._listener()
            pcm.feed(data)
        else:
            samples, rate = read_file(data)
            if target.rate is not None and rate != target.rate:
                raise BadAudio(f"the file has {rate} Hz instead of {target.rate}")
            pcm = Pcm("pcm", rate, target.floor_db, keep=target.save is not None)
            pcm.add(samples)
        self._close(pcm)

    def _listener(self) -> Pcm:
        """Raises BadAudio where the head of the answer names another rate than the options."""
        target = self._target
        kind: Literal["pcm", "wav"] = "wav" if target.response_format == "wav" else "pcm"
        said = self.headers.get(_RATE_HEADER, "")
        if found := _RATE_PARAMETER.search(self.headers.get("content-type", "")):
            said = said or found[1]
        rate = int(said) if said.isdigit() and int(said) else None
        if rate and target.rate and rate != target.rate:
            raise BadAudio(f"the server says {rate} Hz instead of {target.rate}")
        rate = rate or target.rate or (DEFAULT_RATE if kind == "pcm" else None)
        return Pcm(kind, rate, target.floor_db, keep=target.save is not None)

    def _close(self, pcm: Pcm) -> None:
        """Fills in what is known at the end. Raises BadAudio."""
        record = self._record
        record.seconds, record.rate = pcm.seconds, pcm.rate
        pcm.end()
        if pcm.sound is not None:
            record.leading_silence = pcm.sound / pcm.rate
        if self._target.save is not None:
            _write_wav(self._target.save / f"{record.index:05}.wav", pcm)


class _Stream(_Answer):
    """Times the parts of a body as they arrive."""

    def __init__(self, target: TtsTarget, record: Spoken, clock: Clock) -> None:
        super().__init__(target, record, clock)
        self._pcm: Pcm | None = None
        self._at_once, self._player = Player(0.0), Player(target.jitter)

    def feed(self, data: bytes) -> None:
        if self.status != 200:
            super().feed(data)
        elif self._record.error is None:
            now = self._clock.now()
            if self._record.first_byte is None:
                self._record.first_byte = now
            try:
                self._read(data, now)
            except BadAudio as error:
                self._record.error = str(error)

    def _read(self, data: bytes, now: float) -> None:
        """A part of the body. Raises BadAudio."""
        self._hear(data, now)

    def _hear(self, data: bytes, now: float) -> None:
        """A part of the audio. Raises BadAudio."""
        record = self._record
        pcm = self._pcm = self._pcm or self._listener()
        before, deaf = pcm.frames, pcm.sound is None
        frames = pcm.feed(data)
        if not frames:
            return
        if record.first_sample is None:
            record.first_sample = now
        record.parts += 1
        seconds = frames / pcm.rate
        self._player.arrive(now, seconds)
        start = self._at_once.arrive(now, seconds)
        if deaf and pcm.sound is not None:
            record.first_sound = start + max(0, pcm.sound - before) / pcm.rate

    def _finish(self) -> None:
        self._record.underruns, self._record.stalled = self._player.underruns, self._player.stalled
        self._close(self._pcm or self._listener())


class _EventStream(_Stream):
    """The same of audio that comes in server-sent events."""

    def __init__(self, target: TtsTarget, record: Spoken, clock: Clock) -> None:
        super().__init__(target, record, clock)
        self._events = Events()
        self._done = False

    def _read(self, data: bytes, now: float) -> None:
        for line in self._events.feed(data):
            if line == b"[DONE]":
                continue
            event = json.loads(line)
            kind = event.get("type")
            if "error" in event or kind == "error":
                raise ErrorEvent(error_text(line.decode(errors="replace")))
            if kind == "speech.audio.delta":
                self._hear(base64.b64decode(event["audio"], validate=True), now)
            elif kind == "speech.audio.done":
                self._done = True

    def _finish(self) -> None:
        if not self._done:
            raise BadAudio("the stream ended without speech.audio.done")
        super()._finish()


_ANSWERS: dict[Stream, type[_Answer]] = {"audio": _Stream, "sse": _EventStream, "none": _Answer}


def _write_wav(path: Path, pcm: Pcm) -> None:
    import numpy as np
    import soundfile  # type: ignore[import-untyped]

    # Rounded here: what came as s16 is written as it came.
    samples = np.clip(np.rint(pcm.samples() * 32768), -32768, 32767).astype(np.int16)
    soundfile.write(str(path), samples, pcm.rate, subtype="PCM_16")
