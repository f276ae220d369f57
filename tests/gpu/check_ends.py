"""Ends of requests on the CUDA worker: what over-run steps may touch, aborts in every phase, rows that change hands."""

from __future__ import annotations

import functools

import numpy as np
import torch
from denizen.worker.request import Request
from denizen.worker.sampling.params import SamplingParams
from gpu_models import serve
from gpu_support import CUDA
from worker_support import (
    BOUND,
    Peer,
    assert_close_tokens,
    assert_empty,
    assert_follows,
    checkpoint,
    generate,
    reference,
    shared,
    texts,
)

from tests.soak.driver import Soak

KIND = "qwen3_5"


def test_a_stop_with_the_next_step_queued_and_a_new_owner_at_once() -> None:
    """One row, pages for one request: the second takes what the over-run step of the first still writes to."""
    folder, _ = checkpoint(KIND)
    served = serve(folder, rows=1, chunk=64, kv_tokens=64, context=64, buckets=[1])
    old, new = texts(2, 20, 20, 50)
    alone = _owned(served, _begin(served, 1, new), 6)
    scheduler, runner = served.scheduler, served.runner
    request = _begin(served, 2, old)
    _steps(served, 5)
    running = scheduler.plan_decode()
    scheduler.commit(running)
    first = runner.launch(running)
    queued = scheduler.plan_decode()
    scheduler.commit(queued)
    second = runner.launch(queued)  # the over-run step, behind the one whose token ends the request
    first.wait()
    first.result()
    scheduler.complete(running)
    held = set(request.held.pages["kv"])
    scheduler.end(request)
    owner = _begin(served, 3, new)
    assert scheduler.plan_prefill() is None, "admitted while the over-run step may still write"
    second.wait()
    scheduler.complete(queued)
    after = _owned(served, owner, 6)
    assert held & set(owner.held.pages["kv"]), "the new owner must take the old one's pages"
    assert owner.outputs == alone[0]
    for name, one, other in zip(("keys", "values", "states"), alone[1:], after[1:], strict=True):
        assert torch.equal(one, other), f"{name} of the new owner are not what they are when it is alone"
    scheduler.end(owner)
    assert_empty(served)


def _begin(served, id: int, ids: list[int]) -> Request:
    request = Request(id, np.asarray(ids, np.int32), SamplingParams(), 30)
    served.scheduler.submit(request)
    return request


def _steps(served, count: int) -> None:
    scheduler = served.scheduler
    for _ in range(count):
        plan = scheduler.plan_decode() or scheduler.plan_prefill()
        scheduler.commit(plan)
        result = served.runner.run(plan)
        scheduler.complete(plan)
        for request, token in zip(plan.sampling, result.tokens.tolist(), strict=True):
            assert request.accept(token) is None


def _owned(served, request: Request, steps: int) -> tuple[list[int], torch.Tensor, torch.Tensor, torch.Tensor]:
    """Outputs, keys, values and states of a request after ``steps`` steps; ends it unless it is the last one's."""
    _steps(served, steps)
    torch.cuda.synchronize()
    pool, length = served.runner.attention["kv"], int(served.runner.tables.lengths["kv"][request.row])
    pages = torch.tensor(request.held.pages["kv"], device=CUDA)
    keys, values = (part[:, pages].flatten(1, 2)[:, :length].clone() for part in (pool.keys, pool.values))
    slot = request.held.state["delta"]
    states = torch.cat([part[:, slot].float().flatten() for part in served.runner.state["delta"].values()])
    if request.id == 1:
        served.scheduler.end(request)
    return list(request.outputs), keys, values, states


def test_aborts_in_every_phase_under_a_watch() -> None:
    """A short soak: aborts in all phases, preemptions, checksums, pools back at their start, every token judged."""
    folder, model = checkpoint(KIND)
    served = serve(folder, rows=12, chunk=128, kv_tokens=832, context=512, buckets=[4, 12])
    soak = Soak(served, 11, lambda soak: soak.counts["requests"] >= 300)
    soak.run()

    soak.judge(functools.partial(reference, model), BOUND)
    print(dict(soak.counts), dict(soak.aborts), soak.watch.checks, soak.watch.resting, flush=True)
    assert not soak.violations, soak.violations
    assert_empty(served)
    assert set(soak.aborts) >= {"waiting", "prefill", "prefilled", "first token", "queued", "preempted"}
    assert soak.watch.resting > 50


def test_rows_that_end_leave_nothing_to_their_successors() -> None:
    """More requests than rows and pages for few: rows, pages and slots change hands while steps are queued."""
    folder, _ = checkpoint(KIND)
    prompts = texts(40, 1, 100, 9)
    stops = {"stop_ids": [tuple(range(0, 1000, 13))] * len(prompts), "temperature": [1.0] * len(prompts)}
    stops["seed"] = list(range(len(prompts)))
    roomy = generate(shared(KIND, rows=64, chunk=256, kv_tokens=16384, buckets=(8, 32, 64)), prompts, 48, **stops)
    crowded = serve(folder, rows=8, chunk=128, kv_tokens=640, buckets=[4, 8])
    got = generate(crowded, prompts, 48, **stops)
    assert_close_tokens(got, roomy)
    assert_follows(KIND, prompts, got, 48, "crowded", **stops)


def test_an_abort_frees_everything_at_once_for_the_next() -> None:
    served = shared(KIND, rows=64, chunk=256, kv_tokens=16384, buckets=(8, 32, 64))
    with Peer([served]) as peer:
        for number in range(1, 61):
            peer.submit(number, texts(1, 5, 600, number)[0], 200, model=served.name)
        peer.until(lambda: any(outcome.rows for outcome in peer.outcomes.values()))
        for number in range(1, 61):
            peer.abort(number)
        assert {outcome.end.reason for outcome in peer.finish()} == {"abort"}
    assert_empty(served)
