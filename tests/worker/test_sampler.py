"""The sampler against transformers' processors, and draws that depend on the request alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from denizen.kernels.draw import log_exponential
from denizen.kernels.filter import filter_threshold
from denizen.kernels.sample import gumbel_argmax
from denizen.worker.errors import RequestError
from denizen.worker.sampling.params import FIELDS, MAX_MASKED_IDS, ROW_BYTES, SamplingParams, unpack
from denizen.worker.sampling.sampler import SamplePlan, Sampler, kept_candidates
from denizen.worker.sampling.state import SamplerRow, SamplerState
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

CPU = torch.device("cpu")
VOCAB = 3000


def _logits(rows: int, seed: int = 0, scale: float = 3.0, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


class Bench:
    """A sampler with rows, as a step sees them."""

    def __init__(self, requests: list[SamplingParams], vocab: int = VOCAB, prompts=None, outputs=None) -> None:
        rows = len(requests) + 1
        self.requests = requests
        self.state = SamplerState(rows, vocab, CPU)
        self.blocks = torch.zeros(rows, ROW_BYTES // 4, dtype=torch.int32)
        self.outputs = outputs or [[] for _ in requests]
        for index, params in enumerate(requests):
            self.blocks[index + 1] = torch.from_numpy(params.packed)
            prompt = np.asarray(prompts[index] if prompts else [0], np.int32)
            self.state.begin(SamplerRow(index + 1, prompt, self.outputs[index], params.logit_bias))
        self.sampler = Sampler(vocab, self.state)

    def sample(self, logits: torch.Tensor, positions: list[int], order: list[int] | None = None, pads: int = 0):
        """Samples for ``order`` (indices of requests) in that batch order, null rows behind."""
        order = list(range(len(self.requests))) if order is None else order
        rows = [index + 1 for index in order] + [0] * pads
        asked = [(self.requests[index], len(self.outputs[index])) for index in order]
        plan = SamplePlan.of(np.array([params.features for params, _ in asked]), len(rows), lambda: asked)
        counts = [len(self.outputs[index]) for index in order] + [0] * pads
        batch = torch.cat([logits[order], torch.full((pads, logits.shape[1]), torch.nan)])
        position = torch.tensor([positions[index] for index in order] + [0] * pads)
        return self.sampler.sample(
            plan, batch, torch.tensor(rows), self.blocks, torch.tensor(counts, dtype=torch.int32), position
        )


def test_row_layout_has_8_byte_fields_first_and_16_byte_alignment():
    sizes = [field.dtype.itemsize for field in FIELDS.values()]
    assert sizes == sorted(sizes, reverse=True)
    assert all(field.offset % 16 == 0 for field in FIELDS.values())
    ends = [field.end for field in FIELDS.values()]
    starts = [field.offset for field in FIELDS.values()]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    assert ROW_BYTES % 16 == 0


def test_packed_row_reads_back():
    params = SamplingParams(0.7, 40, 0.9, 0.05, 1.1, 0.5, -0.25, (1 << 64) - 3, 5, frozenset({9, 4}))
    blocks = torch.from_numpy(np.stack([params.packed, SamplingParams().packed])).view(torch.uint8)
    values = {name: unpack(blocks, name)[0] for name in FIELDS}
    assert int(values["seed"]) == -3
    assert int(values["top_k"]) == 40
    assert int(values["min_tokens"]) == 5
    for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
        assert float(values[name]) == pytest.approx(getattr(params, name))
    assert set(values["masked_ids"].tolist()) == {4, 9}


def _reference_kept(logits, temperature, top_k, top_p, min_p):
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        warpers.append(TopPLogitsWarper(top_p))
    if min_p:
        warpers.append(MinPLogitsWarper(min_p))
    return warpers(torch.zeros(logits.shape[0], 1, dtype=torch.long), logits.clone())


FILTERS = [
    (t, k, p, m)
    for t in (0.3, 1.0, 1.7)
    for k, p, m in [
        (1, 1.0, 0.0),
        (50, 1.0, 0.0),
        (0, 0.9, 0.0),
        (0, 0.2, 0.0),
        (20, 0.8, 0.0),
        (0, 1.0, 0.1),
        (40, 0.95, 0.05),
        (0, 0.999, 0.0),
        (VOCAB + 5, 1.0, 0.0),
    ]
]


@pytest.mark.parametrize(("temperature", "top_k", "top_p", "min_p"), FILTERS)
def test_filters_keep_what_transformers_keeps(temperature, top_k, top_p, min_p):
    logits = _logits(4, seed=3)
    expected = torch.isfinite(_reference_kept(logits, temperature, min(top_k, VOCAB), top_p, min_p))
    params = SamplingParams(temperature, top_k, top_p, min_p)
    block = torch.from_numpy(np.stack([params.packed] * 4)).view(torch.uint8)
    scaled = logits / temperature
    values, ids = torch.sort(scaled, dim=-1, descending=True)
    keep = kept_candidates(values, torch.softmax(scaled, -1).gather(1, ids), block)
    kept = torch.zeros_like(expected).scatter_(1, ids, keep)
    assert torch.equal(kept, expected)


@pytest.mark.parametrize(("temperature", "top_k", "top_p", "min_p"), [(0.8, 30, 0.9, 0.02), (1.3, 0, 0.7, 0.0)])
def test_draws_follow_the_filtered_distribution(temperature, top_k, top_p, min_p):
    """Frequencies of many positions against the softmax of transformers' filtered scores."""
    vocab, draws = 40, 20_000
    logits = _logits(1, seed=5, scale=1.5, vocab=vocab)
    expected = torch.softmax(_reference_kept(logits, temperature, top_k, top_p, min_p), -1)[0]
    bench = Bench([SamplingParams(temperature, top_k, top_p, min_p, seed=11)] * draws, vocab)
    tokens = bench.sample(logits.expand(draws, -1), list(range(draws))).tokens
    observed = torch.bincount(tokens, minlength=vocab) / draws
    assert not observed[expected == 0].any()
    sigma = torch.sqrt(expected * (1 - expected) / draws)
    assert (torch.abs(observed - expected) <= 5 * sigma + 1e-9).all()


