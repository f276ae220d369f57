"""A request's sampling parameters, and their packed row in the device tables.

A row is one block of :data:`ROW_BYTES` bytes, written once when the request is admitted: 8-byte fields first, each
field 16-byte aligned, every field always present. A step gathers the blocks of its rows with one copy and reads the
fields as views.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from denizen.kernels import adjust
from denizen.worker.errors import RequestError

if TYPE_CHECKING:
    from denizen.worker.protocol import Submit

#: Most end ids that ``min_tokens`` can hold back.
MAX_MASKED_IDS = 32
#: Most alternatives that ``logprobs`` and ``prompt_logprobs`` give.
MAX_LOGPROBS = 20

_ALIGN = 16


@dataclass(frozen=True)
class _Field:
    offset: int
    dtype: torch.dtype
    numpy: type[np.generic]
    count: int

    @property
    def end(self) -> int:
        return self.offset + self.count * self.dtype.itemsize


def _layout() -> dict[str, _Field]:
    fields = (
        ("seed", torch.int64, np.int64, 1),
        ("temperature", torch.float32, np.float32, 1),
        ("top_k", torch.int32, np.int32, 1),
        ("top_p", torch.float32, np.float32, 1),
        ("min_p", torch.float32, np.float32, 1),
        ("repetition_penalty", torch.float32, np.float32, 1),
        ("presence_penalty", torch.float32, np.float32, 1),
        ("frequency_penalty", torch.float32, np.float32, 1),
        ("min_tokens", torch.int32, np.int32, 1),
        ("features", torch.int32, np.int32, 1),
        ("masked_ids", torch.int32, np.int32, MAX_MASKED_IDS),
    )
    layout: dict[str, _Field] = {}
    offset = 0
    for name, dtype, numpy, count in fields:
        layout[name] = _Field(offset, dtype, numpy, count)
        offset += -(-dtype.itemsize * count // _ALIGN) * _ALIGN
    return layout


FIELDS = _layout()
ROW_BYTES = -(-max(field.end for field in FIELDS.values()) // _ALIGN) * _ALIGN
#: The row block as the host writes it.
_BLOCK = np.dtype(
    {
        "names": list(FIELDS),
        "formats": [(field.numpy, field.count) if field.count > 1 else field.numpy for field in FIELDS.values()],
        "offsets": [field.offset for field in FIELDS.values()],
        "itemsize": ROW_BYTES,
    }
)


class Feature:
    """Bits that say what a row asks of the sampler; a step's are the union of its rows'."""

    DRAW = 1  #: temperature above 0
    FILTER = 2  #: top-k, top-p or min-p
    PENALTY, BIAS, MIN_TOKENS = adjust.PENALTY, adjust.BIAS, adjust.MIN_TOKENS
    LOGPROBS = 32


@dataclass(frozen=True)
class SamplingParams:
    """Validated parameters. Ranges and meanings: ``docs/design/protocol.md``, SUBMIT."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    min_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None

    @classmethod
    def from_submit(cls, body: Submit, vocab_size: int) -> SamplingParams:
        """Raises :class:`RequestError` for what would harm the worker or cannot be done."""
        params = cls(
            body.temperature,
            body.top_k,
            body.top_p,
            body.min_p,
            body.repetition_penalty,
            body.presence_penalty,
            body.frequency_penalty,
            body.seed,
            body.min_tokens,
            frozenset(body.stop_ids),
            tuple(body.logit_bias),
            body.logprobs,
        )
        params.check(vocab_size)
        return params

    def check(self, vocab_size: int) -> None:
        """Raises :class:`RequestError` naming the parameter. Comparisons are written so that NaN fails."""
        _require(self.temperature >= 0.0, "temperature", "must be at least 0", self.temperature)
        _require(0.0 <= self.top_p <= 1.0, "top_p", "must be from 0 to 1", self.top_p)
        _require(0.0 <= self.min_p <= 1.0, "min_p", "must be from 0 to 1", self.min_p)
        _require(self.repetition_penalty > 0.0, "repetition_penalty", "must be above 0", self.repetition_penalty)
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(abs(value) < float("inf"), name, "must be a finite number", value)
        for token, bias in self.logit_bias:
            _require(0 <= token < vocab_size, "logit_bias", f"ids must be below {vocab_size}", token)
            _require(bias == bias, "logit_bias", "biases must be numbers", bias)
        for token in self.stop_ids:
            _require(0 <= token < vocab_size, "stop_ids", f"ids must be below {vocab_size}", token)
        if self.min_tokens and len(self.stop_ids) > MAX_MASKED_IDS:
            raise RequestError(f"min_tokens works with at most {MAX_MASKED_IDS} stop_ids", param="min_tokens")
        _require((self.logprobs or 0) <= MAX_LOGPROBS, "logprobs", f"must be at most {MAX_LOGPROBS}", self.logprobs)

    @property
    def greedy(self) -> bool:
        """Temperature 0 (or too small to divide by), or top-p 0, which keeps the most likely token only."""
        return self.temperature < 1e-5 or self.top_p == 0.0

    @cached_property
    def features(self) -> int:
        """Bits of :class:`Feature`. A greedy row needs no draw and no filter: they cannot change its argmax."""
        bits = 0
        if not self.greedy:
            bits |= Feature.DRAW
            if self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0:
                bits |= Feature.FILTER
        if self.repetition_penalty != 1.0 or self.presence_penalty or self.frequency_penalty:
            bits |= Feature.PENALTY
        if self.logit_bias:
            bits |= Feature.BIAS
        if self.min_tokens and self.stop_ids:
            bits |= Feature.MIN_TOKENS
        if self.logprobs is not None:
            bits |= Feature.LOGPROBS
        return bits

    @cached_property
    def packed(self) -> np.ndarray:
        """The row block as int32 words ``[ROW_BYTES // 4]``."""
        block = np.zeros(1, _BLOCK)
        block["seed"] = np.uint64(self.seed & (1 << 64) - 1).astype(np.int64)
        block["temperature"] = 0.0 if self.greedy else self.temperature
        block["top_k"] = min(self.top_k, 2**31 - 1)
        for name in ("top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            block[name] = getattr(self, name)
        block["min_tokens"] = min(self.min_tokens, 2**31 - 1)
        block["features"] = self.features
        if self.features & Feature.MIN_TOKENS:
            ids = sorted(self.stop_ids)
            block["masked_ids"] = ids + ids[:1] * (MAX_MASKED_IDS - len(ids))
        return block.view(np.int32)


def unpack(blocks: torch.Tensor, name: str) -> torch.Tensor:
    """The field ``name`` of row blocks uint8 ``[B, ROW_BYTES]`` as a view: ``[B]``, or ``[B, count]`` of a vector."""
    field = FIELDS[name]
    view = blocks[:, field.offset : field.end].view(field.dtype)
    return view[:, 0] if field.count == 1 else view


def _require(condition: bool, name: str, rule: str, value: object) -> None:
    if not condition:
        raise RequestError(f"{name} {rule}, not {value}", param=name)
