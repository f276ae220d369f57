"""Clients of a fake front end, and of real servers with the stub worker."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from denizen.bench.stub_models import write_ears, write_text
from denizen.shm import AsyncClient, Client

from tests.e2e.running import Running, arena_objects
from tests.e2e.waiting import eventually

from .fake import FakeServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .fake import Heard

NAME = "tests"


class Fakes:
    """Makes fake servers and clients of them; all end with the test."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.servers: list[FakeServer] = []

    def server(self, answer: Callable[[FakeServer, Heard], None] | None = None) -> FakeServer:
        self.servers.append(FakeServer(answer))
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


class Rendezvous(Running):
    """A server that clients can find: `socket` is its path, in a run directory of its own."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        models: dict[str, Path],
        stub: dict[str, Any] | None = None,
        name: str = NAME,
    ) -> None:
        self.run_dir = folder / "run"
        self.socket = self.run_dir / f"{name}.sock"
        command = ["--devices", "cpu", "--shm-name", name, *arguments]
        command += [part for name, path in models.items() for part in ("--model", f"{name}={path}")]
        env = {"DENIZEN_RUN_DIR": os.fspath(self.run_dir)}
        if stub is not None:
            command += ["--worker-module", "denizen.worker.stub"]
            env["DENIZEN_STUB"] = json.dumps(stub)
        super().__init__(command, model=next(iter(models)), env=env)

    def connect(self, **options: Any) -> Client:
        return Client(path=self.socket, **options)


class Serve(Protocol):
    """Starts a server with the stub worker: models `text` and `ears`; keywords are the stub's options."""

    def __call__(self, *arguments: str, **stub: Any) -> Rendezvous: ...


@pytest.fixture(scope="session")
def stub_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {"text": write_text(folder / "text"), "ears": write_ears(folder / "ears")}


@pytest.fixture(scope="session")
def _serve(tmp_path_factory: pytest.TempPathFactory, stub_models: dict[str, Path]) -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:

        def start(*arguments: str, **stub: Any) -> Rendezvous:
            run = tmp_path_factory.mktemp("server")
            return stack.enter_context(Rendezvous(run, *arguments, models=stub_models, stub=stub))

        yield start


@pytest.fixture
def serve(_serve: Serve) -> Iterator[Serve]:
    """Servers that end with their test."""
    started: list[Rendezvous] = []

    def start(*arguments: str, **stub: Any) -> Rendezvous:
        started.append(_serve(*arguments, **stub))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def _fast(_serve: Serve) -> Rendezvous:
    return _serve()


@pytest.fixture(scope="session")
def _slow(_serve: Serve) -> Rendezvous:
    return _serve(step_ms=20)


@pytest.fixture
def fast(_fast: Rendezvous) -> Iterator[Rendezvous]:
    """The stub at full speed; all that calls held is given back after the test."""
    yield from _as_it_was(_fast)


@pytest.fixture
def slow(_slow: Rendezvous) -> Iterator[Rendezvous]:
    """The stub with a step every 20 ms: its long answers take over a minute."""
    yield from _as_it_was(_slow)


@pytest.fixture(scope="session")
def _talking(tmp_path_factory: pytest.TempPathFactory, stub_models: dict[str, Path]) -> Iterator[Rendezvous]:
    folder = tmp_path_factory.mktemp("talking")
    models = {**stub_models, "voice": write_text(folder / "voice")}
    stub = {"speech": {"models": ["voice"]}}
    with Rendezvous(folder, models=models, stub=stub, name="default") as server:
        yield server


@pytest.fixture
def talking(_talking: Rendezvous) -> Iterator[Rendezvous]:
    """The stub, which also speaks; under the name that clients look for by themselves."""
    yield from _as_it_was(_talking)


def _as_it_was(server: Rendezvous) -> Iterator[Rendezvous]:
    before = arena_objects()
    yield server
    assert server.get("/health") == 200
    server.settles()
    eventually(lambda: server.metrics()["denizen_shm_clients"] == 0, "all clients have gone")
    eventually(lambda: arena_objects() <= before, "objects in /dev/shm are gone")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """A failure shows what the servers have printed."""
    report = yield
    if report.failed:
        report.sections += [(f"log of {server.command}", server.log()) for server in Running.live]
    return report
