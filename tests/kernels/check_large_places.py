"""Places beyond 2^31 elements, which 32 bits do not hold: a layer's keys on a GPU of 139 GiB have twice as many.

Pools are zeroed and hardly touched: on a CPU they cost address space and next to no memory.
"""

from __future__ import annotations

import torch
from denizen.kernels.adjust import BIAS, PENALTY, adjust_logits, adjust_logits_triton, count_tokens_triton
from denizen.kernels.attention_inputs import attention_inputs, attention_inputs_triton, rope_table
from denizen.kernels.conv import causal_conv_prefill, causal_conv_prefill_triton
from denizen.kernels.filter import filter_threshold, filter_threshold_triton
from denizen.kernels.gated_delta import gated_delta_prefill
from denizen.kernels.gated_delta_chunk import gated_delta_prefill_triton
from denizen.kernels.gated_delta_decode import gated_delta_decode, gated_delta_decode_triton
from denizen.kernels.sample import gumbel_argmax, gumbel_argmax_triton
from denizen.worker.memory import zeros
from kernel_support import BOUND, DEVICE, close, generator, on_device, same

BEYOND = 1 << 31


def test_keys_and_values_of_the_last_pages() -> None:
    g = generator(1)
    page, kv_heads, dim, heads, tokens = 16, 2, 256, 4, 3
    pages = BEYOND // (page * kv_heads * dim) + 4
    table = rope_table(1e4 ** -(torch.arange(0, 64, 2) / 64), 1.0, 50)
    projected = torch.randn(tokens, (heads + 2 * kv_heads) * dim, generator=g).to(torch.bfloat16)
    positions, places = torch.tensor([3, 40, 7]), torch.tensor([0, 21, 33], dtype=torch.int32)
    small = [torch.zeros(4, page, kv_heads, dim, dtype=torch.bfloat16) for _ in range(2)]
    large = [zeros((pages, page, kv_heads, dim), DEVICE, torch.bfloat16) for _ in range(2)]
    assert large[0].numel() - 4 * page * kv_heads * dim >= BEYOND
    want = attention_inputs(projected, heads, kv_heads, False, None, None, 1e-6, table, positions, places, *small)
    at = on_device(places + (pages - 4) * page)
    got = attention_inputs_triton(
        on_device(projected), heads, kv_heads, False, None, None, 1e-6, on_device(table), on_device(positions), at,
        *large,
    )  # fmt: skip
    close(got, want, BOUND[torch.bfloat16], "queries")
    for name, mine, theirs in zip(("keys", "values"), large, small, strict=True):
        close(mine[-4:], theirs, BOUND[torch.bfloat16], name)


