"""Uploads of audio, and the transcripts that come back."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from denizen.bench.api import Client, Target, Whole, path_of
from denizen.bench.clips import TYPES
from denizen.bench.schema import Transcript

if TYPE_CHECKING:
    from denizen.bench.clips import Clip
    from denizen.bench.load import Clock

ResponseFormat = Literal["json", "text", "verbose_json", "srt", "vtt"]
#: Their answers are a transcript as it is: nothing to take apart.
_PLAIN = frozenset({"text"})
_SUBTITLES = frozenset({"srt", "vtt"})


@dataclass(frozen=True, slots=True)
class Job:
    """One upload."""

    index: int
    clip: int
    """Its place among the target's clips."""
    max_tokens: int | None
    """Forced length of the answer, for servers that have that."""


@dataclass(frozen=True, kw_only=True)
class AsrTarget(Target):
    """A server of transcripts, and the clips that it gets. Files are read when they are sent, from every process."""

    clips: tuple[Clip, ...]
    response_format: ResponseFormat = "json"
    fields: dict[str, str] = field(default_factory=dict)
    """Further fields of every form, for example `temperature`."""

    def connect(self) -> AsrClient:
        return AsrClient(self)

    def form(self, job: Job) -> dict[str, str]:
        """The fields of a job's form, without the file."""
        clip = self.clips[job.clip]
        form = {"model": self.model, "response_format": self.response_format}
        if clip.language:
            form["language"] = clip.language
        if job.max_tokens is not None:
            form |= {"max_tokens": str(job.max_tokens), "ignore_eos": "true"}
        return form | self.fields


class AsrClient(Client):
    """Sends uploads."""

    def __init__(self, target: AsrTarget) -> None:
        super().__init__(target)
        self._target = target
        self._path = path_of(target.route("/v1/audio/transcriptions"))
        self._boundary = f"denizen-bench-{random.SystemRandom().getrandbits(128):032x}"

    async def send(self, job: Job, scheduled: float, clock: Clock) -> Transcript:
        clip = self._target.clips[job.clip]
        record = Transcript(
            index=job.index,
            scheduled=scheduled,
            clip=clip.name,
            seconds=clip.seconds,
            reference=clip.text,
            language=clip.language,
            max_tokens=job.max_tokens,
        )
        answer = Whole()
        body = multipart(self._boundary, self._target.form(job), clip)
        kind = f"multipart/form-data; boundary={self._boundary}"
        await self.exchange(record, clock, self._path, body, answer, lambda: self._read(answer.text(), record), kind)
        return record

    def _read(self, body: str, record: Transcript) -> None:
        kind = self._target.response_format
        if kind in _PLAIN:
            record.text = body.strip()
        elif kind in _SUBTITLES:
            record.text = subtitle_text(body)
        else:
            found: dict[str, Any] = json.loads(body)
            text = found["text"]
            if not isinstance(text, str):
                raise TypeError("`text` is not a string")
            record.text = text.strip()
            usage = found.get("usage") or {}
            if "output_tokens" in usage:
                record.output_tokens = int(usage["output_tokens"])


def multipart(boundary: str, fields: dict[str, str], clip: Clip) -> bytes:
    """A form with the clip's file as `file`."""
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    name = clip.path.name.replace("\\", "_").replace('"', "_")
    kind = TYPES.get(clip.path.suffix.lower(), "application/octet-stream")
    disposition = f'form-data; name="file"; filename="{name}"'
    parts.append(f"--{boundary}\r\nContent-Disposition: {disposition}\r\nContent-Type: {kind}\r\n\r\n")
    return "".join(parts).encode() + clip.path.read_bytes() + f"\r\n--{boundary}--\r\n".encode()


def subtitle_text(body: str) -> str:
    """The words of SRT or WebVTT: cues without numbers, times, header and notes."""
    cues: list[str] = []
    for block in body.replace("\r\n", "\n").split("\n\n"):
        lines = block.strip().split("\n")
        times = next((at for at, line in enumerate(lines) if "-->" in line), None)
        if times is not None:
            cues.extend(line.strip() for line in lines[times + 1 :])
    return " ".join(line for line in cues if line)
