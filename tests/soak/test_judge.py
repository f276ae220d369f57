"""The judge of tokens: what rounding may change, and what it may not."""

from __future__ import annotations

import pytest
import torch
from denizen.worker.protocol import Submit

from tests.soak.judge import Verdict, judge

_BOUND = 0.1


def _verdict(logits, token, **parameters) -> Verdict:
    submit = Submit("model", (0,), 1, **parameters)
    return judge(submit, [token], [], torch.tensor([logits, logits]), _BOUND)


@pytest.mark.parametrize("seed", range(20))
def test_rounding_may_put_a_near_tie_first(seed):
    """Whatever the noise: only one of them is kept, and which one is rounding's choice."""
    logits = [4.0, 3.95, -5.0, -6.0]
    for token in (0, 1):
        found = _verdict(logits, token, temperature=0.5, top_k=1, seed=seed)
        assert max(found.behind, found.cut) <= 1


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("parameters", [{"top_k": 1}, {"top_p": 0.01}, {"min_p": 0.99}])
def test_another_token_than_the_only_one_kept_is_found(seed, parameters):
    logits = [4.0, 3.0, -5.0, -6.0]
    assert max(vars(_verdict(logits, 0, temperature=0.5, seed=seed, **parameters)).values()) <= 1
    assert _verdict(logits, 1, temperature=0.5, seed=seed, **parameters).cut > 1


def test_another_seeds_token_is_found():
    logits = torch.zeros(64).tolist()
    right = [_verdict(logits, token, temperature=1.0, seed=7).behind <= 1 for token in range(64)]
    assert 1 <= sum(right) <= 8
