"""SIGTERM, taken by a thread of its own: the plan thread may be blocked in the arena, where no Python handler runs."""

from __future__ import annotations

import os
import signal
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class TerminationWatch:
    """Create it before any other thread, so that all inherit the blocked mask. A second SIGTERM exits at once."""

    def __init__(self) -> None:
        self._action: Callable[[], None] | None = None
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        Thread(target=self._watch, name="sigterm", daemon=True).start()

    def on_term(self, action: Callable[[], None]) -> None:
        """What SIGTERM does from now on. Until this is called, it ends the process: nothing is being served yet."""
        self._action = action

    def _watch(self) -> None:
        signal.sigwait({signal.SIGTERM})
        if self._action is not None:
            self._action()
            signal.sigwait({signal.SIGTERM})
        os._exit(128 + signal.SIGTERM)
