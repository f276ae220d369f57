"""A real peer process at the other end of a real pair, and waiting with a deadline."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import denizen
from denizen._native import HostArena

if TYPE_CHECKING:
    from collections.abc import Callable

PEER = Path(__file__).with_name("peer.py")
SHM = Path("/dev/shm")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(denizen.__file__).resolve().parent.parent)}
"""For child processes: they import the same package, installed or not."""
PATIENCE = 30.0
"""Seconds after which something that should happen has not."""


def wait_for(what: str, condition: Callable[[], object]) -> None:
    """Poll until `condition` holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE:.0f} s for {what}"
        time.sleep(0.001)


def receive(end: Any, count: int = 1) -> list[tuple[bytes, bytes | None]]:
    """Exactly `count` messages; fails instead of waiting for ever."""
    messages: list[tuple[bytes, bytes | None]] = []
    while len(messages) < count:
        more = end.recv(count - len(messages), int(PATIENCE * 1000))
        assert more, f"got {len(messages)} of {count} messages in {PATIENCE:.0f} s"
        messages += more
    return messages


class Pair:
    """A host end in this process and a peer process in a role of ``peer.py``."""

    def __init__(self, role: str, **config: Any) -> None:
        self.host, fd = HostArena.create(f"test {role}", **config)
        self.names = [SHM / name for name in self.host.names]
        self.process = subprocess.Popen(
            [sys.executable, str(PEER), role, str(fd)],
            pass_fds=[fd],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
        )
        os.close(fd)

    def attached(self) -> Pair:
        """Wait until the peer has attached."""
        wait_for("the peer to attach or die", lambda: self.host.poll() != "waiting")
        assert self.host.poll() == "up", self.process.communicate()[1].decode()
        return self

    def stop(self) -> None:
        """End both ends, whatever state they are in."""
        self.host.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
