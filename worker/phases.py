"""Phase timers: where the time of a step goes. Format of the files: ``docs/design/engine.md``.

A stopwatch divides a thread's time without gaps: each lap gives the time since the last one to a phase. Without
``DENIZEN_PHASES`` the engine has one that reads no clock.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)

PHASES = ("plan_kv", "plan_attention", "plan_sampler", "plan_rest", "device_work", "device_wait", "iteration")
WALKS = ("prefill", "decode")
#: What the plan thread waits for a device thread: in no column, since that thread counts its own time.
BLOCKED = "blocked"
#: Steps that are kept before they are written in a busy engine.
_KEPT = 20_000


class Stopwatch:
    """Reads no clock: the timers are off."""

    def of(self, walk: str, lap: bool = True) -> None:
        """What follows is for steps of ``walk``. The time since the last lap was ``plan_rest`` of the walk until now;
        without ``lap`` it counts with what follows."""

    def lap(self, phase: str) -> None:
        """The time since the last lap was ``phase``."""

    def add(self, phase: str, seconds: float) -> None:
        """``seconds`` of another thread."""

    def submitted(self, walk: str) -> None:
        """A step of ``walk`` was queued."""

    def step(self, walk: str, bucket: int) -> None:
        """The oldest step of ``walk`` is complete; ``bucket`` says which steps are like it."""

    def pause(self) -> None:
        """Nothing decodes: the next decode step has no predecessor."""

    def idle(self) -> None:
        """The engine is about to block: what was kept is written, and the next iteration has no predecessor."""

    def close(self) -> None:
        """The engine ends."""


class PhaseTimers(Stopwatch):
    """Keeps every step's phases and writes them when there is time."""

    def __init__(self, file: Path, **labels: Any) -> None:
        """``labels`` go into every line."""
        self._file = file
        self._labels = labels
        self._last: float | None = time.perf_counter()  #: None: the time until now is nobody's
        self._sums = {walk: _zeros() for walk in WALKS}
        self._now = self._sums["decode"]
        self._queued: dict[str, deque[float]] = {walk: deque() for walk in WALKS}
        self._decoded: float | None = None  #: when the decode step before this one was complete
        self._steps: dict[tuple[str, int], list[list[float | None]]] = {}
        self._kept = 0

    def of(self, walk: str, lap: bool = True) -> None:
        if lap:
            self.lap("plan_rest")
        self._now = self._sums[walk]

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        if self._last is not None:
            self._now[phase] += now - self._last
        self._last = now

    def add(self, phase: str, seconds: float) -> None:
        self._now[phase] += seconds

    def submitted(self, walk: str) -> None:
        self._queued[walk].append(time.perf_counter())

    def pause(self) -> None:
        self._decoded = None

    def step(self, walk: str, bucket: int) -> None:
        now = time.perf_counter()
        sums = self._sums[walk]
        row: list[float | None] = [round(1e6 * sums[phase], 1) for phase in PHASES]
        since: float | None = self._queued[walk].popleft()
        if walk == "decode":
            since, self._decoded = self._decoded, now
        row[-1] = None if since is None else round(1e6 * (now - since), 1)
        self._steps.setdefault((walk, bucket), []).append(row)
        sums.update(_zeros())
        self._kept += 1
        if self._kept >= _KEPT:
            self._write()
        self._last = time.perf_counter()  # what the timers themselves cost is no step's

    def idle(self) -> None:
        self._write()
        for sums in self._sums.values():
            sums.update(_zeros())
        self._decoded = None
        self._last = None

    def close(self) -> None:
        self._write()

    def _write(self) -> None:
        if not self._steps:
            return
        try:
            with self._file.open("a", encoding="utf-8") as file:
                for (walk, bucket), rows in self._steps.items():
                    line = {**self._labels, "walk": walk, "bucket": bucket, "phases": PHASES, "us": rows}
                    file.write(json.dumps(line) + "\n")
        except OSError as error:  # a full disk, a folder taken away: requests go on
            _log.warning("phase timers are lost: %s: %s", self._file, error.strerror)
        self._steps.clear()
        self._kept = 0


def _zeros() -> dict[str, float]:
    return dict.fromkeys((*PHASES, BLOCKED), 0.0)
