"""Clients of a fake front end, and of real servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from denizen.shm import AsyncClient, Client

from .fake import FakeServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .fake import Heard


class Fakes:
    """Makes fake servers and clients of them; all end with the test."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.servers: list[FakeServer] = []

    def server(self, answer: Callable[[FakeServer, Heard], None] | None = None) -> FakeServer:
        self.servers.append(FakeServer(answer))
        for module in ("client", "async_client"):
            self._patch.setattr(f"denizen.shm.{module}.connect", self.servers[-1].connect)
        return self.servers[-1]

    def client(self, server: FakeServer, timeout: float | None = 60.0) -> Client:
        self._patch.setattr("denizen.shm.client.connect", server.connect)
        return Client(timeout=timeout)

    def async_client(self, server: FakeServer, timeout: float | None = 60.0) -> AsyncClient:
        self._patch.setattr("denizen.shm.async_client.connect", server.connect)
        return AsyncClient(timeout=timeout)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fakes]:
    made = Fakes(monkeypatch)
    yield made
    for server in made.servers:
        server.close()
