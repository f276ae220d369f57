"""What SUBMIT says about speaking: its ``tts`` map. Meanings: ``docs/design/protocol.md``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from denizen.worker.wire import Fields


@dataclass(frozen=True, slots=True)
class TtsOptions:
    """How a text is spoken."""

    voice: str = ""  #: one of the model's; empty for a model that names none
    language: str | None = None  #: ISO 639-1 code; None = as the text goes
    instructions: str | None = None  #: how to speak, in words
    speed: float = 1.0  #: 2 = twice as fast

    def wire_map(self) -> dict[str, Any]:
        """Without what equals its default."""
        defaults = TtsOptions()
        names = (name for name in TtsOptions.__slots__ if getattr(self, name) != getattr(defaults, name))
        return {name: getattr(self, name) for name in names}

    @classmethod
    def read(cls, f: Fields) -> TtsOptions:
        return cls(
            voice=f.text("voice"),
            language=f.text("language") if f.has("language") else None,
            instructions=f.text("instructions") if f.has("instructions") else None,
            speed=f.number("speed", 1.0),
        )
