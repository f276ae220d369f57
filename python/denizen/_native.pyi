"""The shared-memory arena for Python peers (the Rust crate `denizen-shm`).

A worker calls :meth:`Arena.attach` with the file descriptor it inherited. A client of a server calls
:meth:`Invitation.request` with the path of its socket. :class:`HostArena` is the front end's end of a pair, which the
Rust front end uses directly; from Python it serves tests and benchmarks.

Every object may be used from several threads. One thread at a time is inside ``recv``; a second one waits for it.
"""

from types import TracebackType
from typing import Literal, Self, TypedDict

from typing_extensions import Buffer

ABI: tuple[int, int]
"""Major and minor version of the object format."""
MAGIC: int
FIELDS_HASH: int
"""Hash of :data:`FIELDS`: builds whose tables differ refuse each other."""
HEADER_LEN: int
DESCRIPTOR_LEN: int
INLINE_LEN: int
"""Bytes of a message (envelope and attachment together) that travel in a descriptor and never touch the slab."""
CLASS_SIZES: list[int]
"""Bytes of a slab slot, by size class."""
FIELDS: dict[str, tuple[int, int]]
"""``header.NAME``, ``descriptor.NAME``, ``slot.NAME`` → (offset, size) in bytes, within its part."""

class ArenaError(Exception):
    """Base of all arena errors."""

class ArenaFull(ArenaError):
    """The ring is full. Credits make that impossible, so it is a bug, or the peer stands still; the message names the
    peer, its pid, the queue's depth and the age of its heartbeat."""

class SlabFull(ArenaError):
    """The slab has no room now. Nothing was sent; retry when the peer has taken some messages."""

class MessageTooLarge(ArenaError):
    """The message exceeds the whole slab: retrying is useless."""

class PeerGone(ArenaError):
    """The process at the other end has closed the arena, exited or been killed."""

class AttachError(ArenaError):
    """Attaching failed: another version, a missing, short or broken object, no front end. From
    :meth:`HostArena.poll`: the peer's attach failed, with its reason."""

class NoServer(AttachError):
    """Nobody listens at the rendezvous: no socket, or one that its server left behind."""

class NoSpace(ArenaError):
    """``/dev/shm`` cannot hold the arena; the message says how much is needed and which flag gives it."""

class CorruptArena(ArenaError):
    """The peer wrote something impossible. Nothing more is read from it."""

class ArenaClosed(ArenaError):
    """This end was closed, or this process is a fork of the one that owns it."""

class Stats(TypedDict):
    """Counts since creation, and how full things are now."""

    sent: int
    received: int
    bytes_sent: int
    bytes_received: int
    rings: int
    """Times this side rang the peer's doorbell."""
    sleeps: int
    """Times this side went to sleep in ``recv``."""
    ring_full: int
    slab_full: int
    bad_returns: int
    """Slab slots that the peer handed back without holding them."""
    out_depth: int
    """Messages that the peer has not taken."""
    in_depth: int
    """Messages that wait for this side."""
    slots_in_use: int
    """Slots of this side's slab that hold messages not yet taken."""
    slab_free: int
    slab_total: int

class Heartbeat(TypedDict):
    beat_age: float | None
    """Seconds since the peer's last beat; None before the first."""
    phase: Literal["load", "capture", "prefill", "decode", "idle"] | None
    phase_age: float
    """Seconds since the peer entered the phase."""

class Swept(TypedDict):
    removed: list[str]
    """Objects whose creator is dead; removed."""
    alive: int
    """Objects of this user whose creator lives."""
    foreign: int
    """Objects of other users; left alone."""

