"""The special ids of a checkpoint and what its generation config says about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from denizen.worker.models.checkpoint import read_json

if TYPE_CHECKING:
    from pathlib import Path

    from denizen.worker.models.checkpoint import Checkpoint
    from denizen.worker.models.whisper.config import WhisperConfig

from denizen.worker.errors import CheckpointError

_FILE = "generation_config.json"
#: Seconds from one timestamp id to the next.
TIMESTAMP_STEP = 0.02
#: Vocabulary size → end of text and number of languages. Before the end lie the texts; after it, in this order: start
#: of transcript, the languages, translate, transcribe, start of LM, start of previous, no speech, no timestamps, and
#: 1,501 timestamps.
_LAYOUTS = {51864: (50256, 99), 51865: (50257, 99), 51866: (50257, 100)}


@dataclass(frozen=True)
class Ids:
    """Vocabulary ids by their meaning. Ids above ``no_timestamps`` are timestamps, in steps of 0.02 s from 0."""

    end: int
    start: int
    no_speech: int
    no_timestamps: int
    languages: tuple[int, ...]  #: none: the checkpoint knows one language only
    suppress: tuple[int, ...]  #: never sampled
    begin_suppress: tuple[int, ...]  #: never the first sampled token
    max_initial_timestamp: int | None  #: latest first timestamp, in steps
    alignment_heads: tuple[tuple[int, int], ...]  #: (decoder layer, head) whose attention follows the speech

    @property
    def first_timestamp(self) -> int:
        return self.no_timestamps + 1

    @classmethod
    def read(cls, checkpoint: Checkpoint, config: WhisperConfig) -> Ids:
        """From ``generation_config.json``; what that lacks, from the layout of known vocabularies.

        Raises :class:`CheckpointError` for an id that is wrong, or unknown and not to be derived.
        """
        file = checkpoint.path / _FILE
        values = read_json(file) if file.is_file() else {}
        reader = _Reader(file, values, config.vocab_size)
        end, languages = _LAYOUTS.get(config.vocab_size, (None, 0))
        start = None if end is None else end + 1
        no_timestamps = None if start is None else start + languages + 6
        end = reader.id("eos_token_id", end)
        start = reader.id("decoder_start_token_id", start)
        no_timestamps = reader.id("no_timestamps_token_id", no_timestamps)
        specials = (start, *range(no_timestamps - 5, no_timestamps))
        return cls(
            end=end,
            start=start,
            no_speech=no_timestamps - 1,
            no_timestamps=no_timestamps,
            languages=reader.languages(start, languages if config.vocab_size != 51864 else 0),
            suppress=reader.ids("suppress_tokens", specials),
            begin_suppress=reader.ids("begin_suppress_tokens", (220, end) if end > 220 else (end,)),
            max_initial_timestamp=reader.initial(),
            alignment_heads=reader.heads(config),
        )


class _Reader:
    """Typed reads; a fault is a :class:`CheckpointError` that names file and key."""

    def __init__(self, file: Path, values: dict[str, object], vocab: int) -> None:
        self._file, self._values, self._vocab = file, values, vocab

    def id(self, key: str, default: int | None) -> int:
        value = self._values.get(key)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if value is None and default is None:
            raise self._error(key, "is missing, and the vocabulary's size is not one of Whisper's: add the id")
        return self._checked(key, default if value is None else value)

    def ids(self, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """A missing key is ``default``; null and -1 mean none."""
        value = self._values.get(key, default)
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            raise self._error(key, f"must be a list of ids, not {value!r}")
        return tuple(sorted({self._checked(key, token) for token in value if token != -1}))

    def languages(self, start: int, count: int) -> tuple[int, ...]:
        if self._values.get("is_multilingual") is False:
            return ()
        value = self._values.get("lang_to_id")
        if value is None:
            return tuple(range(start + 1, start + 1 + count))
        if not isinstance(value, dict):
            raise self._error("lang_to_id", f"must be an object of ids, not {value!r}")
        return tuple(sorted(self._checked("lang_to_id", token) for token in value.values()))

    def initial(self) -> int | None:
        value = self._values.get("max_initial_timestamp_index", 50)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise self._error("max_initial_timestamp_index", f"must be an integer or null, not {value!r}")
        return value

    def heads(self, config: WhisperConfig) -> tuple[tuple[int, int], ...]:
        """Without a list: all heads of the upper half of the decoder, as the original implementation does."""
        layers, heads = config.decoder_layers, config.decoder_heads
        value = self._values.get("alignment_heads")
        if value is None:
            return tuple((layer, head) for layer in range(layers // 2, layers) for head in range(heads))
        if not isinstance(value, list) or not value:
            raise self._error("alignment_heads", "must be a list of [layer, head] pairs")
        pairs = []
        for pair in value:
            match pair:
                case [int(layer), int(head)] if 0 <= layer < layers and 0 <= head < heads:
                    pairs.append((layer, head))
                case _:
                    raise self._error("alignment_heads", f"has {pair!r}; the decoder has {layers} x {heads} heads")
        return tuple(pairs)

    def _checked(self, key: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < self._vocab:
            raise self._error(key, f"has {value!r}, which is not an id below {self._vocab}")
        return value

    def _error(self, key: str, problem: str) -> CheckpointError:
        return CheckpointError(f"{self._file}: '{key}' {problem}")
