"""The name under which clients over shared memory find a server, from the command line."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING

import pytest
from denizen.bench.server import free_port

from tests.e2e.waiting import eventually

from .conftest import STUB

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Denizen, Stub


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Not made: that is the server's part."""
    folder = tmp_path / "run"
    monkeypatch.setenv("DENIZEN_RUN_DIR", str(folder))
    return folder


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        return client.connect_ex(str(path)) == 0


def test_a_server_is_found_by_its_name_until_it_ends(stub: Stub, run_dir: Path) -> None:
    server = stub("--shm-name", "a.b-c_1")
    assert run_dir.stat().st_mode & 0o777 == 0o700
    assert connects(run_dir / "a.b-c_1.sock")
    server.stop()
    assert list(run_dir.iterdir()) == []


def test_a_name_in_use_is_one_error_and_a_dead_one_is_replaced(stub: Stub, denizen: Denizen, run_dir: Path) -> None:
    first = stub("--shm-name", "one")
    result = denizen("serve", "--port", str(free_port()), *STUB, "--shm-name", "one")
    assert result.returncode != 0
    assert "--shm-name" in result.stderr.strip().splitlines()[-1]
    assert "one.sock" in result.stderr
    os.killpg(first.pid, signal.SIGKILL)
    eventually(lambda: not first.alive, "it is dead")
    assert (run_dir / "one.sock").exists()
    stub("--shm-name", "one")
    assert connects(run_dir / "one.sock")


def test_a_server_that_cannot_start_leaves_no_name(denizen: Denizen, run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = denizen("serve", "--port", str(free_port()), *STUB, "--model", str(tmp_path / "empty"))
    assert result.returncode != 0
    assert list(run_dir.iterdir()) == []


def test_two_servers_need_no_flags(stub: Stub, run_dir: Path) -> None:
    stub()
    second = stub()
    assert connects(run_dir / "default.sock")
    assert "no clients over shared memory" in second.log()
    assert "--shm-name" in second.log()


def test_none_is_made_when_none_is_wanted(stub: Stub, run_dir: Path) -> None:
    stub("--no-shm")
    assert not run_dir.exists()


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "x" * 65])
def test_a_bad_name_is_refused(denizen: Denizen, run_dir: Path, name: str) -> None:
    result = denizen("serve", "--port", str(free_port()), *STUB, "--shm-name", name)
    assert result.returncode != 0
    assert "--shm-name" in result.stderr.strip().splitlines()[-1]


def test_a_run_directory_open_to_others_is_refused(denizen: Denizen, run_dir: Path) -> None:
    run_dir.mkdir(mode=0o755)
    result = denizen("serve", "--port", str(free_port()), *STUB, "--shm-name", "one")
    assert result.returncode != 0
    assert "mode 0755" in result.stderr
    assert "DENIZEN_RUN_DIR" in result.stderr
