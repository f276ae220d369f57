"""Broken, foreign and unsupported checkpoints: one clear error each, that names the file and the remedy."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from denizen.worker.errors import CheckpointError
from denizen.worker.models.checkpoint import Checkpoint
from safetensors.torch import load_file, save_file

from tests.models import tiny
from tests.models.harness import CPU, load


@pytest.fixture
def folder(tmp_path):
    return tiny.build("llama", tmp_path / "model")


@pytest.fixture
def sharded(tmp_path):
    return tiny.build("llama", tmp_path / "model", shards=True)


def fails(folder, *parts: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def change_config(folder, **changes) -> None:
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def change_weights(folder, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_a_path_that_is_no_folder(tmp_path):
    fails(tmp_path / "nowhere", "nowhere is not a folder", "config.json")


def test_a_missing_config(folder):
    (folder / "config.json").unlink()
    fails(folder, "config.json does not exist")


@pytest.mark.parametrize("text", ["{", "[]", "", "\x00"])
def test_a_broken_config(folder, text):
    (folder / "config.json").write_text(text)
    fails(folder, "config.json", "fetch it again")


def test_an_unsupported_model_lists_the_supported_ones(folder):
    change_config(folder, architectures=["GPT2LMHeadModel"])
    fails(folder, "GPT2LMHeadModel is not supported", "LlamaForCausalLM", "Qwen3_5ForCausalLM")


@pytest.mark.parametrize("value", [..., [], "LlamaForCausalLM", None])
def test_a_config_that_names_no_architecture(folder, value):
    change_config(folder, architectures=value)
    fails(folder, "config.json", "'architectures'")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"hidden_size": ...}, ["'hidden_size' is missing", "must be a positive integer", "download"]),
        ({"num_hidden_layers": "4"}, ["'num_hidden_layers'", "'4'"]),
        ({"num_key_value_heads": 3}, ["'num_key_value_heads' is 3", "4 attention heads"]),
        ({"hidden_act": "gelu"}, ["'hidden_act' is 'gelu'", "'silu'"]),
        ({"rms_norm_eps": "small"}, ["'rms_norm_eps' is 'small'", "must be a number"]),
        ({"attention_bias": 1}, ["'attention_bias' is 1", "must be true or false"]),
        ({"use_sliding_window": True}, ["'use_sliding_window'", "not supported"]),
        ({"rope_parameters": {"rope_type": "longrope"}}, ["'longrope'", "default, linear, llama3, yarn"]),
        ({"rope_parameters": {"rope_type": "linear"}}, ["'factor' is missing", "must be a number"]),
        ({"rope_parameters": []}, ["'rope_parameters' is []", "must be an object"]),
        ({"quantization_config": {"quant_method": "gptq"}}, ["quantised (gptq)", "float checkpoint"]),
        ({"quantization_config": "awq"}, ["quantised (awq)", "float checkpoint"]),
    ],
)
def test_a_config_value_that_cannot_be_served(folder, changes, parts):
    change_config(folder, **changes)
    fails(folder, "config.json", *parts)


def test_a_null_quantisation_is_none(folder):
    change_config(folder, quantization_config=None)
    assert Checkpoint.open(folder).entries


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"linear_num_value_heads": 3}, ["'linear_num_value_heads' is 3", "2 key heads"]),
        ({"layer_types": ["linear_attention"]}, ["'layer_types'", "4 layers"]),
        ({"layer_types": ["mamba"] * 4}, ["'layer_types'", "'full_attention'"]),
        ({"linear_key_head_dim": ...}, ["'linear_key_head_dim'"]),
    ],
)
def test_a_hybrid_config_value_that_cannot_be_served(tmp_path, changes, parts):
    folder = tiny.build("qwen3_5", tmp_path)
    change_config(folder, **changes)
    fails(folder, "config.json", *parts)


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    fails(folder, "neither model.safetensors nor model.safetensors.index.json")
    (folder / "pytorch_model.bin").write_bytes(b"")
    fails(folder, "pytorch_model.bin is there, but only safetensors are read")


def test_a_missing_tensor(folder):
    change_weights(folder, lambda tensors: tensors.pop("model.layers.2.mlp.up_proj.weight"))
    fails(folder, "'model.layers.2.mlp.up_proj.weight'", "incomplete")


def test_a_tensor_of_another_shape(folder):
    change_config(folder, intermediate_size=96)
    fails(folder, "model.safetensors", "mlp.gate_proj.weight", "[128, 64]", "[96, 64]")


def test_a_tensor_of_a_type_that_is_no_float(folder):
    change_weights(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}))
    fails(folder, "'model.norm.weight' is of type I8", "bfloat16")


@pytest.mark.parametrize("keep", [0, 4, 300, -1])
def test_a_file_that_was_cut_off(folder, keep):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    fails(folder, "model.safetensors is damaged", "fetch it again")


@pytest.mark.parametrize("data", [b"\xff" * 64, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"])
def test_a_file_that_is_no_safetensors(folder, data):
    (folder / "model.safetensors").write_bytes(data)
    fails(folder, "model.safetensors is damaged", "fetch it again")


def test_a_missing_shard(sharded):
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.unlink()
    fails(sharded, f"{shard.name} does not exist", "fetch")


def test_a_shard_without_its_tensor(sharded):
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    name, file = "model.norm.weight", index["weight_map"]["model.norm.weight"]
    tensors = load_file(sharded / file)
    tensors.pop(name)
    save_file(tensors, sharded / file)
    fails(sharded, file, f"'{name}'", "fetch it again")


@pytest.mark.parametrize(
    "index", ["{}", '{"weight_map": {}}', '{"weight_map": {"a": "../../x"}}', '{"weight_map": {"a": 1}}']
)
def test_a_broken_index(sharded, index):
    (sharded / "model.safetensors.index.json").write_text(index)
    fails(sharded, "model.safetensors.index.json")


def test_progress_counts_up_to_every_byte_that_is_read(sharded):
    from denizen.worker.models.registry import model_class

    checkpoint = Checkpoint.open(sharded)
    calls: list[tuple[int, int]] = []
    model_class(checkpoint).load(checkpoint, CPU, torch.float32, lambda done, total: calls.append((done, total)))
    assert len(calls) > 20
    assert calls == sorted(calls)
    assert calls[-1] == (sum(entry.bytes for entry in checkpoint.entries.values()),) * 2


def test_foreign_weights_are_named_in_the_log(folder, caplog):
    change_weights(folder, lambda tensors: tensors.update({"model.extra.weight": torch.ones(2)}))
    with caplog.at_level(logging.WARNING):
        load(folder)
    assert "model.extra.weight" in caplog.text


def test_the_fingerprint_follows_the_content(folder):
    first = Checkpoint.open(folder).fingerprint()
    assert first == Checkpoint.open(folder).fingerprint()
    change_weights(folder, lambda tensors: tensors["model.norm.weight"].add_(1))
    second = Checkpoint.open(folder).fingerprint()
    change_config(folder, rope_theta=5.0)
    assert len({first, second, Checkpoint.open(folder).fingerprint()}) == 3
