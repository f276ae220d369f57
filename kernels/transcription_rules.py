"""Which tokens a transcript may go on with: logits of what it may not are set to -inf, in place.

A row's state says where its transcript stands, as int32 words (``STATE_WORDS``); the host writes the first one, and
each step moves it on by the token that it was given. The rules are those of Whisper's original decoder:

- The first tokens may be given: a language, then a list of ids (*given* tokens). The text begins after them.
- ``suppress`` ids never come, ``begin`` ids not as the first token of the text.
- With timestamps, the text begins with one, of at most ``latest_first`` steps. They come in pairs, or one before the
  end of the text; they never fall, and the first of a pair lies behind the pair before. Where all timestamps together
  are more likely than any one other token, it is a timestamp.
- Without, no timestamp comes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from denizen.kernels.jit import jit, power_of_two, tl

#: Most ids that can follow the language.
MOST_FORCED = 8
STATE_WORDS = 16
#: Words of the state: bits of how the text is written, output tokens so far, the last token of the text and the one
#: before it (-1 = none), the last timestamp (-1 = none), how many ids follow the language, and those ids.
MODE, OUTPUTS, LAST, BEFORE, STAMP, FORCED = range(6)
FORCED_IDS = STATE_WORDS - MOST_FORCED
#: Bits of ``MODE``.
TIMESTAMPS, DETECT = 1, 2
#: Bits of a token's kind.
SUPPRESSED, NOT_FIRST, LANGUAGE = 1, 2, 4

_BLOCK = 2048


@dataclass(frozen=True)
class Vocabulary:
    """What the rules know of the ids: ``kinds`` uint8 ``[vocab]``, bits of each token's kind."""

    kinds: torch.Tensor
    end: int
    no_timestamps: int  #: ids above it are timestamps
    latest_first: int  #: steps


def transcription_rules(
    logits: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    vocabulary: Vocabulary,
    *,
    tokens: torch.Tensor | None = None,
    begins: torch.Tensor | None = None,
) -> torch.Tensor:
    """``logits`` ``[B, vocab]``, bf16 or fp32, rows contiguous, after the rules; in place.

    ``state`` int32 ``[slots, STATE_WORDS]``, updated in place at ``slots`` int32 ``[B]``; slot 0 is padding. Either
    ``begins`` int32 ``[B, STATE_WORDS]``: the rows' first states; or ``tokens`` int64 ``[B]``: the rows' newest tokens.
    """
    if (tokens is None) == (begins is None):
        raise ValueError("a row either begins or goes on: give tokens or begins")
    if logits.is_cuda:
        return transcription_rules_triton(logits, state, slots, vocabulary, tokens=tokens, begins=begins)
    rows = slots.long()
    current = begins.clone() if begins is not None else state[rows]
    if tokens is not None:
        _advance(current, tokens.to(torch.int32), vocabulary)
    state[rows] = current
    logits.masked_fill_(~_allowed(current, vocabulary), -torch.inf)
    first = vocabulary.no_timestamps + 1
    stamps = logits[:, first:].float().logsumexp(1)
    text = logits[:, :first].float().amax(1)
    _, written, begun = _place(current)
    turn = begun & written & (stamps > text)
    logits[:, :first].masked_fill_(turn[:, None], -torch.inf)
    return logits


