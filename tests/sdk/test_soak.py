"""Hours of traffic in small: calls of every kind and end, and memory, descriptors and threads that stay as they were.

`DENIZEN_SDK_SOAK=200000` makes as many calls as a program with 50 a second makes in an hour; the default is a sample.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from denizen.bench.processes import tree
from denizen.shm import BadRequest, Timeout

from tests.e2e.running import arena_objects
from tests.e2e.waiting import eventually

if TYPE_CHECKING:
    from denizen.shm import Client

    from .conftest import Rendezvous, Serve

CALLS = int(os.environ.get("DENIZEN_SDK_SOAK", "3000"))
THREADS = 4
GROWTH = 24 << 20
"""Bytes that a process may grow by while the second half of the calls is made: caches of allocators, not leaks."""


def resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def held(server: Rendezvous) -> dict[str, Any]:
    """What must be the same before and after."""
    gc.collect()
    return {
        "threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "server descriptors": len(os.listdir(f"/proc/{server.pid}/fd")),
    }


def one_call(client: Client, rng: random.Random, sound: np.ndarray) -> None:
    """A call of a random kind, with a random end."""
    size = rng.randrange(1, 40)
    arguments: Any = {"max_tokens": size, "temperature": 0, "ignore_eos": True}
    match rng.randrange(8):
        case 0 | 1:
            assert client.generate("abc", **arguments).usage.completion_tokens == size
        case 2 | 3:
            stream = client.generate("abc", stream=True, **arguments)
            assert stream.result().usage.completion_tokens == size
        case 4:
            stream = client.generate("abc", stream=True, max_tokens=3000, ignore_eos=True)
            next(stream)
            if rng.random() < 0.5:
                stream.close()
        case 5:
            with pytest.raises(BadRequest):
                client.generate("abc", max_tokens=0)
        case 6:
            assert client.transcribe(sound[: rng.randrange(1000, len(sound))], 16_000).text
        case 7:
            with contextlib.suppress(Timeout):  # an answer that is there all the same is handed out
                client.generate("x" * rng.randrange(1, 1000), timeout=0.001, max_tokens=2000, ignore_eos=True)


@pytest.mark.timeout(0 if CALLS > 10_000 else 900)
def test_memory_stays_flat(serve: Serve) -> None:
    server = serve()
    sound = np.random.default_rng(0).uniform(-0.5, 0.5, 16_000 * 3).astype(np.float32)
    wrong: list[BaseException] = []

    def use(client: Client, count: int, seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(count):
                one_call(client, rng, sound)
        except BaseException as error:
            wrong.append(error)

    def traffic(count: int, seed: int) -> None:
        with server.connect() as client:
            shares = [(client, count // THREADS, seed * THREADS + number) for number in range(THREADS)]
            threads = [threading.Thread(target=use, args=share) for share in shares]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert not wrong, wrong
        server.settles()

    pids = [os.getpid(), *tree(server.pid)]
    traffic(CALLS // 4, 0)
    objects = arena_objects()
    before, first = held(server), [resident(pid) for pid in pids]
    # Each round with a client of its own: what a connection leaves behind would add up.
    for seed in range(1, 4):
        traffic(CALLS // 4, seed)
    after, last = held(server), [resident(pid) for pid in pids]
    assert after == before
    eventually(lambda: arena_objects() <= objects, "objects in /dev/shm are gone")
    assert [pid for pid, one, two in zip(pids, first, last, strict=True) if two - one > GROWTH] == [], (first, last)
