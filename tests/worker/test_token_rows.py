"""TOKENS rows packed by numpy say what those of the general encoder say."""

from __future__ import annotations

import numpy as np
import pytest
from denizen.worker.protocol import TokenRow, Tokens, decode, encode_rows, encode_tokens, token_rows

U32 = (1 << 32) - 1


def _packed(rows: list[TokenRow]) -> np.ndarray:
    packed = token_rows(np.array([row.request for row in rows], np.uint64))
    packed["position"] = [row.position for row in rows]
    packed["token"] = [row.token for row in rows]
    return packed


def _rows(envelopes: list[bytes], first: int) -> list[TokenRow]:
    rows: list[TokenRow] = []
    for number, data in enumerate(envelopes):
        envelope = decode(data)
        assert (envelope.request, envelope.sequence) == (0, first + number)
        assert isinstance(envelope.body, Tokens)
        assert envelope.body.rows
        rows += envelope.body.rows
    return rows


@pytest.mark.parametrize("inline", [60, 208, 4096])
@pytest.mark.parametrize("count", [0, 1, 9, 10, 15, 16, 300])
def test_packed_rows_are_read_as_they_were_meant_within_inline_bytes(inline, count):
    rows = [TokenRow((3 << 32) | index, index * 300, index * 70_000) for index in range(count)]
    envelopes = encode_rows(_packed(rows), 41, inline)
    assert _rows(envelopes, 41) == _rows(encode_tokens(rows, 41, inline), 41) == rows
    assert all(len(data) <= inline for data in envelopes)


@pytest.mark.parametrize("request_id", [0, 1, U32, 1 << 32, (1 << 64) - 1])
@pytest.mark.parametrize("position", [0, 127, 128, 255, 256, 65_536, U32])
def test_every_number_fits(request_id, position):
    rows = [TokenRow(request_id, position, U32 - position)]
    assert _rows(encode_rows(_packed(rows), U32 << 20), U32 << 20) == rows


def test_a_group_fills_its_rows_again_and_again():
    packed = token_rows(np.array([5, 6], np.uint64))
    for step in range(3):
        packed["position"], packed["token"] = np.array([step, step + 100]), np.array([step * 2, step * 3])
        expected = [TokenRow(5, step, step * 2), TokenRow(6, step + 100, step * 3)]
        assert _rows(encode_rows(packed, step), step) == expected
