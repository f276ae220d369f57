"""The bodies of envelopes: one frozen dataclass a kind, with its map on the wire.

Meanings and ranges: ``docs/design/protocol.md``. ``wire_map`` leaves out what equals its default; ``read`` puts the
default back and raises :class:`~denizen.worker.wire.ProtocolError` for a value of the wrong type or range.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from denizen.worker.asr import AsrOptions, AsrResult
from denizen.worker.tts import TtsOptions
from denizen.worker.wire import U32, U64, Fields, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Version of the bodies' meaning, carried by HELLO; it grows when a peer must know of a change.
SCHEMA = 1


class Kind(IntEnum):
    """What an envelope is."""

    HELLO = 1
    READY = 2
    SUBMIT = 3
    ABORT = 4
    TOKENS = 5
    AUDIO = 6
    DONE = 7
    ERROR = 8
    STATS = 9
    DRAIN = 10
    BYE = 11


#: ``(token id, log-probability)`` of an alternative.
TopLogprob = tuple[int, float]
#: One prompt position: None (the first), or its own log-probability with the alternatives.
PromptLogprob = tuple[float, tuple[TopLogprob, ...]] | None


class TokenRow(NamedTuple):
    """Output token ``position`` (from 0) of one request; ``logprob`` None = log-probabilities were not asked for."""

    request: int
    position: int
    token: int
    logprob: float | None = None
    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Hello:
    """First envelope of each side. ``tokenizers`` comes from the front end: model name → sha256 of its tokenizer."""

    KIND: ClassVar[Kind] = Kind.HELLO
    abi: str = ""
    schema: int = SCHEMA
    version: str = ""
    pid: int = 0
    tokenizers: Mapping[str, str] = field(default_factory=dict)
    python: str = ""
    torch: str = ""
    device: str = ""

    def wire_map(self) -> dict[str, Any]:
        return _without_defaults(self, Hello()) | {"schema": self.schema}

    @classmethod
    def read(cls, f: Fields) -> Hello:
        return cls(
            abi=f.text("abi"),
            schema=f.integer("schema", default=SCHEMA, high=U32),
            version=f.text("version"),
            pid=f.integer("pid", high=U32),
            tokenizers=f.text_map("tokenizers"),
            python=f.text("python"),
            torch=f.text("torch"),
            device=f.text("device"),
        )


@dataclass(frozen=True, slots=True)
class ReadyModel:
    """A model as the worker loaded it. ``kind``: "text", "asr" or "tts". ``context``, ``kv_tokens`` in positions;
    ``rows`` = requests that may run. Of a model that speaks also the hertz of its audio and its ``voices``, the default
    first."""

    name: str
    family: str = ""
    kind: str = "text"
    context: int = 0
    vocab: int = 0
    rows: int = 0
    kv_tokens: int = 0
    fingerprint: str = ""
    sample_rate: int = 0
    voices: Sequence[str] = ()

    def wire_map(self) -> dict[str, Any]:
        silent = () if self.kind == "tts" else ("sample_rate", "voices")
        return {name: getattr(self, name) for name in ReadyModel.__slots__ if name not in silent}

    @classmethod
    def read(cls, f: Fields) -> ReadyModel:
        return cls(
            name=f.text("name", required=True),
            family=f.text("family"),
            kind=f.text("kind", default="text"),
            context=f.integer("context", high=U32),
            vocab=f.integer("vocab", high=U32),
            rows=f.integer("rows", high=U32),
            kv_tokens=f.integer("kv_tokens", high=U64),
            fingerprint=f.text("fingerprint"),
            sample_rate=f.integer("sample_rate", high=U32),
            voices=f.texts("voices"),
        )


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker can take requests, at most ``credits`` in flight."""

    KIND: ClassVar[Kind] = Kind.READY
    models: tuple[ReadyModel, ...] = ()
    credits: int = 0

    def wire_map(self) -> dict[str, Any]:
        return {"models": [model.wire_map() for model in self.models], "credits": self.credits}

    @classmethod
    def read(cls, f: Fields) -> Ready:
        models = tuple(ReadyModel.read(Fields("READY.models", item)) for item in f.items("models"))
        return cls(models=models, credits=f.integer("credits", high=U32))


