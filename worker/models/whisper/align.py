"""When each text token was spoken: the path through the attention of those decoder heads that follow the speech."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from denizen.kernels.layer_norm import add_layer_norm
from denizen.worker.models.whisper.config import LAYER_NORM_EPS, SAMPLES_A_POSITION
from denizen.worker.models.whisper.ids import TIMESTAMP_STEP
from denizen.worker.models.whisper.rules import start_of
from torch.nn.functional import pad, scaled_dot_product_attention

if TYPE_CHECKING:
    from denizen.worker.models.base import RowCache, Speech
    from denizen.worker.models.whisper.config import WhisperConfig
    from denizen.worker.models.whisper.ids import Ids
    from denizen.worker.models.whisper.weights import Norm, Weights


def align(config: WhisperConfig, ids: Ids, weights: Weights, speech: Speech, context: RowCache) -> list[float]:
    """Seconds at which each text token in the outputs begins, and at last the end of the last.

    ``context``: keys and values of the window. Times are in steps of 0.02 s, rise, and end with the audio. As in the
    original implementation, the decoder reads the text once more, without timestamps and without previous text.
    """
    text = [int(token) for token in speech.outputs[speech.options.given :] if token < ids.end]
    if not text:
        return []
    head = _transcript_head(speech, ids)
    tokens = torch.tensor([*head, *text, ids.end][: config.target_positions], device=weights.embedding.device)
    positions = max(1, min(len(speech.pcm) // SAMPLES_A_POSITION, context.length))
    matrix = attention_matrix(config, weights, ids.alignment_heads, tokens, context, positions)
    # The row of a token says where the decoder looks when it is about to say the next.
    jumps = first_columns(matrix[len(head) - 1 : -1].cpu().numpy()) * TIMESTAMP_STEP
    times: list[float] = jumps.round(2).tolist()
    # A text as long as the decoder is cut off by the ids before it: what is left stands at the end.
    return times + times[-1:] * (len(text) + 1 - len(times))


def _transcript_head(speech: Speech, ids: Ids) -> list[int]:
    """What stands before the text: start of transcript, language, task, no timestamps."""
    prompt = [int(token) for token in speech.prompt[start_of(speech.prompt, ids) :]]
    given = [int(token) for token in speech.outputs[: speech.options.given]]
    head = [token for token in (*prompt, *given) if token != ids.no_timestamps]
    return [*head, ids.no_timestamps]


@torch.inference_mode()
def attention_matrix(
    config: WhisperConfig,
    weights: Weights,
    heads: tuple[tuple[int, int], ...],
    tokens: torch.Tensor,
    context: RowCache,
    positions: int,
) -> torch.Tensor:
    """How much the ``tokens`` ``[T]`` look at the first ``positions`` of the window: fp32 ``[T, positions]``.

    The mean over ``heads`` of their weights, each normalised over the tokens and smoothed over time. The decoder reads
    the tokens in one pass of its own; it stops behind the last layer that is asked.
    """
    count, dim, width = config.decoder_heads, config.head_dim, config.d_model
    x = weights.embedding[tokens] + weights.decoder_positions[: len(tokens)]
    looks: list[torch.Tensor] = []
    last = max(layer for layer, _ in heads)
    for index, layer in enumerate(weights.decoder[: last + 1]):
        mixed = layer.qkv(_norm(x, layer.attention_norm)).view(-1, 3, count, dim).transpose(0, 2)
        out = scaled_dot_product_attention(mixed[:, 0], mixed[:, 1], mixed[:, 2], is_causal=True)
        x = x + layer.output(out.transpose(0, 1).reshape(-1, width))
        query = layer.cross_query(_norm(x, layer.cross_norm)).view(-1, count, dim).transpose(0, 1)
        keys, values = (part.transpose(0, 1) for part in context.layer(index))
        asked = [head for at, head in heads if at == index]
        if asked:
            scores = query[asked] @ keys[asked, :positions].transpose(1, 2)
            looks.append((scores.float() * dim**-0.5).softmax(-1))
        if index < last:
            out = scaled_dot_product_attention(query, keys, values)
            x = x + layer.cross_output(out.transpose(0, 1).reshape(-1, width))
            x = x + layer.down(layer.up.gelu(_norm(x, layer.mlp_norm)))
    weight = torch.cat(looks)
    deviation, mean = torch.std_mean(weight, dim=1, keepdim=True, unbiased=False)
    # A moment that no token looks at says nothing, rather than 0 / 0.
    normal = torch.where(deviation > 0, (weight - mean) / deviation, 0.0)
    return median_filter(normal, config.median_filter_width).mean(0)


def _norm(x: torch.Tensor, norm: Norm) -> torch.Tensor:
    return add_layer_norm(x.contiguous(), None, norm.weight, norm.bias, LAYER_NORM_EPS)


def median_filter(x: torch.Tensor, width: int) -> torch.Tensor:
    """Over the last dimension of ``[N, T, F]``; the ends are mirrored. Shorter ones than half the width stay."""
    half = width // 2
    if x.shape[-1] <= half:
        return x
    return pad(x, (half, half), mode="reflect").unfold(-1, width, 1).sort(-1).values[..., half]


def first_columns(gain: np.ndarray) -> np.ndarray:
    """The first column of each row on the path of greatest total ``gain`` ``[T, F]`` from one corner to the other.

    Dynamic time warping of ``-gain``; of equal ways the one along the row wins. Cells of an anti-diagonal do not depend
    on each other: they are computed at once, in fp32 as the original does.
    """
    rows, columns = gain.shape
    # A diagonal is indexed by its row; row 0 and column 0 are the border.
    trace = np.full((rows + columns + 1, rows + 1), 2, np.int8)
    before = np.full(rows + 1, np.inf, np.float32)
    before[0] = 0  # the diagonal of the corner
    last = np.full(rows + 1, np.inf, np.float32)
    for diagonal in range(2, rows + columns + 1):
        row = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        across, down, along = before[row - 1], last[row - 1], last[row]
        best = np.where((across < down) & (across < along), 0, np.where((down < across) & (down < along), 1, 2))
        cost = np.choose(best, (across, down, along)).astype(np.float64)
        now = np.full(rows + 1, np.inf, np.float32)
        now[row] = cost - gain[row - 1, diagonal - row - 1]
        trace[diagonal, row] = best
        before, last = last, now
    first = np.zeros(rows, np.int64)
    row, column = rows, columns
    while row > 0 and column > 0:
        first[row - 1] = column - 1
        step = trace[row + column, row]
        row, column = row - (step != 2), column - (step != 1)
    return first
