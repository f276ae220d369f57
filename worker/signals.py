"""SIGTERM, taken by a thread of its own: the plan thread may be blocked in the arena, where no Python handler runs."""

from __future__ import annotations

import os
import signal
import socket
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class TerminationWatch:
    """Made by the main thread. A second SIGTERM exits at once.

    The interpreter's own handler runs in whichever thread the kernel chooses, and only writes the signal's number to a
    socket: so it does not matter which libraries started threads before.
    """

    def __init__(self) -> None:
        self._action: Callable[[], None] | None = None
        self._signals, self._written = socket.socketpair()
        self._written.setblocking(False)
        signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        Thread(target=self._watch, name="sigterm", daemon=True).start()

    def on_term(self, action: Callable[[], None]) -> None:
        """What SIGTERM does from now on. Until this is called, it ends the process: nothing is being served yet."""
        self._action = action

    def _watch(self) -> None:
        self._wait()
        if self._action is not None:
            self._action()
            self._wait()
        os._exit(128 + signal.SIGTERM)

    def _wait(self) -> None:
        while signal.SIGTERM not in self._signals.recv(1):
            pass
