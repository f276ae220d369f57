"""What a request's options and history mean to the rules of transcription (``kernels/transcription_rules.py``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from denizen.kernels.transcription_rules import (
    BEFORE,
    DETECT,
    FORCED,
    FORCED_IDS,
    LANGUAGE,
    LAST,
    MODE,
    NOT_FIRST,
    OUTPUTS,
    STAMP,
    STATE_WORDS,
    SUPPRESSED,
    TIMESTAMPS,
    Vocabulary,
)
from denizen.worker.errors import RequestError

if TYPE_CHECKING:
    from denizen.worker.models.base import Speech
    from denizen.worker.models.whisper.ids import Ids

#: Besides the state's words: where the row's prompt has the start of its transcript, whose logits tell silence.
START_AT = 6


def vocabulary(ids: Ids, size: int, device: torch.device) -> Vocabulary:
    """What the rules know of ``size`` ids."""
    kinds = torch.zeros(size, dtype=torch.uint8)
    for bit, group in ((SUPPRESSED, ids.suppress), (NOT_FIRST, ids.begin_suppress), (LANGUAGE, ids.languages)):
        kinds[list(group)] |= bit
    latest = size if ids.max_initial_timestamp is None else ids.max_initial_timestamp
    return Vocabulary(kinds.to(device), ids.end, ids.no_timestamps, latest)


def first_state(speech: Speech, ids: Ids) -> np.ndarray:
    """int32 ``[STATE_WORDS]`` of a row that begins; its outputs so far are those of its life before a preemption."""
    options, outputs = speech.options, [int(token) for token in speech.outputs]
    state = np.zeros(STATE_WORDS, np.int32)
    state[MODE] = options.timestamps * TIMESTAMPS + options.detect * DETECT
    state[OUTPUTS] = len(outputs)
    state[FORCED] = len(options.forced)
    state[FORCED_IDS : FORCED_IDS + len(options.forced)] = options.forced
    text = [-1, -1, *outputs[options.given :]]
    state[LAST], state[BEFORE] = text[-1], text[-2]
    state[STAMP] = next((token for token in reversed(text) if token >= ids.first_timestamp), -1)
    state[START_AT] = start_of(speech.prompt, ids)
    return state


def start_of(prompt: np.ndarray, ids: Ids) -> int:
    """Where the prompt has its last start of transcript."""
    found = np.flatnonzero(prompt == ids.start)
    return int(found[-1]) if len(found) else 0


def check(speech: Speech, ids: Ids) -> None:
    """Raises :class:`RequestError` for a prompt or options that the rules do not cover."""
    options, prompt = speech.options, speech.prompt
    if not (prompt == ids.start).any():
        raise RequestError(
            f"the prompt of a transcript must have the id {ids.start}, its start; put it before language and task",
            param="ids",
        )
    if options.detect and not ids.languages:
        raise RequestError("the model knows one language only: it cannot detect which; leave out detect", param="asr")
    if options.detect and int(prompt[-1]) != ids.start:
        raise RequestError(
            f"with detect the prompt must end with {ids.start}, the start of the transcript; "
            "give what follows the language as forced",
            param="ids",
        )
    if options.timestamps == (ids.no_timestamps in (*prompt[-1:].tolist(), *options.forced)):
        raise RequestError(
            f"the prompt (or forced) must end with {ids.no_timestamps} if, and only if, timestamps is false",
            param="ids",
        )
