"""Whether two sides differ, from restarts: against known values, and over simulated runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from denizen.bench.compare import SMALLEST, turns_of
from denizen.bench.contrast import (
    Estimate,
    independent,
    interleaved,
    judge,
    least,
    student_cdf,
    student_quantile,
)

RESTARTS = 4
TRIES = 1000
#: Deviations in shares of the figure: what each restart adds, and drift along the run, linear and as a random walk. A
#: tenth of a per cent to two per cent a restart is what servers show whose kernels are chosen anew.
NOISE = {
    "quiet": {"restart": 0.001},
    "usual": {"restart": 0.01},
    "rough": {"restart": 0.03},
    "warming up": {"restart": 0.01, "linear": 0.06},
    "wandering": {"restart": 0.005, "walk": 0.01},
    "heavy tails": {"restart": 0.01, "tails": 3.0},
}


def simulate(rng: np.random.Generator, turns: str, effect: float, noise: dict[str, float]) -> list[float]:
    """A figure a turn; that of side B is `effect` times as high."""
    count = len(turns)
    scatter = rng.standard_t(noise["tails"], count) if "tails" in noise else rng.standard_normal(count)
    logs = noise["restart"] * scatter + np.linspace(0, noise.get("linear", 0.0), count)
    logs += np.cumsum(rng.normal(0, noise.get("walk", 0.0), count))
    factors = np.where(np.array(list(turns)) == "B", effect, 1.0)
    return [float(value) for value in 1000 * np.exp(logs) * factors]


def verdicts(effect: float, noise: dict[str, float], *, tries: int = TRIES, figures: int = 4) -> dict[str, int]:
    rng = np.random.default_rng(7)
    turns = turns_of("ABBA", RESTARTS)
    counts = {"better": 0, "worse": 0, "cannot tell": 0}
    for _ in range(tries):
        estimate = interleaved(turns, simulate(rng, turns, effect, noise))
        counts[judge(estimate, higher_is_better=True, smallest=SMALLEST, figures=figures)] += 1
    return counts


@pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE)
def test_a_against_a_cannot_be_told_apart(noise: dict[str, float]) -> None:
    """At least 98 of 100, where 95 are asked for."""
    assert verdicts(1.0, noise)["cannot tell"] >= 0.98 * TRIES


@pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE)
def test_a_whole_comparison_of_equals_seldom_has_any_verdict(noise: dict[str, float]) -> None:
    """Twelve figures whose noise has nothing in common, the worst case."""
    rng = np.random.default_rng(3)
    turns = turns_of("ABBA", RESTARTS)
    silent = 0
    for _ in range(200):
        estimates = [interleaved(turns, simulate(rng, turns, 1.0, noise)) for _ in range(12)]
        words = {judge(one, higher_is_better=False, smallest=SMALLEST, figures=12) for one in estimates}
        silent += words == {"cannot tell"}
    assert silent >= 0.92 * 200


@pytest.mark.parametrize(
    ("name", "share"), [("quiet", 1.0), ("usual", 0.9), ("warming up", 0.9), ("wandering", 0.85), ("heavy tails", 0.6)]
)
def test_five_per_cent_slower_is_found(name: str, share: float) -> None:
    found = verdicts(1 / 1.05, NOISE[name])
    assert found["worse"] >= share * TRIES
    assert found["better"] <= 0.002 * TRIES


def test_without_taking_drift_out_it_would_be_missed() -> None:
    """The same runs as two independent samples: what the order of the turns is for."""
    rng = np.random.default_rng(7)
    turns = turns_of("ABBA", RESTARTS)
    found = 0
    for _ in range(200):
        values = simulate(rng, turns, 1 / 1.05, NOISE["warming up"])
        sides = [[value for side, value in zip(turns, values, strict=True) if side == name] for name in "AB"]
        found += judge(independent(*sides), higher_is_better=True, smallest=SMALLEST, figures=4) == "worse"
    assert found < 0.5 * 200


@pytest.mark.parametrize("noise", [NOISE["usual"], NOISE["warming up"]], ids=["usual", "warming up"])
def test_the_interval_holds_the_ratio_19_times_in_20(noise: dict[str, float]) -> None:
    rng = np.random.default_rng(11)
    turns = turns_of("ABBA", RESTARTS)
    held = 0
    for _ in range(2000):
        low, high = interleaved(turns, simulate(rng, turns, 0.9, noise)).interval() or (math.nan, math.nan)
        held += low <= 0.9 <= high
    assert held / 2000 == pytest.approx(0.95, abs=0.015)


def test_equal_steps_of_drift_do_not_touch_the_ratio() -> None:
    turns = "ABBAABBA"
    values = [math.exp(0.03 * turn) * (1.2 if side == "B" else 1.0) for turn, side in enumerate(turns)]
    estimate = interleaved(turns, values)
    assert estimate.ratio == pytest.approx(1.2)
    assert estimate.freedom == 5
    assert estimate.error == pytest.approx(0.0, abs=1e-9)


def test_welchs_estimate_of_known_numbers() -> None:
    """Sides of variances 1/3 and 4/3 over four: by hand."""
    first = [math.exp(value) for value in (1.0, 2.0, 3.0)]
    second = [math.exp(value) for value in (2.0, 4.0, 6.0)]
    estimate = independent(first, second)
    assert estimate.log_ratio == pytest.approx(2.0)
    assert estimate.error == pytest.approx(math.sqrt(1 / 3 + 4 / 3))
    assert estimate.freedom == 2  # 2.94 rounded down


@pytest.mark.parametrize(("turns", "values"), [("AB", [1.0, 2.0]), ("ABB", [1.0, 2.0, 2.0])])
def test_too_few_restarts_tell_nothing(turns: str, values: list[float]) -> None:
    estimate = interleaved(turns, values)
    assert estimate.interval() is None
    assert judge(estimate, higher_is_better=True, smallest=0.0, figures=1) == "cannot tell"
    assert independent([1.0], [2.0, 3.0]).interval() is None


def test_the_direction_of_a_figure_decides_the_word() -> None:
    slower = Estimate(math.log(0.9), 0.001, 5)
    assert judge(slower, higher_is_better=True, smallest=0.01, figures=1) == "worse"
    assert judge(slower, higher_is_better=False, smallest=0.01, figures=1) == "better"


def test_a_difference_that_matters_to_nobody_is_none() -> None:
    sure = Estimate(math.log(1.004), 1e-6, 5)
    assert judge(sure, higher_is_better=True, smallest=0.01, figures=1) == "cannot tell"
    assert judge(sure, higher_is_better=True, smallest=0.0, figures=1) == "better"


@pytest.mark.parametrize(
    ("freedom", "p", "t"),
    [
        (1, 0.975, 12.7062),
        (2, 0.975, 4.3027),
        (3, 0.995, 5.8409),
        (5, 0.975, 2.5706),
        (5, 0.995, 4.0321),
        (9, 0.975, 2.2622),
        (30, 0.995, 2.7500),
    ],
)
def test_students_quantiles_are_those_of_the_tables(freedom: int, p: float, t: float) -> None:
    assert student_quantile(p, freedom) == pytest.approx(t, abs=5e-5)
    assert student_cdf(t, freedom) == pytest.approx(p, abs=1e-5)
    assert student_cdf(-t, freedom) == pytest.approx(1 - p, abs=1e-5)


@pytest.mark.parametrize("figures", [1, 4, 12])
@pytest.mark.parametrize("direction", [1, -1])
def test_the_least_difference_is_where_the_verdict_begins(figures: int, direction: int) -> None:
    found = least(Estimate(0.0, 0.005, 5), smallest=0.01, figures=figures)
    assert found is not None
    for share, word in ((0.999, "cannot tell"), (1.001, "better" if direction > 0 else "worse")):
        estimate = Estimate(direction * math.log1p(share * found), 0.005, 5)
        assert judge(estimate, higher_is_better=True, smallest=0.01, figures=figures) == word


def test_the_least_difference_is_never_under_the_one_that_matters_and_may_not_exist() -> None:
    assert least(Estimate(0.0, 1e-6, 5), smallest=0.02, figures=4) == 0.02
    assert least(interleaved("AB", [1.0, 2.0]), smallest=0.0, figures=1) is None


def test_twice_the_restarts_are_what_they_were_said_to_be() -> None:
    """Over many runs the mean standard error of eight restarts is the one foretold from four."""
    rng = np.random.default_rng(5)
    four, eight = turns_of("ABBA", 4), turns_of("ABBA", 8)
    foretold = [interleaved(four, simulate(rng, four, 1.0, NOISE["usual"])).with_restarts(2) for _ in range(500)]
    found = [interleaved(eight, simulate(rng, eight, 1.0, NOISE["usual"])) for _ in range(500)]
    assert {one.freedom for one in foretold} == {one.freedom for one in found} == {13}
    errors = [np.mean([one.error**2 for one in estimates]) for estimates in (foretold, found)]
    assert errors[0] == pytest.approx(errors[1], rel=0.15)
    assert independent([1.0, 1.1, 1.2], [1.0, 1.1, 1.2]).with_restarts(2).freedom == 10
