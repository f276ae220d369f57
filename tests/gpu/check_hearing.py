"""Requests with audio in captured steps on a GPU, against a dense model that hears, in double precision."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from denizen.worker.asr import AsrOptions
from denizen.worker.config import EngineConfig, PoolConfig, SchedulerConfig
from denizen.worker.pools.kv import SINK_PAGE
from denizen.worker.protocol import Done
from denizen.worker.resident.planner import PlanMode
from denizen.worker.served import ServedModel
from gpu_support import CUDA

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.worker.hearing import LANGUAGES, HearingModel, sound
from tests.worker.peer import Peer, assert_empty

if TYPE_CHECKING:
    import numpy as np

ROWS, STOP = 12, 42
#: How far a token of bf16 logits may be from the dense model's best, in deviations of its logits; how far scores may.
BOUND, BOUND_SCORE, BOUND_SILENCE = 0.15, 0.1, 0.02
#: Sums of 200,000 rounded keys and values, which differ by hundreds between rows.
BOUND_TIME = 10.0
WAYS = {
    "resident": {},
    "lengths only": {"mode": PlanMode.LENGTHS_ONLY},
    "host planned": {"resident": False},
    "preempting": {"kv_tokens": 160},
}
OPTIONS = [AsrOptions(), AsrOptions(timestamps=False, words=True), AsrOptions(detect=True, forced=(7, 11), words=True)]


def serve(resident: bool = True, mode: PlanMode = PlanMode.HOST_PLAN_FREE, kv_tokens: int = 8192) -> ServedModel:
    model = HearingModel(128, positions=100, own=(4, 1, 256), cross=(8, 64), device=CUDA, dtype=torch.bfloat16)
    served = ServedModel.build(
        "hearing",
        model,
        CUDA,
        torch.bfloat16,
        PoolConfig(16, kv_tokens),
        SchedulerConfig(ROWS, None, 128),
        EngineConfig(True, resident),
        mode=mode,
    )
    for pool in served.runner.attention.values():
        for cache in (pool.keys, pool.values):
            cache[:, SINK_PAGE] = float("nan")
    torch.cuda.synchronize()
    return served


def _clear(model: HearingModel, ids: list[int], audio: np.ndarray) -> bool:
    """Whether rounding cannot choose another language: the rules then let nothing else pass."""
    logits = model.logits_of(ids, audio, AsrOptions(timestamps=False), [])[0]
    best, second = logits[LANGUAGES:].topk(2).values.tolist()
    return bool(best - second > 0.3 * logits[logits > -torch.inf].std())


def test_answers_are_the_dense_models_whatever_the_schedule() -> None:
    rng, listener = random.Random(1), serve().model
    requests = []
    for number in range(45):
        ids = [rng.randrange(97) for _ in range(rng.randint(1, 20))] + [1]
        audio, options = sound(number, rng.randint(1, 400)), OPTIONS[number % 3]
        if not options.detect or _clear(listener, ids, audio):
            requests.append((ids, audio, options, rng.randint(4, 60)))
    assert sum(options.detect for _, _, options, _ in requests) > 4
    worst = score = silence = time = 0.0
    for way, given in WAYS.items():
        served = serve(**given)
        for overlap in (True, False):
            peer = Peer([served], overlap=overlap)
            for number, (ids, audio, asr, most) in enumerate(requests, 1):
                own = {"model": "hearing", "audio": audio.tobytes(), "asr": asr, "stop_ids": [STOP]}
                peer.submit(number, ids, most, **own)
            with peer:
                outcomes = peer.finish()
            assert_empty(served)
            for outcome, (ids, audio, asr, _) in zip(outcomes, requests, strict=True):
                assert isinstance(outcome.end, Done), outcome.end
                got = outcome.end.asr
                assert got is not None
                answer, off = served.model.judged(ids, audio, asr, outcome.tokens, STOP)
                worst, score = max(worst, off), max(score, abs(got.avg_logprob - answer.avg_logprob))
                silence = max(silence, abs(got.no_speech - answer.no_speech))
                assert len(got.times or ()) == (len(answer.times) if asr.words else 0)
                time = max([time, *(abs(a - b) for a, b in zip(got.times or (), answer.times, strict=False))])
                assert worst < BOUND, f"{way}: a token is {worst:.3f} from the best"
                assert score < BOUND_SCORE, f"{way}: avg_logprob is off by {score:.3f}"
                assert silence < BOUND_SILENCE, f"{way}: no_speech is off by {silence:.3f}"
                assert time < BOUND_TIME, f"{way}: times are off by {time:.2f}"
        if way == "preempting":
            assert served.scheduler.preemptions
        del served
        torch.cuda.empty_cache()
    print(
        f"hearing: {worst:.3f} from the best, scores {score:.3f}, silence {silence:.4f}, times {time:.2f}", flush=True
    )
