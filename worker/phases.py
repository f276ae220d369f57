"""Phase timers: where the time of a step goes. Format of the files: ``docs/design/engine.md``.

A stopwatch divides a thread's time without gaps: each lap gives the time since the last one to a phase. Without
``DENIZEN_PHASES`` the engine has one that reads no clock.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

PHASES = ("plan_kv", "plan_attention", "plan_sampler", "plan_rest", "device_work", "device_wait", "iteration")
#: What the plan thread waits for a device thread: in no column, since that thread counts its own time.
BLOCKED = "blocked"
#: Steps that are kept before they are written in a busy engine.
_KEPT = 20_000


class Stopwatch:
    """Reads no clock: the timers are off."""

    def lap(self, phase: str) -> None:
        """The time since the last lap was ``phase``."""

    def add(self, phase: str, seconds: float) -> None:
        """``seconds`` of another thread."""

    def step(self, walk: str, bucket: int) -> None:
        """An iteration is complete; ``walk`` and ``bucket`` say which steps are like it."""

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
        self._last = time.perf_counter()
        self._busy_since: float | None = None  #: when the iteration before ended
        self._now = _zeros()
        self._steps: dict[tuple[str, int], list[list[float | None]]] = {}
        self._kept = 0

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self._now[phase] += now - self._last
        self._last = now

    def add(self, phase: str, seconds: float) -> None:
        self._now[phase] += seconds

    def step(self, walk: str, bucket: int) -> None:
        now = time.perf_counter()
        row: list[float | None] = [round(1e6 * self._now[phase], 1) for phase in PHASES]
        row[-1] = None if self._busy_since is None else round(1e6 * (now - self._busy_since), 1)
        self._steps.setdefault((walk, bucket), []).append(row)
        self._now = _zeros()
        self._busy_since = now
        self._kept += 1
        if self._kept >= _KEPT:
            self._write()

    def idle(self) -> None:
        self._write()
        self._now = _zeros()
        self._busy_since = None

    def close(self) -> None:
        self._write()

    def _write(self) -> None:
        if not self._steps:
            return
        with self._file.open("a", encoding="utf-8") as file:
            for (walk, bucket), rows in self._steps.items():
                line = {**self._labels, "walk": walk, "bucket": bucket, "phases": PHASES, "us": rows}
                file.write(json.dumps(line) + "\n")
        self._steps.clear()
        self._kept = 0


def _zeros() -> dict[str, float]:
    return dict.fromkeys((*PHASES, BLOCKED), 0.0)
