"""Whisper against transformers on the same weights, fp32, below the engine: encoder, logits, mixed batches."""

from __future__ import annotations

import pytest
import torch
from denizen.worker.asr import AsrOptions

from tests.models.speech import (
    ENGLISH,
    NO_TIMESTAMPS,
    START,
    TRANSCRIBE,
    VOCAB,
    Pair,
    SpeechHarness,
    build_tiny,
    sound,
    window,
)

BOUND = 1e-4
PROMPT = [START, ENGLISH, TRANSCRIBE, NO_TIMESTAMPS]
TEXT = AsrOptions(timestamps=False)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Pair:
    return Pair.load(build_tiny(tmp_path_factory.mktemp("whisper")))


def random_ids(count: int, seed: int) -> list[int]:
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_the_encoder_equals_the_reference_alone_and_in_batches(tiny):
    clips = [sound(seconds, seed) for seed, seconds in enumerate((0.5, 3.0, 29.99, 30.0))]
    expected = torch.cat([tiny.encoded(pcm) for pcm in clips])
    assert 0.3 < expected.std() < 10
    # Windows differ, or a mix-up would not show.
    assert (expected[0] - expected[1]).abs().max() > 0.1
    with torch.inference_mode():
        together = tiny.model.encoder(torch.stack([window(tiny.model, pcm) for pcm in clips]))
        alone = torch.cat([tiny.model.encoder(window(tiny.model, pcm)[None]) for pcm in clips])
    assert (together.view_as(expected) - expected).abs().max() <= BOUND
    assert (alone.view_as(expected) - expected).abs().max() <= BOUND


def test_prefill_and_decode_match_the_reference(tiny):
    pcm = sound(4, 1)
    ids = [*PROMPT, *random_ids(60, 1)]
    expected = tiny.logits(pcm, ids)
    assert expected.std() > 0.3
    assert len(set(expected.argmax(-1).tolist())) > len(ids) // 4
    harness = SpeechHarness(tiny.model)
    row = harness.admit(pcm, ids)
    hidden, _ = harness.begin([row])
    assert (tiny.model.logits(hidden) - expected).abs().max() <= BOUND
    row = harness.admit(pcm, ids[:20])
    parts = [harness.begin([row])[0]]
    parts += [harness.step("decode", [(row, [token])])[0] for token in ids[20:]]
    assert (tiny.model.logits(torch.cat(parts)) - expected).abs().max() <= BOUND


@pytest.mark.parametrize("padding", [0, 3])
def test_mixed_batches_match_the_reference_row_by_row(tiny, padding):
    """Prompts of very different lengths prefill together, then decode in changing order beside padding."""
    lengths = [1, 4, 37, 200, 225]
    clips = [sound(1 + 5 * index, 20 + index) for index in range(len(lengths))]
    texts = [[START, *random_ids(length + 19, 30 + length)] for length in lengths]
    harness = SpeechHarness(tiny.model)
    rows = [harness.admit(pcm, ids[:length]) for pcm, ids, length in zip(clips, texts, lengths, strict=True)]
    hidden, _ = harness.begin(rows, padding)
    got = [[part] for part in hidden.split(lengths)]
    for step in range(20):
        order = [index for index in (*range(step % 5, 5), *range(step % 5)) if index != step % 6]
        parts = [(rows[index], texts[index][rows[index].length :][:1]) for index in order]
        hidden, _ = harness.step("decode", parts, padding)
        for index, state in zip(order, hidden, strict=False):
            got[index].append(state[None])
    for pcm, ids, states in zip(clips, texts, got, strict=True):
        logits = tiny.model.logits(torch.cat(states))
        assert len(logits) > len(ids) - 6
        assert (logits - tiny.logits(pcm, ids)[: len(logits)]).abs().max() <= BOUND


def test_greedy_tokens_equal_generate(tiny):
    """With the same forced prompt, with timestamps and without, alone and together."""
    clips = [sound(2 + 6 * index, 40 + index) for index in range(3)]
    seen = set()
    for timestamps in (True, False):
        prompt = PROMPT[:3] if timestamps else PROMPT
        expected = [tiny.greedy(pcm, prompt, 40, timestamps=timestamps) for pcm in clips]
        seen.update(token for tokens in expected for token in tokens)
        options = AsrOptions(timestamps=timestamps)
        harness = SpeechHarness(tiny.model)
        rows = [harness.admit(pcm, prompt, options) for pcm in clips]
        together = harness.transcribe(rows, 40, padding=2)
        alone = []
        for pcm in clips:
            harness = SpeechHarness(tiny.model)
            alone += harness.transcribe([harness.admit(pcm, prompt, options)], 40)
        assert together == alone
        assert together == expected
    # A model that repeats itself would agree with anything that repeats itself.
    assert len(seen) > 60
