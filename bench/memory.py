"""How the memory of a server changes over a long run."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from denizen.bench.processes import resident_bytes, tree

if TYPE_CHECKING:
    from collections.abc import Sequence

_HOUR = 3600.0
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Growth:
    """Resident memory of a process and its descendants, in bytes; pages that they share count once for each."""

    samples: int
    seconds: float
    """From the first sample to the last."""
    start: int
    end: int
    peak: int
    per_hour: float
    """Slope of the second half of the time: caches and buffers have been filled by then."""


def growth(times: Sequence[float], sizes: Sequence[int]) -> Growth | None:
    """What samples at `times` (seconds, ascending) come to; None if the second half has fewer than two."""
    middle = (times[0] + times[-1]) / 2 if times else 0.0
    later = [(at, size) for at, size in zip(times, sizes, strict=True) if at >= middle]
    if len(later) < 2:
        return None
    at, size = (np.asarray(column, dtype=float) for column in zip(*later, strict=True))
    at -= at.mean()
    slope = float(at @ (size - size.mean()) / (at @ at))
    return Growth(len(times), times[-1] - times[0], sizes[0], sizes[-1], max(sizes), slope * _HOUR)


class Watch:
    """Samples a process and its descendants from a thread while the block lasts. Use as a context manager."""

    def __init__(self, pid: int, period: float = 2.0) -> None:
        self._pid = pid
        self._period = period
        self._times: list[float] = []
        self._sizes: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._sample()

    def figures(self) -> dict[str, Any] | None:
        """The `memory` entry of a result's figures."""
        found = growth(self._times, self._sizes)
        return None if found is None else asdict(found)

    def _run(self) -> None:
        while not self._over.wait(self._period):
            self._sample()

    def _sample(self) -> None:
        size = resident_bytes(tree(self._pid))
        if size:  # a server that has died has none
            self._times.append(time.monotonic())
            self._sizes.append(size)
