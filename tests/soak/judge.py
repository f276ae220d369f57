"""Whether each token of a request is the one that its parameters and seed ask for, as far as rounding allows.

The sampler is replayed over reference logits of the whole text: penalties, biases, ``min_tokens``, filters and the draw
of (seed, position). A chosen token must be within a bound of the best score. Batches of other sizes round differently,
so tokens themselves need not be equal; a token of another request's seed, row or state is far behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from denizen.kernels.adjust import IN_PROMPT, adjust_logits
from denizen.kernels.draw import log_exponential
from denizen.kernels.filter import filter_threshold
from denizen.worker.sampling.params import SamplingParams, unpack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from denizen.worker.protocol import Submit, TokenRow

#: Top-p of other logits ends elsewhere: by this share of what it cuts off, a token may be beyond it or be missing.
_TAIL = 0.7


@dataclass(frozen=True)
class Verdict:
    behind: float  #: most that a token's score is behind the best, in units of the logits' bound
    cut: float  #: most that a token lies below what its filters keep, likewise
    logprob: float  #: largest difference of a log-probability


def judge(
    submit: Submit, tokens: Sequence[int], rows: Sequence[TokenRow], logits: torch.Tensor, bound: float
) -> Verdict:
    """``logits`` fp32 ``[len(ids) + len(tokens), vocab]``; ``bound``: by how much one of them may be off."""
    count, vocab = len(tokens), logits.shape[1]
    first = len(submit.ids)
    raw = logits[first - 1 : first - 1 + count].float().cpu()
    params = SamplingParams.from_submit(submit, vocab)
    block = torch.from_numpy(params.packed).view(torch.uint8)[None].expand(count, -1).contiguous()
    chosen = torch.tensor(tokens)
    counts = torch.zeros(count, vocab, dtype=torch.int32)
    counts[:, torch.tensor(list(submit.ids)).unique()] = IN_PROMPT
    for index in range(1, count):
        counts[index:, tokens[index - 1]] += 1
    bias = torch.zeros(count, vocab)
    for token, value in submit.logit_bias:
        bias[:, token] = value
    repetition = unpack(block, "repetition_penalty")
    adjusted = adjust_logits(
        raw,
        torch.arange(count, dtype=torch.int32),
        unpack(block, "features"),
        repetition,
        unpack(block, "presence_penalty"),
        unpack(block, "frequency_penalty"),
        unpack(block, "min_tokens"),
        torch.arange(count, dtype=torch.int32),
        unpack(block, "masked_ids"),
        counts,
        bias,
    )
    temperature, seed = unpack(block, "temperature"), unpack(block, "seed")
    factor = float(max(repetition[0], 1 / repetition[0]))
    off = bound * factor
    own = adjusted.gather(1, chosen[:, None])[:, 0]
    if temperature[0] == 0:
        behind, cut = (adjusted.max(dim=1).values - own) / off, torch.zeros(count)
    else:
        top_k, top_p, min_p = (unpack(block, name) for name in ("top_k", "top_p", "min_p"))
        wide = filter_threshold(adjusted, temperature, top_k, 1 - (1 - top_p) * _TAIL, min_p)
        tight = filter_threshold(adjusted, temperature, top_k, 1 - (1 - top_p) / _TAIL, min_p)
        noise = log_exponential(seed, first + torch.arange(count), torch.arange(vocab, dtype=torch.int32))
        scores = adjusted / temperature[:, None] - noise
        # The greatest is kept whatever else is, unless rounding may put another before it.
        first_two = adjusted.topk(2, dim=1).values
        alone = first_two[:, :1] - first_two[:, 1:] > 2 * off
        certain = (adjusted >= tight[:, None] + 2 * off) | (alone & (adjusted == first_two[:, :1]))
        best = scores.masked_fill(~certain, -torch.inf).max(dim=1).values
        behind = (best - scores.gather(1, chosen[:, None])[:, 0]) * temperature / off
        behind = behind.masked_fill(~certain.any(dim=1), 0.0)
        cut = (wide - own) / off
    expected = raw.log_softmax(-1)
    logprob = 0.0
    for row in rows:
        if row.logprob is not None:
            logprob = max(logprob, abs(row.logprob - float(expected[row.position, row.token])) / bound)
    return Verdict(float(behind.max()), float(cut.max()), logprob)
