"""From the name of a server to a connection: rendezvous, shared memory, WELCOME."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import posix_ipc  # type: ignore[import-not-found]
from denizen._native import ArenaError, Invitation, NoServer
from denizen.shm.connection import Connection
from denizen.shm.errors import ConnectError, bad_request
from denizen.shm.rendezvous import socket_path

if TYPE_CHECKING:
    from pathlib import Path

    from denizen._native import ClientArena

_FOR_EVER = 1e6


def connect(name: str, path: str | os.PathLike[str] | None, audio: bool, timeout: float) -> Connection:
    """Waits at most `timeout` seconds. Raises ConnectError, and BadRequest for a `timeout` that is none."""
    if not 0 < timeout < _FOR_EVER:
        raise bad_request("connect_timeout", f"'connect_timeout' must be a positive number of seconds, not {timeout!r}")
    deadline = time.monotonic() + timeout
    return Connection(open_arena(socket_path(name, path), audio, timeout), deadline)


def open_arena(path: Path, audio: bool, timeout: float) -> ClientArena:
    """The client's end of a fresh arena pair. Raises ConnectError."""
    try:
        invitation = Invitation.request(os.fspath(path), audio, max(1, int(timeout * 1000)))
        # The names live until `attach` has answered; the descriptors are needed only as long.
        opened: list[posix_ipc.SharedMemory] = []
        try:
            opened.append(posix_ipc.SharedMemory(invitation.requests, read_only=True))
            opened.append(posix_ipc.SharedMemory(invitation.results))
            return invitation.attach(opened[0].fd, opened[1].fd)
        except (posix_ipc.Error, OSError) as error:
            invitation.refuse(f"the shared memory cannot be opened: {error}")
            raise ConnectError(
                f"the server at {path} offered shared memory that cannot be opened: {error}; "
                "do both share /dev/shm (in containers: --ipc)?"
            ) from None
        finally:
            for memory in opened:
                memory.close_fd()
    except NoServer as error:
        raise ConnectError(f"{error}; start `denizen serve`, or give its name or path") from None
    except (ArenaError, ValueError) as error:  # a ValueError: a path that no socket can have
        raise ConnectError(f"the server at {path} cannot be used: {error}") from None
