"""Times of large-v3-turbo's shape on a GPU, random weights: the encoder beside its FLOP ceiling, decode steps, a load.

``python3 tests/gpu/whisper_timings.py [--windows 1,4,8,16] [--rows 64] [--requests 640] [--parts]``. The load is the
worker's alone, in one process: clips of 2 to 20 s, 12 to 60 forced tokens, so many in flight as there are rows.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE.parents[1] / "python"), str(_HERE), str(_HERE.parents[1])]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from denizen.kernels.layer_norm import add_layer_norm  # noqa: E402
from denizen.worker.asr import AsrOptions  # noqa: E402
from denizen.worker.config import EngineConfig, PoolConfig, SchedulerConfig  # noqa: E402
from denizen.worker.models.linear import Linear  # noqa: E402
from denizen.worker.models.whisper.config import WhisperConfig  # noqa: E402
from denizen.worker.models.whisper.ids import Ids  # noqa: E402
from denizen.worker.models.whisper.model import WhisperModel  # noqa: E402
from denizen.worker.models.whisper.weights import load_weights  # noqa: E402
from denizen.worker.protocol import Done  # noqa: E402
from denizen.worker.served import ServedModel  # noqa: E402
from gpu_support import CUDA, capture  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.functional import gelu, linear, scaled_dot_product_attention  # noqa: E402

from tests.worker.peer import Peer  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TURBO = WhisperConfig(51866, 1280, 128, 32, 20, 5120, 4, 20, 5120, 1500, 448, 7)
IDS = Ids(50257, 50258, 50363, 50364, tuple(range(50259, 50359)), (), (220, 50257), 50, ((2, 4), (3, 3)))


class RandomWeights:
    """Stands in for :class:`~denizen.worker.models.loader.WeightLoader`."""

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        noise = torch.randn(shape, device=CUDA)
        if len(shape) == 1:
            noise = noise * 0.1 + ("norm.weight" in name)
        elif "embed" in name:
            noise *= 0.05
        else:
            noise *= 1.5 / math.sqrt(math.prod(shape[1:]))
        return noise.to(dtype)

    def fused(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> torch.Tensor:
        return torch.cat([self.tensor(name, shape) for name, shape in zip(names, shapes, strict=True)])

    def skip(self, names: Sequence[str]) -> None:
        pass

    def finish(self) -> None:
        pass


def encoder_flops(config: WhisperConfig) -> float:
    """Of one window: products of the convolutions, the layers and the attention."""
    width, positions = config.d_model, config.source_positions
    convolutions = 2 * positions * 3 * width * (2 * config.num_mel_bins + width)
    layer = 2 * positions * width * (4 * width + 2 * config.encoder_ffn_dim) + 4 * positions**2 * width
    return float(convolutions + config.encoder_layers * layer)


def milliseconds(function: Callable[[], object], replays: int = 10) -> float:
    """Median of the replays of a graph of one call."""
    graph = capture(function, warm=2)
    times = []
    for _ in range(replays + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[2:])


@torch.inference_mode()
def encoder(model: WhisperModel, windows: Sequence[int]) -> None:
    flops = encoder_flops(model.config)
    print(f"\n== encoder, {flops / 1e12:.2f} TFLOP a window")
    for count in windows:
        pcm = torch.randn(count, model.max_samples, device=CUDA) * 0.1
        took = milliseconds(lambda pcm=pcm: model.encoder(pcm))
        print(
            f"{count:3d} windows {took:8.2f} ms  {1e3 * count / took:7.1f} windows/s  "
            f"{flops * count / took / 1e9:6.0f} TFLOP/s",
            flush=True,
        )


@torch.inference_mode()
def parts(model: WhisperModel, count: int) -> None:
    """One layer's parts, and other ways to compute them, for ``count`` windows."""
    width, inner, tokens = TURBO.d_model, TURBO.encoder_ffn_dim, count * TURBO.source_positions
    print(f"\n== parts of the encoder, {count} windows, ms (a layer's are 32 times in it)")

    def show(name: str, function: Callable[[], object], flops: float = 0.0) -> None:
        try:
            took = milliseconds(function)
        except RuntimeError as error:
            print(f"          {name}: {str(error).splitlines()[0][:100]}")
            return
        print(f"{took:9.3f} {name}" + (f", {flops / took / 1e9:.0f} TFLOP/s" if flops else ""), flush=True)

    pcm = torch.randn(count, model.max_samples, device=CUDA)
    x, wide = (torch.randn(tokens, size, device=CUDA).bfloat16() for size in (width, inner))
    scale = torch.ones(width, device=CUDA)
    show("spectrogram", lambda: model.encoder.mel(pcm))
    show("add_layer_norm", lambda: add_layer_norm(x, x, scale, scale, 1e-5))
    for name, rows, columns, source in (
        ("qkv", 3 * width, width, x),
        ("output", width, width, x),
        ("up", inner, width, x),
        ("down", width, inner, wide),
    ):
        weight, bias = torch.randn(rows, columns, device=CUDA).bfloat16(), torch.randn(rows, device=CUDA).bfloat16()
        flops = 2.0 * tokens * rows * columns
        show(name, lambda w=weight, b=bias, s=source: linear(s, w, b), flops)
        if name == "up":
            show("up with GELU fused", partial(Linear(weight, bias).gelu, x), flops)
            show("up, then GELU", lambda w=weight, b=bias: gelu(linear(x, w, b)), flops)
    heads = torch.randn(count, TURBO.source_positions, 3, TURBO.encoder_heads, 64, device=CUDA).bfloat16()
    query, key, value = (part.transpose(1, 2) for part in heads.unbind(2))
    flops = 4.0 * count * TURBO.source_positions**2 * width
    show("attention, torch's choice", lambda: scaled_dot_product_attention(query, key, value), flops)
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        with sdpa_kernel(backend):
            show(f"attention, {backend.name}", lambda: scaled_dot_product_attention(query, key, value), flops)


