"""What SUBMIT and DONE say about speech recognition: their ``asr`` maps. Meanings: ``docs/design/protocol.md``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from denizen.worker.wire import U32, Fields, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class AsrOptions:
    """How one window of audio is transcribed."""

    timestamps: bool = True
    detect: bool = False  #: the first output token is a language, then come the ``forced`` ids
    forced: Sequence[int] = ()
    words: bool = False  #: DONE carries the times of the text tokens

    @property
    def given(self) -> int:
        """Output tokens, from the first on, that are not the model's own choice of text."""
        return 1 + len(self.forced) if self.detect else 0

    def wire_map(self) -> dict[str, Any]:
        """Without what equals its default."""
        defaults = AsrOptions()
        names = (name for name in AsrOptions.__slots__ if getattr(self, name) != getattr(defaults, name))
        return {name: getattr(self, name) for name in names}

    @classmethod
    def read(cls, f: Fields) -> AsrOptions:
        return cls(f.flag("timestamps", default=True), f.flag("detect"), f.integers("forced", U32), f.flag("words"))


@dataclass(frozen=True, slots=True)
class AsrResult:
    """What is known of a window beside its tokens."""

    no_speech: float = 0.0  #: probability
    avg_logprob: float = 0.0
    times: Sequence[float] | None = None  #: seconds in the window: the start of each text token, the end of the last

    def wire_map(self) -> dict[str, Any]:
        body: dict[str, Any] = {"no_speech": self.no_speech, "avg_logprob": self.avg_logprob}
        return body if self.times is None else body | {"times": list(self.times)}

    @classmethod
    def read(cls, f: Fields) -> AsrResult:
        times = f.items("times") if f.has("times") else None
        if times is not None and not all(type(time) in (float, int) for time in times):
            raise ProtocolError("DONE.asr: times must be an array of numbers")
        return cls(
            f.number("no_speech", 0.0),
            f.number("avg_logprob", 0.0),
            None if times is None else tuple(map(float, times)),
        )
