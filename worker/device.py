"""Where committed steps run. The steps of one walk run and come back in the order in which they were queued; between
walks any order is possible.

On a CPU a thread of its own computes them, one after the other. A GPU needs none: launching a step takes microseconds,
so that the plan thread does it itself and polls for the results, and nothing waits for the interpreter.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Protocol, cast

import torch
from denizen.worker.errors import DeviceError
from denizen.worker.phases import BLOCKED

if TYPE_CHECKING:
    from collections.abc import Callable

    from denizen.worker.graphs import GraphRunner, Launched
    from denizen.worker.phases import Stopwatch
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
    work_s: float = 0.0  #: of a device thread: on the step
    wait_s: float = 0.0  #: and before it, for the step to come


class Device(Protocol):
    """Runs the steps of each walk in order. Called by the plan thread."""

    def submit(self, served: ServedModel, plan: StepPlan) -> None:
        """Queues a committed step."""
        ...

    def arrived(self, walk: str) -> bool:
        """Whether :meth:`wait` would not block. False if nothing is queued."""
        ...

    def wait(self, walk: str) -> FinishedStep:
        """The walk's oldest step that was not waited for; blocks until it has run."""
        ...

    def close(self, timeout: float) -> bool:
        """Runs what is queued, then ends; False if that takes longer than ``timeout`` seconds."""
        ...


class LaunchQueue:
    """Steps under way on a GPU. A step that cannot be launched comes back as failed, in its turn."""

    def __init__(self, begins: Callable[[str], None], stopwatch: Stopwatch) -> None:
        """``begins(walk)`` is called before each launch."""
        self._begins = begins
        self._stopwatch = stopwatch
        self._steps: dict[str, deque[tuple[ServedModel, StepPlan, Launched | Exception]]] = defaultdict(deque)

    def submit(self, served: ServedModel, plan: StepPlan) -> None:
        self._begins(plan.walk)
        self._stopwatch.lap("plan_rest")
        launched: Launched | Exception
        try:
            launched = cast("GraphRunner", served.runner).launch(plan)
        except Exception as raised:
            _log.exception("step %d (%s) of model '%s' was not launched", plan.number, plan.walk, served.name)
            launched = raised
        self._steps[plan.walk].append((served, plan, launched))
        self._stopwatch.lap("device_work")

    def arrived(self, walk: str) -> bool:
        steps = self._steps[walk]
        if not steps:
            return False
        launched = steps[0][2]
        return isinstance(launched, Exception) or launched.arrived

    def wait(self, walk: str) -> FinishedStep:
        served, plan, launched = self._steps[walk].popleft()
        if isinstance(launched, Exception):
            return FinishedStep(served, plan, None, launched)
        self._stopwatch.lap("plan_rest")
        try:
            launched.wait()
            self._stopwatch.lap("device_wait")
            return FinishedStep(served, plan, launched.result(), None)
        except Exception as raised:
            _log.exception("step %d (%s) of model '%s' failed", plan.number, plan.walk, served.name)
            _check_alive()
            return FinishedStep(served, plan, None, raised)

    def close(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        for walk, steps in self._steps.items():
            while steps and time.monotonic() < deadline:
                self.wait(walk)
        return not any(self._steps.values())


def _check_alive() -> None:
    """After a fault a CUDA context answers nothing any more: raises :class:`DeviceError`."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    try:
        torch.cuda.synchronize()
    except Exception as error:
        first = str(error).splitlines()[0]
        raise DeviceError(f"the GPU reported a fault: {first}; the worker has to start anew") from None


class DeviceThread:
    """One thread for the steps of all walks, in the order of their submission."""

    def __init__(self, begins: Callable[[str], None], stopwatch: Stopwatch) -> None:
        """``begins(walk)`` is called on the device thread before each step."""
        self._begins = begins
        self._stopwatch = stopwatch
        self._steps: SimpleQueue[tuple[ServedModel, StepPlan] | None] = SimpleQueue()
        self._finished: dict[str, SimpleQueue[FinishedStep]] = {walk: SimpleQueue() for walk in ("prefill", "decode")}
        self._thread = Thread(target=self._run, name="device", daemon=True)
        self._thread.start()

    def submit(self, served: ServedModel, plan: StepPlan) -> None:
        self._steps.put((served, plan))

    def arrived(self, walk: str) -> bool:
        return not self._finished[walk].empty()

    def wait(self, walk: str) -> FinishedStep:
        self._stopwatch.lap("plan_rest")
        step = self._finished[walk].get()
        self._stopwatch.lap(BLOCKED)
        self._stopwatch.add("device_work", step.work_s)
        self._stopwatch.add("device_wait", step.wait_s)
        return step

    def close(self, timeout: float) -> bool:
        """Runs what is queued, then ends; False if that takes longer than ``timeout`` seconds."""
        self._steps.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        ended = time.perf_counter()
        while (item := self._steps.get()) is not None:
            served, plan = item
            began = time.perf_counter()
            try:
                self._begins(plan.walk)
                result, error = served.runner.run(plan), None
            except Exception as raised:
                _log.exception("step %d (%s) of model '%s' failed", plan.number, plan.walk, served.name)
                result, error = None, raised
            waited, ended = began - ended, time.perf_counter()
            self._finished[plan.walk].put(FinishedStep(served, plan, result, error, ended - began, waited))
