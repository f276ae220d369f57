"""Drives a model that hears without an engine: real pools and page arrays, one forward pass a call.

Also tiny random Whisper checkpoints, and transformers' side of the comparison.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from denizen.kernels.context_places import context_places
from denizen.kernels.page_gather import page_gather
from denizen.worker.asr import AsrOptions
from denizen.worker.attention import paged_attention
from denizen.worker.models.base import CONTEXT, Batch, RowCache, Speech
from denizen.worker.pools.storage import allocate_state
from transformers import GenerationConfig, GenerationMixin, WhisperConfig, WhisperForConditionalGeneration
from transformers.generation import (
    LogitsProcessorList,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)
from transformers.modeling_outputs import BaseModelOutput

from tests.models.harness import CPU, SINK, load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from denizen.worker.models.whisper.model import WhisperModel

#: Of tiny checkpoints: the multilingual vocabulary with 99 languages.
VOCAB = 51865
TIMED = AsrOptions()
END, START, ENGLISH, TRANSCRIBE, NO_TIMESTAMPS = 50257, 50258, 50259, 50359, 50363


def build_tiny(folder: Path, *, positions: int = 1500, seed: int = 0, **sizes: int) -> Path:
    """A random checkpoint whose greedy output wanders. ``positions`` of the encoder: 50 a second."""
    options = {
        "vocab_size": VOCAB,
        "num_mel_bins": 80,
        "d_model": 64,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 128,
        "decoder_layers": 3,
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 96,
    } | sizes
    config = WhisperConfig(
        **options,
        max_source_positions=positions,
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=END,
        decoder_start_token_id=START,
    )
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if parameter.dim() == 1:  # made as 0 and 1, where a mix-up would not show
                parameter.add_(0.2 * noise)
            elif name.endswith("embed_positions.weight"):
                parameter.copy_(noise)
            elif name.endswith("embed_tokens.weight"):
                parameter.copy_(0.15 * noise)  # logits with a standard deviation near 1
            else:
                # Strong enough that the layers, not the token's own embedding, decide what comes next.
                gain = 2.5 if name.endswith(("self_attn.out_proj.weight", "fc2.weight")) else 1.7
                parameter.copy_(noise * (gain / parameter[0].numel() ** 0.5))
    generation = GenerationConfig(
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=END,
        decoder_start_token_id=START,
        max_length=448,
        no_timestamps_token_id=NO_TIMESTAMPS,
        max_initial_timestamp_index=50,
        suppress_tokens=[1, 2, 7, 8, START, 50358, TRANSCRIBE, 50360, 50361, 50362],
        begin_suppress_tokens=[220, END],
        alignment_heads=[[1, 0], [2, 1]],
        is_multilingual=True,
        lang_to_id={f"<|l{index}|>": ENGLISH + index for index in range(99)},
        task_to_id={"translate": 50358, "transcribe": TRANSCRIBE},
    )
    model.generation_config = generation
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(generation.to_dict()))
    return folder


def sound(seconds: float, seed: int) -> np.ndarray:
    """Noise whose loudness and pitch wander."""
    random = np.random.RandomState(seed)
    time = np.arange(int(seconds * 16000)) / 16000
    tone = np.sin(2 * np.pi * (200 + 100 * np.sin(time * (1 + seed))) * time)
    return (tone * random.rand() * 0.5 + random.randn(len(time)) * 0.05 * (1 + np.sin(time))).astype(np.float32)


@dataclass
class Pair:
    """The same weights in transformers and in Denizen."""

    folder: Path
    reference: Any
    model: WhisperModel
    _encoded: dict[bytes, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> Pair:
        reference = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        return cls(folder, reference, load(folder))  # type: ignore[arg-type]

    def features(self, pcm: np.ndarray) -> torch.Tensor:
        """``[1, bins, frames]`` of the padded window."""
        return self.model.encoder.mel(window(self.model, pcm)[None])

    @torch.inference_mode()
    def encoded(self, pcm: np.ndarray) -> torch.Tensor:
        """The reference's encoder output ``[1, positions, d_model]``, kept: it costs most of a test's time."""
        key = pcm.tobytes()
        if key not in self._encoded:
            self._encoded[key] = self.reference.model.encoder(self.features(pcm)).last_hidden_state
        return self._encoded[key]

    @torch.inference_mode()
    def logits(self, pcm: np.ndarray, ids: Sequence[int]) -> torch.Tensor:
        """Teacher-forced, ``[len(ids), vocab]``."""
        out = self.reference(encoder_outputs=(self.encoded(pcm),), decoder_input_ids=torch.tensor([list(ids)]))
        return out.logits[0]

    def greedy(self, pcm: np.ndarray, prompt: Sequence[int], most: int, *, timestamps: bool) -> list[int]:
        """What ``generate`` writes behind the prompt under transformers' own processors, the end included."""
        ids = self.model.ids
        begin = len(prompt)
        rules: list[Any] = [
            SuppressTokensAtBeginLogitsProcessor(list(ids.begin_suppress), begin),
            SuppressTokensLogitsProcessor(list(ids.suppress)),
        ]
        if timestamps:
            rules.append(WhisperTimeStampLogitsProcessor(self.reference.generation_config, begin))
        else:
            rules.append(SuppressTokensLogitsProcessor(list(range(ids.first_timestamp, self.model.vocab_size))))
        config = GenerationConfig(
            max_new_tokens=most,
            do_sample=False,
            eos_token_id=ids.end,
            pad_token_id=ids.end,
            decoder_start_token_id=ids.start,
        )
        with torch.inference_mode():
            out = GenerationMixin.generate(
                self.reference,
                encoder_outputs=BaseModelOutput(last_hidden_state=self.encoded(pcm)),
                generation_config=config,
                decoder_input_ids=torch.tensor([list(prompt)]),
                logits_processor=LogitsProcessorList(rules),
            )
        written: list[int] = out[0].tolist()
        assert written[:begin] == list(prompt)
        return written[begin:]


