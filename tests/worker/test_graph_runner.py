"""Static steps against the eager runner: the same tokens, whatever plans, and whoever plans them.

What a graph would record is what runs here: fixed shapes, padding rows and tokens, the host block, the mailbox.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from denizen.kernels.adjust import IN_PROMPT
from denizen.worker.channel import Channel
from denizen.worker.engine import Engine
from denizen.worker.phases import Stopwatch
from denizen.worker.protocol import Drain, Submit, encode
from denizen.worker.request import Request
from denizen.worker.resident.planner import PlanMode
from denizen.worker.sampling.params import SamplingParams
from denizen.worker.teacher import teacher_forced

from tests.worker.peer import Full, Peer, QueueArena, TooLarge, generate
from tests.worker.static_steps import serve_static
from tests.worker.test_engine import MIXED, OUTPUTS, PROMPTS
from tests.worker.toy import serve_toy

VARIANTS = {
    "resident": {},
    "lengths only": {"mode": PlanMode.LENGTHS_ONLY},
    "host planned": {"resident": False},
    "preempting": {"kv_tokens": 72},
    "large pages": {"page_size": 32},
}


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_static_steps_give_the_tokens_of_the_eager_runner(variant, overlap):
    expected = generate(serve_toy(), PROMPTS, OUTPUTS)
    assert generate(serve_static(**VARIANTS[variant]), PROMPTS, OUTPUTS, overlap=overlap) == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_static_steps_sample_what_the_eager_runner_samples(variant):
    assert generate(serve_static(**VARIANTS[variant]), PROMPTS, OUTPUTS, **MIXED) == generate(
        serve_toy(), PROMPTS, OUTPUTS, **MIXED
    )


def test_a_chunk_that_does_not_end_its_prompt_counts_no_token_beside_one_that_does():
    """Symptom: a penalty for a token that was never given, where a short prompt ends in the step of a long one."""
    served = serve_static()
    scheduler, state = served.scheduler, served.runner.sampler
    for index, ids in enumerate((PROMPTS[0], PROMPTS[3])):
        params = SamplingParams(frequency_penalty=1.0)
        scheduler.submit(Request(index + 1, np.asarray(ids, np.int32), params, OUTPUTS))
    plan = scheduler.plan_prefill()
    assert plan.samples == [True, False]
    scheduler.commit(plan)
    (token,) = served.runner.run(plan).tokens.tolist()
    outputs = state.counts[plan.advance.rows] & (IN_PROMPT - 1)
    assert outputs.nonzero().tolist() == [[0, token]]


def test_plans_are_recorded_or_made_on_the_host_and_never_both():
    for mode in PlanMode:
        served = serve_static(mode=mode, resident=mode is not PlanMode.FULL)
        generate(served, PROMPTS[:4], 8)
        steps = [bound for step in served.runner._steps.values() for bound in step.attention.values()]
        assert any(step.recorded for step in steps) == (mode is PlanMode.HOST_PLAN_FREE)
        assert any(step.planned for step in steps) == (mode is not PlanMode.HOST_PLAN_FREE)


def test_log_probabilities_equal_those_of_the_eager_runner():
    prompts = PROMPTS[:5]
    results = []
    for served in (serve_toy(), serve_static()):
        with Peer([served]) as peer:
            for index, ids in enumerate(prompts):
                peer.submit(index + 1, ids, 6, logprobs=3, prompt_logprobs=2)
            results.append(peer.finish())
    for one, other in zip(*results, strict=True):
        for a, b in zip(one.rows, other.rows, strict=True):
            assert a.token == b.token
            assert a.logprob == pytest.approx(b.logprob, abs=1e-5)
            assert [token for token, _ in a.top] == [token for token, _ in b.top]
        for a, b in zip(one.end.prompt_logprobs, other.end.prompt_logprobs, strict=True):
            assert (a is None) == (b is None)
            assert a is None or a[0] == pytest.approx(b[0], abs=1e-5)


def test_teacher_forcing_goes_through_static_steps():
    sequences, prompts = [PROMPTS[1], PROMPTS[3]], [12, 40]
    got = teacher_forced(serve_static(), sequences, prompts)
    for mine, theirs in zip(got, teacher_forced(serve_toy(), sequences, prompts), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)


def test_a_long_row_write_travels_by_itself():
    """More pages than a prefill step's block has room for."""
    prompt = [index % 97 for index in range(400)]
    options = {"page_size": 1, "kv_tokens": 480}
    served = serve_static(**options)
    assert generate(served, [prompt], 30) == generate(serve_toy(**options), [prompt], 30)


def test_the_steps_that_a_mailbox_counts_may_be_more_than_32_bits_hold():
    """Symptom: after 2,147,483,647 steps, some weeks, no token ever arrives."""
    served = serve_static()
    for box in served.runner._mailboxes:
        box.expected = 2**31 - 3
        box.delivered.fill_(box.expected)
    assert generate(served, PROMPTS[:2], OUTPUTS) == generate(serve_toy(), PROMPTS[:2], OUTPUTS)
    assert any(box.expected < 0 for box in served.runner._mailboxes)
    assert all(box.expected == box.delivered for box in served.runner._mailboxes)


class Counting(Stopwatch):
    def __init__(self) -> None:
        self.phases: list[str] = []
        self.steps: list[tuple[str, int]] = []

    def lap(self, phase: str) -> None:
        self.phases.append(phase)

    def step(self, walk: str, bucket: int) -> None:
        self.steps.append((walk, bucket))


def test_every_iteration_is_timed():
    arena = QueueArena()
    for index, ids in enumerate(PROMPTS[:3]):
        arena.put(encode(Submit("toy", ids, 5, temperature=0.0), request=index + 1))
    arena.put(encode(Drain()))
    watch = Counting()
    Engine(Channel(arena, Full, TooLarge), [serve_static()], stopwatch=watch).run()
    assert {"plan_kv", "plan_sampler", "plan_rest", "device_work", "device_wait"} <= set(watch.phases)
    assert {walk for walk, _ in watch.steps} == {"prefill", "decode"}
