"""Real Whisper weights and real speech against transformers, fp32: logits, transcripts, word times."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from denizen.worker.asr import AsrOptions
from denizen.worker.models.base import Speech
from tokenizers import Tokenizer
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

from tests.models import real_whisper
from tests.models.real_whisper import LANGUAGE_AND_TASK, word_errors, words
from tests.models.speech import Pair, Row, SpeechHarness, window

BOUND = 1e-3


class Real(Pair):
    name: str
    tokenizer: Tokenizer

    def prompt(self, *, timestamps: bool) -> list[int]:
        ids = self.model.ids
        return [ids.start, *LANGUAGE_AND_TASK[self.name], *([] if timestamps else [ids.no_timestamps])]

    def text(self, tokens: list[int]) -> str:
        return self.tokenizer.decode([token for token in tokens if token < self.model.ids.end])


@pytest.fixture(scope="module", params=real_whisper.MODELS)
def real(request) -> Real:
    folder = real_whisper.or_skip(real_whisper.checkpoint, request.param)
    pair = Real.load(folder)
    pair.name = request.param
    pair.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return pair


@pytest.fixture(scope="module")
def clips() -> list[real_whisper.Clip]:
    return real_whisper.or_skip(real_whisper.clips)


@pytest.fixture(scope="module")
def heard(real, clips):
    """``heard(timestamps)``: the harness and the rows of all clips, transcribed together; they hold their pages."""
    made: dict[bool, tuple[SpeechHarness, list[Row]]] = {}

    def get(timestamps: bool) -> tuple[SpeechHarness, list[Row]]:
        if timestamps not in made:
            harness = SpeechHarness(real.model)
            prompt, options = real.prompt(timestamps=timestamps), AsrOptions(timestamps=timestamps, words=True)
            rows = [harness.admit(clip.pcm, prompt, options) for clip in clips]
            harness.transcribe(rows, padding=1)
            made[timestamps] = harness, rows
        return made[timestamps]

    return get


def test_encoder_and_logits_equal_the_reference(real, clips):
    """Clips of different lengths together; the first 40 ids of a transcript are forced."""
    chosen = [clips[0], clips[1], clips[4]]
    texts = [[*real.prompt(timestamps=False), *real.tokenizer.encode(" " + clip.text, add_special_tokens=False).ids]
             for clip in chosen]  # fmt: skip
    encoded = [real.encoded(clip.pcm) for clip in chosen]
    with torch.inference_mode():
        got = real.model.encoder(torch.stack([window(real.model, clip.pcm) for clip in chosen]))
    assert (got.view(3, *encoded[0].shape[1:]) - torch.cat(encoded)).abs().max() <= BOUND
    harness = SpeechHarness(real.model)
    rows = [harness.admit(clip.pcm, ids[:8]) for clip, ids in zip(chosen, texts, strict=True)]
    states = [[part] for part in harness.begin(rows)[0].split(8)]
    for step in range(8, max(map(len, texts))):
        live = [index for index, ids in enumerate(texts) if step < len(ids)]
        hidden, _ = harness.step("decode", [(rows[index], [texts[index][step]]) for index in live], padding=1)
        for index, state in zip(live, hidden, strict=False):
            states[index].append(state[None])
    for clip, ids, parts in zip(chosen, texts, states, strict=True):
        expected = real.logits(clip.pcm, ids)
        assert expected.std() > 1
        assert (real.model.logits(torch.cat(parts)) - expected).abs().max() <= BOUND


@pytest.mark.parametrize("timestamps", [True, False])
def test_transcripts_equal_generate_and_are_what_was_said(real, clips, heard, timestamps):
    prompt = real.prompt(timestamps=timestamps)
    expected = [real.greedy(clip.pcm, prompt, 60, timestamps=timestamps) for clip in clips]
    together = [list(row.speech.outputs) for row in heard(timestamps)[1]]
    assert together == expected
    alone = SpeechHarness(real.model)
    options = AsrOptions(timestamps=timestamps)
    assert alone.transcribe([alone.admit(clips[1].pcm, prompt, options)]) == expected[1:2]
    errors = sum(word_errors(clip.text, real.text(ids)) for clip, ids in zip(clips, together, strict=True))
    print(f"{real.name}, timestamps {timestamps}: {errors} errors in {sum(len(words(c.text)) for c in clips)} words")
    assert errors <= {"base": 2, "tiny.en": 5}[real.name]
    if timestamps:
        for clip, ids in zip(clips, together, strict=True):
            stamps = [token - real.model.ids.first_timestamp for token in ids if token > real.model.ids.no_timestamps]
            assert stamps == sorted(stamps)
            assert len(stamps) >= 2
            assert abs(stamps[-1] * 0.02 - len(clip.pcm) / 16000) < 1


def test_silence_and_speech_are_told_apart(real, clips):
    """The probability that nobody speaks is that of the reference's first distribution."""
    prompt = real.prompt(timestamps=True)
    clips = [clips[0].pcm, np.zeros(48000, np.float32)]
    harness = SpeechHarness(real.model)
    # Text before the start of the transcript moves the place where the model says it.
    before = [50361, 11, 12] if real.name == "base" else []
    rows = [harness.admit(clips[0], [*before, *prompt]), harness.admit(clips[1], prompt)]
    hidden, batch = harness.begin(rows)
    got = real.model.observe(hidden, batch)
    assert got.dtype == torch.float32
    for index, (pcm, head) in enumerate(zip(clips, (before, []), strict=True)):
        logits = real.logits(pcm, [*head, *prompt])[len(head)]
        assert abs(float(got[index]) - float(logits.softmax(-1)[real.model.ids.no_speech])) < 1e-4
    assert got[1] > 10 * got[0]