@dataclass(frozen=True, slots=True)
class Submit:
    """A sequence to generate. Meanings, ranges and defaults: ``docs/design/protocol.md``."""

    KIND: ClassVar[Kind] = Kind.SUBMIT
    model: str
    ids: Sequence[int]
    max_tokens: int
    min_tokens: int = 0
    stop_ids: Sequence[int] = ()
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    logit_bias: Sequence[tuple[int, float]] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    asr: AsrOptions | None = None  #: of a model that hears; its audio is the envelope's attachment
    tts: TtsOptions | None = None  #: of a model that speaks

    def wire_map(self) -> dict[str, Any]:
        body = _without_defaults(self, Submit(model="", ids=(), max_tokens=0))
        if self.asr is not None:
            body["asr"] = self.asr.wire_map()
        if self.tts is not None:
            body["tts"] = self.tts.wire_map()
        ids = array("I", self.ids)
        if sys.byteorder == "big":
            ids.byteswap()
        return body | {"ids": ids.tobytes()}

    @classmethod
    def read(cls, f: Fields) -> Submit:
        return cls(
            model=f.text("model", required=True),
            ids=_token_ids(f),
            max_tokens=f.integer("max_tokens", low=1, high=U32, required=True),
            min_tokens=f.integer("min_tokens", high=U32),
            stop_ids=f.integers("stop_ids", high=U32),
            temperature=f.number("temperature", 1.0),
            top_k=f.integer("top_k", high=U32),
            top_p=f.number("top_p", 1.0),
            min_p=f.number("min_p", 0.0),
            repetition_penalty=f.number("repetition_penalty", 1.0),
            presence_penalty=f.number("presence_penalty", 0.0),
            frequency_penalty=f.number("frequency_penalty", 0.0),
            seed=f.integer("seed", high=U64),
            logit_bias=f.pairs("logit_bias"),
            logprobs=f.optional_integer("logprobs", high=U32),
            prompt_logprobs=f.optional_integer("prompt_logprobs", high=U32),
            asr=AsrOptions.read(Fields("SUBMIT.asr", f.raw("asr"))) if f.has("asr") else None,
            tts=TtsOptions.read(Fields("SUBMIT.tts", f.raw("tts"))) if f.has("tts") else None,
        )


@dataclass(frozen=True, slots=True)
class Abort:
    """The client has gone; answered with DONE ``abort`` if the request is live."""

    KIND: ClassVar[Kind] = Kind.ABORT

    def wire_map(self) -> dict[str, Any]:
        return {}

    @classmethod
    def read(cls, f: Fields) -> Abort:
        return cls()


@dataclass(frozen=True, slots=True)
class Tokens:
    """Output tokens of one step, of any number of requests."""

    KIND: ClassVar[Kind] = Kind.TOKENS
    rows: Sequence[TokenRow] = ()

    def wire_map(self) -> dict[str, Any]:
        return {"rows": [wire_row(row) for row in self.rows]}

    @classmethod
    def read(cls, f: Fields) -> Tokens:
        return cls(rows=tuple(_read_row(row) for row in f.items("rows")))


@dataclass(frozen=True, slots=True)
class Audio:
    """The next stretch of what a request says. Its samples, f32 little endian, are the envelope's attachment."""

    KIND: ClassVar[Kind] = Kind.AUDIO
    index: int  #: counts the request's stretches from 0
    samples: int  #: at least 1

    def wire_map(self) -> dict[str, Any]:
        return {"index": self.index, "samples": self.samples}

    @classmethod
    def read(cls, f: Fields) -> Audio:
        return cls(f.integer("index", high=U32), f.integer("samples", low=1, high=U32, required=True))


@dataclass(frozen=True, slots=True)
class Done:
    """Terminal: the request ended. ``stop_id`` was sampled and counted, but not sent in TOKENS."""

    KIND: ClassVar[Kind] = Kind.DONE
    reason: str  #: "stop", "length" or "abort"
    stop_id: int | None = None
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    prompt_logprobs: Sequence[PromptLogprob] | None = None
    asr: AsrResult | None = None
    samples: int | None = None  #: of audio that was sent; ``completion`` then counts audio frames

    def wire_map(self) -> dict[str, Any]:
        body = {"reason": self.reason} | _without_defaults(self, Done(reason=""))
        return body if self.asr is None else body | {"asr": self.asr.wire_map()}

    @classmethod
    def read(cls, f: Fields) -> Done:
        reason = f.text("reason", required=True)
        if reason not in ("stop", "length", "abort"):
            raise ProtocolError(f"DONE: reason must be stop, length or abort, not {reason[:40]!r}")
        prompt_logprobs = f.items("prompt_logprobs") if f.has("prompt_logprobs") else None
        return cls(
            reason=reason,
            stop_id=f.optional_integer("stop_id", high=U32),
            prompt=f.integer("prompt", high=U32),
            completion=f.integer("completion", high=U32),
            cached=f.integer("cached", high=U32),
            prompt_logprobs=None if prompt_logprobs is None else tuple(map(_read_prompt_logprob, prompt_logprobs)),
            asr=AsrResult.read(Fields("DONE.asr", f.raw("asr"))) if f.has("asr") else None,
            samples=f.optional_integer("samples"),
        )


