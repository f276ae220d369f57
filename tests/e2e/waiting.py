"""Waiting for something with a deadline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
PATIENCE = 60.0
"""Seconds. Long, because a loaded machine is no fault of the server; a test that passes never waits this long."""


def eventually(look: Callable[[], T], what: str, timeout: float = PATIENCE) -> T:
    """The first truthy value that `look` returns; fails with `what` and the last value if none comes in time."""
    deadline = time.monotonic() + timeout
    while not (seen := look()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout:g} s (last seen: {seen!r})"
        time.sleep(0.02)
    return seen
