"""Pairs that end with their test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .harness import Pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def start() -> Iterator[Callable[..., Pair]]:
    """Start pairs; all are ended with the test."""
    pairs: list[Pair] = []

    def make(role: str, **config: Any) -> Pair:
        pairs.append(Pair(role, **config))
        return pairs[-1]

    yield make
    for pair in pairs:
        pair.stop()
