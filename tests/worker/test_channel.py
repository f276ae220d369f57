"""What the worker sends waits in order while the arena is full, attachments included."""

from __future__ import annotations

import pytest
from denizen.worker.channel import Channel
from denizen.worker.protocol import Audio, Done, decode

from tests.worker.peer import Full, TooLarge


class Arena:
    """Takes ``room`` messages, of at most ``largest`` bytes of attachment."""

    def __init__(self, room: int = 0, largest: int = 100) -> None:
        self.room = room
        self.largest = largest
        self.sent: list[tuple[bytes, bytes | None]] = []

    def send(self, envelope: bytes, attachment: bytes | None = None) -> None:
        if attachment is not None and len(attachment) > self.largest:
            raise TooLarge
        if not self.room:
            raise Full
        self.room -= 1
        self.sent.append((envelope, attachment))


def test_audio_waits_with_its_samples_and_before_its_end():
    arena = Arena(room=1)
    channel = Channel(arena, Full, TooLarge)
    for index in range(3):
        channel.send(Audio(index, 1), 7, bytes([index] * 4))
    channel.send(Done("stop", completion=3, samples=3), 7)
    assert channel.backlog == 3
    arena.room = 2
    channel.flush()
    arena.room = 9
    channel.flush()
    assert channel.backlog == 0
    envelopes = [decode(envelope) for envelope, _ in arena.sent]
    assert [envelope.sequence for envelope in envelopes] == [0, 1, 2, 3]
    assert [envelope.body for envelope in envelopes[:3]] == [Audio(index, 1) for index in range(3)]
    assert [attachment for _, attachment in arena.sent] == [b"\0" * 4, b"\1" * 4, b"\2" * 4, None]


def test_a_stretch_of_audio_that_can_never_fit_is_the_workers_fault():
    with pytest.raises(TooLarge):
        Channel(Arena(room=9), Full, TooLarge).send(Audio(0, 26), 7, bytes(104))
