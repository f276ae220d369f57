"""What a fetch tells its parent process: JSON lines on stdout, one event a line.

| event | keys |
|---|---|
| ``status`` | ``message`` |
| ``progress`` | ``file``, ``done``, ``total`` (bytes; ``total`` 0 = not known yet) |
| ``done`` | ``path``: the checkpoint folder |
| ``error`` | ``code``, ``message``: one line that says what to do |
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import TextIO

from denizen.worker.errors import WorkerError

#: Least seconds between two progress events of a file; its last one is always sent.
_INTERVAL = 0.1


class FetchError(WorkerError):
    """A model cannot be had. ``code``: ``not_found``, ``gated``, ``network``, ``disk_full``, ``corrupt``,
    ``usage``, ``io``."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Report:
    """Writes events; may be called from several threads."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._lock = threading.Lock()
        self._sent: dict[str, float] = {}

    def status(self, message: str) -> None:
        self._write({"event": "status", "message": message})

    def progress(self, file: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done < total and now - self._sent.get(file, -_INTERVAL) < _INTERVAL:
            return
        self._sent[file] = now
        self._write({"event": "progress", "file": file, "done": done, "total": total})

    def done(self, path: str) -> None:
        self._write({"event": "done", "path": path})

    def error(self, error: FetchError) -> None:
        self._write({"event": "error", "code": error.code, "message": " ".join(str(error).split())})

    def _write(self, event: dict[str, str | int]) -> None:
        with self._lock:
            self._stream.write(json.dumps(event) + "\n")
            self._stream.flush()
