"""CPU time and memory of a process and its descendants, from `/proc`."""

from __future__ import annotations

import os
import time
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str] | None:
    """Fields of `/proc/PID/stat` from the state on (`proc(5)`), or None if the process has gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name may hold spaces and brackets; the last bracket ends it.
    return text[text.rindex(")") + 2 :].split()


def tree(root: int) -> list[int]:
    """`root` and all its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            children.setdefault(int(fields[1]), []).append(int(entry))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def cpu_seconds(pids: list[int]) -> float:
    """User and system seconds that the processes have used so far (a resolution of one clock tick, usually 10 ms)."""
    total = 0
    for pid in pids:
        if fields := _stat(pid):
            total += int(fields[11]) + int(fields[12])
    return total / _TICK


def resident_bytes(pids: list[int]) -> int:
    """Resident memory of the processes together; pages that they share count once for each."""
    return _PAGE * sum(int(fields[21]) for pid in pids if (fields := _stat(pid)))


def idle_cpu(root: int, seconds: float) -> float:
    """Share of one CPU that `root` and its descendants use over `seconds`, in percent."""
    pids = tree(root)
    before, start = cpu_seconds(pids), time.monotonic()
    time.sleep(seconds)
    return 100 * (cpu_seconds(pids) - before) / (time.monotonic() - start)
