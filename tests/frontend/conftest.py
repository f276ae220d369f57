"""Servers with the stub worker, and a checkpoint that costs nothing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from denizen.bench.server import find_binary
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.e2e.running import Running, arena_objects
from tests.e2e.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STUB = ["--worker-module", "denizen.worker.stub"]


def write_checkpoint(folder: Path) -> Path:
    """A checkpoint that the front end takes: a byte of text is a token, 4,096 positions, no weights to speak of."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 256, "max_position_embeddings": 4096}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "bytes")


class Stub(Protocol):
    """Starts a server with the stub worker; keywords are the stub's options."""

    def __call__(self, *arguments: str, ready: bool = True, **options: Any) -> Running: ...


@pytest.fixture
def stub(checkpoint: Path) -> Iterator[Stub]:
    before = arena_objects()
    with contextlib.ExitStack() as stack:

        def start(*arguments: str, ready: bool = True, **options: Any) -> Running:
            command = ["--model", f"bytes={checkpoint}", *STUB, *arguments]
            server = Running(command, model="bytes", env={"DENIZEN_STUB": json.dumps(options)})
            stack.callback(server.stop)
            server.start()
            if ready:
                server.wait_ready()
            return server

        yield start
    eventually(lambda: arena_objects() <= before, "objects in /dev/shm are gone")


class Denizen(Protocol):
    """Runs the binary to its end."""

    def __call__(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def denizen() -> Denizen:
    def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        # What a developer has set must not change what is tested.
        clean = {key: value for key, value in os.environ.items() if key != "DENIZEN_API_KEY"}
        clean.setdefault("VIRTUAL_ENV", sys.prefix)
        command = [find_binary(), *arguments]
        return subprocess.run(
            command, env=clean | (env or {}), capture_output=True, text=True, timeout=120, check=False
        )

    return run
