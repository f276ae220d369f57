"""What a model is to the worker: pools, walks, a forward pass over a batch of rows.

A model never sees requests, pages or the scheduler. It declares the pools that it needs and the walks that it has, and
computes hidden states and logits for a :class:`Batch`, whose pools are already bound to the rows that take part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import torch
    from denizen.worker.asr import AsrOptions
    from denizen.worker.attention.base import AttentionStep
    from denizen.worker.models.checkpoint import Checkpoint, Progress

#: Span of a stream that writes as many positions as the step has tokens for the row (prefill).
RAGGED = -1
#: Span of a stream that writes the whole context of the rows that begin in the step, and nothing for the others.
CONTEXT = -2


@dataclass(frozen=True)
class KvPoolSpec:
    """A paged KV pool: ``layers`` layers of keys and values, each ``[pages, page_size, kv_heads, head_dim]``.

    A pool holds the positions of a request's own tokens, or a *context* of fixed length, which queries see as a whole
    (cross attention). A request holds all of its context from its admission: the row's length there never moves.
    """

    key: str
    layers: int
    kv_heads: int
    head_dim: int
    heads: int = 0  #: query heads that read it; 0 = as many as ``kv_heads``
    context: int = 0  #: positions of a request's context; 0 = the pool follows the request's tokens


@dataclass(frozen=True)
class StateSpec:
    """One tensor of a recurrent-state pool: ``[layers, slots, *shape]``; ``dtype`` None = the model's."""

    name: str
    layers: int
    shape: tuple[int, ...]
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class StatePoolSpec:
    """A recurrent-state pool: one slot a request, each slot holds every tensor in ``tensors``."""

    key: str
    tensors: tuple[StateSpec, ...]


