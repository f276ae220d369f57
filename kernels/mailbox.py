"""Results of a captured step in host memory that the host polls: no copy, no event, no synchronisation.

A mailbox is pinned int32 memory, ``[1 + capacity]``: a step count, then the step's tokens. The kernel writes the
tokens, then the count, so that a host that sees the count sees the tokens. Measured on an H200: 7.7 µs from a replay to
the host, against 25.6 for a copy and an event.
"""

from __future__ import annotations

import torch
from denizen.kernels.jit import jit, power_of_two, tl


def allocate_mailbox(capacity: int, device: torch.device) -> torch.Tensor:
    """int32 ``[1 + capacity]``, zeroed; pinned for a GPU, which addresses it as its own memory."""
    return torch.zeros(1 + capacity, dtype=torch.int32, pin_memory=device.type == "cuda")


def publish(tokens: torch.Tensor, steps: torch.Tensor, mailbox: torch.Tensor) -> None:
    """Counts the step and delivers its tokens.

    ``tokens`` int64 ``[B]``; ``steps`` int32 ``[1]`` on the device, the steps delivered so far; ``mailbox`` of at least
    ``1 + B``. A mailbox belongs to one graph slot: its next step may run only when the host has read it.
    """
    if tokens.is_cuda:
        publish_triton(tokens, steps, mailbox)
        return
    mailbox[1 : 1 + len(tokens)] = tokens.to(torch.int32)
    steps += 1
    mailbox[0] = steps[0]


@jit
def _publish_kernel(
    tokens: tl.tensor, steps: tl.tensor, mailbox: tl.tensor, rows: tl.tensor, ROWS: tl.constexpr
) -> None:
    lane = tl.arange(0, ROWS)
    inside = lane < rows
    count = tl.load(steps) + 1
    tl.store(mailbox + 1 + lane, tl.load(tokens + lane, mask=inside, other=0).to(tl.int32), mask=inside)
    tl.store(steps, count)
    # All threads' tokens, then the count, which releases them to the host.
    tl.debug_barrier()
    tl.atomic_xchg(mailbox, count, sem="release", scope="sys")


def publish_triton(tokens: torch.Tensor, steps: torch.Tensor, mailbox: torch.Tensor) -> None:
    """:func:`publish` in one kernel of one program; ``B`` at most 1,024."""
    rows = tokens.shape[0]
    _publish_kernel[(1,)](tokens, steps, mailbox, rows, ROWS=power_of_two(rows), num_warps=1)
