"""How much memory a device has left."""

from __future__ import annotations

from pathlib import Path

import torch


def available_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated: on a CPU, within the machine and the memory limit of the control group."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    machine = _meminfo("MemAvailable")
    limit, used = _read("/sys/fs/cgroup/memory.max"), _read("/sys/fs/cgroup/memory.current")
    return machine if limit is None or used is None else min(machine, max(limit - used, 0))


def _meminfo(key: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/meminfo has no {key}")


def _read(path: str) -> int | None:
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return None
    return None if text == "max" else int(text)