def load(model: WhisperModel, rows: int, requests: int) -> None:
    """Submitted at once; the engine admits as many as it has rows."""
    begin = time.monotonic()
    served = ServedModel.build(
        "whisper",
        model,
        CUDA,
        torch.bfloat16,
        PoolConfig(16, rows * 448),
        SchedulerConfig(rows, None, 512),
        EngineConfig(True, True),
    )
    print(f"\n== worker alone, {rows} rows (graphs in {time.monotonic() - begin:.0f} s)", flush=True)
    rng = random.Random(0)
    random_pcm = (np.random.default_rng(0).standard_normal(480000) * 0.1).astype(np.float32)
    # The published mix: 2 to 20 s with a mean of 7.4, 12 to 60 tokens with a mean of 27.
    lengths = [min(20.0, max(2.0, rng.gammavariate(2.6, 2.9))) for _ in range(requests)]
    counts = [min(60, max(12, round(12 + rng.expovariate(1 / 15)))) for _ in range(requests)]
    print(f"mean {statistics.mean(lengths):.1f} s, {statistics.mean(counts):.1f} tokens")
    prompt = [IDS.start, 50259, 50360, IDS.no_timestamps]
    with Peer([served]) as peer:
        number = 0
        for turn in range(3):
            first = number + 1
            began = time.monotonic()
            for length, count in zip(lengths, counts, strict=True):
                number += 1
                pcm = random_pcm[: int(length * 16000)].tobytes()
                # Without stop ids a request runs to its last token.
                peer.submit(number, prompt, count, model="whisper", audio=pcm, asr=AsrOptions(timestamps=False))
            ends = [outcome.end for outcome in peer.finish(*range(first, number + 1))]
            took = time.monotonic() - began
            assert all(isinstance(end, Done) for end in ends), next(end for end in ends if not isinstance(end, Done))
            print(f"pass {turn}: {requests / took:7.1f} requests/s, {sum(counts) / took:8.0f} tokens/s", flush=True)
        # Decode alone: all rows long, few windows to hear.
        first = number + 1
        pcm = random_pcm[:32000].tobytes()
        for _ in range(rows):
            number += 1
            peer.submit(number, prompt, 400, model="whisper", audio=pcm, asr=AsrOptions(timestamps=False))
        last = peer.outcomes[number]
        peer.until(lambda: len(last.rows) >= 50)  # all of them have begun
        began, behind = time.monotonic(), len(last.rows)
        peer.until(lambda: len(last.rows) >= 350)
        took = time.monotonic() - began
        print(f"decode of {rows} rows: {1e6 * took / (len(last.rows) - behind):.0f} µs a step", flush=True)
        peer.finish(*range(first, number + 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", default="1,4,8,16")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--requests", type=int, default=640)
    parser.add_argument("--parts", action="store_true", help="also time the parts of an encoder layer")
    options = parser.parse_args()
    torch.manual_seed(0)
    weights: Any = RandomWeights()
    model = WhisperModel(TURBO, IDS, load_weights(TURBO, weights))
    windows = [int(count) for count in options.windows.split(",")]
    encoder(model, windows)
    if options.parts:
        parts(model, max(windows))
    if options.requests:
        load(model, options.rows, options.requests)
    return 0


if __name__ == "__main__":
    sys.exit(main())
