"""Starts `denizen serve` for a measurement, waits until it is ready, and stops it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from denizen.bench.errors import BenchError


def find_binary() -> str:
    """The `denizen` binary: $DENIZEN_BIN, beside this Python, in a source tree's `target/`, or on PATH."""
    if chosen := os.environ.get("DENIZEN_BIN"):
        return chosen
    beside = Path(sys.executable).parent / "denizen"
    if beside.exists():
        return str(beside)
    target = Path(__file__).resolve().parent.parent / "target"
    built = [path for profile in ("release", "debug") if (path := target / profile / "denizen").exists()]
    if built:
        return str(max(built, key=lambda path: path.stat().st_mtime))
    if found := shutil.which("denizen"):
        return found
    raise BenchError("no `denizen` binary found; install the wheel, or run `make serve` once, or set DENIZEN_BIN")


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Server:
    """A `denizen serve` process with its workers, in a session of its own.

    `arguments` follow `denizen serve --host 127.0.0.1 --port PORT`. Use as a context manager: entering waits for
    `/ready`, leaving sends SIGTERM and, if that does not end it in time, SIGKILL to the whole session.
    """

    def __init__(
        self,
        arguments: list[str],
        *,
        env: dict[str, str] | None = None,
        ready_timeout: float = 300.0,
        stop_timeout: float = 20.0,
        python: str = sys.executable,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [find_binary(), "serve", "--host", "127.0.0.1", "--port", str(self.port), *arguments]
        self._env = {**os.environ, **(env or {})}
        # The binary finds its Python through VIRTUAL_ENV; it must be the one that runs this harness.
        self._env.setdefault("VIRTUAL_ENV", str(Path(python).parent.parent))
        self._ready_timeout = ready_timeout
        self._stop_timeout = stop_timeout
        self._log: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server has not been started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def __enter__(self) -> Server:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=self._env,
            start_new_session=True,
        )

    def log(self, size: int = 4000) -> str:
        """The end of what the server has printed."""
        if self._log is None:
            return ""
        end = os.fstat(self._log.fileno()).st_size
        # pread leaves the offset alone, which the server's own writes share.
        return os.pread(self._log.fileno(), size, max(0, end - size)).decode(errors="replace")

    def wait_ready(self, timeout: float | None = None) -> None:
        """Returns once `/ready` answers 200. Raises BenchError with the log's end if it exits or is too slow."""
        deadline = time.monotonic() + (self._ready_timeout if timeout is None else timeout)
        while self.get("/ready") != 200:
            if (code := self.process.poll()) is not None:
                raise BenchError(f"`{' '.join(self.command)}` exited with {code}:\n{self.log()}")
            if time.monotonic() > deadline:
                raise BenchError(f"`{' '.join(self.command)}` is not ready in time:\n{self.log()}")
            time.sleep(0.05)

    def get(self, path: str) -> int | None:
        """Status of a GET, or None if nothing answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def stop(self) -> int | None:
        """Ends the server and whatever it left in its session; returns its exit status."""
        if self._process is None:
            return None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self._stop_timeout)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        if self._log is not None:
            self._log.close()
            self._log = None
        return code


def builtin_checkpoint() -> str:
    """Folder of the built-in model, converted first if need be. Raises BenchError where it cannot be had."""
    command = [sys.executable, "-m", "denizen.worker.fetch", "builtin"]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    events = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    last = events[-1] if events else {}
    if result.returncode != 0 or "path" not in last:
        raise BenchError(f"the built-in model cannot be had: {last.get('message', 'the fetch process failed')}")
    return str(last["path"])