def test_plain_draws_follow_the_softmax():
    vocab, draws = 40, 20_000
    logits = _logits(1, seed=6, scale=1.5, vocab=vocab)
    expected = torch.softmax(logits, -1)[0]
    bench = Bench([SamplingParams(1.0, seed=seed) for seed in range(draws)], vocab)
    observed = torch.bincount(bench.sample(logits.expand(draws, -1), [7] * draws).tokens, minlength=vocab) / draws
    assert (torch.abs(observed - expected) <= 5 * torch.sqrt(expected * (1 - expected) / draws)).all()


def test_noise_is_exponential_and_independent_of_its_neighbours():
    seeds, positions = torch.arange(200), torch.arange(200) * 3
    noise = torch.exp(log_exponential(seeds, positions, torch.arange(500, dtype=torch.int32)))
    assert noise.mean().item() == pytest.approx(1.0, abs=0.02)
    assert noise.var().item() == pytest.approx(1.0, abs=0.05)
    centred = (noise - noise.mean()) / noise.std()
    for a, b in ((centred[:-1], centred[1:]), (centred[:, :-1], centred[:, 1:])):
        assert abs((a * b).mean().item()) < 0.02


MIXED = [
    SamplingParams(),
    SamplingParams(0.9, seed=5),
    SamplingParams(1.2, top_k=20, top_p=0.9, seed=6),
    SamplingParams(0.8, min_p=0.05, presence_penalty=1.0, seed=7),
    SamplingParams(0.0, repetition_penalty=1.4, logit_bias=((3, 4.0),)),
    SamplingParams(0.7, top_p=0.5, seed=(1 << 63) + 9, logprobs=3),
]


def test_a_token_depends_on_its_request_alone():
    """Alone, in every row of a batch, beside others of every kind, in padded buckets."""
    logits = _logits(len(MIXED), seed=9)
    positions = [4, 9, 2, 31, 7, 12]
    alone = [int(Bench(MIXED).sample(logits, positions, [index]).tokens[0]) for index in range(len(MIXED))]
    for order in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [3, 1, 5], [2, 0]):
        for pads in (0, 3):
            tokens = Bench(MIXED).sample(logits, positions, order, pads).tokens.tolist()
            assert tokens[: len(order)] == [alone[index] for index in order]


