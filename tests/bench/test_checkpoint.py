"""Random checkpoints of a real shape: they load, greedy output wanders, and what a step must move is what they hold."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
import torch
from denizen.bench import checkpoint
from denizen.bench.errors import BenchError
from denizen.bench.floor import copy_rate, mean_context, traffic
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.models import tiny

_REAL = Path(__file__).parents[2] / "frontend-rs/tests/assets/qwen3_5/tokenizer.json.xz"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tiny.tokenizer().save(str(file))
    return file


@pytest.fixture(scope="module")
def folder(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "tiny"
    checkpoint.write("qwen3_5-tiny", folder, tokenizer)
    return folder


def test_greedy_output_wanders_over_a_stream_of_order_one(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.arange(3, 40)[None]
    with torch.inference_mode():
        found = model(ids, output_hidden_states=True)
        made = model.generate(ids, max_new_tokens=30, do_sample=False, eos_token_id=None)[0, ids.shape[1] :]
    *stream, _ = found.hidden_states  # the last is after the norm
    for hidden in stream[1:]:
        assert 0.5 < hidden.square().mean().sqrt() < 10
    assert 1 < found.logits.std() < 6
    assert made.unique().numel() > 20


def test_equal_arguments_write_equal_weights(folder: Path, tokenizer: Path, tmp_path: Path) -> None:
    packed = tmp_path / "tokenizer.json.xz"
    packed.write_bytes(lzma.compress(tokenizer.read_bytes()))
    checkpoint.write("qwen3_5-tiny", tmp_path / "again", packed)
    checkpoint.write("qwen3_5-tiny", tmp_path / "other", packed, seed=1)
    assert (tmp_path / "again/tokenizer.json").read_bytes() == tokenizer.read_bytes()
    one, again, other = (
        load_file(path / "model.safetensors") for path in (folder, tmp_path / "again", tmp_path / "other")
    )
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)
    assert {tensor.dtype for tensor in one.values()} == {torch.bfloat16}


def test_the_command_line_uses_the_real_tokenizer(tmp_path: Path) -> None:
    assert checkpoint.main(["qwen3_5-tiny", str(tmp_path), "--tokenizer", str(_REAL)]) == 0
    added = {
        token["content"]: token["id"]
        for token in json.loads((tmp_path / "tokenizer.json").read_bytes())["added_tokens"]
    }
    ends = json.loads((tmp_path / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
    assert ends == [added["<|im_end|>"], added["<|endoftext|>"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"{", "not a tokenizer.json"),
        (b'{"added_tokens": [], "model": {"vocab": {"a": 0}}}', r"lacks <\|im_end\|>"),
    ],
)
def test_a_tokenizer_that_is_none_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "tokenizer.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BenchError, match=f"--tokenizer {file}.*{message}"):
        checkpoint.write("qwen3_5-tiny", tmp_path / "out", file)


def test_an_unknown_shape_is_named(tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"no shape 'gpt'; known: qwen3_5-0\.8b"):
        checkpoint.write("gpt", tmp_path, tokenizer)


def test_a_step_moves_what_the_checkpoint_holds(tmp_path: Path) -> None:
    """By hand: 18 delta-net layers of 16 heads of 128 × 128, 6 attention layers of 2 KV heads of 256."""
    config = Path(checkpoint.__file__).parent / "shapes/qwen3_5-0.8b.json"
    (tmp_path / "config.json").write_bytes(config.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    moved = traffic(tmp_path, 128, 384.0)
    assert moved.weights == 1000
    assert moved.state == 128 * 2 * 18 * (16 * 128 * 128 * 4 + 6144 * 3 * 2)
    assert moved.kv == 128 * 384 * 2 * 6 * 2 * 256 * 2
    assert traffic(tmp_path, 128, 384.0, recurrent_bytes=2).state < 0.52 * moved.state
    assert moved.seconds(1e12) == pytest.approx((1000 + moved.state + moved.kv) / 1e12)


def test_a_running_request_has_more_context_than_half_the_mean() -> None:
    assert mean_context(128, (100, 100)) == 128 + 50
    assert mean_context(0, (256, 512)) == pytest.approx(199.1, abs=0.1)  # long answers are met more often


def test_the_copy_rate_is_measured() -> None:
    assert copy_rate("cpu") > 1e8
    with pytest.raises(BenchError, match="cuda:99"):
        copy_rate("cuda:99")
