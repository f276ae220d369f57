"""Whether a model's walks fit its KV pools: checked once, when the model is served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from denizen.worker.errors import ModelError
from denizen.worker.models.base import CONTEXT, RAGGED, hears

if TYPE_CHECKING:
    from denizen.worker.models.base import KvPoolSpec, Model, Walk

#: Walks that every model has, with the span of the tokens' own positions.
_TOKENS = {"prefill": RAGGED, "decode": 1}


def check_streams(model: Model) -> None:
    """Raises :class:`ModelError`, which names the walk, the pool and the remedy."""
    pools = {spec.key: spec for spec in model.kv_pools}
    if unknown := sorted(model.resident_walks - model.walks.keys()):
        raise ModelError(f"model '{model.family}': resident_walks names '{unknown[0]}', which is none of its walks")
    for walk in model.walks.values():
        where = f"model '{model.family}', walk '{walk.name}'"
        for key, span in walk.streams.items():
            if key not in pools:
                raise ModelError(f"{where}: there is no KV pool '{key}'; declare it in kv_pools")
            _check_span(where, walk, pools[key], span)
        if walk.inputs and (walk.name != "prefill" or not hears(model)):
            raise ModelError(f"{where}: rows bring inputs into prefill steps of models that hear (kind 'asr') alone")
        if walk.name not in _TOKENS:
            continue
        if walk.streams.get(walk.positions) != _TOKENS[walk.name]:
            raise ModelError(
                f"{where}: its positions follow KV pool '{walk.positions}', whose span must be {_TOKENS[walk.name]} "
                "(a position a token); name such a pool in Walk.positions"
            )


def _check_span(where: str, walk: Walk, spec: KvPoolSpec, span: int) -> None:
    if spec.context and span not in (0, CONTEXT):
        raise ModelError(
            f"{where}: the queries' own positions go to KV pool '{spec.key}', which holds a context of {spec.context} "
            f"positions. Cross attention needs the context in a pool of its own: declare another KvPoolSpec for the "
            f"tokens, and give '{spec.key}' span 0 or CONTEXT"
        )
    if not spec.context and span == CONTEXT:
        raise ModelError(
            f"{where}: KV pool '{spec.key}' has span CONTEXT, but it follows the request's tokens; "
            "declare how many positions a context has in KvPoolSpec.context"
        )
    if span == CONTEXT and walk.name == "decode":
        raise ModelError(f"{where}: rows begin in a prefill; write the context of KV pool '{spec.key}' there")
