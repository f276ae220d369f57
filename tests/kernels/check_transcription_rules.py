"""The kernels of transcription rules against their torch reference: random states, whatever they say."""

from __future__ import annotations

import itertools

import torch
from denizen.kernels.transcription_rules import (
    STATE_WORDS,
    Vocabulary,
    transcription_rules,
    transcription_rules_triton,
)
from kernel_support import generator, on_device, same


def _vocabulary(size: int, end: int, no_timestamps: int, seed: int) -> Vocabulary:
    kinds = torch.randint(0, 8, (size,), generator=generator(seed)).to(torch.uint8)
    kinds[torch.rand(size, generator=generator(seed + 1)) < 0.8] = 0
    return Vocabulary(kinds, end, no_timestamps, 50)


def _states(rows: int, vocabulary: Vocabulary, seed: int) -> torch.Tensor:
    """Rows before, at and behind the begin of their text; last tokens of every kind."""
    g = generator(seed)
    size, first = len(vocabulary.kinds), vocabulary.no_timestamps + 1
    state = torch.randint(0, size, (rows, STATE_WORDS), generator=g)
    state[:, 0] = torch.randint(0, 4, (rows,), generator=g)
    state[:, 1] = torch.randint(0, 7, (rows,), generator=g)
    for word in (2, 3):
        stamped = torch.rand(rows, generator=g) < 0.5
        state[:, word] = torch.where(stamped, torch.randint(first, size, (rows,), generator=g), state[:, word])
    state[:, 4] = torch.where(torch.rand(rows, generator=g) < 0.3, -1, first + state[:, 6] % (size - first))
    state[:, 5] = torch.randint(0, 4, (rows,), generator=g)
    return state.to(torch.int32)


def test_rules_equal_the_reference() -> None:
    sizes = [(4200, 2300, 2498), (2048, 900, 1023), (130, 60, 75)]
    for dtype, ids, begins in itertools.product((torch.float32, torch.bfloat16), sizes, (True, False)):
        _rules(dtype, *ids, begins)


def _rules(dtype: torch.dtype, size: int, end: int, no_timestamps: int, begins: bool) -> None:
    vocabulary = _vocabulary(size, end, no_timestamps, size)
    device = Vocabulary(on_device(vocabulary.kinds), end, no_timestamps, vocabulary.latest_first)
    rows = 12
    slots = torch.randperm(rows + 8, generator=generator(3))[:rows].add(1).to(torch.int32)
    states = _states(rows + 9, vocabulary, 4)
    fresh = _states(rows, vocabulary, 5)
    newest = torch.randint(0, size, (rows,), generator=generator(6))
    turns = 0
    for shift in (-4.0, 0.0, 4.0):
        logits = torch.randn(rows, size + 5, generator=generator(7)).mul(2)
        logits[:, no_timestamps + 1 :] += shift
        logits = logits.to(dtype)[:, :size]  # rows that are strided
        mine, my_state = on_device(logits.contiguous()), on_device(states)
        want_state = states.clone()
        given = {"begins": fresh} if begins else {"tokens": newest}
        want = transcription_rules(logits.clone(), want_state, slots, vocabulary, **given)
        there = {name: on_device(value) for name, value in given.items()}
        got = transcription_rules_triton(mine, my_state, on_device(slots), device, **there)
        same(got, want, f"logits {dtype} {size} {shift}")
        same(my_state, want_state, f"states {dtype} {size} {shift}")
        turns += int(want[:, : no_timestamps + 1].isinf().all(1).sum())
    assert 0 < turns < 3 * rows


def test_padding_rows_may_hold_anything() -> None:
    """Slot 0 of a graph's padding: states of any words neither fault nor touch a live row."""
    vocabulary = _vocabulary(600, 300, 400, 1)
    device = Vocabulary(on_device(vocabulary.kinds), 300, 400, 50)
    states = torch.randint(-(2**31), 2**31 - 1, (3, STATE_WORDS), generator=generator(2)).to(torch.int32)
    states[2] = _states(1, vocabulary, 3)[0]
    slots = torch.tensor([0, 2, 0], dtype=torch.int32)
    logits = torch.randn(3, 600, generator=generator(4))
    tokens = torch.tensor([5, 6, 7])
    mine, my_state = on_device(logits), on_device(states)
    got = transcription_rules_triton(mine, my_state, on_device(slots), device, tokens=on_device(tokens))
    want_state = states[2:].clone().repeat(2, 1)
    want = transcription_rules(
        logits[1:2].clone(), want_state, torch.tensor([1], dtype=torch.int32), vocabulary, tokens=tokens[1:2]
    )
    same(got[1:2], want, "the live row")
    same(my_state[2], want_state[1], "its state")
