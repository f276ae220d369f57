"""Two KV pools in captured steps on a GPU, against a dense model in double precision; and the two walks' streams.

The model's own tokens have grouped heads of 256 (tensor cores), its context single heads of 64 (CUDA cores).
"""

from __future__ import annotations

import functools
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from denizen.worker.config import EngineConfig, PoolConfig, SchedulerConfig
from denizen.worker.pools.kv import SINK_PAGE
from denizen.worker.request import Request
from denizen.worker.resident.planner import PlanMode
from denizen.worker.sampling.params import SamplingParams
from denizen.worker.served import ServedModel
from denizen.worker.teacher import teacher_forced
from gpu_support import CUDA
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.worker.peer import generate
from tests.worker.two_pools import TwoPoolModel, encode

VOCAB, POSITIONS, PAGE, ROWS = 500, 100, 16, 12
#: Largest difference of a bf16 logit from the dense model's, in standard deviations of its logits, and the root mean
#: square of the differences.
BOUND, BOUND_RMS = 0.1, 0.015
MODES = {
    "resident": {},
    "lengths only": {"mode": PlanMode.LENGTHS_ONLY},
    "host planned": {"resident": False},
}


@functools.cache
def serve(encoded: bool = False, resident: bool = True, mode: PlanMode = PlanMode.HOST_PLAN_FREE) -> ServedModel:
    model = TwoPoolModel(
        VOCAB, 2048, positions=POSITIONS, own=(4, 1, 256), cross=(8, 64), encoded=encoded, device=CUDA,
        dtype=torch.bfloat16,
    )  # fmt: skip
    served = ServedModel.build(
        "toy",
        model,
        CUDA,
        torch.bfloat16,
        PoolConfig(PAGE, 8192),
        SchedulerConfig(ROWS, 2048, 128),
        EngineConfig(True, resident),
        mode=mode,
    )
    for pool in served.runner.attention.values():
        for cache in (pool.keys, pool.values):
            cache[:, SINK_PAGE] = float("nan")
    if encoded:
        _encode_on_admission(served)
    torch.cuda.synchronize()
    return served


def _encode_on_admission(served: Any) -> None:
    """In place of a walk before prefill: the context is in its pages when the row begins."""
    scheduler, pool = served.scheduler, served.runner.attention["context"]
    admit = scheduler._admit

    def admit_and_encode(request: Request) -> bool:
        admitted: bool = admit(request)
        if admitted:
            assert request.held is not None
            encode(served.model, int(request.prompt[0]), pool.keys[0], pool.values[0], request.held.pages["context"])
            torch.cuda.synchronize()
        return admitted

    scheduler._admit = admit_and_encode


def texts(count: int, low: int, high: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB) for _ in range(rng.randint(low, high))] for _ in range(count)]


@torch.inference_mode()
def test_logits_equal_those_of_the_dense_model() -> None:
    """Teacher-forced, step by step: chunks of several rows that begin and go on, then decode."""
    sequences = texts(7, 20, 300, seed=1)
    prompts = [max(1, len(ids) - 12) for ids in sequences]
    worst = rms = 0.0
    for encoded in (False, True):
        for name, options in MODES.items():
            served = serve(encoded, **options)
            for ids, got in zip(sequences, teacher_forced(served, sequences, prompts), strict=True):
                want = served.model.dense(ids)
                assert got.isfinite().all(), name
                error = (got.double() - want) / want.std()
                worst, rms = max(worst, float(error.abs().max())), max(rms, float(error.square().mean().sqrt()))
                assert worst < BOUND, f"{name}: off by {worst:.3f}"
                assert rms < BOUND_RMS, f"{name}: rms {rms:.4f}"
    print(f"two pools: differences of up to {worst:.3f} standard deviations, rms {rms:.4f}", flush=True)


@torch.inference_mode()
def _assert_greedy(served: Any, prompts: list[list[int]], outputs: list[list[int]], what: str) -> None:
    """Each token is the dense model's best but for what rounding explains."""
    for ids, tokens in zip(prompts, outputs, strict=True):
        logits = served.model.dense([*ids, *tokens[:-1]])[len(ids) - 1 :]
        chosen = logits.gather(1, torch.tensor(tokens, device=CUDA)[:, None])[:, 0]
        short = (logits.max(-1).values - chosen) / logits.std()
        assert short.max() < 2 * BOUND, f"{what}: a token is {float(short.max()):.2f} below the best"
        assert len(set(tokens)) > len(tokens) // 4, f"{what}: {tokens}"


def test_graphs_give_the_dense_models_tokens() -> None:
    """Captured decode and prefill, in every plan mode; prefill steps run beside decode steps."""
    prompts = texts(20, 5, 200, seed=2)
    for encoded in (False, True):
        for name, options in MODES.items():
            served = serve(encoded, **options)
            for overlap in (False, True):
                outputs = generate(served, prompts, 40, overlap=overlap)
                _assert_greedy(served, prompts, outputs, f"{name}, overlap {overlap}")


