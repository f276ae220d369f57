"""A model with two KV pools, as speech recognition has: its own tokens, and a context that every token looks at.

Its weights are random, its sizes free, so that the same model runs on a CPU and, with FlashInfer's head sizes, on a
GPU. :meth:`TwoPoolModel.dense` computes the same without pages, pools or batches.

The context of a request is made from its first token. Either the prefill writes it for rows that begin, or
(``encoded``) it is there before: then prefill and decode only read it, and :func:`encode` has written it.
"""

from __future__ import annotations

import torch
from denizen.worker.models.base import CONTEXT, RAGGED, Batch, KvPoolSpec, Walk


class TwoPoolModel:
    family = "two-pools"
    kind = "text"
    resident_walks = frozenset({"decode"})
    state_pools = ()

    def __init__(
        self,
        vocab: int = 97,
        context_length: int = 1200,
        *,
        positions: int = 10,
        own: tuple[int, int, int] = (2, 1, 8),
        cross: tuple[int, int] = (3, 4),
        encoded: bool = False,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        """``positions``: of a context; ``own``: query heads, KV heads, head size; ``cross``: heads, head size."""
        generator = torch.Generator().manual_seed(seed)
        heads, kv_heads, dim = own
        hidden = heads * dim
        inner = cross[0] * cross[1]

        def random(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
            values = torch.randn(rows, columns, generator=generator) * scale
            return values.to(device=device, dtype=dtype)

        self.vocab_size = vocab
        self.context_length = context_length
        self.own, self.cross, self.positions, self.encoded = own, cross, positions, encoded
        self.kv_pools = (
            KvPoolSpec("context", 1, cross[0], cross[1], cross[0], context=positions),
            KvPoolSpec("self", 1, kv_heads, dim, heads),
        )
        self.walks = {
            "prefill": Walk("prefill", {"context": 0 if encoded else CONTEXT, "self": RAGGED}),
            "decode": Walk("decode", {"context": 0, "self": 1}),
        }
        unit = hidden**-0.5
        self._embedding = random(vocab, hidden)
        self._position = random(context_length, hidden, 1.5)
        self._qkv = random(hidden, hidden + 2 * kv_heads * dim, unit)
        self._cross_query = random(hidden, inner, 2 * unit)
        self._cross_kv = random(hidden, 2 * inner, 2 * unit)
        self._cross_out = random(inner, hidden, 2 * inner**-0.5)
        self._frame = random(positions, hidden)
        self._head = random(hidden, vocab, unit)

    def context(self, first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[n * positions, heads, dim]`` of requests whose first tokens are ``first`` ``[n]``."""
        frames = torch.tanh(self._embedding[first][:, None] * self._frame).view(-1, self._frame.shape[1])
        key, value = (frames @ self._cross_kv).view(-1, 2, *self.cross).unbind(1)
        return key, value

    def forward(self, batch: Batch) -> torch.Tensor:
        heads, kv_heads, dim = self.own
        x = self._embedding[batch.token_ids] + self._position[batch.positions]
        query, key, value = (x @ self._qkv).split([heads * dim, kv_heads * dim, kv_heads * dim], dim=1)
        step = batch.attention["self"]
        out = step.run(
            0,
            query.reshape(-1, heads, dim).contiguous(),
            key.reshape(-1, kv_heads, dim),
            value.reshape(-1, kv_heads, dim),
            dim**-0.5,
        )
        x = x + out.reshape(len(x), -1)
        new_key, new_value = None, None
        if self.walks[batch.walk].streams["context"] == CONTEXT:
            new_key, new_value = self._new_context(batch)
        query = (x @ self._cross_query).view(-1, *self.cross)
        out = batch.attention["context"].run(0, query, new_key, new_value, self.cross[1] ** -0.5)
        return x + out.reshape(len(x), -1) @ self._cross_out

    def _new_context(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        begins = batch.cu_seqlens[:-1].long().clamp(max=len(batch.token_ids) - 1)
        return self.context(batch.token_ids[begins])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self._head

    def dense(self, ids: list[int]) -> torch.Tensor:
        """Logits fp64 ``[len(ids), vocab]`` of a whole text at once."""
        return self._over(ids, *self.context(torch.tensor(ids[:1], device=self._head.device))) @ self._head.double()

    def _over(self, ids: list[int], context_key: torch.Tensor, context_value: torch.Tensor) -> torch.Tensor:
        """Hidden states fp64 ``[len(ids), hidden]`` of a text that looks at a context."""
        heads, kv_heads, dim = self.own
        tokens = torch.tensor(ids, device=self._head.device)
        x = (self._embedding[tokens] + self._position[: len(ids)]).double()
        qkv = x @ self._qkv.double()
        query = qkv[:, : heads * dim].view(len(ids), heads, dim)
        key, value = (
            qkv[:, heads * dim :].view(len(ids), 2, kv_heads, dim).repeat_interleave(heads // kv_heads, 2).unbind(1)
        )
        scores = torch.einsum("qhd,khd->hqk", query, key) * dim**-0.5
        future = torch.ones(len(ids), len(ids), dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        x = x + torch.einsum("hqk,khd->qhd", weights, value).reshape(len(ids), -1)
        key, value = context_key.double(), context_value.double()
        query = (x @ self._cross_query.double()).view(-1, *self.cross)
        scores = torch.einsum("qhd,khd->hqk", query, key) * self.cross[1] ** -0.5
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).reshape(len(ids), -1)
        return x + attended @ self._cross_out.double()


@torch.inference_mode()
def encode(model: TwoPoolModel, first: int, keys: torch.Tensor, values: torch.Tensor, pages: list[int]) -> None:
    """What a walk before prefill does: writes a request's context to its pages, of one layer of the context pool."""
    for cache, new in zip((keys, values), model.context(torch.tensor([first], device=keys.device)), strict=True):
        size = cache.shape[1]
        for index, page in enumerate(pages):
            part = new[index * size : (index + 1) * size]
            cache[page, : len(part)] = part
