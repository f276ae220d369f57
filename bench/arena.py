"""`denizen-bench arena`: what passing a message between the Rust side and a Python process costs."""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from denizen.bench import environment
from denizen.bench.errors import BenchError
from denizen.bench.options import add_report_options, finish, positive_float, positive_int, progress, shown
from denizen.bench.processes import cpu_seconds
from denizen.bench.schema import Report
from denizen.bench.stats import distribution

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from denizen._native import HostArena

MIB = 1 << 20
_TIMEOUT_MS = 10_000
_BLOBS_AHEAD = 4


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "arena",
        help="shared-memory round trips beside a socketpair, blobs beside memcpy, idle CPU",
        description="Round trips of a small message through a worker's arena pair to a Python child and back, beside "
        "the same over a socketpair; 1 MiB blobs beside memcpy; CPU time of both ends while nothing is sent.",
    )
    parser.add_argument("--rounds", type=positive_int, default=20, help="interleaved rounds (default: %(default)s)")
    parser.add_argument("--messages", type=positive_int, default=1000, help="a round (default: %(default)s)")
    parser.add_argument("--bytes", type=positive_int, default=64, help="of a message (default: %(default)s)")
    parser.add_argument("--blobs", type=positive_int, default=64, help="1 MiB each, a round (default: %(default)s)")
    parser.add_argument("--idle", type=positive_float, default=5.0, metavar="S", help="default: %(default)g s")
    add_report_options(parser, records=False)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    report = Report("arena", environment.describe(), shown(options))
    with arena_child() as host, socket_child() as plain:
        _measure(host, plain, options, report.figures)
    return finish(report, options)


def _measure(host: HostArena, plain: socket.socket, options: argparse.Namespace, figures: dict[str, Any]) -> None:
    message = bytes(options.bytes)
    blob = os.urandom(MIB)

    def over_arena() -> None:
        host.send(message)
        _answers(host)

    def over_socket() -> None:
        plain.send(message)
        plain.recv(1 << 16)

    times: dict[str, list[float]] = {"arena": [], "socketpair": []}
    blob_seconds, copy_seconds = [], []
    sink = bytearray(MIB)
    with progress(options.rounds + 1, "round", options) as bar:
        for number in range(options.rounds + 1):
            # Both ways in turn, the first round to warm up: a noisy machine disturbs them alike.
            arena_us, socket_us = _times(over_arena, options.messages), _times(over_socket, options.messages)
            flow, copy = _blobs(host, blob, options.blobs), _copies(blob, sink, options.blobs)
            if number > 0:
                times["arena"] += arena_us
                times["socketpair"] += socket_us
                blob_seconds.append(flow)
                copy_seconds.append(copy)
            bar.update()
    figures["round_trip_us"] = {name: distribution(samples) for name, samples in times.items()}
    # The median round: one that a busy machine stretched tells nothing about the arena.
    figures["blob_mib_per_s"] = options.blobs / statistics.median(blob_seconds)
    figures["memcpy_mib_per_s"] = options.blobs / statistics.median(copy_seconds)
    figures["idle_cpu_percent"] = _idle(host, options.idle)


def _times(once: Callable[[], None], count: int) -> list[float]:
    """Microseconds of each of `count` calls."""
    samples = []
    for _ in range(count):
        start = time.perf_counter_ns()
        once()
        samples.append((time.perf_counter_ns() - start) / 1000)
    return samples


def _answers(host: HostArena) -> int:
    """Waits for the other end; how many messages have come."""
    got = host.recv(timeout_ms=_TIMEOUT_MS)
    if not got:
        raise BenchError(f"the arena's other end has not answered for {_TIMEOUT_MS / 1000:g} s")
    return len(got)


def _blobs(host: HostArena, blob: bytes, count: int) -> float:
    """Seconds until the other end has copied out `count` blobs; a few are under way at any time."""
    start = time.perf_counter()
    under_way = 0
    for _ in range(count):
        while under_way >= _BLOBS_AHEAD:
            under_way -= _answers(host)
        host.send(b"blob", blob)
        under_way += 1
    while under_way > 0:
        under_way -= _answers(host)
    return time.perf_counter() - start


def _copies(blob: bytes, sink: bytearray, count: int) -> float:
    view = memoryview(sink)
    start = time.perf_counter()
    for _ in range(count):
        view[:] = blob
    return time.perf_counter() - start


def _idle(host: HostArena, seconds: float) -> float:
    """Percent of one CPU that both ends use while each waits for the other."""
    pids = [os.getpid(), host.peer_pid]
    before, start = cpu_seconds(pids), time.monotonic()
    host.recv(timeout_ms=round(seconds * 1000))
    return 100 * (cpu_seconds(pids) - before) / (time.monotonic() - start)


def _child(mode: str, fd: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "denizen.bench.echo", mode, str(fd)], pass_fds=[fd])


@contextlib.contextmanager
def arena_child() -> Iterator[HostArena]:
    """A worker-sized arena pair with an echoing Python child at its other end."""
    try:
        from denizen._native import HostArena
    except ImportError as error:
        raise BenchError(f"the extension denizen._native is not installed ({error}); run `make setup`") from error
    host, fd = HostArena.create("echo")
    try:
        child = _child("arena", fd)
        os.close(fd)
        try:
            host.send(b"hello")
            _answers(host)
            yield host
        finally:
            host.close()
            child.wait(10)
    finally:
        host.close()


@contextlib.contextmanager
def socket_child() -> Iterator[socket.socket]:
    """A SOCK_SEQPACKET socketpair with an echoing Python child at its other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            child = _child("socket", theirs.fileno())
        ours.settimeout(_TIMEOUT_MS / 1000)
        ours.send(b"hello")
        ours.recv(16)
        # A timeout makes every call poll first; the comparison is with plain blocking calls.
        ours.settimeout(None)
        yield ours
    child.wait(10)
