"""When waiting prompts are prefilled. Used by the scheduler of one model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Admission:
    """The numbers of the policy; without any, prompts are prefilled as they come.

    A prefill step costs a fixed part however few tokens it has, and an empty row costs its share of every decode step.
    Where many rows run, short prompts that arrive therefore *gather*: until there is one for every ``gather_rows``
    running rows, or their tokens make a step of ``gather_tokens``, or ``gather_steps`` iterations have passed.
    """

    gather_steps: int = 0
    gather_rows: int = 32
    gather_tokens: int = 512


#: On a GPU: prompts wait for each other for some 20 ms at most.
ON_GPU = Admission(gather_steps=8)
