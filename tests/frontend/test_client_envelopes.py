"""The golden envelopes of clients over shared memory: Python's msgpack writes what the front end is held to."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import msgpack
import pytest

GOLDEN = Path(__file__).parents[1] / "golden" / "sdk"


def cases() -> dict[str, tuple[int, int, int, dict[str, Any] | None]]:
    spec = importlib.util.spec_from_file_location("golden_client_envelopes", GOLDEN / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {**module.SERVER, **module.CLIENT}


CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_golden_file_holds_its_case(name: str) -> None:
    kind, request, sequence, body = CASES[name]
    data = (GOLDEN / f"{name}.bin").read_bytes()
    assert msgpack.unpackb(data) == [1, kind, request, sequence, body]
    assert msgpack.packb([1, kind, request, sequence, body]) == data


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.bin")} == set(CASES)
