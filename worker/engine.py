"""The step loop of a worker: receives, plans, queues steps on the device, hands results back.

The *plan thread* (the caller of :meth:`Engine.run`) owns the channel, the schedulers, the mirrors and every request.
Each walk has its own queue of committed steps (``device.py``). With overlap, one decode step runs while the next is
queued behind it and the one after that is being prepared, so results are handled one step late and a row that ends has
one over-run token, which is dropped. Prefill steps are queued as they are planned and handled when they have arrived:
the engine waits for one only while nothing decodes. Without overlap every step is handled before the next is planned.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from denizen.worker.aligner import Aligner, Alignment
from denizen.worker.device import Device, DeviceThread, FinishedStep, LaunchQueue
from denizen.worker.errors import RequestError
from denizen.worker.phases import Stopwatch
from denizen.worker.protocol import (
    Abort,
    Bye,
    Drain,
    Error,
    ProtocolError,
    Submit,
    TokenRow,
    token_rows,
)
from denizen.worker.request import Phase, Request
from denizen.worker.resident.planner import GRAPH_SLOTS
from denizen.worker.sampling.params import Feature
from denizen.worker.stats import StatsReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from denizen.worker.channel import Channel
    from denizen.worker.protocol import Envelope
    from denizen.worker.resident.ledger import Group
    from denizen.worker.resident.planner import StepPlan
    from denizen.worker.runner import StepResult
    from denizen.worker.served import ServedModel

_log = logging.getLogger(__name__)

#: Heartbeat phases (``docs/design/protocol.md``).
PHASE_LOAD, PHASE_CAPTURE, PHASE_PREFILL, PHASE_DECODE, PHASE_IDLE = range(5)
_WALK_PHASE = {"prefill": PHASE_PREFILL, "decode": PHASE_DECODE}

#: How long an idle worker waits before it tries again to send what the arena had no room for.
_RETRY_MS = 5
#: At the end: how long to wait for the step that runs, and for the front end to take what is left.
_CLOSE_S = 10.0


@dataclass
class _Lanes:
    """The steps of one model."""

    served: ServedModel
    under_way: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_WALK_PHASE, 0))  #: by walk
    prepared: StepPlan | None = None  #: the next decode step, if it comes as expected


class Engine:
    """Serves the requests of a channel with the models of one device."""

    def __init__(
        self,
        channel: Channel,
        models: Sequence[ServedModel],
        *,
        overlap: bool = True,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        self.channel = channel
        self.stopwatch = stopwatch or Stopwatch()
        for served in models:
            served.time_with(self.stopwatch)
        self.models = {served.name: served for served in models}
        self.overlap = overlap
        self._depth = GRAPH_SLOTS if overlap else 1
        self._live: dict[int, tuple[ServedModel, Request]] = {}
        self._lanes = {served.name: _Lanes(served) for served in models}
        self._under_way = dict.fromkeys(_WALK_PHASE, 0)  #: steps of all models, by walk
        self._draining = False
        self._stop: str | None = None
        launches = all(served.launches for served in models)
        kind = LaunchQueue if launches else DeviceThread
        self._device: Device = kind(lambda walk: channel.arena.set_phase(_WALK_PHASE[walk]), self.stopwatch)
        self.stats = StatsReport(channel, [served.scheduler for served in models])
        self._aligner = Aligner(channel.arena.wake)
        self._resting = False  #: until an alignment is done there is nothing to do

    def stop(self, why: str) -> None:
        """Ends :meth:`run` soon, with requests unfinished. Any thread may call it."""
        self._stop = why
        self.channel.arena.wake()

    def run(self) -> None:
        """Serves until DRAIN has been carried out, :meth:`stop`, or the front end has gone (the arena's exception)."""
        try:
            while self._stop is None:
                self._receive()
                if self._draining and not self._busy:
                    break
                if self._stop is None:
                    self._iterate()
                self.stats.send()
        finally:
            closed = all([self._device.close(_CLOSE_S), self._aligner.close(_CLOSE_S)])
            self.stopwatch.close()
        if not closed:
            _log.warning("a step is still running after %.0f s", _CLOSE_S)
        self.stats.send(last=True)
        self.channel.send(Bye(self._stop or "drained"))
        self.channel.finish(_CLOSE_S)

    @property
    def _busy(self) -> bool:
        return bool(self._live or self._under_way["decode"] or self._under_way["prefill"])

    def _iterate(self) -> None:
        """Queues the steps that can be; waits for the oldest decode step when enough are queued."""
        if self._aligner.busy:
            self._collect_alignments()
        if self._under_way["prefill"]:
            self._collect()
        full = False
        queued = 0
        for lanes in self._lanes.values():
            queued += self._queue_decode(lanes)
            queued += self._queue_prefill(lanes)
            full = full or lanes.under_way["decode"] >= self._depth
        # Not once a step was waited for: what it gave back may be just what a waiting request needs.
        self._resting = self._aligner.busy and not any(self._under_way.values())
        if not self.overlap:
            for walk, count in self._under_way.items():
                for _ in range(count):
                    self._finish(walk)
        elif full or (self._under_way["decode"] and not queued):
            if self._under_way["prefill"]:
                self._collect()
            self._prepare()
            self._finish("decode")
        elif self._under_way["prefill"] and not queued:
            self._finish("prefill")
        elif self._live and not queued and not self._under_way["decode"] and not self._aligner.busy:
            raise AssertionError("requests wait, nothing runs and nothing can be admitted")

    def _queue_decode(self, lanes: _Lanes) -> bool:
        if lanes.under_way["decode"] >= self._depth:
            return False
        prepared, lanes.prepared = lanes.prepared, None
        return self._queue(lanes, lanes.served.scheduler.plan_decode(prepared))

    def _queue_prefill(self, lanes: _Lanes) -> bool:
        if lanes.under_way["prefill"] >= self._depth or not lanes.served.scheduler.prefills:
            return False
        self.stopwatch.of("prefill")
        queued = self._queue(lanes, lanes.served.scheduler.plan_prefill())
        self.stopwatch.of("decode")
        return queued

    def _queue(self, lanes: _Lanes, plan: StepPlan | None) -> bool:
        if plan is None:
            return False
        lanes.served.scheduler.commit(plan)
        self._device.submit(lanes.served, plan)
        self.stopwatch.submitted(plan.walk)
        lanes.under_way[plan.walk] += 1
        self._under_way[plan.walk] += 1
        self.stats.steps += 1
        return True

    def _collect(self) -> None:
        """Handles the prefill steps that have arrived: their rows decode from the next step on."""
        while self._under_way["prefill"] and self._device.arrived("prefill"):
            self._finish("prefill")

    def _prepare(self) -> None:
        """Plans the next decode steps for the rows as they are, while the device works.

        Not beside a prefill step, whose rows are likely to join: the plan would be dropped.
        """
        for lanes in self._lanes.values():
            if lanes.prepared is None and not lanes.under_way["prefill"]:
                lanes.prepared = lanes.served.scheduler.preplan_decode()

    def _receive(self) -> None:
        """Takes what the front end sent. Blocks when there is nothing else to do."""
        if self.channel.backlog:
            self.channel.flush()
        timeout = 0
        if not self._busy or self._resting:
            self.stopwatch.idle()
            self.channel.arena.set_phase(PHASE_IDLE)
            timeout = self._idle_timeout_ms()
        received = self.channel.receive(timeout)
        if received:
            self.stopwatch.of("prefill", lap=False)  # nearly all that arrives is requests
            for envelope in received:
                self._handle(envelope)
            self.stopwatch.of("decode")

    def _idle_timeout_ms(self) -> int:
        if self._draining and not self._resting:
            return 0
        if self.channel.backlog:
            return _RETRY_MS
        due = self.stats.due_ms()
        return -1 if due is None else due

    def _handle(self, envelope: Envelope | ProtocolError) -> None:
        if isinstance(envelope, ProtocolError):
            _log.error("malformed envelope: %s", envelope)
            if envelope.request and envelope.request not in self._live:
                self.channel.send(Error("invalid_request", str(envelope)), envelope.request)
            return
        body = envelope.body
        if isinstance(body, Submit):
            self._submit(envelope.request, body, envelope.attachment)
        elif isinstance(body, Abort):
            if envelope.request in self._live:
                self._end(envelope.request, "abort")
        elif isinstance(body, Drain):
            self._draining = True
        elif isinstance(body, Bye):
            self.stop(f"the front end said goodbye: {body.why}")

    def _submit(self, id: int, body: Submit, attachment: bytes | None) -> None:
        if id in self._live:
            _log.error("request %d was submitted twice", id)
            return
        served = self.models.get(body.model)
        try:
            if served is None:
                raise RequestError(f"this worker does not host the model '{body.model}'", param="model")
            request = served.request(id, body, attachment)
            served.scheduler.submit(request)
        except RequestError as error:
            self.channel.send(Error(error.code, str(error), error.param), id)
            return
        self._live[id] = served, request

    def _finish(self, walk: str) -> None:
        """Waits for the walk's oldest step and handles its results: tokens out, requests that ended."""
        if walk == "prefill":
            self.stopwatch.of("prefill")
            if not self._device.arrived("prefill"):
                self.stopwatch.pause()
        step = self._device.wait(walk)
        plan = step.plan
        scheduler = step.served.scheduler
        self._lanes[step.served.name].under_way[walk] -= 1
        self._under_way[walk] -= 1
        late = scheduler.leaving
        if step.result is None:
            self._fail(step)
        elif plan.group is not None and not late and not plan.sample.features & Feature.LOGPROBS:
            self.stats.decode_tokens += len(plan.requests)
            self._deliver_group(plan, plan.group, step.result)
        else:
            self._deliver(step, step.result)
        scheduler.complete(plan)  # last: a request that ends may still need what only waited for this step
        self.stopwatch.lap("device_work")
        self.stopwatch.step(walk, plan.bucket)
        if walk == "prefill":
            self.stopwatch.of("decode")

    def _deliver_group(self, plan: StepPlan, group: Group, result: StepResult) -> None:
        """The tokens of a decode step whose requests all live on: no loop over them, unless one ends."""
        tokens = result.tokens.tolist()
        if not group.stop_ids.isdisjoint(tokens):
            self._deliver_rows(plan, tokens, result)
            return
        deque(map(list.append, group.outputs, tokens), maxlen=0)
        if result.logprob is not None:
            deque(map(list.append, group.scores, result.logprob.tolist()), maxlen=0)
        rows = group.packed
        rows["position"], rows["token"] = plan.positions, result.tokens
        self.channel.send_rows(rows)
        for index in plan.ends:
            self._end(group.requests[index].id, "length")

    def _deliver(self, step: FinishedStep, result: StepResult) -> None:
        plan = step.plan
        if plan.walk == "decode":
            self.stats.decode_tokens += len(plan.requests)
        else:
            self.stats.prefill_tokens += int(plan.advance.counts.sum())
        for scores in result.prompt_scores or ():
            scores.request.scored[scores.first : scores.first + len(scores.scores)] = scores.scores
        if result.observed is not None:
            for request, observed in zip(plan.sampling, result.observed.tolist(), strict=True):
                request.no_speech = observed
        self._deliver_rows(plan, result.tokens.tolist(), result)

    def _deliver_rows(self, plan: StepPlan, tokens: list[int], result: StepResult) -> None:
        """Tokens to those requests that have not ended."""
        plain: list[tuple[int, int, int]] = []
        rows: list[TokenRow] = []
        ended: list[tuple[int, str]] = []
        columns = zip(plan.sampling, plan.positions.tolist(), tokens, strict=True)
        for index, (request, position, token) in enumerate(columns):
            if request.phase is Phase.ENDED:
                continue  # an over-run token, or the request was aborted
            assert position == len(request.outputs)
            if request.speech is not None:
                assert result.logprob is not None
                request.scores.append(float(result.logprob[index]))
            reason = request.accept(token)
            if reason is not None:
                ended.append((request.id, reason))
                if reason == "stop":
                    continue
            if request.params.logprobs is not None:
                row = TokenRow(request.id, position, token)
                rows.append(_with_logprobs(row, result, index, request.params.logprobs))
            else:
                plain.append((request.id, position, token))
        if plain:
            ids, positions, kept = zip(*plain, strict=True)
            packed = token_rows(np.array(ids, np.uint64))
            packed["position"], packed["token"] = positions, kept
            self.channel.send_rows(packed)
        if rows:
            self.channel.send_tokens(rows)
        for id, reason in ended:
            self._end(id, reason)

    def _fail(self, step: FinishedStep) -> None:
        message = f"the step that computed this request failed: {step.error}"
        for request in step.plan.requests:
            if request.phase is not Phase.ENDED:
                self._live.pop(request.id)
                step.served.scheduler.end(request)
                self.channel.send(Error("step_failed", message, retryable=True), request.id)

    def _end(self, id: int, reason: str) -> None:
        served, request = self._live[id]
        if reason != "abort" and request.speech is not None and request.speech.options.words:
            self._align(served, request, reason)
            return
        del self._live[id]
        served.scheduler.end(request)
        self.channel.send(request.done(reason), id)

    def _align(self, served: ServedModel, request: Request, reason: str) -> None:
        """The request has ended, but its terminal envelope waits for the times of its words."""
        held = served.scheduler.keep(request)
        served.scheduler.end(request)
        self._aligner.submit(Alignment(served, request, reason, held.row, held.pages))

    def _collect_alignments(self) -> None:
        for alignment in self._aligner.take():
            id = alignment.request.id
            alignment.served.scheduler.let_go(alignment.row)
            if self._live.get(id, (None, None))[1] is not alignment.request:
                continue  # it was aborted meanwhile
            del self._live[id]
            if alignment.error is None:
                self.channel.send(alignment.request.done(alignment.reason, alignment.times), id)
            else:
                message = f"the times of this request's words could not be computed: {alignment.error}"
                self.channel.send(Error("step_failed", message, retryable=True), id)


def _with_logprobs(row: TokenRow, result: StepResult, index: int, alternatives: int) -> TokenRow:
    assert result.logprob is not None
    assert result.top_ids is not None
    assert result.top_logprobs is not None
    ids = result.top_ids[index, :alternatives].tolist()
    scores = result.top_logprobs[index, :alternatives].tolist()
    return row._replace(logprob=float(result.logprob[index]), top=tuple(zip(ids, scores, strict=True)))
