"""What is read of a Whisper checkpoint: config, special ids, weights, the spectrogram; and what is wrong with one."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from denizen.worker.errors import CheckpointError
from denizen.worker.models.checkpoint import Checkpoint
from denizen.worker.models.whisper.config import WhisperConfig
from denizen.worker.models.whisper.convolution import Convolution, flat_kernel, rows_of_three
from denizen.worker.models.whisper.ids import Ids
from denizen.worker.models.whisper.mel import LogMel, mel_filters
from torch.nn.functional import gelu, linear
from transformers import WhisperFeatureExtractor

from tests.models.harness import load
from tests.models.speech import build_tiny, sound

CPU = torch.device("cpu")
#: Published sizes: vocabulary, width, mel bins, encoder and decoder layers, heads.
SIZES = {
    "tiny": (51865, 384, 80, 4, 4, 6),
    "base": (51865, 512, 80, 6, 6, 8),
    "small": (51865, 768, 80, 12, 12, 12),
    "medium.en": (51864, 1024, 80, 24, 24, 16),
    "large-v2": (51865, 1280, 80, 32, 32, 20),
    "large-v3": (51866, 1280, 128, 32, 32, 20),
    "large-v3-turbo": (51866, 1280, 128, 32, 4, 20),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return build_tiny(tmp_path_factory.mktemp("whisper"), positions=50)


@pytest.mark.parametrize("bins", [80, 128])
def test_spectrogram_equals_the_feature_extractor(bins):
    """Alone and together; short ones are padded with silence, loud ones do not raise the floor of their neighbours."""
    extractor = WhisperFeatureExtractor(feature_size=bins)
    assert torch.equal(mel_filters(bins), torch.from_numpy(extractor.mel_filters.T).float())
    clips = [sound(seconds, seed) * 10.0**-seed for seed, seconds in enumerate((0.1, 7, 29.999, 30))]
    clips.append(np.zeros(1600, np.float32))
    expected = torch.cat(
        [extractor(clip, sampling_rate=16000, return_tensors="pt").input_features for clip in clips]
    )  # fmt: skip
    windows = torch.zeros(len(clips), 480000)
    for index, clip in enumerate(clips):
        windows[index, : len(clip)] = torch.from_numpy(clip)
    mel = LogMel(bins, CPU)
    assert expected[:-1].std() > 0.2
    assert (mel(windows) - expected).abs().max() <= 1e-5
    assert (mel(windows[1:2]) - expected[1:2]).abs().max() <= 1e-5


@pytest.mark.parametrize("size", SIZES)
def test_every_size_is_read(tiny, tmp_path, size):
    """Config and weights of each published size, one layer of a side read; ids derived from the vocabulary's size."""
    vocab, width, bins, encoder, decoder, heads = SIZES[size]
    config = json.loads((tiny / "config.json").read_text()) | {
        "vocab_size": vocab,
        "d_model": width,
        "num_mel_bins": bins,
        "encoder_layers": encoder,
        "decoder_layers": decoder,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": 4 * width,
        "decoder_ffn_dim": 4 * width,
        "max_source_positions": 1500,
    }
    shutil.copy(tiny / "model.safetensors", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    checkpoint = Checkpoint.open(tmp_path)
    read = WhisperConfig.read(checkpoint)
    assert (read.samples, read.head_dim, read.target_positions) == (480000, 64, 448)
    assert (read.encoder_layers, read.decoder_layers, read.decoder_ffn_dim) == (encoder, decoder, 4 * width)
    ids = Ids.read(checkpoint, read)
    english, many = vocab == 51864, vocab == 51866
    assert ids.end == (50256 if english else 50257)
    assert ids.start == ids.end + 1
    assert ids.no_timestamps == (50362 if english else 50364 if many else 50363)
    assert vocab - ids.first_timestamp == 1501
    assert ids.no_speech == ids.no_timestamps - 1
    assert len(ids.languages) == (0 if english else 100 if many else 99)
    assert set(ids.languages).isdisjoint(ids.suppress)
    assert ids.start in ids.suppress
    assert ids.end not in ids.suppress
    assert ids.begin_suppress == (220, ids.end)
    assert len(ids.alignment_heads) == (decoder - decoder // 2) * heads


def test_the_generation_config_goes_before_what_is_derived(tiny):
    checkpoint = Checkpoint.open(tiny)
    ids = Ids.read(checkpoint, WhisperConfig.read(checkpoint))
    assert ids.suppress == (1, 2, 7, 8, 50258, 50358, 50359, 50360, 50361, 50362)
    assert ids.alignment_heads == ((1, 0), (2, 1))
    assert ids.max_initial_timestamp == 50


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("config.json", "activation_function", "relu"),
        ("config.json", "scale_embedding", True),
        ("config.json", "decoder_attention_heads", 7),
        ("config.json", "median_filter_width", 6),
        ("config.json", "d_model", None),
        ("generation_config.json", "suppress_tokens", [51865]),
        ("generation_config.json", "suppress_tokens", "all"),
        ("generation_config.json", "eos_token_id", -1),
        ("generation_config.json", "lang_to_id", ["en"]),
        ("generation_config.json", "alignment_heads", [[3, 0]]),
        ("generation_config.json", "alignment_heads", []),
        ("generation_config.json", "max_initial_timestamp_index", -1),
    ],
)
def test_wrong_values_are_named(tiny, tmp_path, file, key, value):
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(tiny / name, tmp_path)
    values = json.loads((tmp_path / file).read_text()) | {key: value}
    (tmp_path / file).write_text(json.dumps(values))
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path)
    assert file in str(caught.value)
    assert key in str(caught.value)


def test_an_unknown_vocabulary_needs_its_ids(tiny, tmp_path):
    shutil.copy(tiny / "model.safetensors", tmp_path)
    config = json.loads((tiny / "config.json").read_text()) | {"vocab_size": 1000}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"generation_config\.json.*eos_token_id"):
        load(tmp_path)


def test_a_tensor_of_another_shape_is_named(tiny, tmp_path):
    for name in ("generation_config.json", "model.safetensors"):
        shutil.copy(tiny / name, tmp_path)
    config = json.loads((tiny / "config.json").read_text()) | {"encoder_ffn_dim": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"encoder\.layers\.0\.fc1\.weight"):
        load(tmp_path)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_is_a_product_with_rows_of_three_frames(stride):
    """What a GPU computes, whole batches at once: no row reaches into the next window."""
    generator = torch.Generator().manual_seed(stride)
    x, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((3, 10, 7), (5, 7, 3), (5,)))
    product = gelu(linear(rows_of_three(x, stride), flat_kernel(weight), bias)).view(3, 10 // stride, 5)
    assert torch.allclose(product, Convolution(weight, bias)(x, stride), atol=1e-5)
