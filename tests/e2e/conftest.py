"""Servers that tests share, and what every test must leave behind: nothing."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from denizen.bench.server import builtin_checkpoint

from tests.models import real_whisper, tiny

from .running import Running, arena_objects
from .waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

CPU = ["--devices", "cpu"]
THREADS = ["--threads", str(min(2, os.cpu_count() or 1))]
STUB = [*CPU, "--worker-module", "denizen.worker.stub"]


@pytest.fixture(scope="session", autouse=True)
def _no_objects_left() -> Iterator[None]:
    """After the last test, `/dev/shm` holds no more of ours than before the first."""
    before = arena_objects()
    yield
    eventually(lambda: arena_objects() <= before, "objects in /dev/shm are gone")


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """After each test every server that is up is healthy and has all rows, pages, state slots and queue places back."""
    yield
    for server in Running.live:
        if server.alive:
            assert server.get("/health") == 200
            server.settles()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport]:
    """A failure shows what the servers have printed."""
    report = yield
    if report.failed:
        report.sections += [(f"log of {server.command}", server.log()) for server in Running.live]
    return report


class Serve(Protocol):
    """Starts a server for one test."""

    def __call__(self, arguments: list[str], *, model: str, ready: bool = True, **options: Any) -> Running: ...


@pytest.fixture
def serve() -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:

        def start(arguments: list[str], *, model: str, ready: bool = True, **options: Any) -> Running:
            server = Running(arguments, model=model, **options)
            stack.callback(server.stop)
            server.start()
            if ready:
                server.wait_ready()
            return server

        yield start


@pytest.fixture(scope="session")
def builtin() -> str:
    """Folder of the built-in model, SmolLM2-135M-Instruct."""
    return builtin_checkpoint()


@pytest.fixture(scope="session")
def hybrid_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint with gated delta nets: it uses KV pages and state slots."""
    return tiny.build("qwen3_5-grouped", tmp_path_factory.mktemp("models") / "hybrid")


@pytest.fixture(scope="session")
def dense_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint with attention only."""
    return tiny.build("llama", tmp_path_factory.mktemp("models") / "dense")


@pytest.fixture(scope="session")
def stub(builtin: str) -> Iterator[Running]:
    """The stub worker with the built-in model's tokenizer: it repeats the prompt's ids."""
    with Running([*STUB, "--model", f"stub={builtin}"], model="stub") as server:
        yield server


@pytest.fixture(scope="session")
def tiny_server(hybrid_model: Path, dense_model: Path) -> Iterator[Running]:
    """Two tiny models side by side in one worker."""
    models = ["--model", f"hybrid={hybrid_model}", "--model", f"dense={dense_model}"]
    with Running([*CPU, *models], model="hybrid") as server:
        yield server


@pytest.fixture(scope="session")
def smol() -> Iterator[Running]:
    """What a newcomer gets: no model named, so the built-in one is served."""
    with Running([*CPU, *THREADS], model="SmolLM2-135M-Instruct") as server:
        yield server


@pytest.fixture(scope="session")
def clips() -> list[real_whisper.Clip]:
    """Five sentences of a reading, 24.7 s, with their texts."""
    return real_whisper.or_skip(real_whisper.clips)


@pytest.fixture(scope="session")
def tiny_ears_model() -> Path:
    return real_whisper.or_skip(real_whisper.checkpoint, "tiny.en")


@pytest.fixture(scope="session")
def base_ears_model() -> Path:
    return real_whisper.or_skip(real_whisper.checkpoint, "base")


@pytest.fixture(scope="session")
def ears(tiny_ears_model: Path) -> Iterator[Running]:
    """Whisper tiny.en with its real weights."""
    with Running([*CPU, *THREADS, "--model", f"ears={tiny_ears_model}"], model="ears") as server:
        yield server


@pytest.fixture(scope="module")
def base_ears(base_ears_model: Path) -> Iterator[Running]:
    """Whisper base, which knows many languages, with its real weights."""
    with Running([*CPU, *THREADS, "--model", f"base={base_ears_model}"], model="base") as server:
        yield server