class Arena:
    """A worker's end of a pair. A native thread beats about four times a second as long as it is open."""

    @staticmethod
    def attach(fd: int) -> Arena:
        """Attach over the inherited socket `fd`, which the arena takes over. Starts in phase 0 (load).

        Raises AttachError; the front end gets the same reason.
        """

    def send(self, envelope: bytes, attachment: Buffer | None = None) -> None:
        """Publish one message and wake the front end if it sleeps. Never blocks.

        `attachment` is a contiguous buffer of bytes (``memoryview(x).cast("B")`` for other element types).
        Raises ArenaFull, SlabFull (retryable), MessageTooLarge, PeerGone, ArenaClosed.
        """

    def recv(self, max_messages: int = 256, timeout_ms: int = -1) -> list[tuple[bytes, bytes | None]]:
        """Take up to `max_messages` waiting messages as (envelope, attachment), sleeping until there is one.

        The GIL is released meanwhile. `timeout_ms` 0 looks without sleeping, negative sleeps for ever. Returns []
        on timeout, after :meth:`wake`, and after a signal whose handler did not raise.
        Raises PeerGone once the front end has gone and everything it published has been taken; CorruptArena.
        """

    def wake(self) -> None:
        """Make a blocked ``recv`` of this process return, or the next one if none is blocked."""

    def set_phase(self, phase: int) -> None:
        """Say what the engine does from now on: 0 load, 1 capture, 2 prefill, 3 decode, 4 idle.

        Calling it again with the same phase renews the time of entry: do so at every step.
        """

    def stats(self) -> Stats: ...
    def close(self) -> None:
        """Stop the heartbeat, publish nothing more, and let the front end see the end of file. A blocked ``recv``
        raises ArenaClosed."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

class HostArena:
    """The front end's end of a pair, for tests and benchmarks."""

    @staticmethod
    def create(
        peer_name: str = "peer",
        epoch: int = 1,
        request_ring: int | None = None,
        request_slots: tuple[int, int, int, int, int] | None = None,
        result_ring: int | None = None,
        result_slots: tuple[int, int, int, int, int] | None = None,
    ) -> tuple[HostArena, int]:
        """Create a pair. Returns it with the file descriptor for the peer, which the caller owns: pass it to a child
        (``subprocess.Popen(..., pass_fds=[fd])``), then ``os.close(fd)``; or give it to :meth:`Arena.attach` here.

        Rings count messages, slots count per class of CLASS_SIZES; None takes a text worker's sizes.
        Raises NoSpace, ValueError.
        """

    def send(self, envelope: bytes, attachment: Buffer | None = None) -> None:
        """As :meth:`Arena.send`. The peer need not have attached yet."""

    def recv(self, max_messages: int = 256, timeout_ms: int = -1) -> list[tuple[bytes, bytes | None]]:
        """As :meth:`Arena.recv`. Raises AttachError if the peer could not attach."""

    def wake(self) -> None: ...
    def arm(self) -> bool:
        """Before waiting for :meth:`doorbell_fd`: True if nothing waits and the next message will ring."""

    def disarm(self) -> None:
        """After waiting, whatever ended it."""

    def doorbell_fd(self) -> int: ...
    def socket_fd(self) -> int: ...
    def poll(self) -> Literal["waiting", "up", "gone"]:
        """Look at the socket without waiting: has the peer attached, or gone? Raises AttachError if it refused."""

    def heartbeat(self) -> Heartbeat: ...
    @property
    def peer_pid(self) -> int:
        """0 until the peer has attached."""

    @property
    def names(self) -> tuple[str, str]:
        """Names of the objects in ``/dev/shm``, (requests, results). They exist only until the peer has attached."""

    def stats(self) -> Stats: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

