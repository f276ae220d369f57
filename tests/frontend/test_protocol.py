"""The Python envelope codec: golden bytes, limits, hostile input."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from typing import TYPE_CHECKING

import msgpack
import pytest
from denizen.worker.protocol import (
    MAX_DEPTH,
    AsrOptions,
    AsrResult,
    Bye,
    Envelope,
    ProtocolError,
    Stats,
    Submit,
    TokenRow,
    Tokens,
    decode,
    encode,
    encode_tokens,
)

if TYPE_CHECKING:
    from types import ModuleType

GOLDEN = Path(__file__).parents[1] / "golden" / "envelope"


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden_envelopes", GOLDEN / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATE = _generator()


def _comparable(envelope: Envelope | None) -> bytes:
    """Bodies hold lists or tuples; their encoding is the same."""
    assert envelope is not None
    return encode(envelope.body, request=envelope.request, sequence=envelope.sequence)


@pytest.mark.parametrize("name", GENERATE.files())
def test_golden_file_is_what_the_encoder_writes(name: str) -> None:
    assert (GOLDEN / f"{name}.bin").read_bytes() == GENERATE.files()[name]


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.bin")} == set(GENERATE.files())


@pytest.mark.parametrize("name", GENERATE.CASES)
def test_golden_file_decodes_to_its_body(name: str) -> None:
    request, sequence, body = GENERATE.CASES[name]
    data = (GOLDEN / f"{name}.bin").read_bytes()
    decoded = decode(data)
    assert decoded is not None
    assert (decoded.request, decoded.sequence, type(decoded.body)) == (request, sequence, type(body))
    assert _comparable(decoded) == data


def test_foreign_envelopes_are_understood() -> None:
    read = {name: decode((GOLDEN / f"foreign_{name}.bin").read_bytes()) for name in GENERATE.FOREIGN}
    assert read["unknown_kind"] is None
    assert read["nil_body"] == Envelope(0, 3, Bye())
    for name in ("unknown_keys", "nil_is_missing"):
        assert read[name] == Envelope(0, 11, Stats(running=2))


@pytest.mark.parametrize("inline", [60, 200, 4096])
@pytest.mark.parametrize("count", [0, 1, 15, 16, 300])
def test_encode_tokens_keeps_rows_in_order_and_within_inline_bytes(inline: int, count: int) -> None:
    rows = [TokenRow((3 << 32) | i, i * 7, i * 500) for i in range(count)]
    envelopes = encode_tokens(rows, 41, inline)
    decoded = [decode(data) for data in envelopes]
    assert [envelope.sequence for envelope in decoded if envelope] == list(range(41, 41 + len(envelopes)))
    bodies = [envelope.body for envelope in decoded if envelope]
    assert [row for body in bodies if isinstance(body, Tokens) for row in body.rows] == rows
    assert all(len(data) <= inline for data in envelopes)


def test_a_row_longer_than_inline_gets_an_envelope_of_its_own() -> None:
    long = TokenRow(1, 0, 2, -1.0, tuple((i, -float(i)) for i in range(1000, 1040)))
    short = TokenRow(2, 0, 3)
    envelopes = encode_tokens([short, long, short], 0, 200)
    counts = [len(body.rows) for data in envelopes if isinstance(body := decode(data).body, Tokens)]  # type: ignore[union-attr]
    assert counts == [1, 1, 1]


@pytest.mark.parametrize(
    ("message", "names"),
    [
        ([1, 3, 5, 0, {"ids": b"\0\0\0\0", "max_tokens": 1}], "model is missing"),
        ([1, 3, 5, 0, {"model": "m", "ids": b"\0\0\0", "max_tokens": 1}], "ids"),
        ([1, 3, 5, 0, {"model": "m", "ids": b"", "max_tokens": 1}], "ids"),
        ([1, 3, 5, 0, {"model": "m", "ids": b"\0\0\0\0", "max_tokens": 0}], "max_tokens"),
        ([1, 3, 5, 0, {"model": "m", "ids": b"\0\0\0\0", "max_tokens": True}], "max_tokens"),
        ([1, 3, 5, 0, {"model": "m", "ids": b"\0\0\0\0", "max_tokens": 1, "top_p": "1"}], "top_p"),
        ([1, 3, 5, 0, {"model": "m", "ids": b"\0\0\0\0", "max_tokens": 1, "logit_bias": [[1]]}], "logit_bias"),
        ([1, 3, 5, 0, {"model": "m", "ids": b"\0\0\0\0", "max_tokens": 1, "asr": []}], "SUBMIT.asr"),
        ([1, 3, 5, 0, {"model": "m", "ids": b"\0\0\0\0", "max_tokens": 1, "asr": {"words": 1}}], "words"),
        ([1, 3, 5, 0, {"model": "m", "ids": b"\0\0\0\0", "max_tokens": 1, "asr": {"forced": [-1]}}], "forced"),
        ([1, 7, 5, 0, {"reason": "tired"}], "reason"),
        ([1, 7, 5, 0, {"reason": "stop", "asr": 1}], "DONE.asr"),
        ([1, 7, 5, 0, {"reason": "stop", "asr": {"times": ["0"]}}], "times"),
        ([1, 7, 5, 0, {"reason": "stop", "asr": {"no_speech": "0"}}], "no_speech"),
        ([1, 5, 0, 0, {"rows": [[1, 2]]}], "row"),
        ([1, 3, 5, 0, []], "SUBMIT"),
        ([2, 4, 5, 0, {}], "version 2"),
        ([1, 4, 5, 0], "array of five"),
        ([1, 4, -1, 0, {}], "request"),
        ({"a": 1}, "array of five"),
    ],
)
def test_malformed_envelope_is_refused_and_the_fault_is_named(message: object, names: str) -> None:
    with pytest.raises(ProtocolError, match=names):
        decode(msgpack.packb(message))


def test_error_carries_the_request_of_a_bad_submit() -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(msgpack.packb([1, 3, 77, 0, {}]))
    assert caught.value.request == 77


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 5_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    nested = b"\x91" * depth + b"\x01"
    with pytest.raises(ProtocolError):
        decode(b"\x95\x01\x09\x00\x00\x81\xa1x" + nested)


@pytest.mark.parametrize("data", [b"", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff\x01"])
def test_lengths_that_lie_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(data)


def test_garbage_never_raises_anything_but_protocol_error() -> None:
    rng = random.Random(5)
    seeds = [bytearray(data) for data in GENERATE.files().values()]
    for _ in range(20_000):
        data = bytearray(rng.choice(seeds)) if rng.random() < 0.8 else bytearray(rng.randbytes(rng.randrange(40)))
        for _ in range(rng.randrange(4)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            decode(bytes(data[: rng.randrange(len(data) + 1)] if rng.random() < 0.2 else data))
        except ProtocolError:
            continue


def test_asr_maps_have_defaults() -> None:
    ids = {"model": "m", "ids": b"\0\0\0\0", "max_tokens": 1}
    plain, empty = (decode(msgpack.packb([1, 3, 5, 0, ids | more])) for more in ({}, {"asr": {"timestamps": None}}))
    assert plain is not None
    assert plain.body.asr is None  # type: ignore[union-attr]
    assert empty is not None
    assert empty.body.asr == AsrOptions(True, False, (), False)  # type: ignore[union-attr]
    full = decode((GOLDEN / "submit_asr_full.bin").read_bytes())
    assert full is not None
    assert full.body.asr == AsrOptions(False, True, (50360, 50364), True)  # type: ignore[union-attr]
    done = decode((GOLDEN / "done_asr_words.bin").read_bytes())
    assert done is not None
    assert done.body.asr == AsrResult(0.5, -1.5, (0.0, 0.5, 29.75))  # type: ignore[union-attr]


def test_submit_survives_a_round_trip_with_every_field() -> None:
    body = GENERATE.CASES["submit_full"][2]
    decoded = decode(encode(body, request=1))
    assert decoded is not None
    assert isinstance(decoded.body, Submit)
    assert list(decoded.body.ids) == list(body.ids)
    assert decoded.body.seed == (1 << 64) - 1
    assert decoded.body.prompt_logprobs == 20
