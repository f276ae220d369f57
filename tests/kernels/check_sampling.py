"""The sampler's kernels against their references."""

from __future__ import annotations

import torch
from denizen.kernels.draw import _keys, _lowbias32_, draw_key, draw_log_exponential, draw_uniform, log_exponential
from denizen.kernels.filter import filter_threshold, filter_threshold_triton
from denizen.kernels.jit import jit, tl
from denizen.kernels.sample import gumbel_argmax, gumbel_argmax_triton
from kernel_support import DEVICE, close, generator, on_device, poisoned, same, strided


@jit
def _noise_kernel(seed: tl.tensor, position: tl.tensor, uniform: tl.tensor, noise: tl.tensor, N: tl.constexpr) -> None:
    row = tl.program_id(0)
    ids = tl.arange(0, N)
    low, high = draw_key(tl.load(seed + row), tl.load(position + row))
    u = draw_uniform(low, high, ids)
    tl.store(uniform + row * N + ids, u)
    tl.store(noise + row * N + ids, draw_log_exponential(u))


def test_random_numbers_are_the_reference_bit_for_bit() -> None:
    seed = torch.tensor([0, 1, -1, 2**62 + 12345, -(2**63), 7], dtype=torch.int64)
    position = torch.tensor([0, 1, 5, 262143, 2**31, 128], dtype=torch.int64)
    n = 4096
    uniform, noise = poisoned((6, n), torch.float32), poisoned((6, n), torch.float32)
    _noise_kernel[(6,)](on_device(seed), on_device(position), uniform, noise, N=n)
    ids = torch.arange(n, dtype=torch.int32)
    low, high = _keys(seed, position)
    x = ids + low[:, None]
    scratch = torch.empty_like(x)
    _lowbias32_(x, scratch)
    x.bitwise_xor_(high[:, None])
    _lowbias32_(x, scratch)
    want = ((x & 0x7FFFFFFF).float() + 0.5) * 2.0**-31
    same(uniform, want.clamp_(max=1 - 2.0**-24), "uniforms")
    exact = torch.log(-torch.log1p(-want.double()))
    error = float((noise.cpu().double() - exact).abs().max())
    assert error < 1e-5, f"noise is off by {error:.1e}"
    close(log_exponential(seed, position, ids), exact, 1e-6, "the reference's own noise")


def test_tokens_equal_the_reference() -> None:
    g = generator(1)
    for dtype in (torch.float32, torch.bfloat16):
        for vocab in (100, 4096, 9001):
            rows = 6
            logits = (torch.randn(rows, vocab, generator=g) * 3).to(dtype)
            block = torch.stack((torch.tensor([0.0, 0.7, 1.0, 0.0, 0.2, 5.0]), torch.rand(rows, generator=g)), dim=1)
            seed = torch.randint(-(2**62), 2**62, (rows, 3), generator=g)
            position = torch.randint(0, 1 << 18, (rows,), generator=g)
            want = gumbel_argmax(logits, block[:, 0], seed[:, 1], position)
            got = gumbel_argmax_triton(
                on_device(logits), on_device(block)[:, 0], on_device(seed)[:, 1], on_device(position)
            )
            same(got, want, f"tokens {dtype} {vocab}")


def test_a_token_depends_on_seed_and_position_alone() -> None:
    g = generator(2)
    logits = on_device(torch.randn(1, 5000, generator=g).to(torch.bfloat16))
    alone = gumbel_argmax_triton(logits, _full([1.0]), _full([42], torch.int64), _full([17], torch.int64))
    batch = on_device(torch.randn(4, 5000, generator=g).to(torch.bfloat16))
    batch[3] = logits[0]
    beside = gumbel_argmax_triton(
        batch, _full([0.0, 0.5, 1.0, 1.0]), _full([1, 42, 3, 42], torch.int64), _full([17, 17, 9, 17], torch.int64)
    )
    same(beside[3:], alone, "the same request in row 3 of 4")
    draws = {
        int(gumbel_argmax_triton(logits, _full([1.0]), _full([42], torch.int64), _full([p], torch.int64))[0])
        for p in range(12)
    }
    assert len(draws) > 6, "positions draw the same tokens"


def test_greedy_takes_the_lowest_id_among_equals_and_never_an_id_that_is_none() -> None:
    logits = torch.zeros(2, 5000, dtype=torch.bfloat16)
    logits[0, [4500, 70]] = 3.0
    zeros = _full([0, 0], torch.int64)
    got = gumbel_argmax_triton(on_device(strided(logits)), _full([0.0, 0.0]), zeros, zeros)
    same(got, torch.tensor([70, 0]), "ties")
    hollow = torch.full((2, 5000), float("-inf"))
    hollow[1] = float("nan")
    got = gumbel_argmax_triton(on_device(hollow), _full([0.0, 1.0]), zeros, zeros).cpu()
    assert bool(((got >= 0) & (got < 5000)).all()), got