def reference_times(real: Real, pcm: np.ndarray, text: list[int]) -> np.ndarray:
    """The original's way over the attention that transformers computes, with transformers' filter and path."""
    ids = real.model.ids
    head = real.prompt(timestamps=False)
    real.reference.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            out = real.reference(
                encoder_outputs=(real.encoded(pcm),),
                decoder_input_ids=torch.tensor([[*head, *text, ids.end]]),
                output_attentions=True,
            )
    finally:
        real.reference.set_attn_implementation("sdpa")
    weights = torch.stack([out.cross_attentions[layer][0, at] for layer, at in ids.alignment_heads])
    weights = weights[..., : len(pcm) // 320]
    weights = weights / weights.sum(-1, keepdim=True)
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    matrix = _median_filter((weights - mean) / deviation, 7).mean(0)[len(head) - 1 : -1]
    rows, columns = _dynamic_time_warping(-matrix.double().numpy())
    jumps = np.pad(np.diff(rows), (1, 0), constant_values=1).astype(bool)
    return columns[jumps] * 0.02


def test_word_times_equal_the_reference(real, clips, heard):
    """From the row's pages, with timestamps or without, the language given or found."""
    ids = real.model.ids
    worst = 0.0
    for index, clip in enumerate(clips):
        timestamps = index % 2 == 0
        harness, rows = heard(timestamps)
        row, outputs = rows[index], list(rows[index].speech.outputs)
        text = [token for token in outputs if token < ids.end]
        times = real.model.align(row.speech, harness.caches(row))
        assert len(times) == len(text) + 1
        assert times == sorted(times)
        assert 0 <= times[0] <= times[-1] <= len(clip.pcm) / 16000
        # They spread over the clip; a path that keeps to an edge would not.
        assert times[-1] > 0.6 * len(clip.pcm) / 16000
        assert times[len(text) // 2] > 0.2 * times[-1]
        worst = max(worst, float(np.abs(np.array(times) - reference_times(real, clip.pcm, text)).max()))
        if real.name == "base":
            found = AsrOptions(timestamps=timestamps, detect=True, forced=LANGUAGE_AND_TASK["base"][1:], words=True)
            told = [*LANGUAGE_AND_TASK["base"], *outputs]
            speech = Speech(np.array([50361, 7, 8, ids.start], np.int32), told, found, clip.pcm)
            assert real.model.align(speech, harness.caches(row)) == times
    print(f"{real.name}: word times differ by at most {worst:.3f} s")
    assert worst <= 0.02 + 1e-6


def test_the_language_is_found(real, clips):
    """The first token under ``detect`` is the likeliest of all languages; what follows is as if it had been given."""
    ids = real.model.ids
    if not ids.languages:
        pytest.skip("the model knows one language only")
    language, task = LANGUAGE_AND_TASK["base"]
    for clip in clips:
        encoded = BaseModelOutput(last_hidden_state=real.encoded(clip.pcm))
        assert real.reference.detect_language(encoder_outputs=encoded).tolist() == [language]
    harness = SpeechHarness(real.model)
    told = harness.admit(clips[0].pcm, real.prompt(timestamps=True))
    asked = harness.admit(clips[0].pcm, [ids.start], AsrOptions(detect=True, forced=(task,)))
    given, found = harness.transcribe([told, asked])
    assert found == [language, task, *given]
    # The language alone, as where text leads the window.
    alone = [harness.admit(clip.pcm, [ids.start], AsrOptions(detect=True)) for clip in clips[1:]]
    assert harness.transcribe(alone, most=1) == [[language]] * len(alone)


def test_a_text_as_long_as_the_decoder_is_aligned(real, clips):
    """446 tokens: the head and the end do not fit beside them all."""
    row_prompt = real.prompt(timestamps=False)
    harness = SpeechHarness(real.model)
    row = harness.admit(clips[0].pcm, row_prompt)
    harness.begin([row])
    outputs = [100 + index % 50 for index in range(447)]
    row.speech.outputs.extend(outputs)
    times = real.model.align(row.speech, harness.caches(row))
    assert len(times) == len(outputs) + 1
    assert times == sorted(times)
