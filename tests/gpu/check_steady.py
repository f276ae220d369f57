"""What a steady decode step asks of the driver, counted."""

from __future__ import annotations

import numpy as np
import torch
from denizen.worker.request import Request
from denizen.worker.sampling.params import SamplingParams
from torch.profiler import ProfilerActivity, profile
from worker_support import assert_empty, generate, shared, texts

#: Of a host-planned step: block, row writes (runs and payload), page arrays, planner's workspace.
COPIES = 5


def test_a_resident_step_costs_one_copy_and_one_launch_and_no_synchronisation() -> None:
    """What 40 more decode steps add to the counts of a run: pages are appended meanwhile, prefill is the same."""
    added = _added_by_40_steps(rows=16)
    assert added.pop("graph launches") == 40
    assert added.pop("copies to the device") <= 40
    assert not any(added.values()), added


def test_a_host_planned_step_stays_within_its_budget() -> None:
    """For comparison: it sends every row, page list and plan, but waits for nothing either."""
    added = _added_by_40_steps(rows=16, resident=False)
    assert added["graph launches"] == 40
    assert 40 < added["copies to the device"] <= 40 * COPIES
    assert not added["synchronisations"]


def test_an_admission_waits_for_nothing() -> None:
    """Counts and biases come with it, and row writes may be too long for the step's block: running rows go on."""
    served = shared("qwen3_5", rows=16)
    scheduler, runner = served.scheduler, served.runner
    params = SamplingParams(frequency_penalty=0.5, logit_bias=((3, 1.0), (9, -2.0)))
    request = Request(1, np.arange(3, 203, dtype=np.int32), params, 4)
    request.outputs.append(7)  # as after a preemption
    scheduler.submit(request)
    plan = scheduler.plan_prefill()
    scheduler.commit(plan)
    torch.cuda.set_sync_debug_mode("error")
    try:
        runner._write_rows(plan)
        launched = runner.launch(plan)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    launched.wait()
    launched.result()
    scheduler.complete(plan)
    scheduler.end(request)
    assert_empty(served)
    counts, bias = (part[plan.advance.rows[0]].cpu() for part in (runner.sampler.counts, runner.sampler.bias))
    assert bias.nonzero()[:, 0].tolist() == [3, 9]
    assert counts[7] == (1 << 24) + 1 + int(launched.result().tokens[0] == 7)


def _added_by_40_steps(**options) -> dict[str, int]:
    served = shared("qwen3_5", **options)
    prompts = texts(12, 5, 20, 4)  # one prefill step, so that all rows decode in the same steps
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
    print(f"{options}: added by 40 steps:", added, flush=True)
    return added