class Invitation:
    """What a server's front end offers to a client that has connected: the names of its arena pair and doorbell.

    Open the two objects (``posix_ipc.SharedMemory``), then :meth:`attach`. Dropping it without that tells the front
    end, which removes the names.
    """

    @staticmethod
    def request(path: str, audio: bool = False, timeout_ms: int = 10_000) -> Invitation:
        """Connect to the rendezvous socket at `path`. `audio` asks for a slab that holds seconds of PCM a message.

        The GIL is released meanwhile. Raises NoServer; AttachError with the front end's own reason if it refuses (too
        many clients, another version, another user, ``/dev/shm`` too small), or if nothing comes in time.
        """

    @property
    def requests(self) -> str:
        """Name of the object that the front end writes, with a slash in front; open it read-only."""

    @property
    def results(self) -> str:
        """Name of the object that this client writes, with a slash in front; open it for reading and writing."""

    @property
    def bell(self) -> str:
        """Name of the semaphore that the front end posts, with a slash in front. ``attach`` opens it by itself."""

    def attach(self, requests_fd: int, results_fd: int) -> ClientArena:
        """Map both objects, open the semaphore, and tell the front end, which then removes all three names.

        The descriptors are only used during the call: close them afterwards. May be called once.
        Raises AttachError; the front end gets the same reason.
        """

    def refuse(self, reason: str) -> None:
        """Tell the front end why this client cannot attach, and hang up."""

class ClientArena:
    """A client's end of a pair. A native thread beats, and watches for the front end's death, as long as it is open.

    Messages are sorted by the call (request) that they belong to. Call 0 has those that belong to none.
    """

    @staticmethod
    def inherited(fd: int) -> ClientArena:
        """A client's end over the socket of a :class:`HostArena`, as :meth:`Arena.attach` a worker's; for tests."""

    @property
    def part_bytes(self) -> int:
        """Longest attachment that leaves room for other messages: 256 KiB, or 2 MiB for a client with audio."""

    @property
    def gone(self) -> bool:
        """Whether the front end has gone; what it published before can still be taken."""

    @property
    def inside(self) -> int:
        """Threads that wait in here: none must when the interpreter ends."""

    @property
    def open_calls(self) -> int: ...
    def send(self, envelope: bytes, attachment: Buffer | None = None, timeout_ms: int = 0) -> None:
        """Publish one message and wake the front end if it sleeps.

        Where there is no room, try again for `timeout_ms` (negative: for ever) with the GIL released; other threads may
        send meanwhile. Raises as :meth:`Arena.send`, ArenaFull and SlabFull when that time is over.
        """

    def open(self, call: int, limit: int) -> None:
        """From now on keep what comes for `call`; with more than `limit` bytes left unread it is cancelled.

        What comes for calls that are not open is dropped. Raises ArenaClosed.
        """

    def take(self, call: int, timeout_ms: int = -1) -> list[tuple[bytes, bytes | None]] | None:
        """What has come for `call`, in order; waits for something. None if more than the call's limit was left unread.

        Empty at the end of `timeout_ms`, and if the call is not open. Of the threads that wait in here, one receives
        for all. The GIL is released; signals are handled. Raises PeerGone once everything before has been taken,
        CorruptArena, ArenaClosed.
        """

    def collect(self, call: int) -> list[tuple[bytes, bytes | None]] | None:
        """The same without looking into the arena: what others have received. Raises nothing."""

    def announce(self) -> None:
        """From now on :meth:`arrivals` will be told of what comes."""

    def arrivals(self, timeout_ms: int = -1) -> list[int]:
        """Receive until something has come, and return the calls that it came for. Raises as :meth:`take`.

        For one thread, which tells those that :meth:`collect`.
        """

    def close_call(self, call: int) -> None:
        """Its terminal has come: drop what still comes for it."""

    def cancel(self, call: int) -> None:
        """The same, and tell the front end. Takes no lock that Python code may hold; does nothing in a forked child."""

    def recv(self, max_messages: int = 256, timeout_ms: int = -1) -> list[tuple[bytes, bytes | None]]:
        """As :meth:`Arena.recv`; sleeps on the semaphore. For programs that sort by themselves, and open no calls."""

    def stats(self) -> Stats: ...
    def close(self) -> None:
        """Publish nothing more, and let the front end see the end of file. Whoever waits gets ArenaClosed."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

def sweep() -> Swept:
    """Remove every arena object of this user in ``/dev/shm`` whose creator is dead."""
