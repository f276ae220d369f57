"""STATS of an engine: gauges of its schedulers and counters of its steps, sent when they have changed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from denizen.worker.protocol import Stats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from denizen.worker.channel import Channel
    from denizen.worker.scheduler import Scheduler

_INTERVAL_S = 0.25


class StatsReport:
    """Used by the plan thread only."""

    def __init__(self, channel: Channel, schedulers: Sequence[Scheduler]) -> None:
        self._channel = channel
        self._schedulers = schedulers
        self.steps = self.prefill_tokens = self.decode_tokens = 0
        self._sent = Stats()
        self._due = 0.0

    def send(self, last: bool = False) -> None:
        """Sends them if they have changed, and not too often; ``last``: at once."""
        now = time.monotonic()
        if now < self._due and not last:
            return
        stats = self._now()
        if stats != self._sent:
            self._channel.send(stats)
            self._sent = stats
            self._due = now + _INTERVAL_S

    def due_ms(self) -> int | None:
        """How long until what has changed can be sent; None: nothing has."""
        if self._now() == self._sent:
            return None
        return max(1, int((self._due - time.monotonic()) * 1000) + 1)

    def _now(self) -> Stats:
        schedulers = self._schedulers
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
            self.steps,
            self.prefill_tokens,
            self.decode_tokens,
        )
