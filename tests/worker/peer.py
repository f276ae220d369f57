"""The front end's side of a worker's engine, in the same process: an arena made of queues, and what came through it."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field

from denizen.worker.channel import Channel
from denizen.worker.engine import Engine
from denizen.worker.protocol import Abort, Bye, Done, Drain, Error, Stats, Submit, TokenRow, Tokens, decode, encode

DEADLINE_S = 60.0


class Full(Exception):
    pass


class TooLarge(Exception):
    pass


class PeerGone(Exception):
    pass


class QueueArena:
    """The interface of ``denizen._native.Arena`` over two deques. ``room``: envelopes that fit unread; None = any."""

    def __init__(self) -> None:
        self.incoming: deque[tuple[bytes, bytes | None]] = deque()
        self.outgoing: deque[bytes] = deque()
        self.changed = threading.Condition()
        self.room: int | None = None
        self.largest = 1 << 20  #: bytes of an envelope
        self.gone = False
        self.woken = False
        self.blocking = 0  #: recv calls that waited
        self.phases: list[int] = []

    def send(self, envelope: bytes, attachment: bytes | None = None) -> None:
        with self.changed:
            if self.gone:
                raise PeerGone
            if len(envelope) > self.largest:
                raise TooLarge
            if self.room is not None and len(self.outgoing) >= self.room:
                raise Full
            self.outgoing.append(envelope)
            self.changed.notify_all()

    def put(self, envelope: bytes, attachment: bytes | None = None) -> None:
        """What the other side sends."""
        with self.changed:
            self.incoming.append((envelope, attachment))
            self.changed.notify_all()

    def recv(self, max_messages: int = 256, timeout_ms: int = -1) -> list[tuple[bytes, bytes | None]]:
        with self.changed:
            if timeout_ms and not self.incoming:
                self.blocking += 1
                self.changed.wait_for(
                    lambda: self.incoming or self.gone or self.woken, None if timeout_ms < 0 else timeout_ms / 1000
                )
            self.woken = False
            if self.gone and not self.incoming:
                raise PeerGone
            return [self.incoming.popleft() for _ in range(min(max_messages, len(self.incoming)))]

    def wake(self) -> None:
        with self.changed:
            self.woken = True
            self.changed.notify_all()

    def set_phase(self, phase: int) -> None:
        self.phases.append(phase)

    def close(self) -> None:
        pass


@dataclass
class Outcome:
    """What a request got back."""

    rows: list[TokenRow] = field(default_factory=list)
    end: Done | Error | None = None
    terminals: int = 0

    @property
    def tokens(self) -> list[int]:
        """Output tokens, the end id included."""
        tokens = [row.token for row in self.rows]
        if isinstance(self.end, Done) and self.end.stop_id is not None:
            tokens.append(self.end.stop_id)
        return tokens


class Peer:
    """Runs an engine in a thread and talks to it. Use as a context manager: leaving it drains the engine."""

    def __init__(self, models, *, overlap: bool = True) -> None:
        self.arena = QueueArena()
        self.engine = Engine(Channel(self.arena, Full, TooLarge), models, overlap=overlap)
        self.models = list(models)
        self.outcomes: dict[int, Outcome] = {}
        self.stats: list[Stats] = []
        self.bye: Bye | None = None
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.engine.run()
        except BaseException as error:
            self.failure = error
            with self.arena.changed:
                self.arena.changed.notify_all()

    def __enter__(self) -> Peer:
        self.thread.start()
        return self

    def __exit__(self, kind, value, trace) -> None:
        if kind is None and self.failure is None:
            self.send(Drain())
            self.until(lambda: self.bye is not None)
        else:
            self.engine.stop("the test failed")
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()

    def send(self, body, request: int = 0, attachment: bytes | None = None) -> None:
        self.arena.put(encode(body, request=request), attachment)

    def submit(self, request: int, ids, max_tokens: int, *, audio: bytes | None = None, **options) -> None:
        self.outcomes[request] = Outcome()
        options.setdefault("temperature", 0.0)
        self.send(Submit(options.pop("model", "toy"), list(ids), max_tokens, **options), request, audio)

    def abort(self, request: int) -> None:
        self.send(Abort(), request)

    def until(self, condition) -> None:
        """Takes what the engine sends until ``condition()`` holds."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            with self.arena.changed:
                self.arena.changed.wait_for(lambda: self.arena.outgoing or self.failure, 0.02)
                taken = list(self.arena.outgoing)
                self.arena.outgoing.clear()
            if self.failure is not None and not taken:
                raise AssertionError("the engine broke") from self.failure
            assert time.monotonic() < deadline, "timed out"
            for data in taken:
                self._take(data)

    def _take(self, data: bytes) -> None:
        envelope = decode(data)
        body = envelope.body
        if isinstance(body, Tokens):
            for row in body.rows:
                outcome = self.outcomes[row.request]
                assert outcome.end is None, "a token after the terminal envelope"
                assert row.position == len(outcome.rows)
                outcome.rows.append(row)
        elif isinstance(body, (Done, Error)):
            outcome = self.outcomes[envelope.request]
            outcome.end = body
            outcome.terminals += 1
            assert outcome.terminals == 1
        elif isinstance(body, Stats):
            self.stats.append(body)
        elif isinstance(body, Bye):
            self.bye = body

    def finish(self, *requests: int) -> list[Outcome]:
        """Waits for the requests' terminal envelopes."""
        wanted = requests or tuple(self.outcomes)
        self.until(lambda: all(self.outcomes[request].end is not None for request in wanted))
        return [self.outcomes[request] for request in wanted]


def generate(served, prompts, max_tokens: int, *, overlap: bool = True, **options) -> list[list[int]]:
    """Output tokens of ``prompts``, submitted together. ``options`` lists are spread over the prompts."""
    with Peer([served], overlap=overlap) as peer:
        for index, ids in enumerate(prompts):
            own = {name: value[index] if isinstance(value, list) else value for name, value in options.items()}
            peer.submit(index + 1, ids, max_tokens, model=served.name, **own)
        outcomes = peer.finish()
    assert_empty(served)
    for outcome in outcomes:
        assert isinstance(outcome.end, Done), outcome.end
    return [outcome.tokens for outcome in outcomes]


def assert_empty(served) -> None:
    """Rows, pages and state slots are back at their start, and the mirror is zero."""
    scheduler = served.scheduler
    assert scheduler.idle
    assert scheduler.rows.used == 0
    assert all(pool.used == 0 for pool in scheduler.kv.values())
    assert all(pool.used == 0 for pool in scheduler.state.values())
    for key in scheduler.mirror.lengths:
        assert not scheduler.mirror.lengths[key].any()
        assert not scheduler.mirror.pages[key].any()