def window(model: WhisperModel, pcm: np.ndarray) -> torch.Tensor:
    """The PCM padded with silence."""
    out = torch.zeros(model.max_samples)
    out[: len(pcm)] = torch.from_numpy(np.array(pcm))
    return out


@dataclass
class Row:
    """A request's place in the tables."""

    row: int
    speech: Speech
    length: int = 0
    pages: dict[str, list[int]] = field(default_factory=lambda: {"self": [], "cross": []})
    scores: list[float] = field(default_factory=list)  #: log-probabilities of its outputs
    no_speech: float = 0.0


class SpeechHarness:
    """One model's pools. Pages are handed out in random order; whatever nobody has written is NaN."""

    def __init__(self, model: WhisperModel, rows: int = 6, page_size: int = 16) -> None:
        self.model = model
        self.page_size = page_size
        self.attention, self.table, self.free = {}, {}, {}
        for spec in model.kv_pools:
            pages = rows * -(-(spec.context or model.context_length) // page_size) + 1
            pool = paged_attention(spec, pages, page_size, CPU, torch.float32)
            pool.keys.fill_(float("nan"))
            pool.values.fill_(float("nan"))
            self.attention[spec.key] = pool
            self.table[spec.key] = torch.zeros((rows + 1, pages), dtype=torch.int32)
            self.free[spec.key] = random.Random(0).sample(range(1, pages), pages - 1)
        self.contexts = {spec.key: spec.context for spec in model.kv_pools}
        (pool,) = model.state_pools
        self.state = {pool.key: allocate_state(pool, rows + 1, CPU, torch.float32)}
        for tensor in self.state[pool.key].values():
            tensor.fill_(-77)
        self.rows = list(range(rows, 0, -1))

    def admit(
        self, pcm: np.ndarray, prompt: Sequence[int], options: AsrOptions = TIMED, outputs: Sequence[int] = ()
    ) -> Row:
        row = Row(self.rows.pop(), Speech(np.asarray(prompt, np.int32), list(outputs), options, pcm))
        self._hold(row, "cross", self.contexts["cross"])
        return row

    def release(self, row: Row) -> None:
        self.rows.append(row.row)
        for key, pages in row.pages.items():
            self.free[key].extend(pages)

    def _hold(self, row: Row, key: str, positions: int) -> None:
        pages = row.pages[key]
        while len(pages) * self.page_size < positions:
            pages.append(self.free[key].pop())
            self.table[key][row.row, len(pages) - 1] = pages[-1]

    def step(
        self, walk: str, parts: Sequence[tuple[Row, Sequence[int]]], padding: int = 0
    ) -> tuple[torch.Tensor, Batch]:
        """Runs new tokens of rows in one batch. Hidden states ``[T, d_model]``, and the batch for the hooks."""
        model = self.model
        positions: list[int] = []
        for row, ids in parts:
            positions += range(row.length, row.length + len(ids))
            row.length += len(ids)
            self._hold(row, "self", row.length)
        counts = [len(ids) for _, ids in parts] + [1 if walk == "decode" else 0] * padding
        slots = torch.tensor([row.row for row, _ in parts] + [0] * padding, dtype=torch.int32)
        cu_seqlens = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        fresh = torch.tensor([True] * len(counts))
        steps, lengths = {}, {}
        for key, pool in self.attention.items():
            held = self.contexts[key]
            lengths[key] = torch.tensor([held or row.length for row, _ in parts] + [0] * padding, dtype=torch.int32)
            rows = len(counts)
            arrays = [
                torch.zeros(size, dtype=torch.int32) for size in (rows + 1, self.table[key].shape[1] * rows, rows)
            ]
            page_gather(slots, self.table[key], lengths[key], self.page_size, SINK, *arrays)
            steps[key] = pool.bind(*arrays, cu_seqlens, max(counts), causal=not held)
            if model.walks[walk].streams[key] == CONTEXT:
                steps[key].write_at = context_places(slots, fresh, self.table[key], held, self.page_size, SINK)
        pad = [0] * (padding if walk == "decode" else 0)
        batch = Batch(
            walk,
            slots,
            torch.tensor([token for _, ids in parts for token in ids] + pad),
            torch.tensor(positions + pad),
            cu_seqlens,
            max(counts),
            steps,
            self.state,
            dict.fromkeys(self.state, slots),
            fresh,
            lengths,
            self._inputs(parts, padding) if walk == "prefill" else {},
        )
        return model.forward(batch), batch

    def _inputs(self, parts: Sequence[tuple[Row, Sequence[int]]], padding: int) -> dict[str, torch.Tensor]:
        given = [self.model.row_inputs(row.speech) for row, _ in parts]
        inputs = {}
        for name, spec in self.model.walks["prefill"].inputs.items():
            out = torch.zeros((len(parts) + padding, *spec.shape), dtype=spec.dtype)
            for index, values in enumerate(given):
                out[index, : len(values[name])] = torch.from_numpy(np.array(values[name]))
            inputs[name] = out
        return inputs

    def begin(self, rows: Sequence[Row], padding: int = 0) -> tuple[torch.Tensor, Batch]:
        """Prefills the rows' prompts and outputs."""
        return self.step(
            "prefill", [(row, [*row.speech.prompt.tolist(), *row.speech.outputs]) for row in rows], padding
        )

    def transcribe(self, rows: Sequence[Row], most: int = 60, padding: int = 0) -> list[list[int]]:
        """Greedy ids under the rules, the end of text included; rows leave the batch as they end."""
        model = self.model
        hidden, batch = self.begin(rows)
        for row, doubt in zip(rows, model.observe(hidden, batch).tolist(), strict=True):
            row.no_speech = doubt
        logits = model.constrain(model.logits(hidden[batch.cu_seqlens[1:].long() - 1]), batch)
        live = list(rows)
        while live:
            going = []
            chosen = logits[: len(live)].log_softmax(-1).max(-1)
            for row, token, score in zip(live, chosen.indices.tolist(), chosen.values.tolist(), strict=True):
                row.scores.append(score)
                row.speech.outputs.append(token)  # type: ignore[attr-defined]
                if token != model.ids.end and len(row.speech.outputs) < most:
                    going.append(row)
            live = going
            if live:
                hidden, batch = self.step("decode", [(row, [row.speech.outputs[-1]]) for row in live], padding)
                logits = model.constrain(model.logits(hidden), batch)
        return [list(row.speech.outputs) for row in rows]

    def caches(self, row: Row) -> dict[str, RowCache]:
        """For :meth:`WhisperModel.align`."""
        return {
            key: RowCache(pool.keys, pool.values, torch.tensor(row.pages[key]), self.contexts[key] or row.length)
            for key, pool in self.attention.items()
        }