@dataclass(frozen=True)
class RowInput:
    """An array that a row brings into the step in which it begins, beside its tokens: ``shape``, of type ``dtype``.

    A request's own array may be shorter in the first dimension; what is missing is zero.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Walk:
    """A named way through a model. ``streams`` maps a KV pool's key to its span: positions written a row and step.

    ``RAGGED`` = one a token of the row; 0 = the pool is read only in this walk; ``CONTEXT`` = the context of rows that
    begin. Queries attend causally to a pool that takes their own positions, and to all of a row's positions elsewhere.
    """

    name: str
    streams: Mapping[str, int]
    #: The pool whose lengths say where the step's tokens stand. Default: the first that takes a position a token.
    positions: str = ""
    #: What rows bring along, by name (prefill only). Then prompts are never split: every row of a step begins in it.
    inputs: Mapping[str, RowInput] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.positions:
            object.__setattr__(self, "positions", next(iter(self.grows), ""))

    @property
    def grows(self) -> tuple[str, ...]:
        """Keys of the pools whose lengths move in this walk."""
        return tuple(key for key, span in self.streams.items() if span not in (0, CONTEXT))


@dataclass
class Batch:
    """One step of one walk. All tensors are on the model's device.

    Row ``i`` of the batch owns tokens ``cu_seqlens[i]:cu_seqlens[i + 1]``. In a decode walk every row has one token.
    Padding rows have slot 0 (the null row); in a prefill walk they have no tokens. Tokens after ``cu_seqlens[B]`` pad a
    captured step. What is computed for padding is not looked at.
    """

    walk: str
    slots: torch.Tensor  #: int32 [B], rows of the device tables
    token_ids: torch.Tensor  #: int64 [T]
    positions: torch.Tensor  #: int64 [T], absolute position of each token in its request
    cu_seqlens: torch.Tensor  #: int32 [B + 1]
    max_seqlen: int  #: most new tokens of one row
    attention: Mapping[str, AttentionStep]  #: by KV pool key, bound to this step's pages and lengths
    state: Mapping[str, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    #: by state pool key: tensor name -> ``[layers, slots, *shape]``, updated in place
    state_slots: Mapping[str, torch.Tensor] = field(default_factory=dict)  #: by state pool key: int32 [B]
    fresh: torch.Tensor | None = None
    #: bool [B]: the row's recurrent state starts from zero in this step, whatever the slot holds (first chunk)
    lengths: Mapping[str, torch.Tensor] = field(default_factory=dict)
    #: by KV pool key: int32 [B], positions of each row in this step, its new ones included
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    #: by name: ``[B, *shape]``, what the rows of a walk with ``Walk.inputs`` brought; anything finite in padding rows


class Model(Protocol):
    """A loaded model."""

    family: str
    kind: str  #: "text", or "asr" of a :class:`SpeechModel`
    vocab_size: int
    context_length: int
    kv_pools: tuple[KvPoolSpec, ...]
    state_pools: tuple[StatePoolSpec, ...]
    walks: Mapping[str, Walk]  #: "prefill" and "decode" at least
    resident_walks: frozenset[str]  #: with "decode", rows live on the device; else the host plans and rewrites them

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, progress: Progress | None = None
    ) -> Model:
        """Builds the model and reads its weights; ``progress(done_bytes, total_bytes)`` is called as they arrive."""
        ...

    def forward(self, batch: Batch) -> torch.Tensor:
        """Hidden states after the last norm, ``[T, hidden]``; writes KV and recurrent state of the batch's rows."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits ``[N, vocab_size]``, in the model's type, of hidden states ``[N, hidden]``."""
        ...


@dataclass(frozen=True)
class Speech:
    """What a model that hears is told of a request."""

    prompt: np.ndarray  #: int32 ids
    outputs: Sequence[int]  #: sampled so far: none when it begins, unless it was preempted
    options: AsrOptions
    pcm: np.ndarray  #: fp32, mono, 16 kHz


@dataclass(frozen=True)
class RowCache:
    """A row's positions in a KV pool."""

    keys: torch.Tensor  #: the whole pool's, ``[layers, pages, page_size, kv_heads, head_dim]``
    values: torch.Tensor
    pages: torch.Tensor  #: int64, the row's
    length: int  #: positions

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, each ``[length, kv_heads, dim]``, copied."""
        keys, values = (cache[index][self.pages].flatten(0, 1)[: self.length] for cache in (self.keys, self.values))
        return keys, values


class SpeechModel(Model, Protocol):
    """A model of kind "asr": it hears one window of audio a request and writes down what was said.

    A row's log-probabilities are those of its sampled tokens under the constrained logits.
    """

    #: Rows of prefill graphs, rising: a step computes the audio of as many windows as its bucket has rows.
    prefill_rows: tuple[int, ...]
    #: Most samples of a request's audio.
    max_samples: int

    def check(self, speech: Speech) -> None:
        """Raises :class:`~denizen.worker.errors.RequestError` for what this model cannot do; ``param`` names it."""
        ...

    def row_inputs(self, speech: Speech) -> Mapping[str, np.ndarray]:
        """What the row brings into its prefill step, for every name in the walk's ``inputs``. Plan thread, no torch."""
        ...

    def observe(self, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Of a prefill step, one fp32 a row ``[B]``: the probability that nobody speaks. ``hidden`` ``[T, hidden]``."""
        ...

    def constrain(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The logits ``[B, vocab_size]`` of a row's next token after the rules of transcription; in place if it can.

        Called in every step after :meth:`forward`, prefill included, with that step's batch; what a row must remember
        from token to token lies in a state pool. Captured on a GPU: fixed shapes, no copy to the host.
        """
        ...

    def align(self, speech: Speech, caches: Mapping[str, RowCache]) -> list[float]:
        """Times of the text tokens in ``speech.outputs`` (without the end id), in seconds of the window, and at last
        the end of the last.

        ``caches`` by KV pool key. Called when the request has ended and still holds its pages, beside other steps, in a
        thread and stream of its own; never captured.
        """
        ...


def hears(model: Model) -> TypeGuard[SpeechModel]:
    """Whether the model is of kind "asr"."""
    return model.kind == "asr"
