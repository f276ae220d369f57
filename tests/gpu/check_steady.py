"""What a steady decode step asks of the driver, counted."""

from __future__ import annotations

from torch.profiler import ProfilerActivity, profile
from worker_support import generate, shared, texts

#: Of a host-planned step: block, row writes (runs and payload), page arrays, planner's workspace; and what blocks.
COPIES, SYNCHRONISATIONS = 5, 2


def test_a_resident_step_costs_one_copy_and_one_launch_and_no_synchronisation() -> None:
    """What 40 more decode steps add to the counts of a run: pages are appended meanwhile, prefill is the same."""
    added = _added_by_40_steps(rows=16)
    assert added.pop("graph launches") == 40
    assert added.pop("copies to the device") <= 40
    assert not any(added.values()), added


def test_a_host_planned_step_stays_within_its_budget() -> None:
    """For comparison: it sends every row, page list and plan, and waits for blocking copies."""
    added = _added_by_40_steps(rows=16, resident=False)
    assert added["graph launches"] == 40
    assert 40 < added["copies to the device"] <= 40 * COPIES
    assert added["synchronisations"] <= 40 * SYNCHRONISATIONS


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
