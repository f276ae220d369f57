"""A request as the worker holds it, from SUBMIT to its terminal envelope."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
from denizen.worker.protocol import AsrResult, Done

if TYPE_CHECKING:
    from denizen.worker.models.base import Speech
    from denizen.worker.protocol import PromptLogprob
    from denizen.worker.resident.mirror import Mirror
    from denizen.worker.sampling.params import SamplingParams


class Phase(Enum):
    WAITING = "waiting"  #: holds nothing; also after a preemption
    RUNNING = "running"  #: holds a row, pages and state slots
    ENDED = "ended"  #: its terminal envelope is decided; late results are dropped


@dataclass
class Holdings:
    """What a running request holds. ``state`` by state pool key; its pages are in the mirror, which they grow in."""

    row: int
    mirror: Mirror
    state: dict[str, int]

    @property
    def pages(self) -> dict[str, list[int]]:
        """By KV pool key, as they are now."""
        return {key: self.mirror.pages_of(self.row, key) for key in self.mirror.pages}


@dataclass(eq=False)
class Request:
    """One sequence. Only the plan thread touches it. What changes with every step is counted by row, in the ledger."""

    id: int
    prompt: np.ndarray  #: int32 ids
    params: SamplingParams
    max_tokens: int
    prompt_logprobs: int | None = None
    arrival: int = 0  #: order of admission, given by the scheduler
    phase: Phase = Phase.WAITING
    held: Holdings | None = None
    outputs: list[int] = field(default_factory=list)  #: tokens that have arrived
    tokens: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    #: int32 ids that prefill computes: the prompt, and after a preemption the outputs so far
    prefill: int = 0  #: length of ``tokens``
    computed: int = 0  #: of ``tokens``, how many committed steps cover
    scored: list[PromptLogprob] = field(default_factory=list)
    speech: Speech | None = None  #: of a model that hears; kept until the request ends, since it may be preempted
    scores: list[float] = field(default_factory=list)  #: and the log-probabilities of its ``outputs``
    no_speech: float = 0.0  #: and what :meth:`SpeechModel.observe` said

    @property
    def row(self) -> int:
        assert self.held is not None
        return self.held.row

    @property
    def length(self) -> int:
        """Tokens known to the host: prompt and outputs."""
        return len(self.prompt) + len(self.outputs)

    def begin(self, held: Holdings) -> None:
        """Starts to run, or runs again after a preemption; every token that was computed has arrived by then."""
        self.held = held
        self.phase = Phase.RUNNING
        self.tokens = self.prompt
        if self.outputs:
            self.tokens = np.concatenate([self.prompt, np.asarray(self.outputs, np.int32)])
        self.prefill = len(self.tokens)
        self.computed = 0

    def accept(self, token: int) -> str | None:
        """Takes the next output token; the reason to end, or None."""
        outputs = self.outputs
        outputs.append(token)
        if token in self.params.stop_ids:
            return "stop"
        return "length" if len(outputs) >= self.max_tokens else None

    def done(self, reason: str, times: list[float] | None = None) -> Done:
        """DONE of the request; ``times`` of its words, if the model was asked for them."""
        scored = self.scored if self.prompt_logprobs is not None and reason != "abort" else None
        stop_id = self.outputs[-1] if reason == "stop" else None
        asr = None
        if self.speech is not None and reason != "abort":
            given = self.speech.options.given
            text = max(len(self.outputs) - (reason == "stop") - given, 0)
            asr = AsrResult(self.no_speech, sum(self.scores[given:]) / (text + 1), times)
        return Done(reason, stop_id, len(self.prompt), len(self.outputs), 0, scored, asr)
