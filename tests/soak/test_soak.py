"""The soak of GPU workers, in small on the CPU: it passes, covers what it should, and finds writes that are wrong."""

from __future__ import annotations

import pytest
from denizen.worker.teacher import teacher_forced

from tests.soak.driver import Soak
from tests.soak.load import ABORTS
from tests.worker.peer import assert_empty
from tests.worker.static_steps import serve_static
from tests.worker.toy import serve_toy

BOUND = 2e-3


def serve():
    return serve_static(kv_tokens=128, page_size=4, max_rows=8, prefill_chunk=16)


def requests(count: int):
    return lambda soak: soak.counts["requests"] >= count


def test_a_soak_passes_and_covers_every_phase():
    served = serve()
    soak = Soak(served, 1, requests(500), memory=lambda: {"positions": served.kv_tokens})
    soak.run()
    reference = serve_toy()
    soak.judge(lambda ids: teacher_forced(reference, [ids])[0], BOUND)
    assert not soak.violations, soak.violations
    assert_empty(served)
    assert served.scheduler.preemptions > 20
    assert set(soak.aborts) >= set(ABORTS) - {"twice", "decode"}, soak.aborts
    assert soak.counts["refused"]
    assert soak.counts["idle gaps"]
    assert len(soak.memory) == 2
    assert soak.steps > 500
    assert soak.watch.resting > 200
    assert soak.watch.positions > 10_000
    assert soak.counts["equal alone"] == len(soak.samples) == 24
    assert soak.counts["tokens judged"] > 400


def _scribble(served, where: str) -> str | None:
    """Changes one word that no step may write; None: there is none now. Else a part of what the watch must say."""
    scheduler, runner = served.scheduler, served.runner
    running = [request for request in scheduler.running if request.computed == request.prefill]
    if len(running) < 2:
        return None
    request = running[0]
    if where == "position of a live row":
        runner.attention["self"].keys[0, request.held.pages["self"][0], 0, 0, 3] += 1e-3
        return f"it belongs to request {request.id}"
    if where == "free page":
        free = [page for page in range(1, scheduler.kv["self"].pages) if not scheduler.kv["self"]._owned[page]]
        if not free:
            return None
        runner.attention["self"].values[0, free[0], 1] = 1.0
        return "it is free"
    if where == "length":
        runner.tables.lengths["self"][request.held.row] += 1
        return "the mirror says"
    if where == "page of a table":
        runner.tables.block_table["self"][request.held.row, 0] += 1
        return "on the host"
    if where == "null row":
        runner.tables.lengths["self"][0] = 1
        return "the null row"
    raise AssertionError(where)


@pytest.mark.parametrize("where", ["position of a live row", "free page", "length", "page of a table", "null row"])
def test_a_wrong_write_is_found(where):
    served = serve()
    said: list[str] = []

    def turn(soak: Soak) -> None:
        # Twice, a check apart: the first check only remembers.
        if soak.watch.checks > 20 and not said:
            soak.violations += soak.watch.check()
            expected = _scribble(served, where)
            if expected is not None:
                said.append(expected)
                soak.violations += soak.watch.check()

    soak = Soak(served, 3, lambda soak: bool(soak.violations) or soak.counts["requests"] > 300, turn=turn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.soak.driver._ENOUGH", 1)
        soak.run()
    assert said, "nothing was there to scribble on"
    assert said[0] in soak.violations[0], soak.violations


@pytest.mark.parametrize("where", ["state", "table", "counts"])
def test_a_wrong_write_to_a_row_that_rests_is_found(where):
    served = serve()
    said: list[str] = []

    def turn(soak: Soak) -> None:
        resting = [r for r in served.scheduler.running if r.id in soak._resting]
        if soak._resting_turns > 3 and resting and not said:
            soak.violations += soak.watch.check()
            held = resting[0].held
            if where == "state":
                served.runner.state["state"]["sum"][0, held.state["state"], 5] += 1e-3
                said.append(f"it belongs to request {resting[0].id}")
            elif where == "table":
                served.runner.tables.last_token[held.row] += 1
                said.append(f"table 'row', row {held.row}")
            else:
                served.runner.sampler.counts[held.row, 7] += 1
                said.append(f"token counts of row {held.row}")

    soak = Soak(served, 5, lambda soak: bool(soak.violations) or soak.counts["requests"] > 600, turn=turn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.soak.driver._ENOUGH", 1)
        soak.run()
    assert said, "nobody rested"
    assert said[0] in soak.violations[0], soak.violations


def test_a_token_of_another_seed_is_found():
    """The judge sees what checksums cannot: right memory, wrong draw."""
    served = serve()
    soak = Soak(served, 7, requests(100))
    launch = served.runner.launch

    def wrong(plan):
        if plan.walk == "decode":
            for request in plan.requests:
                served.runner.tables.sampler[request.row, 0] ^= 1
        return launch(plan)

    served.runner.launch = wrong
    soak.watch.check = list  # type: ignore[method-assign]
    soak.run()
    reference = serve_toy()
    soak.judge(lambda ids: teacher_forced(reference, [ids])[0], BOUND)
    assert soak.violations
