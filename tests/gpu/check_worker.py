"""The CUDA worker from a checkpoint to tokens: against fp32 transformers, and its ways of running compared."""

from __future__ import annotations

import functools
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from denizen.worker.resident.planner import PlanMode
from denizen.worker.teacher import teacher_forced
from gpu_models import make, serve
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from denizen.worker.protocol import Done

from tests.worker.peer import Peer, assert_empty

#: Largest difference of any logit from fp32 transformers, and its root mean square over a text; logits have a deviation
#: near 1.2.
BOUND, BOUND_RMS = 0.5, 0.05
KINDS = ("qwen3_5", "llama")


@functools.cache
def checkpoint(kind: str) -> tuple[Path, Any]:
    folder = Path(tempfile.mkdtemp(prefix=f"denizen-{kind}-"))
    return folder, make(kind, folder)


def generate(served: Any, prompts: list[list[int]], tokens: int, *, overlap: bool = True, **options: Any) -> Any:
    """Output tokens; all requests are there before the engine starts, so that the steps are the same in each run."""
    peer = Peer([served], overlap=overlap)
    for index, ids in enumerate(prompts):
        own = {name: value[index] if isinstance(value, list) else value for name, value in options.items()}
        peer.submit(index + 1, ids, tokens, model=served.name, **own)
    with peer:
        outcomes = peer.finish()
    assert_empty(served)
    for outcome in outcomes:
        assert isinstance(outcome.end, Done), outcome.end
    return [outcome.tokens for outcome in outcomes]


def texts(count: int, low: int, high: int, seed: int = 0, vocab: int = 1000) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, vocab) for _ in range(rng.randint(low, high))] for _ in range(count)]


@torch.inference_mode()
def reference(model: Any, ids: list[int]) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([ids], device="cuda")).logits[0].float()
    return logits


def test_teacher_forced_logits_equal_those_of_transformers() -> None:
    for kind in KINDS:
        folder, model = checkpoint(kind)
        sequences = [*texts(6, 20, 300), *texts(2, 500, 700, 1)]
        prompts = [max(1, len(ids) - 12 * (i % 3)) for i, ids in enumerate(sequences)]
        served = serve(folder, rows=8, chunk=256)
        worst = spread = 0.0
        want = [reference(model, ids) for ids in sequences]
        for full, got in zip(want, teacher_forced(served, sequences, prompts), strict=True):
            difference = got - full
            assert not difference.isnan().any(), f"{kind}: logits that are not numbers"
            worst = max(worst, difference.abs().max().item())
            spread = max(spread, difference.square().mean().sqrt().item())
        print(f"{kind}: largest difference {worst:.4f}, root mean square {spread:.4f}", flush=True)
        assert worst < BOUND, f"{kind}: a logit differs by {worst:.3f}"
        assert spread < BOUND_RMS, f"{kind}: logits differ by {spread:.4f} (root mean square)"
        assert_empty(served)


