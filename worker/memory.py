"""Memory of a device: how much is left, large zeroed tensors, and copies that nobody waits for."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

_CACHE_LINE = 64


def zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """A zeroed tensor. On the CPU its memory is the machine's only once it is written, unlike ``torch.zeros``'s: a pool
    may be large without costing anything before it is used."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    size = math.prod(shape) * dtype.itemsize
    memory = np.zeros(size + _CACHE_LINE, np.uint8)
    first = -memory.ctypes.data % _CACHE_LINE
    return torch.from_numpy(memory[first : first + size]).view(dtype).view(shape)


def upload(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """The array on the device: on a GPU a copy that the current stream makes in its turn, while the host goes on."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


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
