"""Phase timers by a clock that the test sets: every microsecond goes to one phase of one walk's step."""

from __future__ import annotations

import json

import pytest
from denizen.worker import env, phases
from denizen.worker.errors import ConfigError
from denizen.worker.phases import BLOCKED, PHASES, PhaseTimers


class Clock:
    def __init__(self) -> None:
        self.us = 0.0

    def perf_counter(self) -> float:
        return self.us / 1e6


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(phases, "time", clock)
    return clock


def _written(file) -> dict[str, list[dict[str, float | None]]]:
    """Rows by walk, as phases by name."""
    found: dict[str, list[dict[str, float | None]]] = {}
    for line in file.read_text().splitlines():
        block = json.loads(line)
        assert block["phases"] == list(PHASES)
        assert block["worker"] == 3
        found.setdefault(block["walk"], []).extend(dict(zip(PHASES, row, strict=True)) for row in block["us"])
    return found


def _lap(timers, clock, us: float, phase: str) -> None:
    clock.us += us
    timers.lap(phase)


def test_a_prefill_step_is_a_row_of_its_own_walk(tmp_path, clock):
    timers = PhaseTimers(tmp_path / "phases", worker=3)
    _lap(timers, clock, 5, "plan_kv")
    timers.submitted("decode")
    clock.us += 2
    timers.of("prefill")  # the two were decode's
    _lap(timers, clock, 70, "plan_kv")
    timers.submitted("prefill")
    _lap(timers, clock, 30, "device_work")
    timers.of("decode")
    _lap(timers, clock, 100, "device_wait")
    timers.step("decode", 8)
    clock.us += 11
    timers.of("prefill", lap=False)  # and these are not
    clock.us += 4
    timers.lap("device_work")
    timers.step("prefill", 1)
    timers.of("decode")
    timers.submitted("decode")
    _lap(timers, clock, 9, "plan_rest")
    timers.step("decode", 8)
    timers.close()
    rows = _written(tmp_path / "phases")
    first, second = rows["decode"]
    assert (first["plan_kv"], first["plan_rest"], first["device_wait"], first["iteration"]) == (5, 2, 100, None)
    assert (second["plan_kv"], second["plan_rest"], second["iteration"]) == (0, 9, 24)
    (prefill,) = rows["prefill"]
    assert (prefill["plan_kv"], prefill["device_work"]) == (70, 45)
    assert prefill["iteration"] == 30 + 100 + 11 + 4  # from its queueing until it was handled


def test_rows_of_a_walk_belong_to_its_steps_in_order(tmp_path, clock):
    timers = PhaseTimers(tmp_path / "phases", worker=3)
    for us in (10, 20):
        clock.us += us
        timers.submitted("prefill")
    for us in (100, 1000):
        clock.us += us
        timers.step("prefill", 1)
    timers.close()
    assert [row["iteration"] for row in _written(tmp_path / "phases")["prefill"]] == [120, 1100]


def test_what_passes_while_the_engine_is_idle_is_nobodys(tmp_path, clock):
    timers = PhaseTimers(tmp_path / "phases", worker=3)
    timers.submitted("decode")
    timers.step("decode", 8)
    _lap(timers, clock, 7, "plan_rest")
    timers.idle()
    assert len(_written(tmp_path / "phases")["decode"]) == 1, "written before the engine blocks"
    clock.us += 1_000_000
    timers.lap("plan_rest")
    _lap(timers, clock, 3, "plan_rest")
    timers.submitted("decode")
    timers.step("decode", 8)
    timers.close()
    last = _written(tmp_path / "phases")["decode"][-1]
    assert last["plan_rest"] == 3
    assert last["iteration"] is None


def test_after_a_pause_the_next_decode_step_has_no_predecessor(tmp_path, clock):
    timers = PhaseTimers(tmp_path / "phases", worker=3)
    for pause in (False, False, True):
        clock.us += 50
        if pause:
            timers.pause()
        timers.submitted("decode")
        timers.step("decode", 8)
    timers.add("device_work", 12e-6)
    _lap(timers, clock, 40, BLOCKED)  # in no column
    timers.submitted("decode")
    timers.step("decode", 8)
    timers.close()
    rows = _written(tmp_path / "phases")["decode"]
    assert [row["iteration"] for row in rows] == [None, 50, None, 40]
    assert rows[-1]["device_work"] == 12
    assert sum(value or 0 for value in rows[-1].values()) == 12 + 40


def test_a_folder_that_is_taken_away_costs_the_timers_alone(tmp_path, clock, caplog):
    timers = PhaseTimers(tmp_path / "gone" / "phases", worker=3)
    timers.submitted("decode")
    _lap(timers, clock, 10, "device_work")
    timers.step("decode", 8)
    timers.idle()
    assert "phase timers are lost" in caplog.text
    timers.close()  # and nothing of them is left to be written


def test_the_folder_of_the_timers_is_made_or_named_in_the_error(tmp_path, monkeypatch):
    monkeypatch.setenv("DENIZEN_PHASES", str(tmp_path / "a" / "b"))
    folder = env.phases_folder()
    assert folder == tmp_path / "a" / "b"
    assert folder.is_dir()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DENIZEN_PHASES", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="DENIZEN_PHASES: no folder can be made"):
        env.phases_folder()
    monkeypatch.delenv("DENIZEN_PHASES")
    assert env.phases_folder() is None
