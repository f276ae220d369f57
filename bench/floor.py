"""The least time that a decode step can take: the bytes that it must move, over the rate at which memory copies.

`python -m denizen.bench.floor DEVICE` prints that rate as JSON; a process of its own, so that it keeps no memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from denizen.bench.errors import BenchError

if TYPE_CHECKING:
    from pathlib import Path

BF16, FP32 = 2, 4
_COPY_BYTES = {"cuda": 4 << 30, "cpu": 256 << 20}
_ROUNDS = 10


@dataclass(frozen=True)
class Traffic:
    """Bytes that one decode step reads and writes."""

    weights: int
    state: int
    kv: int

    def seconds(self, bytes_per_s: float) -> float:
        return (self.weights + self.state + self.kv) / bytes_per_s


def traffic(checkpoint: Path, rows: int, context: float, *, recurrent_bytes: int = FP32) -> Traffic:
    """Of a Qwen3.5 checkpoint in bf16 with `rows` requests of `context` tokens each, on average.

    Every weight is read once (a tied embedding as the head), the state of each row read and written, its KV read.
    """
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    text = config.get("text_config", config)
    linear = sum(kind == "linear_attention" for kind in text["layer_types"])
    full = len(text["layer_types"]) - linear
    heads, key, value = text["linear_num_value_heads"], text["linear_key_head_dim"], text["linear_value_head_dim"]
    channels = 2 * text["linear_num_key_heads"] * key + heads * value
    conv = channels * (text["linear_conv_kernel_dim"] - 1) * BF16
    state = 2 * linear * (heads * key * value * recurrent_bytes + conv)
    kv = 2 * full * text["num_key_value_heads"] * text["head_dim"] * BF16
    weights = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))
    return Traffic(weights, rows * state, round(rows * context * kv))


def mean_context(prompt: int, output: tuple[int, int]) -> float:
    """Tokens that a running request has on average, at a moment when requests with drawn lengths keep coming."""
    low, high = output
    mean = (low + high) / 2
    variance = ((high - low + 1) ** 2 - 1) / 12
    return prompt + (mean**2 + variance) / (2 * mean)


def copy_rate(device: str) -> float:
    """Bytes read and written a second by a copy within `device`'s memory. Raises BenchError."""
    command = [sys.executable, "-m", "denizen.bench.floor", device]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"the copy rate of {device} could not be measured: {done.stderr.strip()[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return float(found["bytes_per_s"])


def _measure(device: str) -> float:
    import torch

    size = _COPY_BYTES[device.partition(":")[0]]
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = 0.0
    for _ in range(_ROUNDS):
        if source.is_cuda:
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        target.copy_(source)
        if source.is_cuda:
            torch.cuda.synchronize(device)
        best = max(best, 2 * size / (time.perf_counter() - start))
    return best


if __name__ == "__main__":
    print(json.dumps({"bytes_per_s": _measure(sys.argv[1])}))
