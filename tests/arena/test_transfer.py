"""Messages between two processes: every size, both directions, full rings, waking, phases."""

from __future__ import annotations

import hashlib
import os
import random
import threading
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from denizen._native import CLASS_SIZES, INLINE_LEN, Arena, ArenaClosed, ArenaFull, HostArena, MessageTooLarge, SlabFull

from .harness import receive, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20


@pytest.mark.parametrize(
    "size",
    [0, 1, INLINE_LEN - 1, INLINE_LEN, INLINE_LEN + 1]
    + [size + delta for size in CLASS_SIZES[:4] for delta in (-1, 0, 1)]
    + [5 * MIB + 17],
)
def test_every_size_arrives_whole(start: Callable[..., Any], size: int) -> None:
    pair = start("digest")
    payload = random.Random(size).randbytes(size)
    pair.host.send(payload)
    pair.host.send(b"envelope", payload)
    answers = [envelope for envelope, _ in receive(pair.host, 2)]
    sha = hashlib.sha256(payload).digest()
    assert answers[0] == sha + hashlib.sha256(b"").digest()
    assert answers[1] == hashlib.sha256(b"envelope").digest() + sha
    assert pair.host.stats()["slots_in_use"] == 0


def test_attachments_come_back_as_they_were(start: Callable[..., Any]) -> None:
    pair = start("echo")
    for attachment in (None, b"", b"x", os.urandom(3 * MIB)):
        pair.host.send(b"e", attachment)
        assert receive(pair.host) == [(b"e", attachment)]
    for buffer in (bytearray(b"abc"), memoryview(b"abc"), memoryview(bytearray(70_000))):
        pair.host.send(b"e", buffer)
        assert receive(pair.host) == [(b"e", bytes(buffer))]


def test_an_attachment_of_another_type_says_what_to_do() -> None:
    host, fd = HostArena.create("nobody")
    os.close(fd)
    with pytest.raises(ValueError, match=r"memoryview\(x\)\.cast\('B'\)"):
        host.send(b"e", memoryview(bytes(8)).cast("d"))
    with pytest.raises(ValueError, match="attachment must be bytes"):
        host.send(b"e", "text")  # type: ignore[arg-type]


def test_many_messages_keep_order_and_memory_stays_flat(start: Callable[..., Any]) -> None:
    """A tenth of the messages go through the slab: every slot comes back, no process grows.

    ``DENIZEN_SOAK`` sets how many messages; a million is the soak, the ordinary run is shorter.
    """
    pair = start("echo", request_ring=64, result_ring=64)
    peer = psutil.Process(pair.process.pid)
    batch = 32
    total = int(os.environ.get("DENIZEN_SOAK", "100000")) // batch * batch
    small, large = b"s" * 90, b"l" * 6000
    resident: list[int] = []
    for first in range(0, total, batch):
        sent = [(i.to_bytes(4, "little"), large if i % 10 == 0 else small) for i in range(first, first + batch)]
        for message in sent:
            pair.host.send(*message)
        assert receive(pair.host, batch) == sent
        if first in (total // 4 // batch * batch, total - batch):
            resident.append(peer.memory_info().rss + psutil.Process().memory_info().rss)
    stats = pair.host.stats()
    assert stats["sent"] == stats["received"] >= total
    assert stats["slots_in_use"] == 0
    assert stats["slab_free"] == stats["slab_total"]
    assert stats["ring_full"] == 0
    assert resident[1] - resident[0] < 8 * MIB


def test_hard_coded_ring_size_deadlock(start: Callable[..., Any]) -> None:
    """Symptom 5: bursts beyond the capacity of small rings end in an error or in delivery, never in a stall."""
    for ring in (1, 2, 3, 7):
        # The echo, which stops at a full ring, has room for all.
        pair = start("echo", request_ring=ring, result_ring=100)
        sent, received = 0, 0
        while sent < 100:
            try:
                pair.host.send(sent.to_bytes(4, "little"))
                sent += 1
            except ArenaFull:
                for envelope, _ in receive(pair.host):
                    assert envelope == received.to_bytes(4, "little")
                    received += 1
        for envelope, _ in receive(pair.host, sent - received):
            assert envelope == received.to_bytes(4, "little")
            received += 1


def test_a_full_slab_can_be_retried(start: Callable[..., Any]) -> None:
    pair = start("digest", request_slots=(0, 2, 0, 0, 0))
    payload = os.urandom(60_000)
    refusals = 0
    for _ in range(200):
        while True:
            try:
                pair.host.send(payload)
                break
            except SlabFull:
                refusals += 1
                receive(pair.host)
    assert refusals > 0
    assert refusals == pair.host.stats()["slab_full"]
    with pytest.raises(MessageTooLarge, match="65536"):
        pair.host.send(bytes(65_537))


def test_phases_and_their_age_are_seen(start: Callable[..., Any]) -> None:
    pair = start("phases").attached()
    assert pair.host.heartbeat()["phase"] == "load"
    for number, name in enumerate(["load", "capture", "prefill", "decode", "idle"]):
        pair.host.send(bytes([number]))
        receive(pair.host)
        assert pair.host.heartbeat()["phase"] == name
    age = pair.host.heartbeat()["phase_age"]
    wait_for("the phase to age", lambda: pair.host.heartbeat()["phase_age"] > age)


def test_wake_ends_a_blocked_recv_with_nothing() -> None:
    host, fd = HostArena.create("self")
    arena = Arena.attach(fd)
    results: list[object] = []

    def consume() -> None:
        results.append(arena.recv())
        try:
            arena.recv()
        except ArenaClosed as error:
            results.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    wait_for("recv to sleep", lambda: arena.stats()["sleeps"] == 1)
    arena.wake()
    wait_for("recv to sleep again", lambda: arena.stats()["sleeps"] == 2)
    arena.close()
    thread.join(30)
    assert results[0] == []
    assert isinstance(results[1], ArenaClosed)
    assert host.poll() == "gone"


def test_an_unknown_phase_is_refused() -> None:
    _host, fd = HostArena.create("self")
    with Arena.attach(fd) as arena, pytest.raises(ValueError, match="phase 9"):
        arena.set_phase(9)
