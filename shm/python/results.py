"""What calls answer with. Each class reads the map that HTTP's JSON would have; missing keys are None or empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

Json = Mapping[str, Any]


def _maps(value: Any) -> Sequence[Json]:
    return value or ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request for text. Each prompt counts once; `completion_tokens` sums over the choices.

    Of speech: tokens of the text, and frames of audio.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @classmethod
    def read(cls, usage: Json) -> Usage:
        return cls(
            usage.get("prompt_tokens") or usage.get("input_tokens") or 0,
            usage.get("completion_tokens") or usage.get("output_tokens") or 0,
            (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
            (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0,
        )


@dataclass(frozen=True, slots=True)
class Logprob:
    """Of one token. `token` is its text, or `bytes:\\xe2\\x80` where that is only part of a character."""

    token: str
    logprob: float | None
    """None for the first token of an echoed prompt."""
    top: tuple[tuple[str, float], ...] = ()
    """The most likely tokens there, with theirs."""


def read_logprobs(value: Json | None) -> tuple[Logprob, ...]:
    """From either of the HTTP API's two forms."""
    if not value:
        return ()
    if "content" in value:
        return tuple(
            Logprob(
                entry.get("token", ""),
                entry.get("logprob"),
                tuple((top["token"], top["logprob"]) for top in _maps(entry.get("top_logprobs"))),
            )
            for entry in _maps(value["content"])
        )
    tokens, own = value.get("tokens") or (), value.get("token_logprobs") or ()
    tops = value.get("top_logprobs") or [None] * len(tokens)
    return tuple(
        Logprob(token, logprob, tuple((top or {}).items()))
        for token, logprob, top in zip(tokens, own, tops, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one choice of a streamed answer. The pieces of a choice joined are its text."""

    index: int
    """Which choice."""
    text: str = ""
    reasoning: str = ""
    tokens: tuple[int, ...] = ()
    """Ids of the output tokens that have come since the choice's chunk before."""
    logprobs: tuple[Logprob, ...] = ()
    finish_reason: str | None = None
    """`stop` or `length` in the choice's last chunk."""

    @classmethod
    def read(cls, body: Json) -> Chunk:
        return cls(
            body.get("index") or 0,
            body.get("text") or "",
            body.get("reasoning") or "",
            tuple(body.get("tokens") or ()),
            read_logprobs(body.get("logprobs")),
            body.get("finish_reason"),
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer of a :class:`Completion`."""

    index: int
    text: str
    reasoning: str = ""
    tokens: tuple[int, ...] = ()
    """Ids of the output tokens."""
    logprobs: tuple[Logprob, ...] = ()
    finish_reason: str | None = None
    """`stop` or `length`."""

    @classmethod
    def read(cls, choice: Json, tokens: Sequence[int] = ()) -> Choice:
        message = choice.get("message")
        text = choice.get("text") if message is None else message.get("content")
        return cls(
            choice.get("index") or 0,
            text or "",
            (message or {}).get("reasoning_content") or "",
            tuple(tokens),
            read_logprobs(choice.get("logprobs")),
            choice.get("finish_reason"),
        )

    @classmethod
    def join(cls, choice: Json, chunks: Sequence[Chunk]) -> Choice:
        """What the chunks of a streamed choice come to."""
        return cls(
            choice.get("index") or 0,
            "".join(chunk.text for chunk in chunks),
            "".join(chunk.reasoning for chunk in chunks),
            tuple(token for chunk in chunks for token in chunk.tokens),
            tuple(logprob for chunk in chunks for logprob in chunk.logprobs),
            choice.get("finish_reason"),
        )


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer, or what a stream came to."""

    id: str
    model: str
    choices: tuple[Choice, ...]
    usage: Usage

    @property
    def text(self) -> str:
        """Of the first choice."""
        return self.choices[0].text

    @property
    def tokens(self) -> tuple[int, ...]:
        """Of the first choice."""
        return self.choices[0].tokens

    @property
    def finish_reason(self) -> str | None:
        """Of the first choice."""
        return self.choices[0].finish_reason

    @classmethod
    def read(cls, result: Json, tokens: Sequence[Sequence[int]]) -> Completion:
        """`tokens` of each choice."""
        choices = _maps(result.get("choices"))
        ids = [*tokens, *[()] * (len(choices) - len(tokens))]
        return cls._of(result, [Choice.read(*pair) for pair in zip(choices, ids, strict=False)])

    @classmethod
    def join(cls, result: Json, chunks: Sequence[Chunk]) -> Completion:
        """Of a stream: the chunks that it had and the RESULT that ended it."""
        parts: dict[int, list[Chunk]] = {}
        for chunk in chunks:
            parts.setdefault(chunk.index, []).append(chunk)
        choices = _maps(result.get("choices"))
        return cls._of(result, [Choice.join(choice, parts.get(choice.get("index") or 0, ())) for choice in choices])

    @classmethod
    def _of(cls, result: Json, choices: Sequence[Choice]) -> Completion:
        usage = Usage.read(result.get("usage") or {})
        return cls(result.get("id") or "", result.get("model") or "", tuple(choices), usage)


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a transcript; times in seconds from the start of the audio."""

    start: float
    end: float
    text: str
    id: int = 0
    seek: int = 0
    tokens: tuple[int, ...] = ()
    temperature: float | None = None
    avg_logprob: float | None = None
    compression_ratio: float | None = None
    no_speech_prob: float | None = None

    @classmethod
    def read(cls, segment: Json) -> Segment:
        return cls(
            segment["start"],
            segment["end"],
            segment.get("text") or "",
            segment.get("id") or 0,
            segment.get("seek") or 0,
            tuple(segment.get("tokens") or ()),
            segment.get("temperature"),
            segment.get("avg_logprob"),
            segment.get("compression_ratio"),
            segment.get("no_speech_prob"),
        )


@dataclass(frozen=True, slots=True)
class Word:
    """A word with its punctuation, without spaces; times in seconds from the start of the audio."""

    start: float
    end: float
    word: str

    @classmethod
    def read(cls, word: Json) -> Word:
        return cls(word["start"], word["end"], word.get("word") or "")


@dataclass(frozen=True, slots=True)
class TranscriptChunk:
    """A piece of a streamed transcript. The texts joined are the transcript's."""

    text: str
    segments: tuple[Segment, ...] = ()
    words: tuple[Word, ...] = ()

    @classmethod
    def read(cls, body: Json) -> TranscriptChunk:
        return cls(
            body.get("text") or "",
            tuple(Segment.read(segment) for segment in _maps(body.get("segments"))),
            tuple(Word.read(word) for word in _maps(body.get("words"))),
        )


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was said. `words` are there where they were asked for."""

    text: str
    """With `response_format` `srt` or `vtt` the subtitles."""
    language: str | None = None
    """English name, `english` for a translation."""
    duration: float | None = None
    """Seconds of audio."""
    segments: tuple[Segment, ...] = ()
    words: tuple[Word, ...] = ()

    @classmethod
    def read(cls, result: Json | str) -> Transcript:
        if isinstance(result, str):
            return cls(result)
        return cls(
            result.get("text") or "",
            result.get("language"),
            result.get("duration"),
            tuple(Segment.read(segment) for segment in _maps(result.get("segments"))),
            tuple(Word.read(word) for word in _maps(result.get("words"))),
        )


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a call to `speak` came to."""

    sample_rate: int
    samples: int
    """Of all arrays together."""
    usage: Usage
    finish_reason: str | None = None
    """`stop`, or `length` at `max_tokens`."""

    @classmethod
    def read(cls, result: Json) -> Spoken:
        return cls(
            result.get("rate") or 0,
            result.get("samples") or 0,
            Usage.read(result.get("usage") or {}),
            result.get("finish_reason"),
        )


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids of a text or a conversation."""

    ids: tuple[int, ...]
    strings: tuple[str, ...] = ()
    """With `return_token_strs`: the text of each."""
    max_model_len: int = 0

    @classmethod
    def read(cls, result: Json) -> Tokens:
        return cls(
            tuple(result.get("tokens") or ()),
            tuple(result.get("token_strs") or ()),
            result.get("max_model_len") or 0,
        )


@dataclass(frozen=True, slots=True)
class Model:
    """A model that the server offers."""

    id: str
    kind: str
    """`text`, `asr` or `tts`."""
    context: int = 0
    """Most positions of prompt and output together."""
    vocab: int = 0
    sample_rate: int | None = None
    """Of the speech that it makes, in hertz."""
    voices: tuple[str, ...] = ()

    @classmethod
    def read(cls, model: Json) -> Model:
        return cls(
            model["id"],
            model.get("kind") or "text",
            model.get("context") or model.get("max_model_len") or 0,
            model.get("vocab") or 0,
            model.get("sample_rate"),
            tuple(model.get("voices") or ()),
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """The server's limits, as it told them on connecting; None = not said."""

    max_in_flight: int | None = None
    """Requests of all its clients together."""
    max_body: int | None = None
    """Bytes of a call's parameters."""
    max_upload: int | None = None
    """Bytes of a call's audio."""
    max_audio_s: float | None = None
    request_timeout_s: float | None = None
    max_buffered: int | None = None
    """Bytes of a call's output that wait in the server while this process stands still."""
    slow_client_timeout_s: float | None = None
    """After how long of that the server ends its calls."""

    @classmethod
    def read(cls, limits: Json) -> Limits:
        return cls(**{field.name: limits.get(field.name) for field in fields(cls)})
