"""Bad input ends with one clear line that says what to do, and with a status other than 0."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Protocol

import pytest
from denizen.bench.server import find_binary, free_port

from .conftest import STUB, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .conftest import Denizen


def refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """One error line that holds all words; no trace of an inside."""
    assert result.returncode != 0
    lines = result.stderr.strip().splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1, result.stderr
    assert lines[-1] == errors[0], result.stderr
    for word in words:
        assert word in errors[0], errors[0]
    for trace in ("Traceback", "panicked", "RUST_BACKTRACE"):
        assert trace not in result.stderr


@pytest.fixture
def serve(denizen: Denizen) -> Serve:
    """Runs `denizen serve` on a free port to its end."""

    def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return denizen("serve", "--port", str(free_port()), *STUB, *arguments, env=env)

    return run


class Serve(Protocol):
    """Runs `denizen serve` to its end."""

    def __call__(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]: ...


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("./no/such/folder", ["no folder ./no/such/folder", "check the path"]),
        ("name=/no/such/folder", ["no folder /no/such/folder"]),
        ("one-word", ["no folder one-word", "OWNER/NAME"]),
        ("=x", ["[NAME=]PATH_OR_HUB_ID[@DEVICES]"]),
        ("name=", ["[NAME=]PATH_OR_HUB_ID[@DEVICES]"]),
        ("big-Q4_K_M.gguf", ["GGUF", "checkpoint folder"]),
        ("owner/name@cuda:x", ["cuda:x", "cuda:N"]),
    ],
)
def test_a_model_that_cannot_be_meant_is_refused(serve: Serve, model: str, words: list[str]) -> None:
    refused(serve("--model", model), *words)


def test_a_file_is_no_checkpoint(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_text("")
    refused(serve("--model", str(tmp_path / "weights.bin")), "is a file", "folder")


def test_an_unknown_hub_id_is_one_line(serve: Serve) -> None:
    hub = {"HF_ENDPOINT": f"http://127.0.0.1:{free_port()}"}  # nobody listens there
    refused(serve("--model", "owner/no-such-model", env=hub), "owner/no-such-model")


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def _nameless(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def _unsupported(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["MambaForCausalLM"]}))


def _no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _pytorch_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _missing_shard(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _broken_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("[]")


def _no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def _broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_no_config, ["config.json is missing"]),
        (_broken_config, ["config.json", "not valid JSON"]),
        (_nameless, ["config.json", "architectures"]),
        (_unsupported, ["MambaForCausalLM", "supported:", "LlamaForCausalLM", "Qwen3_5ForCausalLM"]),
        (_no_weights, ["no weights", "download the checkpoint again"]),
        (_pytorch_weights, ["no weights", "convert the PyTorch files to safetensors"]),
        (_missing_shard, ["model-00002-of-00002.safetensors is missing"]),
        (_broken_index, ["model.safetensors.index.json", "weight_map"]),
        (_no_tokenizer, ["tokenizer.json"]),
        (_broken_tokenizer, ["tokenizer.json"]),
    ],
)
def test_a_broken_checkpoint_is_named(
    serve: Serve, tmp_path: Path, damage: Callable[[Path], None], words: list[str]
) -> None:
    folder = write_checkpoint(tmp_path / "model")
    damage(folder)
    refused(serve("--model", str(folder)), *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--devices", "gpu"], ["--devices", "'gpu'", "cuda:N"]),
        (["--devices", "cuda"], ["--devices", "'cuda'", "cuda:N"]),
        (["--devices", "cpu,cpu"], ["cpu is named twice"]),
        (["--devices", "cuda:99"], ["cuda:99"]),
        (["--devices", "cuda:0", "--workers-per-device", "2"], ["--workers-per-device", "only cpu"]),
        (["--api-key", ""], ["--api-key", "empty"]),
        (["--host", "no.such.host.invalid"], ["no.such.host.invalid", "--host"]),
        (["--python", "/no/such/python"], ["/no/such/python"]),
    ],
)
def test_a_wrong_option_is_named(serve: Serve, checkpoint: Path, arguments: list[str], words: list[str]) -> None:
    refused(serve("--model", str(checkpoint), *arguments), *words)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--port", "70000"),
        ("--max-rows", "0"),
        ("--kv-tokens", "-1"),
        ("--threads", "many"),
        ("--log-level", "loud"),
        ("--workers-per-device", "0"),
        ("--no-such-option", "1"),
    ],
)
def test_a_value_out_of_range_is_named(denizen: Denizen, option: str, value: str) -> None:
    result = denizen("serve", f"{option}={value}")
    assert result.returncode == 2
    assert option in result.stderr
    assert result.stderr.count("error:") == 1


def test_two_models_of_one_name_are_refused(serve: Serve, checkpoint: Path) -> None:
    refused(serve("--model", f"a={checkpoint}", "--model", f"a={checkpoint}"), "'a'", "NAME=PATH")


def test_a_port_in_use_is_found_before_anything_is_loaded(denizen: Denizen) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        # The built-in model: nothing may be fetched before the port is known to be free.
        result = denizen("serve", "--port", str(port), env={"VIRTUAL_ENV": "/no/such/environment"})
    refused(result, str(port), "in use", "--port")


def _script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


def test_a_python_without_denizen_is_named(serve: Serve, checkpoint: Path, tmp_path: Path) -> None:
    python = _script(tmp_path / "python", "echo \"ModuleNotFoundError: No module named 'denizen'\" >&2; exit 1")
    refused(serve("--model", str(checkpoint), "--python", python), python, "No module named 'denizen'", "pip")


def test_a_python_without_torch_is_named(denizen: Denizen, checkpoint: Path, tmp_path: Path) -> None:
    python = _script(tmp_path / "python", 'echo \'{"missing": ["torch"]}\'')
    port = str(free_port())
    result = denizen("serve", "--port", port, "--model", str(checkpoint), "--python", python)
    refused(result, "lacks torch", "pip install 'denizen[serve]'")


@pytest.mark.skipif(not shutil.which("unshare"), reason="needs unshare (util-linux)")
def test_a_small_dev_shm_is_one_line_with_the_flag(checkpoint: Path) -> None:
    """Symptom: a container's 64 MB /dev/shm ended in SIGBUS ("exit code -7")."""
    mount = "mount -t tmpfs -o size=4m tmpfs /dev/shm && echo mounted"
    script = f'{mount} || exit 77; exec "$@"'
    command = [find_binary(), "serve", "--port", str(free_port()), "--model", str(checkpoint), *STUB]
    result = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", *command],
        env={"VIRTUAL_ENV": sys.prefix} | os.environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "mounted" not in result.stdout:
        pytest.skip("this machine lets nobody mount a small /dev/shm")
    refused(result, "/dev/shm", "--shm-size")


def test_a_missing_recording_is_told_before_a_model_is_fetched(denizen: Denizen) -> None:
    hub = {"HF_ENDPOINT": f"http://127.0.0.1:{free_port()}"}  # nobody listens there
    result = denizen("transcribe", "no-such-talk.mp3", env=hub)
    refused(result, "no-such-talk.mp3", "no such file")
    assert "hub" not in result.stderr