def test_states_of_the_last_slot() -> None:
    g = generator(2)
    heads, dim, taps, tokens = 2, 128, 4, 5
    slots = BEYOND // (heads * dim * dim) + 2
    large, small = zeros((slots, heads, dim, dim), DEVICE, torch.bfloat16), torch.zeros(2, heads, dim, dim)
    small[1].normal_(generator=g)
    small = small.to(torch.bfloat16)
    large[-1] = small[1].to(DEVICE)
    last, first = torch.tensor([slots - 1], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    carried, started = torch.tensor([0, tokens], dtype=torch.int32), torch.tensor([False])
    query, key, value = (torch.randn(tokens, heads, dim, generator=g) for _ in range(3))
    g_log, beta = -torch.rand(tokens, heads, generator=g), torch.rand(tokens, heads, generator=g)
    given = query, key, value, g_log, beta, carried
    want = gated_delta_prefill(*given, tokens, small, first, started)
    got = gated_delta_prefill_triton(*map(on_device, given), large, on_device(last), on_device(started))
    close(got, want, 4e-2, "prefill")
    close(large[-1], small[1], 4e-2, "state after prefill")

    channels = 3 * heads * dim
    layer = [
        torch.randn(channels, taps, generator=g), -torch.rand(heads, generator=g), torch.randn(heads, generator=g),
        torch.rand(dim, generator=g),
    ]  # fmt: skip
    parts = [torch.randn(1, width, generator=g) for width in (channels, heads * dim, heads, heads)]
    conv, my_conv = torch.zeros(2, taps - 1, channels), zeros((slots, taps - 1, channels), DEVICE, torch.float32)
    large[-1] = small[1].to(DEVICE)
    want = gated_delta_decode(*parts, *layer, 1e-6, conv, small, first)
    got = gated_delta_decode_triton(*map(on_device, (*parts, *layer)), 1e-6, my_conv, large, on_device(last))
    close(got, want, 1.5e-2, "decode")
    close(large[-1], small[1], 1.5e-2, "state after decode")
    same(my_conv[-1], conv[1], "taps after decode")


def test_taps_of_the_last_slot() -> None:
    g = generator(3)
    channels, taps, tokens = 8192, 4, 5
    slots = BEYOND // ((taps - 1) * channels) + 2
    large, small = zeros((slots, taps - 1, channels), DEVICE, torch.bfloat16), torch.zeros(2, taps - 1, channels)
    small[1].normal_(generator=g)
    small = small.to(torch.bfloat16)
    large[-1] = small[1].to(DEVICE)
    given = [torch.randn(*shape, generator=g) for shape in ((tokens, channels), (channels, taps))]
    cu_seqlens, started = torch.tensor([0, tokens], dtype=torch.int32), torch.tensor([False])
    last, first = torch.tensor([slots - 1], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    want = causal_conv_prefill(*given, cu_seqlens, small, first, started)
    got = causal_conv_prefill_triton(*map(on_device, (*given, cu_seqlens)), large, on_device(last), on_device(started))
    close(got, want, 1e-4, "outputs")
    close(large[-1], small[1], BOUND[torch.bfloat16], "taps")


def test_logits_counts_and_biases_of_the_last_row() -> None:
    g = generator(4)
    vocab = 40_000
    rows = BEYOND // vocab + 2
    near = torch.randn(3, vocab, generator=g).to(torch.bfloat16)
    # Two strides are too much for 32 bits, and one is not: it is passed in 32.
    logits = zeros((BEYOND + vocab,), DEVICE, torch.bfloat16).as_strided((3, vocab), (BEYOND // 2, 1))
    logits.copy_(near)
    heat, seed, position = torch.tensor([0.0, 0.9, 1.1]), torch.tensor([1, 2, 3]), torch.tensor([5, 6, 7])
    limits = torch.tensor([0, 30, 20], dtype=torch.int32), torch.tensor([1, 0.9, 1]), torch.tensor([0, 0.01, 0])
    threshold = filter_threshold(near, heat, *limits)
    mine = filter_threshold_triton(logits, *map(on_device, (heat, *limits)))
    assert mine.isfinite().tolist() == threshold.isfinite().tolist() == [False, True, True]
    keeps = [(near.float() >= bound.cpu()[:, None]).sum(dim=1).tolist() for bound in (threshold, mine)]
    assert keeps[0] == keeps[1]
    want = gumbel_argmax(near, heat, seed, position, threshold)
    same(gumbel_argmax_triton(logits, *map(on_device, (heat, seed, position)), mine), want, "tokens")

    counts, bias = zeros((rows, vocab), DEVICE, torch.int32), zeros((rows, vocab), DEVICE, torch.float32)
    few = torch.randint(0, 3, (1, vocab), generator=g, dtype=torch.int32), torch.randn(1, vocab, generator=g)
    counts[-1], bias[-1] = few[0][0].to(DEVICE), few[1][0].to(DEVICE)
    asks = torch.full((3,), PENALTY | BIAS, dtype=torch.int32)
    numbers = [torch.full((3,), value) for value in (1.3, 0.5, 0.25)]
    ends = torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int32), torch.zeros(3, 1, dtype=torch.int32)
    slots = torch.zeros(3, dtype=torch.int32)
    want = adjust_logits(near, slots, asks, *numbers, *ends, *few)
    given = map(on_device, (slots + rows - 1, asks, *numbers, *ends))
    close(adjust_logits_triton(logits, *given, counts, bias), want, 1e-6, "adjusted logits")
    tokens = torch.tensor([7, 9, 11])
    count_tokens_triton(*map(on_device, (tokens, slots + rows - 1, asks)), counts)
    few[0][0, tokens] += 1
    same(counts[-1], few[0][0], "counts")
