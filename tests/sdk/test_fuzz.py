"""A client that sends garbage harms only itself: random and mutated envelopes beside a client that must not notice."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from denizen._native import ArenaError, ClientArena
from denizen.shm import Client, wire
from denizen.shm.opening import open_arena

from tests.e2e.waiting import eventually

from .fake import BYE, CALL, CANCEL, CHUNK, FAILED, PART, RESULT, WELCOME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Rendezvous

ROUNDS = int(os.environ.get("DENIZEN_SDK_FUZZ", "300"))
"""Clients that each seed opens and spoils."""
CALLS: list[dict[str, Any]] = [
    {"endpoint": "completions", "body": {"model": "text", "prompt": "abc", "max_tokens": 4, "stream": True}},
    {"endpoint": "chat.completions", "body": {"model": "text", "messages": [{"role": "user", "content": "x"}]}},
    {"endpoint": "audio.transcriptions", "body": {"model": "ears"}, "rate": 16000, "audio_len": 64},
    {"endpoint": "audio.speech", "body": {"model": "text", "input": "x"}},
    {"endpoint": "tokenize", "body": {"model": "text", "prompt": "x"}},
    {"endpoint": "detokenize", "body": {"model": "text", "tokens": [1]}},
    {"endpoint": "models", "body": {}},
    {"endpoint": "completions", "body_len": 100},
]


@contextlib.contextmanager
def healthy(server: Rendezvous) -> Iterator[None]:
    """A client beside, whose every answer must be right."""
    stop = threading.Event()
    wrong: list[object] = []
    turns = 0

    def use() -> None:
        nonlocal turns
        try:
            with server.connect() as client:
                while not stop.is_set():
                    answer = client.generate("abcd", max_tokens=8, temperature=0, stream=True).result()
                    if answer.text != "abcdabcd":
                        wrong.append(answer)
                    turns += 1
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    try:
        yield
        seen = turns
        eventually(lambda: turns > seen or wrong, "the healthy client goes on")
    finally:
        stop.set()
        thread.join()
    assert not wrong, wrong


def value(rng: random.Random, depth: int = 0) -> Any:
    """Anything that msgpack can carry, and more that JSON cannot."""
    kind = rng.randrange(12 if depth < 4 else 8)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.choice([0, 1, -1, 2**31, 2**32, 2**63, 2**64 - 1, -(2**63), rng.randrange(1000)])
    if kind == 2:
        return rng.choice([0.0, -1.5, float("nan"), float("inf"), 1e308])
    if kind in (3, 4):
        return "".join(chr(rng.randrange(1, 0x2FF)) for _ in range(rng.randrange(12)))
    if kind in (5, 6):
        return rng.randbytes(rng.randrange(64))
    if kind == 7:
        return msgpack.ExtType(rng.randrange(100), rng.randbytes(4))
    if kind in (8, 9):
        return [value(rng, depth + 1) for _ in range(rng.randrange(5))]
    keys = ["endpoint", "body", "body_len", "audio_len", "rate", "prompt", "model", "n", "stream", "max_tokens", "x", 5]
    return {rng.choice(keys): value(rng, depth + 1) for _ in range(rng.randrange(6))}


def envelope(rng: random.Random) -> bytes:
    """Random bytes, a random array, or a right envelope with something wrong in it."""
    shape = rng.randrange(6)
    if shape == 0:
        return rng.randbytes(rng.randrange(300))
    if shape == 1:
        return bytes(msgpack.packb(value(rng)))
    kind: Any = rng.choice([CALL, CALL, CALL, PART, CANCEL, BYE, WELCOME, CHUNK, RESULT, FAILED, 0, 99, value(rng)])
    request: Any = rng.choice([1, 2, 3, 0, 2**64 - 1, value(rng)])
    body: Any = dict(rng.choice(CALLS))
    for _ in range(rng.randrange(3)):
        body[rng.choice(list(body))] = value(rng)
    if isinstance(body.get("body"), dict) and rng.random() < 0.5:
        body["body"] = {**body["body"], rng.choice(["prompt", "n", "stop", "seed", "language", "stream"]): value(rng)}
    if shape == 2:
        body = value(rng)
    packed = bytearray(msgpack.packb([rng.choice([1, 1, 1, 1, 2, value(rng)]), kind, request, 0, body]))
    if shape == 3 and packed:
        for _ in range(rng.randrange(1, 4)):
            packed[rng.randrange(len(packed))] = rng.randrange(256)
    if shape == 4:
        del packed[rng.randrange(len(packed)) :]
    return bytes(packed)


def spoil(arena: ClientArena, rng: random.Random) -> None:
    """Sends until the server hangs up, or until there has been enough."""
    with contextlib.suppress(ArenaError):
        for _ in range(rng.randrange(1, 40)):
            size = rng.choice([0, 0, 0, 1, 7, 64, 5000, 300_000])
            arena.send(envelope(rng), rng.randbytes(size) if size else None)
            if rng.random() < 0.3:
                for data, attachment in arena.recv(16, 0):
                    # Whatever was asked, what the front end says is well formed.
                    assert wire.decode(data, attachment) is not None


def until_end(arena: ClientArena) -> list[wire.Envelope]:
    """What the front end says until it hangs up."""
    said: list[wire.Envelope] = []
    with contextlib.suppress(ArenaError):
        while messages := arena.recv(64, 30_000):
            said += [found for each in messages if (found := wire.decode(*each))]
    return said


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_garbage_harms_only_its_sender(fast: Rendezvous, seed: int) -> None:
    rng = random.Random(seed)
    with healthy(fast):
        for _ in range(ROUNDS):
            arena = open_arena(fast.socket, rng.random() < 0.2, 30)
            spoil(arena, rng)
            if rng.random() < 0.5:
                arena.close()
            del arena
    eventually(lambda: fast.metrics()["denizen_shm_clients"] == 0, "all spoilers have gone")
    assert fast.metrics()["denizen_shm_cut_off_total"] > 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2))
def test_garbage_at_the_door_harms_nobody(fast: Rendezvous, seed: int) -> None:
    """What comes to the socket instead of a client's hello: bytes, nothing, an end."""
    rng = random.Random(seed)
    held: list[socket.socket] = []
    with healthy(fast):
        for _ in range(ROUNDS):
            door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            door.connect(str(fast.socket))
            with contextlib.suppress(OSError):
                for _ in range(rng.randrange(3)):
                    door.send(rng.choice([b"DZCL", b"DZCL" + rng.randbytes(20), rng.randbytes(rng.randrange(1, 4000))]))
            if rng.random() < 0.1 and len(held) < 5:
                held.append(door)  # and hangs
            else:
                door.close()
        with Client(path=fast.socket) as client:
            assert client.generate("abc", max_tokens=3, temperature=0).text == "abc"
    for door in held:
        door.close()


def test_the_second_use_of_an_open_id_ends_the_client(slow: Rendezvous) -> None:
    """Only that one: the ids of another client are its own."""
    body = {"endpoint": "completions", "body": {"model": "text", "prompt": "abc", "max_tokens": 3000, "stream": True}}
    with slow.connect() as client:
        beside = client.generate("abc", stream=True, max_tokens=3000, ignore_eos=True)  # its request is number 1, too
        next(beside)
        arena = open_arena(slow.socket, False, 30)
        for _ in range(2):
            arena.send(msgpack.packb([1, CALL, 1, 0, body]))
        said = until_end(arena)
        assert (said[-1].kind, said[-1].body.get("code")) == (wire.Kind.BYE, "protocol")
        assert said[-1].body.get("why")
        next(beside)
        beside.close()
