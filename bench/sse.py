"""Server-sent events out of a byte stream that may be cut anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Events:
    """Incremental parser: feed it chunks, get each complete event's data."""

    def __init__(self) -> None:
        self._rest = b""
        self.done = False
        """`[DONE]` has been seen."""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The data of every line that `chunk` completes; OpenAI's events are one `data:` line each."""
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            self.done = self.done or data == b"[DONE]"
            yield data
