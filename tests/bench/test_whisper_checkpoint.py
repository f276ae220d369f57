"""Random Whisper checkpoints and the ceiling of their encoder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from denizen.bench import checkpoint, encoder
from denizen.bench.errors import BenchError
from safetensors.torch import load_file
from transformers import WhisperForConditionalGeneration

TURBO = Path(checkpoint.__file__).parent / "shapes/whisper-large-v3-turbo.json"


def tokenizer(path: Path, ids: int = 51_866, *, lacks: str = "") -> Path:
    """A tokenizer of Whisper's layout whose ids end where `ids` says; texts are `t0`, `t1`, …"""
    specials = ["<|endoftext|>", "<|startoftranscript|>"]
    specials += [f"<|s{number}|>" for number in range(ids - 50_257 - 2 - 1501 - 1)]
    specials += ["<|notimestamps|>", *(f"<|{step / 50:.2f}|>" for step in range(1501))]
    added = [{"id": 50_257 + at, "content": text, "special": True} for at, text in enumerate(specials) if text != lacks]
    vocab = {f"t{number}": number for number in range(50_257)}
    content = {"added_tokens": added, "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "t0"}}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("made")
    checkpoint.write("whisper-tiny-random", made / "whisper", tokenizer(made / "tokenizer.json"))
    return made / "whisper"


def test_every_weight_is_there_and_greedy_output_wanders(folder: Path) -> None:
    model, report = WhisperForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    mel = torch.randn(1, 128, 3000, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[50_258, 50_259, 50_360, 50_364]])
    with torch.inference_mode():
        found = model(mel, decoder_input_ids=ids, output_hidden_states=True)
        assert 1 < found.logits.std() < 6
        for hidden in found.encoder_hidden_states[1:-1]:
            assert 0.3 < hidden.square().mean().sqrt() < 10
        heard = model.model.encoder(mel)
        for _ in range(30):
            following = model(encoder_outputs=heard, decoder_input_ids=ids).logits[:, -1, :50_257].argmax(-1)
            ids = torch.cat([ids, following[:, None]], dim=1)
    assert ids[0, 4:].unique().numel() > 20


def test_a_tensor_for_every_parameter_of_the_real_shape() -> None:
    """808,878,080 parameters, of which 636,968,960 are the encoder's."""
    from denizen.bench import whisper_checkpoint

    config = json.loads(TURBO.read_text(encoding="utf-8"))["config"]
    sizes = dict(whisper_checkpoint.tensors(config))
    count = {name: torch.Size(size).numel() for name, size in sizes.items()}
    assert sum(count.values()) == 808_878_080
    assert sum(size for name, size in count.items() if name.startswith("model.encoder")) == 636_968_960


def test_equal_seeds_write_equal_weights(folder: Path, tmp_path: Path) -> None:
    checkpoint.write("whisper-tiny-random", tmp_path / "again", folder / "tokenizer.json")
    checkpoint.write("whisper-tiny-random", tmp_path / "other", folder / "tokenizer.json", seed=1)
    one, again, other = (
        load_file(path / "model.safetensors") for path in (folder, tmp_path / "again", tmp_path / "other")
    )
    assert all(torch.equal(one[name], again[name]) for name in one)
    drawn = [name for name in one if name != "model.encoder.embed_positions.weight"]
    assert not any(torch.equal(one[name], other[name]) for name in drawn)
    assert {tensor.dtype for tensor in one.values()} == {torch.bfloat16}


def test_a_tokenizer_that_does_not_fit_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="ends at id 51864, but the shape's vocabulary at 51865"):
        checkpoint.write("whisper-tiny-random", tmp_path / "out", tokenizer(tmp_path / "v2.json", 51_865))
    file = tokenizer(tmp_path / "other.json", lacks="<|notimestamps|>")
    with pytest.raises(BenchError, match=r"other\.json: lacks <\|notimestamps\|>"):
        checkpoint.write("whisper-tiny-random", tmp_path / "out", file)
    (tmp_path / "none.json").write_text("{", encoding="utf-8")
    with pytest.raises(BenchError, match=r"none\.json: not a tokenizer\.json"):
        checkpoint.write("whisper-tiny-random", tmp_path / "out", tmp_path / "none.json")


def test_shapes_are_offered_by_kind() -> None:
    assert "whisper-large-v3-turbo" in checkpoint.shapes("asr")
    assert "qwen3_5-0.8b" in checkpoint.shapes("text")
    assert sorted(checkpoint.shapes("asr") + checkpoint.shapes("text")) == checkpoint.shapes()


def test_the_encoders_arithmetic_is_that_of_its_layers() -> None:
    """By torch's own count of the matrix products and convolutions of transformers' encoder; 2.27 TFLOP for turbo."""
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = json.loads(TURBO.read_text(encoding="utf-8"))["config"]
    assert encoder.flops(config) == pytest.approx(2.27e12, rel=0.005)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        WhisperEncoder(WhisperConfig(**config, attn_implementation="eager")).eval()(torch.empty(1, 128, 3000))
    assert encoder.flops(config) == pytest.approx(counter.get_total_flops(), rel=1e-6)


def test_the_ceiling_is_measured(folder: Path) -> None:
    found = encoder.measure("cpu", folder)
    assert found["matmul_flops_per_s"] > 1e8
    assert found["plain_windows_per_s"] > 0
    with pytest.raises(BenchError, match="cuda:99"):
        encoder.measure("cuda:99", folder)