def test_every_bucket_follows_transformers() -> None:
    """Greedy tokens of captured steps, full and padded: each is as likely as the best one, within the bound."""
    for kind in KINDS:
        folder, model = checkpoint(kind)
        served = serve(folder, rows=256, chunk=1024, kv_tokens=65536)
        for rows in (1, 3, 8, 11, 16, 24, 31, 48, 64, 96, 128, 160, 192, 224, 256):
            prompts = texts(rows, 5, 40, rows)
            outputs = generate(served, prompts, 8)
            for ids, out in list(zip(prompts, outputs, strict=True))[:: max(1, rows // 4)]:
                logits = reference(model, ids + out)[len(ids) - 1 : -1]
                chosen = logits.gather(1, torch.tensor(out, device="cuda")[:, None])[:, 0]
                behind = (logits.max(dim=1).values - chosen).max().item()
                assert behind < BOUND, f"{kind}, {rows} rows: a token is {behind:.3f} behind the best"


def test_ways_of_running_give_the_same_tokens() -> None:
    """Graph and eager, resident and planned by the host: the same kernels, so equal."""
    folder, _ = checkpoint("qwen3_5")
    prompts = [*texts(9, 1, 60, 5), *texts(3, 200, 400, 6)]
    count = len(prompts)
    mixed = {
        "temperature": [0.0, 1.0, 0.7, 0.0, 1.3, 0.9] * (count // 6),
        "seed": list(range(count)),
        "top_k": [0, 0, 10, 0, 0, 0] * (count // 6),
        "top_p": [1.0, 1.0, 0.9, 1.0, 0.8, 1.0] * (count // 6),
        "presence_penalty": [0.0, 0.0, 0.0, 1.5, 0.0, 0.5] * (count // 6),
        "min_tokens": [0, 20, 0, 0, 0, 0] * (count // 6),
        "stop_ids": [(), tuple(range(0, 1000, 40)), (), (), (5,), ()] * (count // 6),
        "logit_bias": [(), (), (), (), ((7, 2.0),), ()] * (count // 6),
    }
    for name, options in (("greedy", {}), ("mixed", mixed)):
        served = serve(folder, rows=16, chunk=128)
        want = generate(served, prompts, 40, **options)
        # Rows that run over their end change how attention splits its work, and so how others round.
        assert_close_tokens(generate(served, prompts, 40, overlap=False, **options), want)
        got = {}
        served.runner._graphs.clear()
        got["eager"] = generate(served, prompts, 40, **options)
        assert_empty(served)
        got["lengths only"] = generate(serve(folder, chunk=128, mode=PlanMode.LENGTHS_ONLY), prompts, 40, **options)
        got["host planned"] = generate(serve(folder, chunk=128, resident=False), prompts, 40, **options)
        for way, tokens in got.items():
            unequal = [i for i in range(count) if tokens[i] != want[i]]
            assert not unequal, f"{name}, {way}: requests {unequal} differ"


def test_rows_that_end_leave_nothing_to_their_successors() -> None:
    """More requests than rows and pages for few: rows, pages and slots change hands while steps are queued."""
    folder, _ = checkpoint("qwen3_5")
    prompts = texts(40, 1, 100, 9)
    stops = {"stop_ids": [tuple(range(0, 1000, 13))] * len(prompts), "temperature": [1.0] * len(prompts)}
    stops["seed"] = list(range(len(prompts)))
    alone = generate(serve(folder, rows=64, chunk=1024), prompts, 48, **stops)
    crowded = serve(folder, rows=8, chunk=128, kv_tokens=640)
    assert_close_tokens(generate(crowded, prompts, 48, **stops), alone)
    assert_empty(crowded)


def assert_close_tokens(got: list[list[int]], want: list[list[int]]) -> None:
    """Batches of other sizes round differently, so that a draw between near equals may fall otherwise, rarely."""
    equal = sum(a == b for a, b in zip(got, want, strict=True))
    assert equal >= 0.6 * len(want), f"only {equal} of {len(want)} requests give the same tokens"


def test_log_probabilities() -> None:
    folder, model = checkpoint("qwen3_5")
    served = serve(folder, rows=8)
    ids = texts(1, 30, 30, 3)[0]
    scored = teacher_forced(served, [ids])[0].log_softmax(-1)
    want = reference(model, ids).log_softmax(-1)
    assert (scored - want).abs().max() < BOUND


def test_a_steady_step_costs_one_copy_and_one_launch_and_no_synchronisation() -> None:
    """What 40 more decode steps add to the counts of a run: pages are appended meanwhile, prefill is the same."""
    folder, _ = checkpoint("qwen3_5")
    served = serve(folder, rows=16)
    prompts = texts(12, 10, 40, 4)
    generate(served, prompts, 8)
    counts = []
    for tokens in (40, 80):
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
            generate(served, prompts, tokens)
        found = {event.key: event.count for event in trace.key_averages()}
        counts.append(
            {
                "copies to the device": sum(n for key, n in found.items() if "Memcpy HtoD" in key),
                "graph launches": found.get("cudaGraphLaunch", 0),
                "other launches": sum(n for key, n in found.items() if key.startswith(("cudaLaunch", "cuLaunch"))),
                "copies asked for": sum(n for key, n in found.items() if key.startswith("cudaMemcpy")),
                "synchronisations": sum(n for key, n in found.items() if key.startswith("cuda") and "Synchron" in key),
            }
        )
    added = {name: counts[1][name] - counts[0][name] for name in counts[0]}
    print("added by 40 steps:", added, flush=True)
    assert added.pop("graph launches") == 40
    assert added.pop("copies to the device") <= 40
    assert not any(added.values()), added
