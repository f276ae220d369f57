"""The torch references of the kernels against the plainest form of what they compute."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from denizen.kernels.attention_inputs import rope_table
from denizen.kernels.conv import causal_conv_prefill, causal_conv_step
from denizen.kernels.gated_delta import gated_delta_prefill, gated_delta_step
from denizen.kernels.norm import gated_rms_norm, rms_norm
from denizen.kernels.page_gather import page_gather
from denizen.kernels.rope import apply_rope
from torch.nn.functional import conv1d, silu

PAGE = 4
SINK = 0
LENGTHS = [[1], [PAGE], [PAGE + 1], [PAGE - 1, PAGE, PAGE + 1], [1, 40, 2, 17], [0, 5, 0], [64] * 8, [0]]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("spare", [0, 5])
def test_page_gather_lists_the_pages_of_each_row(lengths, spare):
    """Length 0 stands for a padding row here: null row, whatever its length says."""
    rows, width = len(lengths), 16
    table = torch.randperm(rows * width + width).to(torch.int32).add_(1)[: (rows + 1) * width].view(rows + 1, width)
    slots = torch.tensor([0 if length == 0 else row + 1 for row, length in enumerate(lengths)], dtype=torch.int32)
    expected_indptr, expected_indices, expected_last = [0], [], []
    for slot, length in zip(slots.tolist(), lengths, strict=True):
        pages = [SINK] if slot == 0 else table[slot, : -(-length // PAGE)].tolist()
        expected_indices += pages
        expected_indptr.append(len(expected_indices))
        expected_last.append(1 if slot == 0 else (length - 1) % PAGE + 1)
    indptr = torch.full((rows + 1,), -7, dtype=torch.int32)
    indices = torch.full((len(expected_indices) + spare,), -7, dtype=torch.int32)
    last = torch.full((rows,), -7, dtype=torch.int32)
    stale = torch.tensor([length or 999 for length in lengths], dtype=torch.int32)
    page_gather(slots, table, stale, PAGE, SINK, indptr, indices, last)
    assert indptr.tolist() == expected_indptr
    assert indices.tolist() == expected_indices + [-7] * spare
    assert last.tolist() == expected_last


def test_page_gather_never_writes_past_its_buffer():
    table = torch.arange(1, 33, dtype=torch.int32).view(2, 16)
    buffer = torch.full((8,), -7, dtype=torch.int32)
    indptr, last = torch.zeros(2, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    slots, lengths = torch.tensor([1], dtype=torch.int32), torch.tensor([40], dtype=torch.int32)
    page_gather(slots, table, lengths, PAGE, SINK, indptr, buffer[:3], last)
    assert buffer.tolist() == [17, 18, 19] + [-7] * 5


def naive_delta(query, key, value, g, beta, state):
    """One head's recurrence, token by token, in fp64: decay, delta update, read."""
    query, key, value, g, beta, state = (x.double() for x in (query, key, value, g, beta, state))
    query = query / (query.square().sum(-1, keepdim=True) + 1e-6).sqrt() / math.sqrt(query.shape[-1])
    key = key / (key.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    out = []
    for q, k, v, decay, rate in zip(query, key, value, g, beta, strict=True):
        state = decay.exp() * state
        state = state + torch.outer(k, rate * (v - state.T @ k))
        out.append(state.T @ q)
    return torch.stack(out), state


def delta_inputs(tokens: int, key_heads: int, value_heads: int):
    generator = torch.Generator().manual_seed(tokens)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    g = -torch.nn.functional.softplus(2 * random(tokens, value_heads)) * 2
    return (
        random(tokens, key_heads, 16),
        random(tokens, key_heads, 16),
        random(tokens, value_heads, 24),
        g,
        random(tokens, value_heads).sigmoid(),
    )


@pytest.mark.parametrize("lengths", [[1], [63], [64], [65], [300], [1, 64, 5, 129, 63]])
@pytest.mark.parametrize(("key_heads", "value_heads"), [(2, 2), (2, 4)])
@pytest.mark.parametrize("decode", [False, True])
def test_the_gated_delta_rule_equals_the_naive_recurrence(lengths, key_heads, value_heads, decode):
    """Ragged rows, some fresh and some with a state, in slots out of order; other slots stay as they are."""
    rows = len(lengths)
    query, key, value, g, beta = delta_inputs(sum(lengths), key_heads, value_heads)
    state = torch.randn(9, value_heads, 16, 24)
    state[3] = torch.nan  # a fresh row's slot may hold anything
    before = state.clone()
    slots = torch.tensor([3, 7, 1, 8, 5][:rows], dtype=torch.int32)
    fresh = torch.tensor([True, False, True, False, False][:rows])
    bounds = [0, *itertools.accumulate(lengths)]
    cu_seqlens = torch.tensor(bounds, dtype=torch.int32)
    if decode:
        out = torch.empty(sum(lengths), value_heads, 24)
        for step in range(max(lengths)):
            alive = [row for row in range(rows) if lengths[row] > step]
            at = torch.tensor([bounds[row] + step for row in alive])
            first = fresh[alive] if step == 0 else None
            out[at] = gated_delta_step(query[at], key[at], value[at], g[at], beta[at], state, slots[alive], first)
    else:
        out = gated_delta_prefill(query, key, value, g, beta, cu_seqlens, max(lengths), state, slots, fresh)
    group = value_heads // key_heads
    for row, head in itertools.product(range(rows), range(value_heads)):
        part = slice(bounds[row], bounds[row + 1])
        start = torch.zeros(16, 24) if fresh[row] else before[slots[row], head]
        expected, final = naive_delta(
            query[part, head // group],
            key[part, head // group],
            value[part, head],
            g[part, head],
            beta[part, head],
            start,
        )
        assert (out[part, head] - expected).abs().max() < 5e-6
        assert (state[slots[row], head] - final).abs().max() < 5e-6
    untouched = [slot for slot in range(9) if slot not in slots.tolist() and slot != 3]
    assert torch.equal(state[untouched], before[untouched])


@pytest.mark.parametrize("lengths", [[1], [2, 1, 3], [10, 4]])
@pytest.mark.parametrize("decode", [False, True])
def test_the_causal_convolution_carries_its_inputs(lengths, decode):
    channels, kernel, rows = 6, 4, len(lengths)
    x, weight = torch.randn(sum(lengths), channels), torch.randn(channels, kernel)
    state = torch.randn(5, kernel - 1, channels)
    state[4] = torch.nan
    before = state.clone()
    slots = torch.tensor([4, 2, 1][:rows], dtype=torch.int32)
    fresh = torch.tensor([True, False, False][:rows])
    bounds = [0, *itertools.accumulate(lengths)]
    if decode:
        out = torch.empty_like(x)
        for step in range(max(lengths)):
            alive = [row for row in range(rows) if lengths[row] > step]
            at = torch.tensor([bounds[row] + step for row in alive])
            first = fresh[alive] if step == 0 else None
            out[at] = causal_conv_step(x[at], weight, state, slots[alive], first)
    else:
        out = causal_conv_prefill(x, weight, torch.tensor(bounds, dtype=torch.int32), state, slots, fresh)
    for row in range(rows):
        carried = torch.zeros(kernel - 1, channels) if fresh[row] else before[slots[row]]
        whole = torch.cat((carried, x[bounds[row] : bounds[row + 1]]))
        expected = silu(conv1d(whole.T[None], weight[:, None], groups=channels)[0].T)
        assert torch.allclose(out[bounds[row] : bounds[row + 1]], expected, atol=1e-6)
        assert torch.equal(state[slots[row]], whole[-(kernel - 1) :])
    assert torch.equal(state[[0, 3]], before[[0, 3]])


@pytest.mark.parametrize("rotated", [32, 8])
def test_rope_turns_pairs_by_position_and_passes_the_rest(rotated):
    x = torch.randn(3, 2, 32)
    positions = torch.tensor([0, 5, 1000])
    inv_freq = 1.0 / 10000 ** (torch.arange(0, rotated, 2).float() / rotated)
    cos, sin = rope_table(inv_freq, 1.0, 1001)[positions, :, None].unbind(dim=1)
    out = apply_rope(x, cos, sin)
    half = rotated // 2
    for token, head, pair in itertools.product(range(3), range(2), range(half)):
        turn = torch.polar(torch.tensor(1.0), positions[token] * inv_freq[pair])
        turned = torch.complex(x[token, head, pair], x[token, head, pair + half]) * turn
        assert torch.isclose(out[token, head, pair], turned.real, atol=1e-5)
        assert torch.isclose(out[token, head, pair + half], turned.imag, atol=1e-5)
    assert torch.equal(out[..., rotated:], x[..., rotated:])


def test_norms_follow_their_formula():
    x, gate, weight = torch.randn(5, 3, 16), torch.randn(5, 3, 16), torch.randn(16)
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight
    assert torch.allclose(rms_norm(x, weight, 1e-3), expected, atol=1e-6)
    assert torch.allclose(gated_rms_norm(x, gate, weight, 1e-3), expected * gate * gate.sigmoid(), atol=1e-6)
