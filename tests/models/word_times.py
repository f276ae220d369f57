"""Word times as OpenAI's implementation takes them from a decoder's attention, here from what transformers computes.

Written from what ``find_alignment``, ``merge_punctuations`` and ``add_word_timestamps`` of its ``timing.py`` do, with
transformers' filter, path and splitting of words, and nothing of Denizen's: a second way to the same times.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter
from transformers.models.whisper.tokenization_whisper import _split_tokens_on_spaces

if TYPE_CHECKING:
    from collections.abc import Sequence

OPENING, CLOSING, ENDS = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、", ".。!！?？"
FRAME = 160  #: samples


@dataclass
class Word:
    text: str
    tokens: int
    start: float
    end: float


def token_times(reference: Any, encoded: torch.Tensor, samples: int, head: Sequence[int], text: Sequence[int]) -> list:
    """Seconds at which the tokens of ``text`` begin, and the end of the last. ``head``: the ids before it, of which the
    last says that no timestamps follow; ``encoded``: of the padded window that has ``samples`` of sound."""
    generation = reference.generation_config
    kept = reference.config._attn_implementation
    reference.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            ids = torch.tensor([[*head, *text, generation.eos_token_id]])
            out = reference(encoder_outputs=(encoded,), decoder_input_ids=ids, output_attentions=True)
    finally:
        reference.set_attn_implementation(kept)
    weights = torch.stack([out.cross_attentions[layer][0, at] for layer, at in generation.alignment_heads])
    weights = weights[..., : samples // FRAME // 2]
    weights = weights / weights.sum(-1, keepdim=True)  # as if the softmax had seen no more
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    matrix = _median_filter((weights - mean) / deviation, 7).mean(0)[len(head) - 1 : -1]
    rows, columns = _dynamic_time_warping(-matrix.double().numpy())
    jumps = np.pad(np.diff(rows), (1, 0), constant_values=1).astype(bool)
    return (columns[jumps] * 0.02).tolist()


def spoken(tokenizer: Any, text: Sequence[int], times: Sequence[float]) -> tuple[list[Word], float]:
    """The words of a window, punctuation merged into them, and the median of their lengths; of spaced languages."""
    words, at = [], 0
    for name, ids, _ in zip(*_split_tokens_on_spaces(tokenizer, list(text)), strict=True):
        words.append(Word(name, len(ids), times[at], times[at + len(ids)]))
        at += len(ids)
    lengths = [word.end - word.start for word in words if word.end != word.start]
    median = min(0.7, float(np.median(lengths))) if lengths else 0.0
    for before, word in pairwise(words):
        if word.end - word.start > 2 * median:
            if word.text in ENDS:
                word.end = word.start + 2 * median
            elif before.text in ENDS:
                word.start = word.end - 2 * median
    # Opening marks go to the word behind them, closing ones to the word before: the text does, the times stay.
    kept = words[-1:]
    for word in reversed(words[:-1]):
        if word.text.startswith(" ") and word.text.strip() in OPENING:
            kept[0].text, kept[0].tokens = word.text + kept[0].text, word.tokens + kept[0].tokens
        else:
            kept.insert(0, word)
    merged: list[Word] = []
    for word in kept:
        if merged and not merged[-1].text.endswith(" ") and word.text in CLOSING:
            merged[-1].text, merged[-1].tokens = merged[-1].text + word.text, merged[-1].tokens + word.tokens
        else:
            merged.append(word)
    return merged, median


def settled(words: list[Word], median: float, segment: tuple[float, float], last_end: float) -> None:
    """Cuts the first and the last word of a segment where a pause has stretched them; all seconds of the file."""
    (start, end), most = segment, 2 * median
    first, last = words[0], words[-1]
    long = first.end - first.start > most or (len(words) > 1 and words[1].end - first.start > 2 * most)
    if first.end - last_end > 4 * median and long:
        if len(words) > 1 and words[1].end - words[1].start > most:
            first.end = words[1].start = max(words[1].end / 2, words[1].end - most)
        first.start = max(0.0, first.end - most)
    if first.end > start and first.start < start - 0.5:
        first.start = max(0.0, min(first.end - median, start))
    if last.start < end and last.end > end + 0.5:
        last.end = max(last.start + median, end)
