"""What the result file keeps of requests for speech; the rest of it is in `schema.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from denizen.bench.schema import Attempt, Summary

if TYPE_CHECKING:
    from denizen.bench.stats import Distribution


@dataclass(slots=True, kw_only=True)
class Spoken(Attempt):
    """A request for speech. Times in seconds from the start of the pass."""

    measures: ClassVar[tuple[str, ...]] = ("first_playable", "first_audible", "ttfb", "rtf", "stalled", "e2e")

    text: str
    voice: str | None = None
    language: str | None = None
    first_byte: float | None = None
    """The first part of the body, header or not; None for whole answers, like all `first_…`."""
    first_sample: float | None = None
    """The first part of the body that completes a sample."""
    first_sound: float | None = None
    """When a player that starts with the first sample gets to the first sound over the floor."""
    seconds: float = 0.0
    """Of audio."""
    rate: int = 0
    """Samples a second."""
    leading_silence: float | None = None
    """Seconds of audio before the first sound over the floor; None if there is none."""
    parts: int = 0
    """Reads that carried samples."""
    underruns: int = 0
    """How often a player with the jitter buffer ran dry before the end."""
    stalled: float = 0.0
    """How long it waited then, all in all."""

    @property
    def began(self) -> float:
        return self.end if self.first_sample is None else self.first_sample

    @property
    def ttfb(self) -> float | None:
        return None if self.first_byte is None else self.first_byte - self.scheduled

    @property
    def first_playable(self) -> float | None:
        return None if self.first_sample is None else self.first_sample - self.scheduled

    @property
    def first_audible(self) -> float | None:
        return None if self.first_sound is None else self.first_sound - self.scheduled

    @property
    def rtf(self) -> float | None:
        """Seconds of waiting for the whole answer, a second of its audio."""
        return self.e2e / self.seconds if self.seconds > 0 else None

    def to_json(self) -> dict[str, Any]:
        derived = ("ttfb", "first_playable", "first_audible", "rtf")
        return {**Attempt.to_json(self), **{name: getattr(self, name) for name in derived}}


@dataclass(slots=True, kw_only=True)
class SpeechSummary(Summary):
    """Of requests for speech."""

    audio_seconds: float
    """In the requests that succeeded."""
    audio_seconds_per_s: float
    characters: int
    """Of their texts."""
    ttfb: Distribution | None
    """None for whole answers, as are the next two."""
    first_playable: Distribution | None
    first_audible: Distribution | None
    rtf: Distribution | None
    audio_s: Distribution | None
    """Seconds of audio of an answer."""
    leading_silence: Distribution | None
    jitter_ms: float | None
    """Of a player's buffer; None for whole answers, as are the next two."""
    underruns: int | None
    interrupted: int | None
    """Requests with at least one."""
    stalled: Distribution | None
    """Seconds that a player waited, of the requests that were interrupted; None without any."""