def _place(state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens of the text so far (negative: given ones are to come), whether with timestamps, whether it has begun."""
    detects = (state[:, MODE] & DETECT) != 0
    place = state[:, OUTPUTS] - torch.where(detects, state[:, FORCED] + 1, 0)
    return place, (state[:, MODE] & TIMESTAMPS) != 0, place >= 0


def _advance(state: torch.Tensor, tokens: torch.Tensor, vocabulary: Vocabulary) -> None:
    _, _, text = _place(state)
    state[:, BEFORE] = torch.where(text, state[:, LAST], state[:, BEFORE])
    state[:, LAST] = torch.where(text, tokens, state[:, LAST])
    state[:, STAMP] = torch.where(text & (tokens > vocabulary.no_timestamps), tokens, state[:, STAMP])
    state[:, OUTPUTS] += 1


def _allowed(state: torch.Tensor, vocabulary: Vocabulary) -> torch.Tensor:
    """bool ``[B, vocab]``: all rules but the comparison of probabilities."""
    kinds = vocabulary.kinds[None].to(torch.int32)
    ids = torch.arange(kinds.shape[1], dtype=torch.int32, device=state.device)[None]
    place, written, begun = (value[:, None] for value in _place(state))
    last, before, stamp = (state[:, word, None] for word in (LAST, BEFORE, STAMP))
    first = vocabulary.no_timestamps + 1
    stamped = (place >= 1) & (last >= first)
    paired = (place < 2) | (before >= first)
    lowest = torch.where(stamped & ~paired, stamp, stamp + 1)
    is_stamp = ids >= first
    timed = ids != vocabulary.no_timestamps
    timed = timed & ~(stamped & paired & is_stamp)
    timed = timed & ~(stamped & ~paired & (ids < vocabulary.end))
    timed = timed & ~((stamp >= 0) & is_stamp & (ids < lowest))
    timed = timed & ((place != 0) | (is_stamp & (ids <= first + vocabulary.latest_first)))
    text = torch.where(written, timed, ~is_stamp)
    text = text & ((kinds & SUPPRESSED) == 0) & ((place != 0) | ((kinds & NOT_FIRST) == 0))
    outputs = state[:, OUTPUTS, None]
    forced = state.gather(1, (FORCED_IDS + outputs - 1).clamp(FORCED_IDS, STATE_WORDS - 1).long())
    given = torch.where(outputs == 0, (kinds & LANGUAGE) != 0, ids == forced)
    return torch.where(begun, text, given)


@jit
def _rows_state(
    state: tl.tensor, begins: tl.tensor, slots: tl.tensor, row: tl.tensor, WORDS: tl.constexpr, BEGIN: tl.constexpr
) -> tl.tensor:
    lane = tl.arange(0, WORDS)
    if BEGIN:
        return tl.load(begins + row * WORDS + lane)
    return tl.load(state + tl.load(slots + row).to(tl.int64) * WORDS + lane)


@jit
def _word(words: tl.tensor, index: tl.tensor, WORDS: tl.constexpr) -> tl.tensor:
    return tl.sum(tl.where(tl.arange(0, WORDS) == index, words, 0), 0)


@jit
def _moved_on(
    words: tl.tensor, tokens: tl.tensor, row: tl.tensor, FIRST: tl.constexpr, WORDS: tl.constexpr, BEGIN: tl.constexpr
) -> tl.tensor:
    """The state after the row's newest token. Word numbers and bits are those at the top of the file."""
    if not BEGIN:
        token = tl.load(tokens + row).to(tl.int32)
        lane = tl.arange(0, WORDS)
        outputs = _word(words, 1, WORDS)
        last = _word(words, 2, WORDS)
        given = tl.where((_word(words, 0, WORDS) & 2) != 0, _word(words, 5, WORDS) + 1, 0)
        text = outputs >= given
        words = tl.where(text & (lane == 3), last, words)
        words = tl.where(text & (lane == 2), token, words)
        words = tl.where(text & (lane == 4) & (token >= FIRST), token, words)
        words = tl.where(lane == 1, outputs + 1, words)
    return words


@jit
def _rules_kernel(
    logits: tl.tensor,
    state: tl.tensor,
    slots: tl.tensor,
    tokens: tl.tensor,
    begins: tl.tensor,
    kinds: tl.tensor,
    partial: tl.tensor,
    vocab: tl.tensor,
    stride: tl.tensor,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    WORDS: tl.constexpr,
    FORCED_AT: tl.constexpr,
    END: tl.constexpr,
    FIRST: tl.constexpr,
    LATEST: tl.constexpr,
    BEGIN: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    words = _rows_state(state, begins, slots, row, WORDS, BEGIN)
    words = _moved_on(words, tokens, row, FIRST, WORDS, BEGIN)
    mode = _word(words, 0, WORDS)
    outputs = _word(words, 1, WORDS)
    last = _word(words, 2, WORDS)
    before = _word(words, 3, WORDS)
    stamp = _word(words, 4, WORDS)
    given = tl.where((mode & 2) != 0, _word(words, 5, WORDS) + 1, 0)
    place = outputs - given
    forced_at = tl.minimum(tl.maximum(FORCED_AT + outputs - 1, FORCED_AT), WORDS - 1)
    forced = _word(words, forced_at, WORDS)

    ids = block * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocab
    kind = tl.load(kinds + ids, mask=inside, other=1).to(tl.int32)
    is_stamp = ids >= FIRST
    stamped = (place >= 1) & (last >= FIRST)
    paired = (place < 2) | (before >= FIRST)
    lowest = tl.where(stamped & (paired == 0), stamp, stamp + 1)
    timed = ids != FIRST - 1
    timed = timed & ((stamped & paired & is_stamp) == 0)
    timed = timed & ((stamped & (paired == 0) & (ids < END)) == 0)
    timed = timed & (((stamp >= 0) & is_stamp & (ids < lowest)) == 0)
    timed = timed & ((place != 0) | (is_stamp & (ids <= FIRST + LATEST)))
    written = (mode & 1) != 0
    text = (written & timed) | ((written == 0) & (is_stamp == 0))
    text = text & ((kind & 1) == 0) & ((place != 0) | ((kind & 2) == 0))
    language = (outputs == 0) & ((kind & 4) != 0)
    allowed = ((place >= 0) & text) | ((place < 0) & (language | ((outputs > 0) & (ids == forced))))

    where = logits + row * stride + ids
    value = tl.load(where, mask=inside, other=float("-inf")).to(tl.float32)
    value = tl.where(allowed & inside, value, float("-inf"))
    tl.store(where, value.to(logits.dtype.element_ty), mask=inside)
    # Whether the comparison is made, the greatest of the text, and the timestamps as maximum and sum.
    top = tl.max(tl.where(is_stamp, float("-inf"), value), 0)
    peak = tl.max(tl.where(is_stamp, value, float("-inf")), 0)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(tl.where(is_stamp, tl.exp(value - base), 0.0), 0)
    compared = (place >= 0) & written
    target = partial + (row * BLOCKS + block) * 3
    tl.store(target, tl.where(compared, top, float("inf")))
    tl.store(target + 1, base)
    tl.store(target + 2, total)


@jit
def _turn_kernel(
    logits: tl.tensor,
    state: tl.tensor,
    slots: tl.tensor,
    tokens: tl.tensor,
    begins: tl.tensor,
    partial: tl.tensor,
    stride: tl.tensor,
    BLOCKS: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
    WORDS: tl.constexpr,
    FIRST: tl.constexpr,
    BEGIN: tl.constexpr,
) -> None:
    """Takes the text away where the timestamps are more likely; the row's first program stores its state."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    lane = tl.arange(0, W)
    there = lane < BLOCKS
    part = partial + (row * BLOCKS + lane) * 3
    top = tl.max(tl.load(part, mask=there, other=float("-inf")), 0)
    total = tl.load(part + 2, mask=there, other=0)
    peak = tl.load(part + 1, mask=there & (total > 0), other=float("-inf"))
    base = tl.max(peak, 0)
    base = tl.where(base == float("-inf"), 0.0, base)
    stamps = tl.log(tl.sum(total * tl.exp(peak - base), 0)) + base
    ids = block * BLOCK + tl.arange(0, BLOCK)
    if stamps > top:
        tl.store(logits + row * stride + ids, float("-inf"), mask=ids < FIRST)
    if block == 0:
        words = _rows_state(state, begins, slots, row, WORDS, BEGIN)
        words = _moved_on(words, tokens, row, FIRST, WORDS, BEGIN)
        tl.debug_barrier()
        tl.store(state + tl.load(slots + row).to(tl.int64) * WORDS + tl.arange(0, WORDS), words)


def transcription_rules_triton(
    logits: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    vocabulary: Vocabulary,
    *,
    tokens: torch.Tensor | None = None,
    begins: torch.Tensor | None = None,
) -> torch.Tensor:
    """:func:`transcription_rules` in two kernels: the rules by blocks of the vocabulary, then what takes all blocks."""
    rows, vocab = logits.shape
    blocks = -(-vocab // _BLOCK)
    partial = torch.empty((rows, blocks, 3), dtype=torch.float32, device=logits.device)
    newest = slots if tokens is None else tokens
    first = slots if begins is None else begins
    shape = {"BLOCKS": blocks, "BLOCK": _BLOCK, "WORDS": STATE_WORDS, "FIRST": vocabulary.no_timestamps + 1}
    _rules_kernel[(rows, blocks)](
        logits,
        state,
        slots,
        newest,
        first,
        vocabulary.kinds,
        partial,
        vocab,
        logits.stride(0),
        **shape,
        FORCED_AT=FORCED_IDS,
        END=vocabulary.end,
        LATEST=vocabulary.latest_first,
        BEGIN=begins is not None,
        num_warps=4,
    )
    texts = -(-(vocabulary.no_timestamps + 1) // _BLOCK)
    _turn_kernel[(rows, texts)](
        logits,
        state,
        slots,
        newest,
        first,
        partial,
        logits.stride(0),
        **shape,
        W=power_of_two(blocks),
        BEGIN=begins is not None,
        num_warps=4,
    )
    return logits
