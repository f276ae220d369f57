"""Starts a server for a measurement, `denizen serve` or any other, waits until it is ready, and stops it."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Self
from urllib.parse import urlsplit

from denizen.bench.errors import BenchError

#: Lines of a log that an error shows.
_TAIL = 20
_PR_SET_PDEATHSIG = 1
#: Loaded here: between fork and exec nothing may be.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


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


def _die_with_parent() -> None:
    """In the child: a SIGTERM of its own if the harness ends without stopping it (Linux; prctl(2))."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Launched:
    """A server process with all that it starts, in a session of its own.

    Use as a context manager: entering waits until it is ready, leaving sends SIGTERM and, if that does not end it in
    time, SIGKILL to the whole session. It is ready when `/ready` answers 200 or, where there is no such route, when
    `/v1/models` does.
    """

    def __init__(
        self,
        command: list[str],
        url: str,
        *,
        env: dict[str, str] | None = None,
        ready_timeout: float = 300.0,
        stop_timeout: float = 20.0,
        log: Path | None = None,
        api_key: str | None = None,
    ) -> None:
        """What the server prints goes to the file `log`, or to one that is gone after :meth:`stop`."""
        self.command = command
        self.url = url
        self.log_path = log
        self.ready_seconds: float | None = None
        """From the start of the process until it was ready."""
        self.started = 0.0
        """When the process was started, a time of `time.perf_counter`."""
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._env = {**os.environ, **(env or {})}
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
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

    def __enter__(self) -> Self:
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
        try:
            self._log = tempfile.TemporaryFile() if self.log_path is None else self.log_path.open("w+b")  # noqa: SIM115
        except OSError as error:
            raise BenchError(f"--launch-log {self.log_path}: {error}") from error
        self.started = time.perf_counter()
        try:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        except OSError as error:
            self._close_log()
            raise BenchError(f"`{shlex.join(self.command)}` cannot be started: {error}") from error

    def log(self, size: int = 4000) -> str:
        """The end of what the server has printed."""
        if self._log is None:
            return ""
        end = os.fstat(self._log.fileno()).st_size
        # pread leaves the offset alone, which the server's own writes share.
        return os.pread(self._log.fileno(), size, max(0, end - size)).decode(errors="replace")

    def wait_ready(self, timeout: float | None = None) -> None:
        """Returns once the server is ready. Raises BenchError with the log's end if it exits or is too slow."""
        limit = self._ready_timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        while not self._is_ready():
            self.check_alive()
            if time.monotonic() > deadline:
                raise BenchError(f"`{shlex.join(self.command)}` is not ready after {limit:g} s{self._said()}")
            time.sleep(0.05)
        # An older server may hold the port: the one that answers must be the one that was started.
        self.check_alive()
        self.ready_seconds = time.perf_counter() - self.started

    def check_alive(self) -> None:
        """Raises BenchError with the log's end if the process has ended."""
        if (code := self.process.poll()) is not None:
            raise BenchError(f"`{shlex.join(self.command)}` exited with {code}{self._said()}")

    def get(self, path: str) -> int | None:
        """Status of a GET, or None if nothing answers."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=5)
        try:
            connection.request("GET", path, headers=self._headers)
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
        self._close_log()
        return code

    def _is_ready(self) -> bool:
        status = self.get("/ready")
        if status is not None and 400 <= status < 500:
            status = self.get("/v1/models")
        return status == 200

    def _said(self) -> str:
        said = "\n".join(self.log().strip().splitlines()[-_TAIL:])
        return f"; the end of what it printed:\n{said}" if said else "; it printed nothing"

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


class Server(Launched):
    """`denizen serve --host 127.0.0.1 --port PORT`, followed by `arguments`."""

    def __init__(
        self,
        arguments: list[str],
        *,
        env: dict[str, str] | None = None,
        ready_timeout: float = 300.0,
        stop_timeout: float = 20.0,
    ) -> None:
        self.port = free_port()
        command = [find_binary(), "serve", "--host", "127.0.0.1", "--port", str(self.port), *arguments]
        super().__init__(
            command,
            f"http://127.0.0.1:{self.port}",
            env={**own_python(), **(env or {})},
            ready_timeout=ready_timeout,
            stop_timeout=stop_timeout,
        )


def own_python() -> dict[str, str]:
    """The environment by which the `denizen` binary finds the Python that runs this harness."""
    return {} if "VIRTUAL_ENV" in os.environ else {"VIRTUAL_ENV": str(Path(sys.executable).parent.parent)}


def builtin_checkpoint() -> str:
    """Folder of the built-in model, converted first if need be. Raises BenchError where it cannot be had."""
    command = [sys.executable, "-m", "denizen.worker.fetch", "builtin"]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    events = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    last = events[-1] if events else {}
    if result.returncode != 0 or "path" not in last:
        raise BenchError(f"the built-in model cannot be had: {last.get('message', 'the fetch process failed')}")
    return str(last["path"])
