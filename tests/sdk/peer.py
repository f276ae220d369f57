"""Client processes for the tests: ``python peer.py SOCKET ROLE`` says "ready" on standard output and plays the role."""

from __future__ import annotations

import os
import signal
import sys
import threading

import numpy as np
from denizen.shm import Client, DenizenError

LONG = {"max_tokens": 3000, "temperature": 0, "ignore_eos": True}


def ready() -> None:
    print("ready", flush=True)


def wait() -> None:
    while True:
        signal.pause()


def idle(client: Client) -> None:
    """Connected, without a call."""
    ready()
    wait()


def streams(client: Client) -> None:
    """In the middle of some streams, read by threads."""
    begun = threading.Barrier(5)

    def read() -> None:
        stream = client.generate("abc", stream=True, **LONG)
        next(stream)
        begun.wait()
        for _ in stream:
            pass

    for _ in range(4):
        threading.Thread(target=read, daemon=True).start()
    begun.wait()
    ready()
    wait()


def unread(client: Client) -> None:
    """With an answer that nobody reads."""
    stream = client.generate("abc", stream=True, **LONG)
    next(stream)
    ready()
    wait()


def uploads(client: Client) -> None:
    """In the middle of sending long recordings, again and again."""
    sound = np.random.default_rng(0).uniform(-0.5, 0.5, 16_000 * 60).astype(np.float32)
    client.transcribe(sound[:16_000], 16_000)
    ready()
    while True:
        client.transcribe(sound, 16_000)


def ends(client: Client) -> None:
    """Prints what its open calls end with."""
    said = []

    def call() -> None:
        try:
            client.generate("abc", **LONG)
        except DenizenError as error:
            said.append(type(error).__name__)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    next(client.generate("abc", stream=True, **LONG))
    ready()
    for thread in threads:
        thread.join()
    print(*said, flush=True)


def leaves(client: Client) -> None:
    """Ends with a stream that a daemon thread is reading."""
    stream = client.generate("abc", stream=True, **LONG)
    next(stream)
    threading.Thread(target=lambda: list(stream), daemon=True).start()
    ready()


def drops(client: Client) -> None:
    """Ends with calls that were dropped, and clients too."""
    for _ in range(3):
        next(Client(path=sys.argv[1]).generate("abc", stream=True, **LONG))
    ready()


def forks(client: Client) -> None:
    """A child that exits, one that is killed; then a call."""
    stream = client.generate("abc", stream=True, **LONG)
    next(stream)
    for end in (lambda: sys.exit(0), lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: os._exit(0)):
        if (pid := os.fork()) == 0:
            try:
                next(stream)
            except DenizenError:
                end()
            os._exit(9)
        os.waitpid(pid, 0)
    if (pid := os.fork()) == 0:
        with Client(path=sys.argv[1]) as own:
            os._exit(own.generate("child", max_tokens=5, temperature=0).text != "child")
    assert os.waitpid(pid, 0)[1] == 0
    ready()
    assert next(stream).tokens
    stream.close()
    print(client.generate("abc", max_tokens=3, temperature=0).text, flush=True)


def main() -> None:
    path, role = sys.argv[1:]
    roles = {role.__name__: role for role in (idle, streams, unread, uploads, ends, leaves, drops, forks)}
    roles[role](Client(path=path))


if __name__ == "__main__":
    main()
