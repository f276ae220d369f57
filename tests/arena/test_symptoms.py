"""What people reported of systems like this one, each as a test that would catch it here."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from denizen import _native
from denizen._native import FIELDS, Arena, ArenaError, ArenaFull, AttachError, HostArena, PeerGone, sweep

from .harness import ENVIRONMENT, PATIENCE, PEER, SHM, receive, wait_for
from .peer import HOST_GONE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOST_SCRIPT = """
    import subprocess, sys
    from denizen._native import HostArena
    host, fd = HostArena.create("worker")
    worker = subprocess.Popen([sys.executable, sys.argv[1], "echo", str(fd)], pass_fds=[fd])
    if "before-attach" not in sys.argv:
        host.send(b"x")
        host.recv()
    print(worker.pid, *host.names, flush=True)
    host.recv()
"""
"""A front end that prints its worker's pid and its objects' names, then waits to be killed."""


def start_host(*arguments: str) -> tuple[subprocess.Popen[str], int, list[Path]]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOST_SCRIPT), str(PEER), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    pid, *names = process.stdout.readline().split()
    return process, int(pid), [SHM / name for name in names]


def kill(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def plant(content: bytes = b"", name: str = "stale") -> Path:
    """An object as a dead process left it: nobody holds its lock."""
    path = SHM / f"denizen-{os.geteuid()}-{name}-{os.getpid()}"
    path.write_bytes(content)
    return path


def overwrite(path: Path, field: str, value: int) -> None:
    offset, size = FIELDS[f"header.{field}"]
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(value.to_bytes(size, "little"))


def attach_after(damage: Callable[[Path, Path], None]) -> tuple[str, str]:
    """Damage a fresh pair's objects (requests, results), attach, and return both sides' messages."""
    host, fd = HostArena.create("worker 0")
    damage(SHM / host.names[0], SHM / host.names[1])
    with pytest.raises(AttachError) as ours:
        Arena.attach(fd)
    with pytest.raises(AttachError) as theirs:
        host.recv(timeout_ms=0)
    host.close()
    assert "worker 0" in str(theirs.value)
    assert str(ours.value) in str(theirs.value)
    return str(ours.value), str(theirs.value)


# 1 and 12: objects pile up in /dev/shm when a role is killed


def test_shm_objects_leak_on_sigkill_of_the_worker(start: Callable[..., Any]) -> None:
    for _ in range(10):
        pair = start("echo").attached()
        assert not any(path.exists() for path in pair.names)
        pair.process.kill()
        with pytest.raises(PeerGone):
            pair.host.recv(timeout_ms=int(PATIENCE * 1000))


def test_shm_objects_leak_on_sigkill_of_the_front_end_and_of_both() -> None:
    for round_ in range(6):
        process, worker, names = start_host()
        peer = psutil.Process(worker)
        if round_ % 2:
            peer.kill()
        kill(process)
        wait_for("the worker to end by itself", lambda p=peer: not p.is_running() or p.status() == psutil.STATUS_ZOMBIE)
        assert not any(path.exists() for path in names)


def test_peer_that_attached_and_sent_nothing_is_never_cleaned(start: Callable[..., Any]) -> None:
    pair = start("silent").attached()
    pair.process.kill()
    wait_for("the end of file", lambda: pair.host.poll() == "gone")
    assert not any(path.exists() for path in pair.names)


# 2, 9, 10: leftovers


def test_stale_object_blocks_the_next_start() -> None:
    """An empty one, a random one, one of another ABI; all go, and a start works before and after."""
    header = bytearray(8192)
    header[:8] = _native.MAGIC.to_bytes(8, "little")
    header[8:16] = ((99 << 32) | 1).to_bytes(8, "little")
    planted = [plant(content, f"stale{i}") for i, content in enumerate((b"", os.urandom(5000), bytes(header)))]
    host, fd = HostArena.create("worker")
    swept = sweep()
    assert not any(path.exists() for path in planted)
    assert swept["alive"] >= 2
    Arena.attach(fd).send(b"works")
    assert receive(host) == [(b"works", None)]


@pytest.mark.parametrize("by_hand", [False, True], ids=["all-left", "half-removed-by-hand"])
def test_leftovers_after_kill_make_the_restart_worse(by_hand: bool) -> None:
    process, worker, names = start_host("before-attach")
    os.kill(worker, signal.SIGSTOP)
    kill(process)
    os.kill(worker, signal.SIGKILL)
    if by_hand:
        names[0].unlink(missing_ok=True)
    sweep()
    assert not any(path.exists() for path in names)


def test_live_object_is_swept_away() -> None:
    """An object whose creator lives keeps its name, whatever is in it, until its lock is gone."""
    path = plant(b"another version's, alive")
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        host, fd = HostArena.create("worker")
        assert sweep()["alive"] >= 3
        assert path.exists()
        assert all((SHM / name).exists() for name in host.names)
        os.close(fd)
    host.close()
    sweep()
    assert not path.exists()


def test_orphan_of_another_abi_is_reported_when_its_owner_lives() -> None:
    ours, _ = attach_after(lambda requests, _: overwrite(requests, "ABI", (9 << 32) | 4))
    assert "9.4" in ours
    assert f"{_native.ABI[0]}.{_native.ABI[1]}" in ours
    assert "same release" in ours
    ours, _ = attach_after(lambda _, results: overwrite(results, "FIELDS_HASH", 0xABCDEF))
    assert "0000000000abcdef" in ours


# 11: other users


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make an object of another user")
def test_objects_of_other_users_are_left_alone() -> None:
    path = plant(b"theirs")
    try:
        os.chown(path, 12345, 12345)
        assert sweep()["foreign"] >= 1
        assert path.exists()
    finally:
        path.unlink()
    ours, _ = attach_after(lambda requests, _: os.chown(requests, 12345, 12345))
    assert "belongs to user 12345" in ours


# 3, 4: the consumer is dead, or stands still


def test_writer_waits_forever_when_the_reader_was_killed(start: Callable[..., Any]) -> None:
    pair = start("deaf", request_ring=8)
    receive(pair.host)
    pair.process.kill()
    with pytest.raises(PeerGone):
        pair.host.recv(timeout_ms=int(PATIENCE * 1000))
    with pytest.raises(PeerGone, match=rf"test deaf \(pid {pair.process.pid}, 0 queued"):
        pair.host.send(b"x")


def test_no_shared_memory_block_available_and_no_cause_given(start: Callable[..., Any]) -> None:
    """A stopped worker: send fails at once, with peer, pid, depth and age; its heartbeat grows old; SIGCONT heals."""
    pair = start("echo", request_ring=8).attached()
    os.kill(pair.process.pid, signal.SIGSTOP)
    wait_for("the stop", lambda: psutil.Process(pair.process.pid).status() == psutil.STATUS_STOPPED)
    for _ in range(8):
        pair.host.send(b"x")
    with pytest.raises(ArenaFull, match=rf"test echo \(pid {pair.process.pid}, 8 queued, last heartbeat \d+\.\d s ago"):
        pair.host.send(b"x")
    wait_for("the heartbeat to grow old", lambda: (pair.host.heartbeat()["beat_age"] or 0) > 1)
    os.kill(pair.process.pid, signal.SIGCONT)
    receive(pair.host, 8)
    wait_for("a fresh heartbeat", lambda: (pair.host.heartbeat()["beat_age"] or 9) < 1)


# 6: idle


def test_idle_processes_burn_cpu(start: Callable[..., Any]) -> None:
    """Both sides asleep for two seconds use next to no processor time: the heartbeat only."""
    pair = start("echo").attached()
    pair.host.send(b"x")
    receive(pair.host)
    processes = [psutil.Process(), psutil.Process(pair.process.pid)]
    wait_for("the peer to sleep", lambda: processes[1].status() == psutil.STATUS_SLEEPING)

    def used() -> float:
        return sum(times.user + times.system for times in (p.cpu_times() for p in processes))

    before, started = used(), time.monotonic()
    assert pair.host.recv(timeout_ms=2000) == []
    elapsed = time.monotonic() - started
    assert used() - before <= 0.02 * elapsed, "more than 1 % of a processor for each process"


# 7, 8: attaching to the wrong thing


def test_attach_to_missing_short_or_wrong_object_crashes_later() -> None:
    def replace(path: Path, size: int) -> None:
        content = path.read_bytes()[:size]
        path.unlink()
        path.write_bytes(content)

    damages: list[tuple[Callable[[Path, Path], None], str]] = [
        (lambda requests, _: requests.unlink(), "does not exist"),
        (lambda _, results: results.unlink(), "does not exist"),
        (lambda requests, _: replace(requests, 0), "too short"),
        (lambda requests, _: replace(requests, 5000), "5000 bytes long"),
        (lambda _, results: overwrite(results, "MAGIC", 0), "never completed"),
        (lambda _, results: overwrite(results, "MAGIC", 1), "not an arena's"),
        (lambda _, results: overwrite(results, "RING_CAPACITY", 1 << 60), "must hold"),
        (lambda requests, _: overwrite(requests, "ROLE", 2), "role 2"),
        (lambda requests, _: overwrite(requests, "INSTANCE", 5), "another instance"),
    ]
    for damage, message in damages:
        ours, _ = attach_after(damage)
        assert message in ours


def test_attach_without_a_front_end() -> None:
    read, write = os.pipe()
    os.close(write)
    for fd, message in [(999, "was not inherited"), (0, "cannot be an inherited socket"), (read, "not a socket")]:
        with pytest.raises(ArenaError, match=message):
            Arena.attach(fd)


def test_reader_crashes_when_the_pool_owner_restarts() -> None:
    """A restart makes a new pair under a new epoch; the old views stay valid and say what happened."""
    old_host, fd = HostArena.create("worker", epoch=1)
    old = Arena.attach(fd)
    old_host.send(b"sent before the restart", bytes(100_000))
    old_host.close()
    new_host, fd = HostArena.create("worker", epoch=2)
    new = Arena.attach(fd)
    assert receive(old) == [(b"sent before the restart", bytes(100_000))]
    with pytest.raises(PeerGone, match="closed the arena"):
        old.recv()
    with pytest.raises(PeerGone):
        old.send(b"x")
    assert old.stats()["received"] == 1
    new.send(b"new")
    assert receive(new_host) == [(b"new", None)]
    ours, _ = attach_after(lambda requests, _: overwrite(requests, "EPOCH", 41))
    assert "epoch 41" in ours
    assert "attach anew" in ours


# 13: children of an attached process


def test_segment_is_unlinked_when_an_attaching_process_forks_and_its_child_exits(start: Callable[..., Any]) -> None:
    pair = start("fork")
    for _ in range(3):
        pair.host.send(b"fork now")
        seen, _ = receive(pair.host)[0]
        assert f"belongs to process {pair.process.pid}".encode() in seen
    assert pair.host.poll() == "up"


def test_child_of_the_creator_takes_the_objects_with_it() -> None:
    host, fd = HostArena.create("worker")
    child = os.fork()
    if child == 0:
        del host
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert all((SHM / name).exists() for name in host.names)
    Arena.attach(fd).send(b"works")
    assert receive(host) == [(b"works", None)]


# 14, 15: a small /dev/shm


def test_small_dev_shm_ends_in_sigbus_or_a_silent_fallback(tmp_path: Path) -> None:
    """In a container's 64 MB: one clear error with the size and the flag, nothing left, and what fits works."""
    script = tmp_path / "small.py"
    script.write_text(
        textwrap.dedent("""
            import os
            from denizen._native import Arena, HostArena, NoSpace
            try:
                HostArena.create("worker", request_slots=(0, 0, 0, 0, 6))
            except NoSpace as error:
                print(error)
            assert os.listdir("/dev/shm") == [], os.listdir("/dev/shm")
            host, fd = HostArena.create("worker", request_slots=(0, 0, 0, 0, 2))
            arena = Arena.attach(fd)
            host.send(bytes(33_000_000))
            assert len(arena.recv()[0][0]) == 33_000_000
            print("works")
        """)
    )
    inside = f"mount -t tmpfs -o size=64m tmpfs /dev/shm && exec {sys.executable} {script}"
    result = subprocess.run(["unshare", "-m", "sh", "-c", inside], capture_output=True, text=True, env=ENVIRONMENT)
    if "Operation not permitted" in result.stderr or "permission denied" in result.stderr:
        pytest.skip(f"cannot mount a small /dev/shm here: {result.stderr.strip()}")
    assert result.returncode == 0, result.stderr
    error, works = result.stdout.splitlines()
    assert works == "works"
    assert "--shm-size=128m" in error
    assert "of its 67108864 bytes are free" in error


def test_front_end_death_leaves_an_orphan(start: Callable[..., Any]) -> None:
    pair = start("echo").attached()
    pair.host.close()
    assert pair.process.wait(PATIENCE) == HOST_GONE
