"""Processes for the arena tests: ``python peer.py ROLE FD`` attaches over the inherited FD and plays the role."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sys

from denizen._native import Arena, ArenaClosed, PeerGone

HOST_GONE = 42
"""Exit code after the front end's end was noticed, so that a crash cannot pass for it."""


def echo(arena: Arena) -> None:
    """Send everything back."""
    while True:
        for envelope, attachment in arena.recv():
            arena.send(envelope, attachment)


def digest(arena: Arena) -> None:
    """Answer each message with the SHA-256 of its parts."""
    while True:
        for envelope, attachment in arena.recv():
            arena.send(hashlib.sha256(envelope).digest() + hashlib.sha256(attachment or b"").digest())


def deaf(arena: Arena) -> None:
    """Say hello, then read nothing."""
    arena.send(b"ready")
    while True:
        os.read(0, 1) or sys.exit(0)


def silent(arena: Arena) -> None:
    """Attach, send nothing, wait."""
    while True:
        arena.recv()


def phases(arena: Arena) -> None:
    """Enter the phase that each message names, then confirm."""
    while True:
        for envelope, _ in arena.recv():
            arena.set_phase(envelope[0])
            arena.send(envelope)


def _use_in_child(arena: Arena, pipe: multiprocessing.connection.Connection) -> None:
    try:
        arena.send(b"from the child")
        pipe.send("sent")
    except ArenaClosed as error:
        pipe.send(str(error))


def fork(arena: Arena) -> None:
    """At each message: fork a child that tries to use the arena and exits; send what it saw."""
    context = multiprocessing.get_context("fork")
    while True:
        for _ in arena.recv():
            ours, theirs = context.Pipe()
            child = context.Process(target=_use_in_child, args=(arena, theirs))
            child.start()
            seen = ours.recv()
            child.join()
            arena.send(seen.encode())


def main() -> None:
    role, fd = sys.argv[1:]
    roles = {function.__name__: function for function in (echo, digest, deaf, silent, phases, fork)}
    arena = Arena.attach(int(fd))
    try:
        roles[role](arena)
    except PeerGone:
        sys.exit(HOST_GONE)


if __name__ == "__main__":
    main()
