"""Sees that a server under an open loop falls behind ever further, so that a hopeless level need not run to its end."""

from __future__ import annotations

import math
from bisect import bisect_left

#: Seconds before which nothing is said.
_SHORTEST = 2.0
#: How many requests, the first ones sent, show how long an answer takes.
_EARLY = 8
#: So many times their longest answer a level has run before it is judged: until then the number of open requests grows
#: on any server, since the first answers are still to come.
_SETTLED = 4.0
#: A quarter of a level is short of answers if it got this share less than requests,
_SHARE = 0.1
#: and so many deviations of the number of its requests, as if they came by chance.
_DEVIATIONS = 3.0


class Backlog:
    """The requests of one open loop that are still open. Times in seconds from the start of the pass."""

    def __init__(self) -> None:
        self._sent: list[float] = []
        self._ended: list[float] = []
        self._early: set[int] = set()
        self._longest = 0.0
        self._next = _SHORTEST

    def sent(self, now: float) -> int:
        """A request was sent; returns its number."""
        number = len(self._sent)
        self._sent.append(now)
        if number < _EARLY:
            self._early.add(number)
        return number

    def ended(self, number: int, now: float) -> None:
        """That request has been answered, or has failed."""
        self._ended.append(now)
        if number in self._early:
            self._early.discard(number)
            self._longest = max(self._longest, now - self._sent[number])

    def grows(self, now: float) -> str | None:
        """Why the load is more than the server can take, or None while that cannot be said.

        It can when in the third and in the last quarter of the time so far fewer requests ended than were sent, by more
        than chance makes likely. Looks again each time that the level has become a tenth longer.
        """
        if now < self._next or len(self._sent) < _EARLY or self._early:
            return None
        self._next = 1.1 * now
        if now < _SETTLED * self._longest:
            return None
        for begin in (now / 2, now * 3 / 4):
            sent, ended = (_within(times, begin, begin + now / 4) for times in (self._sent, self._ended))
            if sent - ended < max(_SHARE * sent, _DEVIATIONS * math.sqrt(sent), 1):
                return None
        sent, ended = (_within(times, now / 2, now) for times in (self._sent, self._ended))
        return (
            f"overloaded: in the last {now / 2:.1f} s {sent} requests were sent and {ended} answered, "
            f"{len(self._sent) - len(self._ended)} were waiting; the rest was not sent"
        )


def _within(times: list[float], begin: float, end: float) -> int:
    return bisect_left(times, end) - bisect_left(times, begin)
