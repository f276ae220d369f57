"""A soak: an engine under random load, watched at quiet points, and its requests judged afterwards.

The driver is the engine's arena, so that it runs between iterations on the engine's own thread: it sees the schedulers
as they are, and a seed gives the same requests. What it finds wrong is in ``violations``.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from denizen.worker.channel import Channel
from denizen.worker.engine import Engine
from denizen.worker.protocol import Abort, Bye, Done, Drain, Error, TokenRow, Tokens, decode, encode
from denizen.worker.request import Phase

from tests.soak.judge import judge
from tests.soak.load import Mix, Order
from tests.soak.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from denizen.worker.request import Holdings, Request
    from denizen.worker.served import ServedModel

#: Violations after which a soak gives up: more of the same say nothing new.
_ENOUGH = 20
_SAMPLES = 24
_CHECK_SHARE = 0.15


class Full(Exception):
    """There is no room now."""


class TooLarge(Exception):
    """There never will be."""


@dataclass
class Tracked:
    """A request that the worker has."""

    order: Order
    rows: list[TokenRow] = field(default_factory=list)
    aborted: str | None = None  #: the phase in which it was

    @property
    def tokens(self) -> list[int]:
        return [row.token for row in self.rows]


@dataclass(frozen=True)
class Sample:
    """A request that ended by itself, with all its tokens; ``alone``: those that it gave when run again, alone."""

    order: Order
    rows: list[TokenRow]
    tokens: list[int]
    alone: list[int] = field(default_factory=list)


class Soak:
    """Drives one served model until ``over()``; then lets it finish, runs some requests again, alone, and drains it."""

    def __init__(
        self,
        served: ServedModel,
        seed: int,
        over: Callable[[Soak], bool],
        *,
        memory: Callable[[], dict[str, int]] = dict,
        turn: Callable[[Soak], None] | None = None,
    ) -> None:
        """``memory()``: bytes by name, read at two idle moments. ``turn`` is called between any two iterations."""
        self.served = served
        self.watch = Watch(served)
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self.aborts: Counter[str] = Counter()
        self.memory: list[dict[str, int]] = []
        self.samples: list[Sample] = []
        self._engine: Engine | None = None
        self._random = random.Random(seed + 1)
        self._mix = Mix(served, seed)
        self._over, self._memory, self._turn = over, memory, turn
        self._live: dict[int, Tracked] = {}
        self._phase = "load"
        self._target, self._turns_left, self._full = 3, 50, 0
        self._resting: dict[int, Holdings] = {}  #: by request id; kept out of decode steps
        self._resting_turns = 0
        self._again: list[Sample] = []
        self._next = 1

    def run(self) -> None:
        """Returns when the engine has drained. Raises what ends the engine."""
        engine = self._engine = Engine(Channel(self, Full, TooLarge), [self.served], overlap=True)
        engine.run()
        if self._live:
            self._wrong(f"{len(self._live)} requests never ended")
        scheduler = self.served.scheduler
        pools = {"rows": scheduler.rows, **scheduler.kv, **scheduler.state}
        for name, pool in pools.items():
            if pool.used:
                self._wrong(f"{pool.used} of pool '{name}' were not given back")

    @property
    def steps(self) -> int:
        """Steps that the engine has queued."""
        return 0 if self._engine is None else self._engine.stats.steps

    def judge(self, reference: Callable[[Sequence[int]], torch.Tensor], bound: float) -> None:
        """Every token of the samples, under load and alone, against ``reference(ids) -> logits [len(ids), vocab]``."""
        for sample in self.samples:
            submit = sample.order.submit
            for where, tokens, rows in (("under load", sample.tokens, sample.rows), ("alone", sample.alone, [])):
                logits = reference([*submit.ids, *tokens])
                verdict = judge(submit, tokens, rows, logits, bound)
                self.counts["tokens judged"] += len(tokens)
                if max(verdict.behind, verdict.cut, verdict.logprob) > 1:
                    short = {**submit.wire_map(), "ids": f"{len(submit.ids)} ids"}
                    self._wrong(f"{where}, {short}: {verdict}")
            self.counts["equal alone"] += sample.tokens == sample.alone

    # The arena, as the engine's channel sees it.

    def send(self, envelope: bytes, attachment: bytes | None = None) -> None:
        if self._full:
            raise Full
        found = decode(envelope)
        assert found is not None
        body = found.body
        if isinstance(body, Tokens):
            for row in body.rows:
                tracked = self._live.get(row.request)
                if tracked is None:
                    self._wrong(f"request {row.request}: a token after its end")
                elif row.position != len(tracked.rows):
                    self._wrong(f"request {row.request}: position {row.position} after {len(tracked.rows)} tokens")
                else:
                    tracked.rows.append(row)
        elif isinstance(body, (Done, Error)):
            self._ended(found.request, body)
        elif isinstance(body, Bye) and body.why != "drained":
            self._wrong(f"the worker said goodbye: {body.why}")

    def recv(self, max_messages: int = 256, timeout_ms: int = -1) -> list[tuple[bytes, bytes | None]]:
        if self._phase == "drained":
            return []
        if self._turn is not None:
            self._turn(self)
        self._full = max(0, self._full - 1)
        if self._resting or self._random.random() < _CHECK_SHARE:
            for what in self.watch.check():
                self._wrong(what)
        self._rest()
        return [(message, None) for message in self._messages(idle=timeout_ms < 0)]

    def wake(self) -> None:
        """Nothing waits here."""

    def set_phase(self, phase: int) -> None:
        """Heartbeats have no reader here."""

    def close(self) -> None:
        """Nothing to free."""

    # What happens between two iterations.

    def _messages(self, idle: bool) -> list[bytes]:
        if len(self.violations) >= _ENOUGH:
            self._phase = "drained"
            return [encode(Drain()), *(encode(Abort(), request=id) for id in self._live)]
        sent = self._due_aborts()
        if self._phase == "load":
            self._turns_left -= 1
            if self._turns_left <= 0 and self._target:  # an idle gap begins when all have ended
                self._change()
            if not self._live and idle and self._target == 0:
                if not self.memory and self.counts["requests"] > 100:
                    self.memory.append(self._memory())
                self.counts["idle gaps"] += 1
                time.sleep(self._random.random() * 0.02)  # the engine would block here
                self._change()
            while len(self._live) < self._target and len(sent) < 8:
                sent += self._submit(self._mix.draw())
            if self._over(self):
                self._phase, self._target = "finish", 0
        elif self._phase == "finish" and not self._live and idle:
            self.memory.append(self._memory())
            self._phase, self._again, self.samples = "again", self.samples, []
        if self._phase == "again" and not self._live:
            if not self._again:
                self._phase = "drained"
                return [encode(Drain())]
            sent += self._submit(self._again[-1].order)
        return sent

    def _change(self) -> None:
        """Another load: from none at all to far more than there are rows."""
        rows = self.served.scheduler.rows.capacity
        self._target = self._random.choice((0, 1, 3, rows // 2, rows, 2 * rows, 3 * rows))
        self._turns_left = self._random.randint(20, 150)
        if self._random.random() < 0.1:
            self._full = self._random.randint(1, 10)  # the front end stands still

    def _submit(self, order: Order) -> list[bytes]:
        id, self._next = self._next, self._next + 1
        self._live[id] = Tracked(order)
        self.counts["requests"] += self._phase == "load"
        sent = [encode(order.submit, request=id)]
        if order.abort == "waiting" and self._random.random() < 0.5:
            sent += self._abort(id, "waiting")
        return sent

    def _abort(self, id: int, phase: str) -> list[bytes]:
        tracked = self._live[id]
        tracked.aborted = phase
        self.aborts[phase] += 1
        return [encode(Abort(), request=id)] * (2 if tracked.order.abort == "twice" else 1)

    def _due_aborts(self) -> list[bytes]:
        scheduler = self.served.scheduler
        requests = {request.id: request for request in (*scheduler.running, *scheduler.waiting)}
        sent = []
        for id, tracked in self._live.items():
            request = requests.get(id)
            if tracked.order.abort is None or tracked.aborted or request is None or self._phase == "again":
                continue
            phase = self._phase_of(request, len(tracked.rows))
            wanted = tracked.order.abort
            if wanted in ("decode", "queued", "twice"):
                due = len(tracked.rows) >= tracked.order.abort_at and (wanted != "queued" or phase == "queued")
            else:
                due = phase == wanted
            # A phase that was missed: before its end, at least.
            if due or (wanted != "preempted" and len(tracked.rows) > tracked.order.abort_at + 4):
                sent += self._abort(id, phase)
        return sent

    def _ended(self, id: int, body: Done | Error) -> None:
        tracked = self._live.pop(id, None)
        if tracked is None:
            self._wrong(f"request {id} has ended twice: {body}")
            return
        order, submit = tracked.order, tracked.order.submit
        if isinstance(body, Error):
            if body.code != order.refused:
                self._wrong(f"request {id}: {body}, expected {order.refused}")
            self.counts["refused"] += 1
            return
        tokens = tracked.tokens + ([] if body.stop_id is None else [body.stop_id])
        wrong = None
        if order.refused:
            wrong = f"was not refused with {order.refused}"
        elif (body.prompt, body.completion) != (len(submit.ids), len(tokens)):
            wrong = f"has {len(submit.ids)} + {len(tokens)} tokens, its end says {body.prompt} + {body.completion}"
        elif body.reason == "abort" and not tracked.aborted:
            wrong = "was aborted by nobody"
        elif body.reason == "length" and len(tokens) != submit.max_tokens:
            wrong = f"ended by its length with {len(tokens)} of {submit.max_tokens} tokens"
        elif body.reason == "stop" and (body.stop_id not in submit.stop_ids or len(tokens) <= submit.min_tokens):
            wrong = f"stopped at {body.stop_id} after {len(tokens)} tokens"
        elif any((row.logprob is None) != (submit.logprobs is None) for row in tracked.rows):
            wrong = "has log-probabilities for some of its tokens, or unasked"
        elif body.reason != "abort" and submit.prompt_logprobs and len(body.prompt_logprobs or ()) != len(submit.ids):
            wrong = "lacks log-probabilities of its prompt"
        elif any(token in submit.stop_ids for token in tracked.tokens):
            wrong = "went on after an end id"
        if wrong:
            self._wrong(f"request {id} {wrong}")
        if body.reason != "abort":
            self._sample(tracked, tokens)

    def _sample(self, tracked: Tracked, tokens: list[int]) -> None:
        """Keeps requests that ended by themselves: an even choice of all of them."""
        if self._phase == "again":
            sample = self._again.pop()
            self.samples.append(Sample(sample.order, sample.rows, sample.tokens, tokens))
            return
        self.counts["ended"] += 1
        sample = Sample(tracked.order, tracked.rows, tokens)
        if len(self.samples) < _SAMPLES:
            self.samples.append(sample)
        elif (place := self._random.randrange(self.counts["ended"])) < _SAMPLES:
            self.samples[place] = sample

    def _wrong(self, what: str) -> None:
        if len(self.violations) < _ENOUGH:
            self.violations.append(what)

    def _rest(self) -> None:
        """Lets some rows take part in no decode step for a while: what changes in them is somebody else's write.

        The oldest request goes on, so that something always runs and the youngest, which rest, are preempted first.
        """
        scheduler = self.served.scheduler
        decodes = scheduler.ledger.decodes
        running = {request.id: request for request in scheduler.running}
        if self._resting:
            self._resting_turns -= 1
            oldest = next(iter(running), 0)
            due = self._resting_turns <= 0 or oldest in self._resting or not decodes.any()
            if due and not any(scheduler.ledger.holds(held.row) for held in self._resting.values()):
                awake = [held for id, held in self._resting.items() if id in running and running[id].held is held]
                self._resting = {}
                if awake:
                    scheduler._join([held.row for held in awake])
        elif self._random.random() < 0.05 and self._phase == "load":
            chosen = [r for r in scheduler.running[1:] if decodes[r.row] and self._random.random() < 0.5]
            if chosen and decodes[scheduler.running[0].row]:
                self._resting = {request.id: request.held for request in chosen if request.held is not None}
                self._resting_turns = self._random.randint(2, 8)
                scheduler._leave([request.row for request in chosen])

    def _phase_of(self, request: Request, delivered: int) -> str:
        if request.phase is Phase.WAITING:
            return "preempted" if delivered else "waiting"
        if request.computed < request.prefill:
            return "prefill"
        if not delivered:
            return "prefilled"
        if delivered == 1:
            return "first token"
        # queued: its next step is on the device already
        return "queued" if self.served.scheduler.ledger.holds(request.row) else "decode"
