"""A device with a stream a walk, for the engine: the CPU's runner behind the interface of the one for GPUs."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from denizen.worker.resident.planner import StepPlan
    from denizen.worker.runner import StepResult


class Flight:
    """A launched step."""

    def __init__(self, streams: Streams, plan: StepPlan) -> None:
        self._streams = streams
        self.plan = plan
        self.outcome: StepResult | Exception | None = None

    @property
    def arrived(self) -> bool:
        self._streams.polled(self)
        return self.outcome is not None

    def wait(self) -> None:
        self._streams.waited(self)
        while self.outcome is None:
            self._streams.advance(self.plan.walk)

    def result(self) -> StepResult:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class Streams:
    """Steps of a walk run in order, those of different walks in any: a launched step runs when somebody waits for it,
    or when ``polled`` or ``waited``, which a test may replace, let it."""

    def __init__(self, runner) -> None:
        self._runner = runner
        self.tables = runner.tables
        self.queues: dict[str, deque[Flight]] = defaultdict(deque)
        self.launched: list[StepPlan] = []
        self.polled: Callable[[Flight], None] = lambda flight: None
        self.waited: Callable[[Flight], None] = lambda flight: None

    def launch(self, plan: StepPlan) -> Flight:
        flight = Flight(self, plan)
        queue = self.queues[plan.walk]
        queue.append(flight)
        self.launched.append(plan)
        assert len(queue) <= 2, "more steps of a walk under way than it has graph slots"
        other = {row for walk, flights in self.queues.items() if walk != plan.walk for f in flights
                 for row in f.plan.advance.rows.tolist()}  # fmt: skip
        assert not other & set(plan.advance.rows.tolist()), "a row in steps of both walks"
        return flight

    def advance(self, walk: str) -> bool:
        """Runs the oldest step of ``walk``; False if there is none."""
        if not self.queues[walk]:
            return False
        flight = self.queues[walk].popleft()
        try:
            flight.outcome = self._runner.run(flight.plan)
        except Exception as raised:
            flight.outcome = raised
        return True


def on_streams(served) -> Streams:
    """Lets ``served`` run on a device with two streams."""
    served.runner = Streams(served.runner)
    return served.runner
