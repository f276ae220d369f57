"""A seeded request gives the same tokens whoever runs beside it, in whichever row, with each runner and overlap."""

from __future__ import annotations

import pytest

from tests.worker.peer import generate
from tests.worker.static_steps import serve_static
from tests.worker.test_engine import PROMPTS
from tests.worker.toy import serve_toy

OWN = {"temperature": 1.1, "seed": 77, "top_p": 0.95, "presence_penalty": 0.4}
#: What the others ask for: nothing, or seeds and filters of their own.
UNSEEDED = {"temperature": 0.0, "seed": 0, "top_p": 1.0, "presence_penalty": 0.0}
SEEDED = {"temperature": 0.8, "seed": 5, "top_p": 0.7, "presence_penalty": 1.0}


def among(serve, asked: list[int], others: list[list[int]], place: int, beside: dict, overlap: bool) -> list[int]:
    """Tokens of ``asked``, submitted at ``place`` among ``others``."""
    prompts = [*others[:place], asked, *others[place:]]
    options = {name: [beside[name]] * len(prompts) for name in OWN}
    for name, value in OWN.items():
        options[name][place] = value
    return generate(serve(), prompts, 30, overlap=overlap, **options)[place]


@pytest.mark.parametrize("serve", [serve_toy, serve_static])
@pytest.mark.parametrize("overlap", [True, False])
def test_alone_in_row_3_of_4_and_beside_unseeded_ones(serve, overlap):
    asked, others = PROMPTS[2], [PROMPTS[0], PROMPTS[4], PROMPTS[7]]
    alone = among(serve_toy, asked, [], 0, UNSEEDED, overlap)
    assert len(set(alone)) > 5
    assert among(serve, asked, [], 0, UNSEEDED, overlap) == alone
    for place in (2, 0, 3):
        assert among(serve, asked, others, place, SEEDED, overlap) == alone
        assert among(serve, asked, others, place, UNSEEDED, overlap) == alone


@pytest.mark.parametrize("serve", [serve_toy, serve_static])
def test_equal_seeds_with_equal_prompts_are_equal_and_others_are_not(serve):
    seeds = [1, 2, 1, 2**63, 2**64 - 1]
    outputs = generate(serve(), [PROMPTS[3]] * 5, 30, temperature=1.0, seed=seeds)
    assert outputs[0] == outputs[2]
    assert len({tuple(tokens) for tokens in outputs}) == 4