@pytest.mark.parametrize(
    "limits", [{"top_k": 5}, {"top_k": 200}, {"top_p": 0.1}, {"top_p": 0.6}, {"top_k": 9, "top_p": 0.5}, {"min_p": 0.9}]
)
def test_equals_at_the_edge_of_a_filter_are_all_kept_whoever_is_in_the_batch(limits):
    """Symptom: another token beside a neighbour with a large top_k, for which more candidates are looked at."""
    levels = torch.randint(0, 9, (2, VOCAB), generator=torch.Generator().manual_seed(4)) / 2
    params = SamplingParams(1.0, **limits)
    block = {name: unpack(torch.from_numpy(params.packed)[None].view(torch.uint8), name) for name in FIELDS}
    edge = filter_threshold(levels[:1], *(block[name] for name in ("temperature", "top_k", "top_p", "min_p")))
    for seed in range(20):
        requests = [SamplingParams(1.0, seed=seed, **limits), SamplingParams(1.0, top_k=900, seed=1)]
        alone = Bench(requests).sample(levels, [3, 3], [0]).tokens.tolist()
        assert Bench(requests).sample(levels, [3, 3]).tokens.tolist()[:1] == alone
        assert gumbel_argmax(levels[:1], torch.ones(1), torch.tensor([seed]), torch.tensor([3]), edge).tolist() == alone


def test_a_seeded_row_draws_the_same_beside_unseeded_neighbours():
    """The seed, not the batch, is the key: neighbours with other seeds change nothing."""
    request = SamplingParams(1.0, seed=42)
    logits = _logits(1, seed=1).expand(4, -1)
    tokens = []
    for base in (100, 200):
        bench = Bench([SamplingParams(1.0, seed=base + row) for row in range(3)] + [request])
        tokens.append(int(bench.sample(logits, [5] * 4).tokens[3]))
    tokens.append(int(Bench([request]).sample(logits[:1], [5]).tokens[0]))
    assert len(set(tokens)) == 1
    spread = Bench([SamplingParams(1.0, seed=seed) for seed in range(4)]).sample(logits, [5] * 4).tokens.tolist()
    assert len(set(spread)) > 1
    moved = {int(Bench([request]).sample(logits[:1], [position]).tokens[0]) for position in range(20)}
    assert len(moved) > 5


def test_filters_wider_than_the_candidates_draw_the_same():
    """Rows whose filters keep more than the first candidates are sorted whole, with the same noise."""
    vocab = 5000
    logits = _logits(6, seed=2, scale=0.1, vocab=vocab)
    wide = [SamplingParams(1.0, top_p=0.999, seed=seed) for seed in range(6)]
    plain = [SamplingParams(1.0, seed=seed) for seed in range(6)]
    kept = torch.isfinite(_reference_kept(logits, 1.0, 0, 0.999, 0.0))
    expected = Bench(plain, vocab).sample(torch.where(kept, logits, -torch.inf), [3] * 6).tokens
    assert Bench(wide, vocab).sample(logits, [3] * 6).tokens.tolist() == expected.tolist()


def test_greedy_ignores_the_filters_and_top_p_zero_is_greedy():
    logits = _logits(4, seed=4)
    requests = [
        SamplingParams(0.0, top_k=3, top_p=0.1, seed=1),
        SamplingParams(1.0, top_p=0.0, seed=2),
        SamplingParams(1.0, top_k=1, seed=3),
        SamplingParams(1e-9, seed=4),
    ]
    assert Bench(requests).sample(logits, [1] * 4).tokens.tolist() == logits.argmax(-1).tolist()


def test_repetition_penalty_equals_transformers():
    prompts, outputs = [[5, 9, 5], [7]], [[11], [7, 7, 8]]
    logits = _logits(2, seed=8)
    logits[0, 5] = 60.0
    logits[1, 7] = 50.0
    bench = Bench([SamplingParams(0.0, repetition_penalty=1.7)] * 2, prompts=prompts, outputs=outputs)
    for index in range(2):
        ids = torch.tensor([prompts[index] + outputs[index]])
        expected = RepetitionPenaltyLogitsProcessor(1.7)(ids, logits[index : index + 1].clone())
        assert int(bench.sample(logits, [9, 9], [index]).tokens[0]) == int(expected.argmax())


