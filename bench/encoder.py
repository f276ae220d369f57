"""The ceiling of a Whisper encoder: its arithmetic, over the rates at which the device multiplies matrices.

`python -m denizen.bench.encoder DEVICE CONFIG` prints the measurement as JSON; a process of its own, so that it keeps
no memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denizen.bench.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Callable

_WINDOWS = {"cuda": 16, "cpu": 1}
_ROUNDS = {"cuda": 10, "cpu": 2}


def flops(config: dict[str, Any]) -> float:
    """Floating-point operations of one window of 30 s: convolutions, projections, attention, MLPs."""
    width, length, inner = config["d_model"], config["max_source_positions"], config["encoder_ffn_dim"]
    convolutions = 2 * 3 * (2 * length * config["num_mel_bins"] + length * width) * width
    layer = 2 * length * (4 * width * width + 2 * length * width + 2 * width * inner)
    return float(convolutions + config["encoder_layers"] * layer)


def measure(device: str, checkpoint: Path) -> dict[str, Any]:
    """`matmul_flops_per_s` over the shapes of an encoder layer, and `plain_windows_per_s`: `transformers`' encoder.

    The latter, on a GPU replayed as a graph, is null where `transformers` is not installed. Raises BenchError.
    """
    command = [sys.executable, "-m", "denizen.bench.encoder", device, str(checkpoint / "config.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"the encoder's ceiling on {device} could not be measured: {done.stderr.strip()[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measure(device: str, config: dict[str, Any]) -> dict[str, Any]:
    windows = _WINDOWS[device.partition(":")[0]]
    return {
        "windows": windows,
        "matmul_flops_per_s": _matmuls(device, config, windows),
        "plain_windows_per_s": _plain(device, config, windows),
    }


def _matmuls(device: str, config: dict[str, Any], windows: int) -> float:
    import torch

    width, inner = config["d_model"], config["encoder_ffn_dim"]
    rows = windows * config["max_source_positions"]
    sizes = [(width, 3 * width), (width, width), (width, inner), (inner, width)]
    pairs = [
        (
            torch.randn(rows, inputs, device=device, dtype=torch.bfloat16),
            torch.randn(outputs, inputs, device=device, dtype=torch.bfloat16),
        )
        for inputs, outputs in sizes
    ]
    operations: float = sum(2.0 * rows * inputs * outputs for inputs, outputs in sizes)
    seconds = best(device, lambda: [torch.nn.functional.linear(*pair) for pair in pairs])
    return operations / seconds


def _plain(device: str, config: dict[str, Any], windows: int) -> float | None:
    import torch

    try:
        from transformers import WhisperConfig
        from transformers.models.whisper.modeling_whisper import WhisperEncoder
    except ImportError:
        return None
    with torch.inference_mode():
        whisper: Any = WhisperEncoder(WhisperConfig(**config))
        encoder = whisper.to(device=device, dtype=torch.bfloat16).eval()
        frames = 2 * config["max_source_positions"]
        mel = torch.randn(windows, config["num_mel_bins"], frames, device=device, dtype=torch.bfloat16)

        def run() -> None:
            encoder(mel)

        if mel.is_cuda:
            side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            with torch.cuda.stream(side):
                for _ in range(3):
                    run()
            torch.cuda.synchronize(device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            return windows / best(device, graph.replay)
        return windows / best(device, run)


def best(device: str, run: Callable[[], object]) -> float:
    """Seconds of the quickest of some rounds."""
    import torch

    def finish() -> None:
        if device != "cpu":
            torch.cuda.synchronize(device)

    with torch.inference_mode():
        run()
        finish()
        quickest = float("inf")
        for _ in range(_ROUNDS[device.partition(":")[0]]):
            start = time.perf_counter()
            run()
            finish()
            quickest = min(quickest, time.perf_counter() - start)
    return quickest


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))))
