"""The rules of transcription against transformers' processors, on random logits and random histories that keep them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from denizen.kernels.transcription_rules import MOST_FORCED, STATE_WORDS, transcription_rules
from denizen.worker.asr import AsrOptions
from denizen.worker.errors import RequestError
from denizen.worker.models.base import Speech
from denizen.worker.models.whisper.ids import Ids
from denizen.worker.models.whisper.rules import check, first_state, vocabulary
from denizen.worker.speech import MAX_FORCED
from transformers import GenerationConfig
from transformers.generation import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

#: A small vocabulary of Whisper's layout: 60 texts, end, start, 5 languages, 5 specials, no timestamps, 41 stamps.
IDS = Ids(
    end=60,
    start=61,
    no_speech=71,
    no_timestamps=72,
    languages=(62, 63, 64, 65, 66),
    suppress=(3, 4, 61, 67, 68, 69, 70, 71),
    begin_suppress=(5, 60),
    max_initial_timestamp=10,
    alignment_heads=((0, 0),),
)
VOCAB = 72 + 1 + 41
STAMP = IDS.first_timestamp
CPU = torch.device("cpu")
PROMPT = [IDS.start, 62, 68]


def speech(outputs: list[int], options: AsrOptions, prompt: list[int] | None = None) -> Speech:
    return Speech(np.array(prompt or PROMPT, np.int32), outputs, options, np.zeros(1, np.float32))


def processed(logits: torch.Tensor, history: list[int], timestamps: bool) -> torch.Tensor:
    """One row ``[1, vocab]`` as transformers' generation of Whisper constrains it."""
    begin = len(PROMPT)
    ids = torch.tensor([[*PROMPT, *history]])
    out = SuppressTokensAtBeginLogitsProcessor(list(IDS.begin_suppress), begin)(ids, logits.float())
    out = SuppressTokensLogitsProcessor(list(IDS.suppress))(ids, out)
    if not timestamps:
        return SuppressTokensLogitsProcessor(list(range(STAMP, VOCAB)))(ids, out)
    config = GenerationConfig(eos_token_id=IDS.end, bos_token_id=IDS.end)
    config.no_timestamps_token_id = IDS.no_timestamps
    config.max_initial_timestamp_index = IDS.max_initial_timestamp
    return WhisperTimeStampLogitsProcessor(config, begin)(ids, out)


@pytest.mark.parametrize("timestamps", [True, False])
@pytest.mark.parametrize("sharpness", [1.0, 6.0])
@pytest.mark.parametrize("stamped", [-3.0, 0.0, 3.0])
def test_rules_equal_transformers_along_random_transcripts(timestamps, sharpness, stamped):
    """Transcripts of many rows go on side by side for 60 tokens; at each, the logits are those of transformers.

    ``stamped`` is added to the timestamps' logits, so that the comparison of probabilities goes both ways.
    """
    rows, generator = 24, torch.Generator().manual_seed(int(10 * sharpness + stamped))
    options = AsrOptions(timestamps=timestamps)
    known = vocabulary(IDS, VOCAB, CPU)
    state = torch.full((rows + 4, STATE_WORDS), -99, dtype=torch.int32)
    slots = torch.randperm(rows + 3, generator=generator)[:rows].add(1).to(torch.int32)
    begins = torch.from_numpy(np.stack([first_state(speech([], options), IDS)] * rows))
    histories: list[list[int]] = [[] for _ in range(rows)]
    turned = kept = 0
    for _ in range(60):
        logits = torch.randn(rows, VOCAB, generator=generator) * sharpness
        logits[:, STAMP:] += stamped
        given = {"tokens": torch.tensor([history[-1] for history in histories])} if histories[0] else {"begins": begins}
        got = transcription_rules(logits.clone(), state, slots, known, **given)
        for row, history in enumerate(histories):
            want = processed(logits[row : row + 1], history, timestamps)[0]
            assert torch.equal(got[row], want), (history, (got[row] != want).nonzero().flatten().tolist())
            text = want[:STAMP].isinf().all()
            turned, kept = turned + int(text), kept + int(not text)
            # A row at the end writes on, as a row that runs past its end does.
            histories[row].append(int(torch.multinomial(want.softmax(0), 1, generator=generator)))
    assert kept
    assert (turned > 0) == timestamps


