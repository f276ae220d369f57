"""Connecting to what is no server, or a bad one."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

import pytest
from denizen._native import ABI, FIELDS_HASH
from denizen.shm import BadRequest, Client, ConnectError

from tests.e2e.running import arena_objects
from tests.e2e.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

VERSION = struct.pack("<IIQ", *ABI, FIELDS_HASH)
NAMES = ["denizen-0-none-req", "denizen-0-none-res", "denizen-0-none-bell"]


class Door:
    """A socket that answers each client's hello with `packet` and some descriptors, then waits for its end."""

    def __init__(self, path: Path, packet: bytes | None, descriptors: int = 0) -> None:
        self.path = path
        self.said: list[bytes] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(str(path))
        self._socket.listen()
        self._answer = packet, descriptors
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        packet, descriptors = self._answer
        with contextlib.suppress(OSError):
            client, _ = self._socket.accept()
            with client:
                client.settimeout(30)
                self.said.append(client.recv(1024))
                if packet is not None:
                    fds = [os.memfd_create("bell") for _ in range(descriptors)]
                    socket.send_fds(client, [packet], fds)
                    for fd in fds:
                        os.close(fd)
                while data := client.recv(1024):
                    self.said.append(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)
        self._socket.close()


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Callable[..., Door]]:
    doors: list[Door] = []

    def make(packet: bytes | None, descriptors: int = 0) -> Door:
        doors.append(Door(tmp_path / "door.sock", packet, descriptors))
        return doors[-1]

    yield make
    for each in doors:
        each.close()


def invitation(names: list[str], version: bytes = VERSION) -> bytes:
    packed = b"".join(struct.pack("<H", len(name)) + name.encode() for name in names)
    return b"DZAT" + version + bytes(16) + bytes(8) + packed


def test_the_hello_is_as_written_down(door: Any) -> None:
    made = door(b"DZNOthere are 64 clients already; see --shm-clients")
    with pytest.raises(ConnectError, match="there are 64 clients already; see --shm-clients"):
        Client(path=made.path, audio=True)
    made.close()
    assert made.said == [b"DZCL" + VERSION + struct.pack("<I", 1)]


@pytest.mark.parametrize(
    ("packet", "descriptors"),
    [
        (b"", 0),
        (b"HTTP/1.1 400 Bad Request", 0),
        (b"DZAT", 1),
        (b"DZAT" + bytes(100), 1),
        (invitation(NAMES), 0),
        (invitation(NAMES), 3),
        (invitation(NAMES[:2]), 1),
        (invitation(["../../etc/passwd", *NAMES[1:]]), 1),
        (invitation(NAMES, struct.pack("<IIQ", ABI[0] + 1, 0, 0)), 1),
        (invitation(NAMES), 1),
    ],
)
def test_what_is_no_invitation_is_refused(door: Any, packet: bytes, descriptors: int) -> None:
    before, descriptors_before = arena_objects(), len(os.listdir("/proc/self/fd"))
    made = door(packet, descriptors)
    with pytest.raises(ConnectError, match="cannot be"):
        Client(path=made.path)
    made.close()
    eventually(lambda: arena_objects() <= before, "objects in /dev/shm are gone")
    assert len(os.listdir("/proc/self/fd")) <= descriptors_before


def test_the_server_is_told_why_the_memory_cannot_be_opened(door: Any) -> None:
    made = door(invitation(NAMES), 1)
    with pytest.raises(ConnectError, match="do both share /dev/shm"):
        Client(path=made.path)
    made.close()
    assert made.said[1].startswith(b"DZNO")
    assert b"cannot be opened" in made.said[1]


def test_a_server_that_does_not_answer_is_not_waited_for_for_ever(door: Any) -> None:
    made = door(None)
    with pytest.raises(ConnectError, match="cannot be used"):
        Client(path=made.path, connect_timeout=0.1)


def test_a_socket_without_a_server(tmp_path: Path) -> None:
    path = tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(str(path))
    with pytest.raises(ConnectError, match=r"no server listens .*its server has gone"):
        Client(path=path)
    with pytest.raises(ConnectError, match=r"no server listens .*no such socket"):
        Client(path=tmp_path / "none.sock")
    with pytest.raises(ConnectError, match="too long"):
        Client(path=tmp_path / ("x" * 200))
    (tmp_path / "file").write_text("not a socket")
    with pytest.raises(ConnectError):
        Client(path=tmp_path / "file")


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_connect_timeout_is_a_positive_number(timeout: float) -> None:
    with pytest.raises(BadRequest, match="'connect_timeout' must be a positive number"):
        Client(path="/none", connect_timeout=timeout)
    with pytest.raises(BadRequest, match="'timeout' must be a positive number"):
        Client(path="/none", timeout=0)
