"""The statistics of the harness."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from denizen.bench.stats import distribution, percentile, poisson_offsets


@pytest.mark.parametrize("count", [1, 2, 3, 10, 101, 1000])
@pytest.mark.parametrize("q", [0, 1, 50, 90, 95, 99, 99.9, 100])
def test_percentile_equals_numpys(count: int, q: float) -> None:
    rng = random.Random(f"{count}/{q}")
    samples = sorted(rng.lognormvariate(0, 2) for _ in range(count))
    assert percentile(samples, q) == pytest.approx(float(np.percentile(samples, q)), rel=1e-12)


@pytest.mark.parametrize(("samples", "q"), [([], 50), ([1.0], -1), ([1.0], 100.5), ([1.0], math.nan)])
def test_percentile_refuses_what_has_no_answer(samples: list[float], q: float) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (the type is the contract)
        percentile(samples, q)


def test_distribution_orders_its_samples_first() -> None:
    samples = [float(value) for value in range(100, -1, -1)]
    found = distribution(samples)
    assert found is not None
    assert (found.count, found.min, found.max) == (101, 0, 100)
    assert (found.mean, found.p50, found.p90, found.p95, found.p99) == (50, 50, 90, 95, 99)
    assert found.std == pytest.approx(np.std(samples, ddof=1))


def test_distribution_of_nothing_and_of_one() -> None:
    assert distribution([]) is None
    one = distribution([2.5])
    assert one is not None
    assert (one.std, one.p50, one.p99) == (0, 2.5, 2.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_distribution_refuses_a_sample_that_is_not_finite(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        distribution([1.0, bad, 2.0])


def test_poisson_arrivals_have_the_rate_and_exponential_gaps() -> None:
    offsets = poisson_offsets(50.0, 20001, random.Random(1))
    gaps = np.diff(offsets)
    assert offsets[0] == 0
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    # An exponential distribution's deviation equals its mean, and 1/e of the gaps are longer than the mean.
    assert gaps.std() == pytest.approx(1 / 50, rel=0.04)
    assert (gaps > 1 / 50).mean() == pytest.approx(math.exp(-1), abs=0.015)


def test_poisson_arrivals_follow_their_seed() -> None:
    assert poisson_offsets(5, 20, random.Random(3)) == poisson_offsets(5, 20, random.Random(3))
    assert poisson_offsets(5, 20, random.Random(3)) != poisson_offsets(5, 20, random.Random(4))


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_poisson_arrivals_need_a_rate(rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        poisson_offsets(rate, 1, random.Random(0))


@pytest.mark.parametrize("seed", range(20))
def test_poisson_gaps_pass_kolmogorov_and_smirnovs_test(seed: int) -> None:
    """The greatest distance between the gaps' distribution and the exponential one; its 0.1 % limit is 1.95 / √n."""
    rate, count = 7.0, 5000
    gaps = np.sort(np.diff(poisson_offsets(rate, count + 1, random.Random(seed))))
    expected = 1 - np.exp(-rate * gaps)
    steps = np.arange(count + 1) / count
    distance = max((steps[1:] - expected).max(), (expected - steps[:-1]).max())
    assert distance < 1.95 / math.sqrt(count)


def test_the_test_of_gaps_finds_gaps_that_are_not_exponential() -> None:
    """Evenly spread arrivals of the same rate would fail it."""
    count = 5000
    gaps = np.sort(np.random.default_rng(0).uniform(0, 2 / 7.0, count))
    assert np.abs(np.arange(count) / count - (1 - np.exp(-7.0 * gaps))).max() > 1.95 / math.sqrt(count)


@pytest.mark.parametrize("seed", range(10))
def test_counts_of_poisson_arrivals_vary_as_much_as_their_mean(seed: int) -> None:
    offsets = poisson_offsets(10.0, 20000, random.Random(seed))
    counts = np.bincount(np.asarray(offsets, dtype=int))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.12)