def test_a_context_is_as_long_as_ever_after_a_thousand_steps() -> None:
    served = serve()
    scheduler, runner = served.scheduler, served.runner
    prompts = texts(2, 30, 40, seed=3)
    for number, ids in enumerate(prompts):
        scheduler.submit(Request(number + 1, np.asarray(ids, np.int32), SamplingParams(), 1001))
    while len(scheduler.decodable()) < 2:
        _run(served, scheduler.plan_prefill())
    requests = list(scheduler.running)
    rows = [request.row for request in requests]
    before = runner.tables.block_table["context"].clone()
    plans = runner.read_plans
    for _ in range(1000):
        _run(served, scheduler.plan_decode())
    assert runner.read_plans == plans + 2  # one for each graph slot
    assert torch.equal(runner.tables.block_table["context"], before)
    assert runner.tables.lengths["context"][rows].tolist() == [POSITIONS] * 2
    assert runner.tables.lengths["self"][rows].tolist() == [len(ids) + 1000 for ids in prompts]
    assert not scheduler.running
    _assert_greedy(served, prompts, [request.outputs for request in requests], "1,001 tokens")


def _run(served: Any, plan: Any) -> None:
    served.scheduler.commit(plan)
    result = served.runner.run(plan)
    served.scheduler.complete(plan)
    tokens = iter(result.tokens.tolist())
    for request in plan.sampling:
        if request.accept(next(tokens)) is not None:
            served.scheduler.end(request)


def test_the_device_holds_what_the_host_would_plan() -> None:
    """Page arrays of both pools after each step: gathered ones equal the mirror's, loaded ones the lists."""
    served = serve()
    scheduler, runner = served.scheduler, served.runner
    for number, ids in enumerate(texts(5, 14, 34, seed=4)):
        scheduler.submit(Request(number + 1, np.asarray(ids, np.int32), SamplingParams(), 40))
    while len(scheduler.decodable()) < 5:
        _run(served, scheduler.plan_prefill())
    for _ in range(39):
        plan = scheduler.plan_decode()
        held = {key: [list(request.held.pages[key]) for request in plan.requests] for key in ("self", "context")}
        rows = plan.advance.rows
        _run(served, plan)
        for key, places, pages in plan.appended:
            for place, page in zip(places.tolist(), pages, strict=True):
                held[key][place].append(page)
        bound = runner._steps["decode", plan.bucket, plan.graph_slot].attention
        lengths = {
            "self": np.asarray([entry.start + 1 for entry in plan.entries]),
            "context": np.full(len(rows), POSITIONS),
        }
        for key, step in bound.items():
            counts = (-(-lengths[key] // PAGE)).tolist()
            padding = plan.bucket - len(rows)
            indptr = np.cumsum([0, *counts, *[1] * padding]).tolist()
            assert step.pages.indptr.tolist() == indptr, key
            pages = [page for own, count in zip(held[key], counts, strict=True) for page in own[:count]]
            assert step.pages.indices[: indptr[-1]].tolist() == pages + [SINK_PAGE] * padding, key
            last = [(length - 1) % PAGE + 1 for length in lengths[key].tolist()]
            assert step.pages.last_page_len.tolist() == last + [1] * padding, key
    assert not scheduler.running


def test_a_steady_step_asks_the_driver_for_one_launch() -> None:
    """Also beside a pool that the host plans: its plan stays in the slot's workspace."""
    served = serve()
    prompts = texts(8, 20, 30, seed=5)
    counts = []
    for tokens in (20, 60):
        generate(served, prompts, tokens, overlap=False)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
            generate(served, prompts, tokens, overlap=False)
        found = {event.key: event.count for event in trace.key_averages()}
        counts.append(
            {
                "copies to the device": sum(n for key, n in found.items() if "Memcpy HtoD" in key),
                "graph launches": found.get("cudaGraphLaunch", 0),
                "copies asked for": sum(n for key, n in found.items() if key.startswith("cudaMemcpy")),
                "synchronisations": sum(n for key, n in found.items() if key.startswith("cuda") and "Synchron" in key),
            }
        )
    added = {name: counts[1][name] - counts[0][name] for name in counts[0]}
    print("two pools, added by 40 steps:", added, flush=True)
    assert added.pop("graph launches") == 40
    assert added.pop("copies to the device") <= 40
    assert not any(added.values()), added


def test_neither_walk_waits_for_the_other() -> None:
    """One of the two streams is kept busy: a step of the other walk arrives all the same."""
    served = serve()
    scheduler, runner = served.scheduler, served.runner
    prompts = texts(4, 30, 60, seed=6)
    requests = [Request(n + 1, np.asarray(ids, np.int32), SamplingParams(), 6) for n, ids in enumerate(prompts)]
    for request in requests[:2]:
        scheduler.submit(request)
    while len(scheduler.decodable()) < 2:
        _run(served, scheduler.plan_prefill())
    for held, late in (("prefill", requests[2]), ("decode", requests[3])):
        scheduler.submit(late)
        plans = {"decode": scheduler.plan_decode(), "prefill": scheduler.plan_prefill()}
        for plan in plans.values():
            scheduler.commit(plan)
        with torch.cuda.stream(runner._prefill_stream if held == "prefill" else torch.cuda.current_stream()):
            torch.cuda._sleep(1 << 32)  # some seconds
        other = "decode" if held == "prefill" else "prefill"
        waits, goes = runner.launch(plans[held]), runner.launch(plans[other])
        deadline = time.monotonic() + 30
        while not goes.arrived:
            assert time.monotonic() < deadline, f"{other} did not arrive"
        assert not waits.arrived, f"{other} waited for {held}"
        launched = {held: waits, other: goes}
        for walk, plan in plans.items():
            launched[walk].wait()
            scheduler.complete(plan)
            for request, token in zip(plan.sampling, launched[walk].result().tokens.tolist(), strict=True):
                if request.accept(token) is not None:
                    scheduler.end(request)
    while scheduler.running:
        _run(served, scheduler.plan_decode())
    _assert_greedy(served, prompts, [request.outputs for request in requests], "beside a busy stream")
