"""The step loop of a worker: receives, plans, queues steps on the device, hands results back.

Two threads. The *plan thread* (the caller of :meth:`Engine.run`) owns the channel, the schedulers, the mirrors and
every request. The *device thread* owns the device: it runs committed steps in order. With overlap, one iteration runs
while the next is queued behind it and the one after that is being prepared, so results are handled one step late and a
row that ends has one over-run token, which is dropped. Without overlap each iteration is handled before the next is
planned.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING

from denizen.worker.device import Device, DeviceThread, FinishedStep, LaunchQueue
from denizen.worker.errors import RequestError
from denizen.worker.phases import Stopwatch
from denizen.worker.protocol import (
    Abort,
    Bye,
    Done,
    Drain,
    Error,
    ProtocolError,
    Stats,
    Submit,
    TokenRow,
)
from denizen.worker.request import Phase, Request
from denizen.worker.sampling.params import Feature

if TYPE_CHECKING:
    from collections.abc import Sequence

    from denizen.worker.channel import Channel
    from denizen.worker.protocol import Envelope
    from denizen.worker.resident.planner import StepPlan
    from denizen.worker.runner import StepResult
    from denizen.worker.served import ServedModel

_log = logging.getLogger(__name__)

#: Heartbeat phases (``docs/design/protocol.md``).
PHASE_LOAD, PHASE_CAPTURE, PHASE_PREFILL, PHASE_DECODE, PHASE_IDLE = range(5)
_WALK_PHASE = {"prefill": PHASE_PREFILL, "decode": PHASE_DECODE}

_STATS_INTERVAL_S = 0.25
#: How long an idle worker waits before it tries again to send what the arena had no room for.
_RETRY_MS = 5
#: At the end: how long to wait for the step that runs, and for the front end to take what is left.
_CLOSE_S = 10.0


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
        self._depth = 2 if overlap else 1
        self._live: dict[int, tuple[ServedModel, Request]] = {}
        self._queued: deque[int] = deque()  #: steps of each iteration that is on the device
        self._prepared: dict[str, StepPlan] = {}
        self._draining = False
        self._stop: str | None = None
        launches = all(served.launches for served in models)
        kind = LaunchQueue if launches else DeviceThread
        self._device: Device = kind(lambda walk: channel.arena.set_phase(_WALK_PHASE[walk]), self.stopwatch)
        self._steps = self._prefill_tokens = self._decode_tokens = 0
        self._sent_stats = Stats()
        self._stats_due = 0.0

    def stop(self, why: str) -> None:
        """Ends :meth:`run` soon, with requests unfinished. Any thread may call it."""
        self._stop = why
        self.channel.arena.wake()

    def run(self) -> None:
        """Serves until DRAIN has been carried out, :meth:`stop`, or the front end has gone (the arena's exception)."""
        try:
            while self._stop is None:
                self._receive()
                if self._draining and not self._live and not self._queued:
                    break
                if self._stop is None:
                    self._iterate()
                self._send_stats()
        finally:
            closed = self._device.close(_CLOSE_S)
            self.stopwatch.close()
        if not closed:
            _log.warning("a step is still running after %.0f s", _CLOSE_S)
        self._send_stats(last=True)
        self.channel.send(Bye(self._stop or "drained"))
        self.channel.finish(_CLOSE_S)

    def _iterate(self) -> None:
        """Queues the next iteration; waits for the oldest one when enough are queued."""
        steps = 0
        for served in self.models.values():
            steps += self._queue(served, served.scheduler.plan_decode(self._prepared.pop(served.name, None)))
            steps += self._queue(served, served.scheduler.plan_prefill())
        if steps:
            self._queued.append(steps)
        if len(self._queued) >= self._depth or (self._queued and not steps):
            if self.overlap:
                self._prepare()
            done = [self._finish(self._device.wait()) for _ in range(self._queued.popleft())]
            self.stopwatch.step(*done[-1])
        elif not self._queued and not all(served.scheduler.idle for served in self.models.values()):
            raise AssertionError("requests wait, nothing runs and nothing can be admitted")

    def _queue(self, served: ServedModel, plan: StepPlan | None) -> int:
        if plan is None:
            return 0
        served.scheduler.commit(plan)
        self._device.submit(served, plan)
        self._steps += 1
        return 1

    def _prepare(self) -> None:
        """Plans the next decode steps for the rows as they are, while the device works."""
        for served in self.models.values():
            plan = served.scheduler.preplan_decode()
            if plan is not None:
                self._prepared[served.name] = plan

    def _receive(self) -> None:
        """Takes what the front end sent. Blocks when there is nothing else to do."""
        self.channel.flush()
        busy = bool(self._queued) or not all(served.scheduler.idle for served in self.models.values())
        timeout = 0
        if not busy:
            self.stopwatch.idle()
            self.channel.arena.set_phase(PHASE_IDLE)
            timeout = self._idle_timeout_ms()
        for envelope in self.channel.receive(timeout):
            self._handle(envelope)

    def _idle_timeout_ms(self) -> int:
        if self._draining:
            return 0
        if self.channel.backlog:
            return _RETRY_MS
        if self._stats() != self._sent_stats:
            return max(1, int((self._stats_due - time.monotonic()) * 1000) + 1)
        return -1

    def _handle(self, envelope: Envelope | ProtocolError) -> None:
        if isinstance(envelope, ProtocolError):
            _log.error("malformed envelope: %s", envelope)
            if envelope.request and envelope.request not in self._live:
                self.channel.send(Error("invalid_request", str(envelope)), envelope.request)
            return
        body = envelope.body
        if isinstance(body, Submit):
            self._submit(envelope.request, body)
        elif isinstance(body, Abort):
            if envelope.request in self._live:
                self._end(envelope.request, "abort")
        elif isinstance(body, Drain):
            self._draining = True
        elif isinstance(body, Bye):
            self.stop(f"the front end said goodbye: {body.why}")

    def _submit(self, id: int, body: Submit) -> None:
        if id in self._live:
            _log.error("request %d was submitted twice", id)
            return
        served = self.models.get(body.model)
        try:
            if served is None:
                raise RequestError(f"this worker does not host the model '{body.model}'", param="model")
            request = served.request(id, body)
            served.scheduler.submit(request)
        except RequestError as error:
            self.channel.send(Error(error.code, str(error), error.param), id)
            return
        self._live[id] = served, request

    def _finish(self, step: FinishedStep) -> tuple[str, int]:
        """Handles the results of a step: tokens out, requests that ended. Returns its walk and bucket."""
        plan = step.plan
        step.served.scheduler.complete(plan)
        if step.result is None:
            self._fail(step)
        else:
            self._deliver(step, step.result)
        self.stopwatch.lap("device_work")
        return plan.walk, plan.bucket

    def _deliver(self, step: FinishedStep, result: StepResult) -> None:
        plan = step.plan
        if plan.walk == "decode":
            self._decode_tokens += len(plan.requests)
        else:
            self._prefill_tokens += int(plan.advance.counts.sum())
        for scores in result.prompt_scores or ():
            scores.request.scored[scores.first : scores.first + len(scores.scores)] = scores.scores
        rows: list[TokenRow | tuple[int, int, int]] = []
        ended: list[tuple[int, str]] = []
        scored = plan.sample.features & Feature.LOGPROBS
        for index, (request, token) in enumerate(zip(plan.sampling, result.tokens.tolist(), strict=True)):
            if request.phase is Phase.ENDED:
                continue  # an over-run token, or the request was aborted
            position = len(request.outputs)
            reason = request.accept(token)
            if reason is not None:
                ended.append((request.id, reason))
                if reason == "stop":
                    continue
            if scored and request.params.logprobs is not None:
                rows.append(_with_logprobs(TokenRow(request.id, position, token), step, index, request.params.logprobs))
            else:
                rows.append((request.id, position, token))
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
        served, request = self._live.pop(id)
        served.scheduler.end(request)
        self.channel.send(
            Done(
                reason,
                request.outputs[-1] if reason == "stop" else None,
                len(request.prompt),
                len(request.outputs),
                0,
                request.scored if request.prompt_logprobs is not None and reason != "abort" else None,
            ),
            id,
        )

    def _stats(self) -> Stats:
        schedulers = [served.scheduler for served in self.models.values()]
        kv = [pool for scheduler in schedulers for pool in scheduler.kv.values()]
        state = [pool for scheduler in schedulers for pool in scheduler.state.values()]
        return Stats(
            None,
            sum(len(scheduler.waiting) for scheduler in schedulers),
            sum(len(scheduler.running) for scheduler in schedulers),
            sum(scheduler.rows.used for scheduler in schedulers),
            sum(scheduler.rows.capacity for scheduler in schedulers),
            sum(pool.used for pool in kv),
            sum(pool.capacity for pool in kv),
            sum(pool.used for pool in state),
            sum(pool.capacity for pool in state),
            sum(scheduler.preemptions for scheduler in schedulers),
            self._steps,
            self._prefill_tokens,
            self._decode_tokens,
        )

    def _send_stats(self, last: bool = False) -> None:
        now = time.monotonic()
        if now < self._stats_due and not last:
            return
        stats = self._stats()
        if stats != self._sent_stats:
            self.channel.send(stats)
            self._sent_stats = stats
            self._stats_due = now + _STATS_INTERVAL_S


def _with_logprobs(row: TokenRow, step: FinishedStep, index: int, alternatives: int) -> TokenRow:
    result = step.result
    assert result is not None
    assert result.logprob is not None
    assert result.top_ids is not None
    assert result.top_logprobs is not None
    ids = result.top_ids[index, :alternatives].tolist()
    scores = result.top_logprobs[index, :alternatives].tolist()
    return row._replace(logprob=float(result.logprob[index]), top=tuple(zip(ids, scores, strict=True)))