def test_presence_and_frequency_penalties_count_outputs_only():
    logits = torch.zeros(1, 10)
    logits[0, 1], logits[0, 2], logits[0, 3] = 3.0, 2.6, 2.0
    request = SamplingParams(0.0, presence_penalty=0.75, frequency_penalty=0.5)
    # token 1: 3 - .75 - 2 * .5 = 1.25; token 2: in the prompt only, untouched; token 3: 2 - .75 - .5
    bench = Bench([request], 10, prompts=[[2, 2, 2]], outputs=[[1, 3, 1]])
    assert bench.sample(logits, [6]).tokens.tolist() == [2]
    assert bench.state.counts[1, 2] % (1 << 24) == 1  # the sampled token has been counted
    assert bench.sample(logits, [7]).tokens.tolist() == [2]  # 2.6 - .75 - .5 = 1.35
    assert bench.sample(logits, [8]).tokens.tolist() == [1]  # token 2 is at 2.6 - .75 - 2 * .5 now


def test_penalties_move_with_every_sampled_token():
    """A flat distribution with a presence penalty visits every token before it repeats one."""
    bench = Bench([SamplingParams(0.0, presence_penalty=1.0)], 12, prompts=[[0]])
    seen = [int(bench.sample(torch.zeros(1, 12), [step]).tokens[0]) for step in range(12)]
    assert sorted(seen) == list(range(12))


def test_logit_bias_adds_and_forbids():
    logits = _logits(2, seed=12)
    best = int(logits[0].argmax())
    requests = [SamplingParams(0.0, logit_bias=((17, 100.0),)), SamplingParams(0.0, logit_bias=((best, -100.0),))]
    tokens = Bench(requests).sample(logits[:1].expand(2, -1), [1, 1]).tokens.tolist()
    assert tokens[0] == 17
    assert tokens[1] == int(logits[0].topk(2).indices[1])


def test_min_tokens_holds_end_ids_back_until_then():
    logits = _logits(1, seed=13)
    first, second, third = logits[0].topk(3).indices.tolist()
    request = SamplingParams(0.0, min_tokens=2, stop_ids=frozenset({first, second}))
    for outputs, expected in (([], third), ([1], third), ([1, 1], first)):
        assert Bench([request], outputs=[outputs]).sample(logits, [1]).tokens.tolist() == [expected]


def test_logprobs_are_of_the_models_own_distribution():
    logits = _logits(2, seed=14)
    reference = torch.log_softmax(logits, -1)
    requests = [
        SamplingParams(0.3, top_k=5, seed=1, logprobs=4, logit_bias=((9, 50.0),), presence_penalty=1.0),
        SamplingParams(0.0, logprobs=2),
    ]
    sampled = Bench(requests).sample(logits, [1, 1])
    assert sampled.tokens[0] == 9
    for row in range(2):
        assert float(sampled.logprob[row]) == pytest.approx(float(reference[row, sampled.tokens[row]]), abs=1e-5)
        ids = reference[row].topk(4).indices
        assert sampled.top_ids[row].tolist() == ids.tolist()
        assert sampled.top_logprobs[row].tolist() == pytest.approx(reference[row, ids].tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("field", "params"),
    [
        ("temperature", SamplingParams(temperature=-1.0)),
        ("temperature", SamplingParams(temperature=float("nan"))),
        ("top_p", SamplingParams(top_p=1.5)),
        ("min_p", SamplingParams(min_p=-0.1)),
        ("repetition_penalty", SamplingParams(repetition_penalty=0.0)),
        ("frequency_penalty", SamplingParams(frequency_penalty=float("inf"))),
        ("logit_bias", SamplingParams(logit_bias=((VOCAB, 1.0),))),
        ("stop_ids", SamplingParams(stop_ids=frozenset({VOCAB}))),
        ("min_tokens", SamplingParams(min_tokens=1, stop_ids=frozenset(range(MAX_MASKED_IDS + 1)))),
        ("logprobs", SamplingParams(logprobs=21)),
    ],
)
def test_harmful_parameters_are_refused_by_name(field, params):
    with pytest.raises(RequestError) as caught:
        params.check(VOCAB)
    assert caught.value.param == field
    assert field in str(caught.value)
