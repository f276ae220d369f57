"""The end of a call's time."""

from __future__ import annotations

import time

from denizen.shm.errors import Timeout, bad_request


class Deadline:
    """Of a call that may take `timeout` seconds from now on; None: for ever. Raises BadRequest if not positive."""

    def __init__(self, timeout: float | None) -> None:
        if timeout is not None and not timeout > 0:
            raise bad_request("timeout", f"'timeout' must be a positive number of seconds, or None, not {timeout!r}")
        self._timeout = timeout
        self._at = None if timeout is None else time.monotonic() + timeout

    def left(self) -> float | None:
        """Seconds. Raises Timeout when they are over."""
        if self._at is None:
            return None
        left = self._at - time.monotonic()
        if left > 0:
            return left
        raise Timeout(
            f"no complete answer within {self._timeout:g} s; give the call a larger 'timeout'",
            status=504,
            type="server_error",
            param="timeout",
            code="timeout",
        )

    def left_ms(self, most: int) -> int:
        """Milliseconds, rounded up, `most` at most. Raises Timeout when they are over."""
        left = self.left()
        return most if left is None else min(most, int(left * 1000) + 1)