@dataclass(frozen=True, slots=True)
class Error:
    """Terminal: the request failed; with request 0, the worker itself did."""

    KIND: ClassVar[Kind] = Kind.ERROR
    code: str
    message: str
    param: str | None = None
    retryable: bool = False

    def wire_map(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message} | _without_defaults(self, Error(self.code, self.message))

    @classmethod
    def read(cls, f: Fields) -> Error:
        return cls(
            code=f.text("code", required=True),
            message=f.text("message"),
            param=f.text("param") if f.has("param") else None,
            retryable=f.flag("retryable"),
        )


@dataclass(frozen=True, slots=True)
class Load:
    """How far the weights of ``model`` are, in bytes."""

    model: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Stats:
    """The worker's gauges and counters, or its load progress while weights load."""

    KIND: ClassVar[Kind] = Kind.STATS
    load: Load | None = None
    waiting: int = 0
    running: int = 0
    rows: int = 0
    rows_total: int = 0
    kv_pages: int = 0
    kv_pages_total: int = 0
    state_slots: int = 0
    state_slots_total: int = 0
    preemptions: int = 0
    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0

    def wire_map(self) -> dict[str, Any]:
        body = _without_defaults(self, Stats())
        if self.load is not None:
            body["load"] = {"model": self.load.model, "done": self.load.done, "total": self.load.total}
        return body

    @classmethod
    def read(cls, f: Fields) -> Stats:
        load = None
        if f.has("load"):
            g = Fields("STATS.load", f.raw("load"))
            load = Load(g.text("model"), g.integer("done", high=U64), g.integer("total", high=U64))
        return cls(load, *(f.integer(name, high=U64) for name in cls.__slots__ if name != "load"))


@dataclass(frozen=True, slots=True)
class Drain:
    """Finish what runs, then BYE."""

    KIND: ClassVar[Kind] = Kind.DRAIN

    def wire_map(self) -> dict[str, Any]:
        return {}

    @classmethod
    def read(cls, f: Fields) -> Drain:
        return cls()


@dataclass(frozen=True, slots=True)
class Bye:
    """The last envelope of a side."""

    KIND: ClassVar[Kind] = Kind.BYE
    why: str = ""

    def wire_map(self) -> dict[str, Any]:
        return {"why": self.why}

    @classmethod
    def read(cls, f: Fields) -> Bye:
        return cls(why=f.text("why"))


Body = Hello | Ready | Submit | Abort | Tokens | Audio | Done | Error | Stats | Drain | Bye


def _without_defaults(body: Any, defaults: Any) -> dict[str, Any]:
    names = (name for name in type(body).__slots__ if getattr(body, name) != getattr(defaults, name))
    return {name: getattr(body, name) for name in names}


def wire_row(row: TokenRow) -> tuple[Any, ...]:
    return row[:3] if row[3] is None else tuple(row)


def _token_ids(f: Fields) -> list[int]:
    data = f.raw("ids")
    if not isinstance(data, bytes) or len(data) % 4 or not data:
        raise ProtocolError("SUBMIT: ids must be a non-empty binary of u32 values")
    ids = array("I", data)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tolist()


def _read_row(row: Any) -> TokenRow:
    if not isinstance(row, list) or len(row) not in (3, 5):
        raise ProtocolError("TOKENS: a row must be an array of three or five")
    f = Fields("TOKENS row", dict(zip(TokenRow._fields, row, strict=False)))
    request, position = f.integer("request", high=U64), f.integer("position", high=U32)
    token = f.integer("token", high=U32)
    if len(row) == 3:
        return TokenRow(request, position, token)
    return TokenRow(request, position, token, f.number("logprob", 0.0), f.pairs("top"))


def _read_prompt_logprob(entry: Any) -> PromptLogprob:
    if entry is None:
        return None
    if not isinstance(entry, list) or len(entry) != 2:
        raise ProtocolError("DONE: a prompt_logprobs entry must be nil or an array of two")
    f = Fields("DONE prompt_logprobs", {"logprob": entry[0], "top": entry[1]})
    return f.number("logprob", 0.0), f.pairs("top")
