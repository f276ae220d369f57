"""Gates of the gated delta net: how fast a head forgets, and how far it corrects itself."""

from __future__ import annotations

import torch
from denizen.kernels.jit import jit, power_of_two, tl
from torch.nn.functional import softplus


def gated_delta_gates(
    b: torch.Tensor, a: torch.Tensor, rate: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log decay ``rate * softplus(a + dt_bias)`` and ``beta = sigmoid(b)``, fp32 ``[T, heads]`` each.

    ``b``, ``a`` ``[T, heads]``, rows may be strided; ``rate`` (``-exp(A_log)``) and ``dt_bias`` fp32 ``[heads]``.
    """
    if b.is_cuda:
        return gated_delta_gates_triton(b, a, rate, dt_bias)
    return rate * softplus(a.float() + dt_bias), torch.sigmoid(b.float())


@jit
def gate_values(b: tl.tensor, a: tl.tensor, rate: tl.tensor, dt_bias: tl.tensor) -> tl.tensor:
    """Log decay and beta, fp32, of one or more heads."""
    x = a.to(tl.float32) + dt_bias
    softplus_x = tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(x)))
    return rate * softplus_x, tl.sigmoid(b.to(tl.float32))


@jit
def _gates_kernel(
    b: tl.tensor,
    a: tl.tensor,
    rate: tl.tensor,
    dt_bias: tl.tensor,
    log_decay: tl.tensor,
    beta: tl.tensor,
    tokens: tl.tensor,
    b_stride: tl.tensor,
    a_stride: tl.tensor,
    HEADS: tl.constexpr,
    W: tl.constexpr,
    TOKENS: tl.constexpr,
) -> None:
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)[:, None]
    head = tl.arange(0, W)[None, :]
    inside = (token < tokens) & (head < HEADS)
    decay, correction = gate_values(
        tl.load(b + token * b_stride + head, mask=inside, other=0),
        tl.load(a + token * a_stride + head, mask=inside, other=0),
        tl.load(rate + head, mask=head < HEADS, other=0),
        tl.load(dt_bias + head, mask=head < HEADS, other=0),
    )
    tl.store(log_decay + token * HEADS + head, decay, mask=inside)
    tl.store(beta + token * HEADS + head, correction, mask=inside)


def gated_delta_gates_triton(
    b: torch.Tensor, a: torch.Tensor, rate: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`gated_delta_gates` in one kernel."""
    tokens, heads = b.shape
    log_decay = torch.empty((tokens, heads), dtype=torch.float32, device=b.device)
    beta = torch.empty_like(log_decay)
    _gates_kernel[(-(-tokens // 16),)](
        b, a, rate, dt_bias, log_decay, beta, tokens, b.stride(0), a.stride(0),
        HEADS=heads, W=power_of_two(heads), TOKENS=16, num_warps=1,
    )  # fmt: skip
    return log_decay, beta
