"""The device thread: runs committed steps one after the other, in the order in which they were queued."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from denizen.worker.resident.planner import StepPlan
    from denizen.worker.runner import StepResult
    from denizen.worker.served import ServedModel

_log = logging.getLogger(__name__)


@dataclass
class FinishedStep:
    """A step that has run, or raised: one of ``result`` and ``error`` is set."""

    served: ServedModel
    plan: StepPlan
    result: StepResult | None
    error: Exception | None


class DeviceThread:
    """``submit`` and ``wait`` are called by the plan thread; steps come back in the order of their submission."""

    def __init__(self, begins: Callable[[str], None]) -> None:
        """``begins(walk)`` is called on the device thread before each step."""
        self._begins = begins
        self._steps: SimpleQueue[tuple[ServedModel, StepPlan] | None] = SimpleQueue()
        self._finished: SimpleQueue[FinishedStep] = SimpleQueue()
        self._thread = Thread(target=self._run, name="device", daemon=True)
        self._thread.start()

    def submit(self, served: ServedModel, plan: StepPlan) -> None:
        self._steps.put((served, plan))

    def wait(self) -> FinishedStep:
        """The oldest step that was not waited for; blocks until it has run."""
        return self._finished.get()

    def close(self, timeout: float) -> bool:
        """Runs what is queued, then ends; False if that takes longer than ``timeout`` seconds."""
        self._steps.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._steps.get()) is not None:
            served, plan = item
            try:
                self._begins(plan.walk)
                result, error = served.runner.run(plan), None
            except Exception as raised:
                _log.exception("step %d (%s) of model '%s' failed", plan.number, plan.walk, served.name)
                result, error = None, raised
            self._finished.put(FinishedStep(served, plan, result, error))
