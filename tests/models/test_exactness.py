"""Logits against transformers on the same weights, teacher-forced, in fp32: the worker's own path below the engine."""

from __future__ import annotations

import pytest
import torch

from tests.models import tiny
from tests.models.harness import Harness, load

BOUND = 1e-4
#: Where batching, chunking and state are at stake, the kinds that differ in them are enough.
SHAPES = ("llama", "qwen3_5", "qwen3_5-grouped")


def random_ids(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, tiny.VOCAB, (count,), generator=generator).tolist()


def assert_close(logits: torch.Tensor, expected: torch.Tensor) -> None:
    # A reference that says the same everywhere would make the comparison worthless.
    assert 0.3 < expected.std() < 10
    assert len(set(expected.argmax(-1).tolist())) > len(expected) // 4
    assert logits.dtype == torch.float32
    assert (logits - expected).abs().max() <= BOUND


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_prefill_and_decode_match_the_reference(pairs, kind):
    pair = pairs(kind)
    ids = random_ids(120, seed=1)
    expected = pair.logits(ids)
    harness = Harness(pair.model)
    assert_close(harness.prefill(harness.admit(), ids), expected)
    sequence = harness.admit()
    parts = [harness.prefill(sequence, ids[:50])]
    parts += [harness.step("decode", [(sequence, [token])])[0] for token in ids[50:]]
    assert_close(torch.cat(parts), expected)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 16, 64, 65, 127])
def test_chunked_prefill_matches_the_reference(pairs, kind, chunk):
    """Pages hold 4 positions and the delta rule's chunks 64: sizes below, at, above and across both."""
    pair = pairs(kind)
    ids = random_ids(140, seed=2)
    harness = Harness(pair.model)
    assert_close(harness.prefill(harness.admit(), ids, chunk), pair.logits(ids))


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("padding", [0, 3])
def test_mixed_batches_match_the_reference_row_by_row(pairs, kind, padding):
    """Rows of very different lengths prefill, go on in chunks, and decode together, beside padding."""
    pair = pairs(kind)
    lengths = [1, 3, 16, 17, 90, 200]
    texts = [random_ids(length + 40, seed=10 + length) for length in lengths]
    expected = [pair.logits(ids) for ids in texts]
    harness = Harness(pair.model)
    sequences = [harness.admit() for _ in texts]
    got: list[list[torch.Tensor]] = [[] for _ in texts]

    def run(walk: str, rows: list[int], take: list[int], pad: int = 0) -> None:
        parts = [
            (sequences[row], texts[row][sequences[row].length :][:count]) for row, count in zip(rows, take, strict=True)
        ]
        for row, logits in zip(rows, harness.step(walk, parts, pad), strict=True):
            got[row].append(logits)

    everyone = list(range(len(texts)))
    run("prefill", everyone, [max(1, length // 2) for length in lengths])
    late = [row for row in everyone if sequences[row].length < lengths[row]]
    run("prefill", list(reversed(late)), [lengths[row] - sequences[row].length for row in reversed(late)])
    for step in range(40):
        # The order of rows changes, and one of them sits out, from step to step.
        rows = [row for row in everyone[step % 6 :] + everyone[: step % 6] if row != step % 7]
        run("decode", rows, [1] * len(rows), padding)
    for row, parts in enumerate(got):
        logits = torch.cat(parts)
        assert len(logits) >= lengths[row] + 34
        assert_close(logits, expected[row][: len(logits)])


@pytest.mark.parametrize("kind", SHAPES)
def test_a_slot_that_had_another_owner_starts_clean(pairs, kind):
    pair = pairs(kind)
    first, second = random_ids(70, seed=3), random_ids(33, seed=4)
    harness = Harness(pair.model, rows=2, pages=32)
    sequence = harness.admit()
    harness.prefill(sequence, first)
    harness.release(sequence)
    assert_close(harness.prefill(harness.admit(), second), pair.logits(second))


@pytest.mark.parametrize(("kind", "options"), [("llama", {"shards": True}), ("qwen3_5", {"wrapped": True})])
def test_other_layouts_of_a_checkpoint_hold_the_same_model(pairs, tmp_path, kind, options):
    """Sharded files with an index; the vision-language wrapper's names, nested config and foreign weights."""
    pair = pairs(kind)
    ids = random_ids(40, seed=5)
    folder = tiny.build(kind, tmp_path, **options)
    assert (len(list(folder.glob("*.safetensors"))) > 2) == ("shards" in options)
    harness = Harness(load(folder))
    assert torch.equal(harness.prefill(harness.admit(), ids), Harness(pair.model).prefill(harness.admit(), ids))


def test_old_spelling_of_rope_scaling_is_read_alike(pairs, tmp_path):
    """``rope_theta`` and ``rope_scaling`` at the top level, ``type`` for ``rope_type``: checkpoints before 2025."""
    import json

    pair = pairs("linear-rope")
    folder = tiny.build("linear-rope", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": {"type": "linear", "factor": rope["factor"]}}
    (folder / "config.json").write_text(json.dumps(config))
    ids = random_ids(60, seed=6)
    harness = Harness(load(folder))
    assert_close(harness.prefill(harness.admit(), ids), pair.logits(ids))