def test_a_preempted_row_goes_on_as_if_it_had_not_been():
    """The state that the host makes of the outputs is the one that the steps had made."""
    generator = torch.Generator().manual_seed(5)
    known = vocabulary(IDS, VOCAB, CPU)
    for options, prompt in (
        (AsrOptions(), PROMPT),
        (AsrOptions(timestamps=False), [*PROMPT, IDS.no_timestamps]),
        (AsrOptions(detect=True, forced=(68,)), [IDS.start]),
        (AsrOptions(timestamps=False, detect=True, forced=(67, IDS.no_timestamps)), [7, IDS.start]),
    ):
        state = torch.zeros((2, STATE_WORDS), dtype=torch.int32)
        slot, outputs = torch.tensor([1], dtype=torch.int32), []
        given = {"begins": torch.from_numpy(first_state(speech([], options, prompt), IDS))[None]}
        for _ in range(30):
            logits = transcription_rules(torch.randn(1, VOCAB, generator=generator), state, slot, known, **given)
            assert state[1].tolist() == first_state(speech(outputs, options, prompt), IDS).tolist()
            outputs.append(int(torch.multinomial(logits.softmax(1), 1, generator=generator)))
            given = {"tokens": torch.tensor(outputs[-1:])}
        if options.detect:
            assert outputs[0] in IDS.languages
            assert tuple(outputs[1 : 1 + len(options.forced)]) == options.forced
            assert options.timestamps == (outputs[options.given] >= STAMP)


def test_detection_allows_all_languages_and_nothing_else():
    known = vocabulary(IDS, VOCAB, CPU)
    state = torch.zeros((2, STATE_WORDS), dtype=torch.int32)
    begins = torch.from_numpy(first_state(speech([], AsrOptions(detect=True, forced=(68,)), [IDS.start]), IDS))[None]
    logits = torch.arange(VOCAB, dtype=torch.float32)[None]
    got = transcription_rules(logits.clone(), state, torch.tensor([1], dtype=torch.int32), known, begins=begins)
    assert got.isfinite().nonzero()[:, 1].tolist() == list(IDS.languages)
    assert torch.equal(got[:, list(IDS.languages)], logits[:, list(IDS.languages)])


@pytest.mark.parametrize(
    ("prompt", "options", "param"),
    [
        ([1, 2], AsrOptions(), "ids"),
        ([61, 62, 68, 72], AsrOptions(), "ids"),
        ([61, 62, 68], AsrOptions(timestamps=False), "ids"),
        ([61, 62], AsrOptions(detect=True), "ids"),
        ([61], AsrOptions(detect=True, forced=(72,)), "ids"),
    ],
)
def test_what_the_rules_do_not_cover_is_refused(prompt, options, param):
    with pytest.raises(RequestError) as caught:
        check(speech([], options, prompt), IDS)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ([61, 62, 68], AsrOptions()),
        ([8, 61, 62, 68, 72], AsrOptions(timestamps=False)),
        ([61], AsrOptions(detect=True, forced=(68,))),
        ([61], AsrOptions(detect=True, forced=(68, 72), timestamps=False)),
    ],
)
def test_prompts_that_are_covered(prompt, options):
    check(speech([], options, prompt), IDS)


def test_a_model_of_one_language_detects_none():
    with pytest.raises(RequestError) as caught:
        check(speech([], AsrOptions(detect=True), [61]), replace(IDS, languages=()))
    assert caught.value.param == "asr"


def test_the_state_holds_as_many_forced_ids_as_the_protocol_allows():
    assert MAX_FORCED <= MOST_FORCED
