"""Pages are appended some steps ahead where there are many, and never beyond what a request can use."""

from __future__ import annotations

import numpy as np
import pytest
from denizen.worker.request import Phase, Request
from denizen.worker.sampling.params import SamplingParams

from tests.worker.peer import assert_empty
from tests.worker.toy import serve_toy


def _decode(served, prompts: list[int], *max_tokens: int) -> tuple[list[int], list[Request]]:
    """Runs the requests to their end; how many decode steps appended so many pages, and the requests.

    ``max_tokens``: of all requests, or of each.
    """
    scheduler = served.scheduler
    most = max_tokens if len(max_tokens) > 1 else max_tokens * len(prompts)
    requests = [Request(i + 1, np.full(n, 3, np.int32), SamplingParams(), most[i]) for i, n in enumerate(prompts)]
    for request in requests:
        scheduler.submit(request)
    appended = []
    limit = served.scheduler.planner.layout.max_pages["self"]
    while not scheduler.idle:
        for plan in (scheduler.plan_decode(), scheduler.plan_prefill()):
            if plan is None:
                continue
            scheduler.commit(plan)
            if plan.walk == "decode":
                appended.append(sum(len(pages) for _, _, pages in plan.appended))
            scheduler.complete(plan)
            for request in plan.sampling:
                if request.phase is not Phase.ENDED:
                    assert len(request.held.pages["self"]) <= limit
                    need = -(-(len(request.prompt) + request.max_tokens - 1) // 4)
                    assert len(request.held.pages["self"]) <= need, "more pages than the request can fill"
                    if request.accept(1) is not None:
                        scheduler.end(request)
    assert_empty(served)
    return appended, requests


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5, 8, 9, 40])
def test_no_request_gets_a_page_that_it_cannot_fill(max_tokens):
    for prompts in ([1], [3, 4, 5, 8], list(range(1, 9))):
        _, requests = _decode(serve_toy(kv_tokens=2048), prompts, max_tokens)
        assert all(len(request.outputs) == max_tokens for request in requests)


def test_the_last_page_of_the_context_is_the_last():
    context = 64
    _decode(serve_toy(kv_tokens=2048, max_context=context), [30, 31, 32], context - 32)


PROMPTS = [5, 6, 7, 8, 9, 10, 11, 12]


def test_where_pages_are_many_few_steps_append_any():
    ahead, _ = _decode(serve_toy(kv_tokens=2048), PROMPTS, 80)
    served = serve_toy(kv_tokens=2048)
    served.scheduler.planner.ahead["self"] = 1
    when_due, _ = _decode(served, PROMPTS, 80)
    assert len(ahead) == len(when_due)
    assert sum(count > 0 for count in when_due) > len(when_due) // 2
    assert sum(count > 0 for count in ahead) <= len(ahead) // 4 + 1


def test_where_pages_just_suffice_nobody_is_preempted_for_pages_taken_early():
    pages = sum(-(-(prompt + 80 - 1) // 4) for prompt in PROMPTS)
    served = serve_toy(kv_tokens=4 * pages)
    _decode(served, PROMPTS, 80)
    assert not served.scheduler.preemptions


def test_where_pages_are_scarce_a_step_takes_its_own_alone():
    """Few are left: one request needs a page now, the other has ended before it would need one."""
    served = serve_toy(kv_tokens=16)
    _decode(served, [4, 3], 11, 4)
    assert not served.scheduler.preemptions


def test_a_request_waits_until_there_is_a_page_for_each_running_one_besides():
    """It would fit, and be preempted as soon as the running one grows."""
    served = serve_toy(kv_tokens=32)
    _decode(served, [10, 12], 13, 13)
    assert not served.scheduler.preemptions
