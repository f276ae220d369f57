"""Logits of the CUDA worker, teacher-forced, against fp32 transformers with the same weights: every bucket and way."""

from __future__ import annotations

import gc

import torch
from denizen.worker.config import EngineConfig, PoolConfig, SchedulerConfig
from denizen.worker.models.checkpoint import Checkpoint
from denizen.worker.models.registry import model_class
from denizen.worker.resident.planner import PlanMode
from denizen.worker.served import ServedModel
from denizen.worker.teacher import KeptLogits, forced_steps, teacher_forced
from gpu_support import CUDA
from worker_support import (
    BOUND,
    BOUND_RMS,
    assert_empty,
    assert_follows,
    checkpoint,
    generate,
    reference,
    references,
    run,
    shared,
    texts,
)

KINDS = ("qwen3_5", "llama")
ROWS, CHUNK = 256, 1024
WAYS = {
    "resident": {},
    "lengths only": {"mode": PlanMode.LENGTHS_ONLY},
    "host planned": {"resident": False},
}


class Difference:
    """Of logits from their reference."""

    def __init__(self) -> None:
        self.worst = self.squares = 0.0
        self.positions = 0

    def add(self, got: torch.Tensor, want: torch.Tensor) -> None:
        """Both ``[positions, vocab]``."""
        assert not got.isnan().any(), "logits that are not numbers"
        difference = got - want
        self.worst = max(self.worst, difference.abs().max().item())
        self.squares += difference.square().mean(dim=1).sum().item()
        self.positions += len(got)

    def check(self, what: str) -> None:
        spread = (self.squares / self.positions) ** 0.5
        print(f"{what}: {self.positions} positions, largest difference {self.worst:.4f}, RMS {spread:.4f}", flush=True)
        assert self.worst < BOUND, f"{what}: a logit differs by {self.worst:.3f}"
        assert spread < BOUND_RMS, f"{what}: logits differ by {spread:.4f} (root mean square)"


def test_every_position_through_the_scheduler() -> None:
    """Chunked prompts of several lengths and decode steps beside them, kernel by kernel."""
    for kind in KINDS:
        _, model = checkpoint(kind)
        served = shared(kind, rows=8, chunk=256, buckets=(8,))
        sequences = [*texts(6, 20, 300), *texts(2, 500, 700, 1)]
        prompts = [max(1, len(ids) - 12 * (i % 3)) for i, ids in enumerate(sequences)]
        found = Difference()
        for ids, got in zip(sequences, teacher_forced(served, sequences, prompts), strict=True):
            found.add(got, reference(model, ids))
        found.check(kind)
        assert_empty(served)


def test_every_bucket_graph_and_eager_resident_and_host_planned() -> None:
    """What captured steps compute, in both graph slots, and the same steps without their graphs."""
    for kind, ways in (("qwen3_5", WAYS), ("llama", {"resident": {}})):
        for way, options in ways.items():
            _every_bucket(kind, way, **options)
            gc.collect()
            torch.cuda.empty_cache()


def _every_bucket(kind: str, way: str, *, mode: PlanMode = PlanMode.HOST_PLAN_FREE, resident: bool = True) -> None:
    folder, model = checkpoint(kind)
    opened = Checkpoint.open(folder)
    loaded = model_class(opened).load(opened, CUDA, torch.bfloat16)
    kept = KeptLogits(loaded)
    served = ServedModel.build(
        "model",
        loaded,
        CUDA,
        torch.bfloat16,
        PoolConfig(16, 65536, "float32"),
        SchedulerConfig(ROWS, 4096, CHUNK),
        EngineConfig(True, resident),
        mode=mode,
    )
    steps = {step[:3] for step in served.runner._steps}
    buckets = sorted({bucket for walk, bucket, _ in steps if walk == "decode"}, reverse=True)
    chunks = sorted({bucket[1] for walk, bucket, _ in steps if walk == "prefill"})
    many = texts(ROWS, 30, 44, 2)
    long = texts(2 * len(chunks), 1, 1, 3)
    for index, chunk in enumerate(sorted(chunks * 2)):
        long[index] = texts(1, chunk - 3, chunk + 20, 10 + index)[0]
    want_many, want_long = references(model, many), [reference(model, ids) for ids in long]
    seen: set[tuple[str, int, int]] = set()
    for graphs in ("graph", "eager"):
        if graphs == "eager":
            served.runner._graphs.clear()
        seen.clear()
        found = Difference()

        def force(texts: list[list[int]], prompts: list[int], want: list[torch.Tensor], found=found) -> None:
            for plan, _, numbers in forced_steps(served, texts, prompts):
                seen.add((plan.walk, served.runner._bucket(plan), plan.graph_slot))
                logits = kept.of(served, plan)
                rows = [row for row, entry in enumerate(plan.entries) if entry.samples]
                ends = [entry.start + entry.count - 1 for entry in plan.entries]
                if rows:
                    found.add(logits[rows], torch.stack([want[numbers[row]][ends[row]] for row in rows]))
            assert_empty(served)

        for ids, want in zip(long, want_long, strict=True):  # alone: a prefill step of every size
            force([ids], [min(CHUNK, len(ids) - 1, max(size for size in chunks if size <= len(ids) + 3))], [want])
        for bucket in buckets:
            if {("decode", bucket, slot) for slot in range(2)} <= seen:
                continue
            rows = max(1, bucket - bucket % 5)  # full, or with a few rows of padding
            force(many[:rows], [len(ids) - 24 for ids in many[:rows]], want_many[:rows])
        assert seen == steps, f"not run: {sorted(steps - seen)}"
        found.check(f"{kind}, {way}, {graphs}, {len(steps)} steps")


def test_tokens_of_the_engine_follow_transformers() -> None:
    """Greedy, through the engine: each token is as likely as the best one, within the bound."""
    for kind in KINDS:
        served = shared(kind, rows=64, chunk=256, kv_tokens=16384, buckets=(8, 32, 64))
        for rows in (1, 11, 57):
            prompts = texts(rows, 5, 40, rows)
            outputs = generate(served, prompts, 12)
            some = slice(None, None, max(1, rows // 8))
            assert_follows(kind, prompts[some], outputs[some], 12, f"{kind}, {rows} rows")


def test_log_probabilities() -> None:
    """Those of output and prompt tokens that the worker hands out, beside plain rows."""
    _, model = checkpoint("qwen3_5")
    served = shared("qwen3_5", rows=16, chunk=128)
    prompts = texts(6, 20, 200, 3)
    asks = {"logprobs": [3, None, 0, 5, None, 20], "prompt_logprobs": [2, None, None, 1, 4, None]}
    for ids, outcome, few in zip(prompts, run(served, prompts, 10, **asks), asks["logprobs"], strict=True):
        scores = reference(model, ids + outcome.tokens).log_softmax(-1)
        for row in outcome.rows:
            expected = scores[len(ids) + row.position - 1]
            assert (row.logprob is None) == (few is None)
            if few is not None:
                assert abs(row.logprob - expected[row.token].item()) < BOUND
                assert all(abs(score - expected[token].item()) < BOUND for token, score in row.top)
                assert len(row.top) == few
        for position, scored in enumerate(outcome.end.prompt_logprobs or ()):
            if scored is not None:
                assert abs(scored[0] - scores[position - 1, ids[position]].item()) < BOUND
