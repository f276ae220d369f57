"""Random requests of a soak: every parameter that a worker knows, some that must be refused, and when to abort them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from denizen.worker.protocol import Submit

if TYPE_CHECKING:
    from denizen.worker.served import ServedModel

#: When a request is aborted, if it gets that far.
ABORTS = ("waiting", "prefill", "prefilled", "first token", "decode", "queued", "twice", "preempted")


@dataclass(frozen=True)
class Order:
    """A request to send, and what shall become of it."""

    submit: Submit
    abort: str | None = None
    abort_at: int = 0  #: output tokens, for aborts that wait for some
    refused: str | None = None  #: the error code that it must get


class Mix:
    """Draws requests for one model. Equal seeds draw equal requests."""

    def __init__(self, served: ServedModel, seed: int) -> None:
        self._random = random.Random(seed)
        self._name = served.name
        self._vocab = served.model.vocab_size
        self._context = min(served.context, served.kv_tokens)
        self._chunk = served.scheduler.prefill_chunk

    def draw(self) -> Order:
        chance = self._random
        if chance.random() < 0.02:
            return self._refused()
        length = chance.choice((1, 2, self._chunk - 1, self._chunk, self._chunk + 1, 0, 0, 0, 0, 0))
        if not length:
            length = chance.randint(1, max(1, self._context // (2 if chance.random() < 0.15 else 8)))
        length = min(length, self._context // 2)
        tokens = chance.choice((1, 2, chance.randint(1, 16), chance.randint(8, 48), chance.randint(40, 160)))
        tokens = min(tokens, self._context - length)
        abort, at = None, 0
        if chance.random() < 0.35:
            abort, at = chance.choice((*ABORTS, "preempted", "preempted")), chance.randint(2, 24)
            if abort not in ("waiting", "twice"):
                tokens = min(max(tokens, at + 8), self._context - length)
            if abort == "preempted":  # it has to last
                length, tokens = min(length, 64), self._context // 2
            if abort in ("prefill", "prefilled"):
                length = min(self._context - tokens, 3 * self._chunk + chance.randint(0, self._chunk))
        ids = [chance.randrange(self._vocab) for _ in range(length)]
        return Order(Submit(self._name, ids, tokens, **self._parameters()), abort, at)

    def _parameters(self) -> dict:
        chance = self._random
        found: dict = {"temperature": 0.0, "seed": chance.getrandbits(63)}
        if chance.random() < 0.6:
            found["temperature"] = chance.choice((0.5, 0.8, 1.0, 1.3))
            if chance.random() < 0.4:
                found["top_k"] = chance.choice((1, 5, 40, 200))
            if chance.random() < 0.4:
                found["top_p"] = chance.choice((0.3, 0.8, 0.95))
            if chance.random() < 0.2:
                found["min_p"] = chance.choice((0.02, 0.1))
        if chance.random() < 0.3:
            found["presence_penalty"] = chance.choice((0.0, 0.5, 1.5))
            found["frequency_penalty"] = chance.choice((0.0, 0.3, -0.2))
            found["repetition_penalty"] = chance.choice((1.0, 1.2, 0.9))
        if chance.random() < 0.4:
            found["stop_ids"] = tuple(chance.sample(range(self._vocab), chance.randint(1, 8)))
            if chance.random() < 0.5:
                found["min_tokens"] = chance.randint(1, 30)
        if chance.random() < 0.2:
            ids = chance.sample(range(self._vocab), 3)
            found["logit_bias"] = tuple((token, chance.choice((-100.0, -1.0, 2.0))) for token in ids)
        if chance.random() < 0.2:
            found["logprobs"] = chance.choice((0, 1, 5))
        if chance.random() < 0.05:
            found["prompt_logprobs"] = chance.choice((1, 3))
        return found

    def _refused(self) -> Order:
        chance = self._random
        kind = chance.randrange(3)
        if kind == 0:
            return Order(Submit(self._name, [1] * 8, self._context), refused="context_length_exceeded")
        if kind == 1:
            return Order(Submit(self._name, [self._vocab], 4), refused="invalid_request")
        return Order(Submit(self._name, [1], 4, top_p=3.0), refused="invalid_request")
