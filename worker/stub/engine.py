"""The stub's continuous batching: rows, pages, a waiting queue, one token a row and step."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from denizen.worker.errors import RequestError
from denizen.worker.protocol import AsrResult, Audio, Done, Error, PromptLogprob, Stats, Submit, TokenRow, TopLogprob
from denizen.worker.stub import speech

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from denizen.worker.models.base import Speech
    from denizen.worker.stub.hosted import Hosted
    from denizen.worker.stub.options import Options
    from denizen.worker.stub.tone import Tone


@dataclass
class Request:
    """A request in the stub. ``sent`` counts output tokens, stop id excluded, or frames of audio."""

    id: int
    submit: Submit
    pages: int
    speech: Speech | None
    tone: Tone | None
    cycle: Iterator[int]  #: the prompt's ids, or what was heard and then its end
    sent: int = 0
    texts: int = field(default=0, init=False)  #: of what was sent, the ids of letters

    @property
    def samples(self) -> int | None:
        """Of audio sent; None of a request that is not spoken."""
        return None if self.tone is None else self.sent * self.tone.length

    def next_token(self) -> int:
        """The next of the cycle; before ``min_tokens`` end ids are passed over, as if masked."""
        token = next(self.cycle)
        if self.sent >= self.submit.min_tokens:
            return token
        for _ in self.submit.ids:
            if token not in self.submit.stop_ids:
                return token
            token = next(self.cycle)
        return next(free for free in itertools.count() if free not in self.submit.stop_ids)


def logprobs(token: int, count: int, vocab: int) -> tuple[float, tuple[TopLogprob, ...]]:
    """A log-probability for ``token`` and ``count`` falling alternatives that begin with it; a function of the ids."""
    own = -0.125 * (1 + token % 8)
    return own, tuple(((token + i) % vocab, own - 0.5 * i) for i in range(min(count, vocab)))


class Engine:
    """Admission by rows and pages, then one step at a time. Says what to send; sends nothing itself."""

    def __init__(
        self, rows: int, kv_tokens: int, page_size: int, models: Mapping[str, Hosted], options: Options
    ) -> None:
        self._rows = rows
        self._pages = kv_tokens // page_size
        self._page_size = page_size
        self._models = models
        self._options = options
        self._waiting: deque[Request] = deque()
        self._running: dict[int, Request] = {}
        self._steps = 0
        self._prefill_tokens = 0
        self._decode_tokens = 0

    @property
    def busy(self) -> bool:
        return bool(self._running or self._waiting)

    def submit(self, request: int, submit: Submit, attachment: bytes | None = None) -> Error | None:
        """Queues it, or says why not."""
        model = self._models.get(submit.model)
        if model is None:
            return Error("invalid_request", f"this worker does not host the model '{submit.model}'", param="model")
        total = len(submit.ids) + submit.max_tokens
        pages = -(-total // self._page_size)
        if total > model.context_length or pages > self._pages:
            return Error("context_length_exceeded", f"{total} positions do not fit", param="max_tokens")
        try:
            tone = model.tone(submit, attachment)
            heard = None if tone else model.speech(submit, attachment)
        except RequestError as error:
            return Error(error.code, str(error), error.param)
        tokens = itertools.cycle(submit.ids if heard is None else model.transcript(heard, self._options.unfinished))
        self._waiting.append(Request(request, submit, pages, heard, tone, tokens))
        return None

    def abort(self, request: int) -> Done | None:
        """The terminal of a live request; None for one that is not known."""
        found = self._running.pop(request, None)
        if found is None:
            found = next((waiting for waiting in self._waiting if waiting.id == request), None)
            if found is None:
                return None
            self._waiting.remove(found)
        return Done("abort", prompt=len(found.submit.ids), completion=found.sent, samples=found.samples)

    def admit(self) -> bool:
        """Moves what fits from the queue to the rows; true if anything did (a prefill step)."""
        used = sum(request.pages for request in self._running.values())
        admitted = False
        while self._waiting and len(self._running) < self._rows and used + self._waiting[0].pages <= self._pages:
            request = self._waiting.popleft()
            self._running[request.id] = request
            self._prefill_tokens += len(request.submit.ids)
            used += request.pages
            admitted = True
        return admitted

    def step(self) -> tuple[list[TokenRow], list[tuple[int, Audio, bytes]], list[tuple[int, Done]]]:
        """One decode step: the tokens or the audio of all rows, and the requests that ended with it."""
        rows: list[TokenRow] = []
        spoken: list[tuple[int, Audio, bytes]] = []
        ended: list[tuple[int, Done]] = []
        self._steps += 1
        for request in list(self._running.values()):
            self._decode_tokens += 1
            if request.tone is not None:
                spoken.append((request.id, Audio(request.sent, request.tone.length), request.tone.frame(request.sent)))
                request.sent += 1
                if request.sent == min(request.tone.frames, request.submit.max_tokens):
                    ended.append((request.id, self._done(request, self._said(request), None)))
                    del self._running[request.id]
                continue
            token = request.next_token()
            done = None
            if token in request.submit.stop_ids:
                done = self._done(request, "stop", token)
            else:
                rows.append(self._row(request, token))
                request.sent += 1
                request.texts += token in speech.LETTERS
                if request.sent == request.submit.max_tokens:
                    done = self._done(request, "length", None)
            if done is not None:
                ended.append((request.id, done))
                del self._running[request.id]
        return rows, spoken, ended

    @staticmethod
    def _said(request: Request) -> str:
        return "stop" if request.tone and request.sent == request.tone.frames else "length"

    def _row(self, request: Request, token: int) -> TokenRow:
        count = request.submit.logprobs
        if count is None:
            return TokenRow(request.id, request.sent, token)
        vocab = self._models[request.submit.model].vocab_size
        return TokenRow(request.id, request.sent, token, *logprobs(token, count, vocab))

    def _done(self, request: Request, reason: str, stop_id: int | None) -> Done:
        count = request.submit.prompt_logprobs
        prompt: list[PromptLogprob] | None = None
        if count is not None:
            vocab = self._models[request.submit.model].vocab_size
            prompt = [None, *(logprobs(token, count, vocab) for token in request.submit.ids[1:])]
        completion = request.sent + (stop_id is not None)
        asr: AsrResult | None = None
        if request.speech is not None:
            asr = speech.result(request.speech, request.texts, request.submit.temperature, self._options.doubt)
        return Done(reason, stop_id, len(request.submit.ids), completion, 0, prompt, asr, request.samples)

    def stats(self) -> Stats:
        """Gauges of now and counters since the start."""
        return Stats(
            waiting=len(self._waiting),
            running=len(self._running),
            rows=len(self._running),
            rows_total=self._rows,
            kv_pages=sum(request.pages for request in self._running.values()),
            kv_pages_total=self._pages,
            steps=self._steps,
            prefill_tokens=self._prefill_tokens,
            decode_tokens=self._decode_tokens,
        )