def test_draws_follow_the_distribution() -> None:
    rows, vocab = 4000 if DEVICE.type == "cuda" else 400, 64
    base = torch.full((vocab,), -20.0)
    base[[5, 17, 30, 63]] = torch.tensor([1.0, 2.0, 0.0, 1.5])
    logits = on_device(base.to(torch.bfloat16).expand(rows, vocab).contiguous())
    seeds = torch.arange(rows, device=DEVICE)
    got = gumbel_argmax_triton(logits, _full([0.8] * rows), seeds, torch.full_like(seeds, 3))
    seen = torch.bincount(got.cpu(), minlength=vocab).double() / rows
    expected = torch.softmax(base.to(torch.bfloat16).double() / 0.8, 0)
    assert float((seen - expected).abs().sum() / 2) < (0.03 if rows > 400 else 0.1)


def test_thresholds_and_filtered_tokens_equal_the_reference() -> None:
    g = generator(3)
    settings = [  # temperature, top-k, top-p, min-p
        (0.0, 5, 0.5, 0.1),
        (1.0, 0, 1.0, 0.0),
        (0.7, 20, 1.0, 0.0),
        (1.0, 1, 1.0, 0.0),
        (1.3, 0, 0.9, 0.0),
        (0.8, 50, 0.6, 0.0),
        (1.0, 0, 1.0, 0.05),
        (2.0, 300, 0.95, 0.02),
        (1.0, 100000, 0.999, 0.0),
        (1.0, 0, 1e-6, 0.0),
    ]
    block = torch.tensor(settings)
    top_k = torch.stack((block[:, 1], block[:, 1]), dim=1).to(torch.int32)
    rows = len(settings)
    seed, position = torch.arange(rows), torch.arange(rows) * 7
    for dtype in (torch.float32, torch.bfloat16):
        for vocab in (50, 9001):
            logits = (torch.randn(rows, vocab, generator=g) * 3).to(dtype)
            logits[:, 7], logits[:, 32:40] = float("-inf"), float("-inf")  # ids held back
            want = filter_threshold(logits, block[:, 0], top_k[:, 0], block[:, 2], block[:, 3])
            mine, wide, k = on_device(logits), on_device(block), on_device(top_k)
            got = filter_threshold_triton(mine, wide[:, 0], k[:, 0], wide[:, 2], wide[:, 3])
            kept, expected = mine.cpu().float() >= got.cpu()[:, None], logits.float() >= want[:, None]
            # Of a flat distribution's sums, taken in another order, a token at the edge may fall to either side.
            apart = (kept != expected).sum(dim=1)
            assert int(apart.max()) <= 1, f"{dtype} {vocab}: {apart.tolist()} tokens apart"
            exact = [0, 1, 2, 3, 6, 9]
            assert int(apart[exact].max()) == 0, f"{dtype} {vocab}: {apart.tolist()}"
            assert kept.any(dim=1).all()
            tokens = gumbel_argmax_triton(mine, wide[:, 0], on_device(seed), on_device(position), got).cpu()
            same(tokens, gumbel_argmax(logits, block[:, 0], seed, position, got.cpu()), f"tokens {dtype} {vocab}")
            drawing = block[:, 0] > 0
            assert bool(kept.gather(1, tokens[:, None])[drawing].all()), "a token that was filtered out"


def test_rows_whose_rules_leave_few_tokens_draw_one_of_them() -> None:
    """Whole groups and blocks of the vocabulary cannot be sampled, up to a single id that can."""
    g = generator(4)
    vocab, rows = 9001, 8
    logits = torch.full((rows, vocab), float("-inf"))
    for row in range(rows):
        left = torch.randperm(vocab, generator=g)[: [1, 1, 2, 40, 40, 300, 300, 1][row]]
        logits[row, left] = torch.randn(len(left), generator=g) * 3
    settings = [(0, 1, 0), (20, 1, 0), (0, 0.5, 0), (20, 1, 0), (0, 0.7, 0), (0, 0.9, 0.02), (100, 0.9, 0), (0, 0.5, 0)]
    block = torch.tensor([(0.8, *setting) for setting in settings])
    top_k = block[:, 1].to(torch.int32)
    seed, position = torch.arange(rows), torch.arange(rows) * 7
    for dtype in (torch.float32, torch.bfloat16):
        mine, wide = on_device(logits.to(dtype)), on_device(block)
        want = filter_threshold(logits.to(dtype), block[:, 0], top_k, block[:, 2], block[:, 3])
        got = filter_threshold_triton(mine, wide[:, 0], on_device(top_k), wide[:, 2], wide[:, 3])
        tokens = gumbel_argmax_triton(mine, wide[:, 0], on_device(seed), on_device(position), got).cpu()
        allowed = (logits > float("-inf")) & (logits.to(dtype).float() >= want[:, None])
        assert bool(allowed.gather(1, tokens[:, None]).all()), tokens.tolist()
        same(tokens, gumbel_argmax(logits.to(dtype), block[:, 0], seed, position, want), f"tokens {dtype}")


def _full(values: list[float] | list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=DEVICE)
