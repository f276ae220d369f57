"""Writes the golden envelopes: ``python tests/golden/envelope/generate.py`` (with ``denizen`` importable).

``CASES`` are canonical: encoding the body gives exactly these bytes, in Python and in Rust. ``FOREIGN`` are what
another version of a peer may send and what must still be understood. Change them only together with the protocol.
"""

from __future__ import annotations

from pathlib import Path

import msgpack
from denizen.worker.protocol import (
    Abort,
    AsrOptions,
    AsrResult,
    Audio,
    Body,
    Bye,
    Done,
    Drain,
    Error,
    Hello,
    Load,
    Ready,
    ReadyModel,
    Stats,
    Submit,
    TokenRow,
    Tokens,
    TtsOptions,
    encode,
)

FOLDER = Path(__file__).parent
REQUEST = (7 << 32) | 42  # generation 7 of table slot 42

CASES: dict[str, tuple[int, int, Body]] = {
    "hello_frontend": (0, 0, Hello(abi="1.0", version="0.1.0", pid=4321, tokenizers={"smol": "ab" * 32})),
    "hello_worker": (
        0,
        0,
        Hello(abi="1.0", version="0.1.0", pid=99, python="3.11.9", torch="2.11.0", device="cuda:1"),
    ),
    "ready": (
        0,
        1,
        Ready(
            models=(
                ReadyModel("smol", "llama", "text", 8192, 49152, 64, 131072, "f00d"),
                ReadyModel("qwen", "qwen3_5", "text", 262144, 248320, 256, 5_000_000_000, ""),
            ),
            credits=300,
        ),
    ),
    "submit_minimal": (REQUEST, 2, Submit(model="smol", ids=[1, 2, 49151], max_tokens=1)),
    "submit_full": (
        REQUEST,
        70000,
        Submit(
            model="smøl",
            ids=[0, 1, 65536, 4294967295],
            max_tokens=4096,
            min_tokens=3,
            stop_ids=[2, 49153],
            temperature=0.0,
            top_k=40,
            top_p=0.25,
            min_p=0.5,
            repetition_penalty=1.5,
            presence_penalty=-0.5,
            frequency_penalty=2.0,
            seed=(1 << 64) - 1,
            logit_bias=[(7, -100.0), (49151, 0.5)],
            logprobs=0,
            prompt_logprobs=20,
        ),
    ),
    "ready_asr": (
        0,
        1,
        Ready(
            models=(
                ReadyModel("smol", "llama", "text", 8192, 49152, 64, 131072, "f00d"),
                ReadyModel("turbo", "whisper", "asr", 448, 51866, 64, 28672, "beef"),
            ),
            credits=512,
        ),
    ),
    # Their attachments, f32 little endian at 16 kHz, travel beside the envelopes.
    "submit_asr": (
        REQUEST,
        71,
        Submit(
            model="turbo",
            ids=[50258, 50259, 50360],
            max_tokens=224,
            stop_ids=[50257],
            temperature=0.0,
            seed=7,
            asr=AsrOptions(),
        ),
    ),
    "submit_asr_full": (
        REQUEST,
        72,
        Submit(
            model="turbo",
            ids=[50362, 440, 50258],
            max_tokens=100,
            stop_ids=[50257],
            temperature=0.5,
            seed=8,
            asr=AsrOptions(timestamps=False, detect=True, forced=[50360, 50364], words=True),
        ),
    ),
    "ready_tts": (
        0,
        1,
        Ready(
            models=(ReadyModel("voice", "stub", "tts", 4096, 256, 64, 65536, "", 24000, ("low", "high")),), credits=9
        ),
    ),
    "submit_tts": (
        REQUEST,
        73,
        Submit(model="voice", ids=[72, 105], max_tokens=4094, temperature=0.5, seed=7, tts=TtsOptions("low")),
    ),
    "submit_tts_full": (
        REQUEST,
        74,
        Submit(
            model="voice",
            ids=[72, 105],
            max_tokens=100,
            seed=8,
            tts=TtsOptions("high", language="de", instructions="Whisper.", speed=1.5),
        ),
    ),
    "abort": (REQUEST, 3, Abort()),
    "tokens": (0, 4, Tokens([TokenRow(REQUEST, 0, 5), TokenRow((1 << 32) | 1, 300, 151643)])),
    "tokens_logprobs": (
        0,
        5,
        Tokens([TokenRow(REQUEST, 1, 6, -0.125, ((6, -0.125), (9, -2.5))), TokenRow(REQUEST, 2, 7, -1.0, ())]),
    ),
    "done_stop": (REQUEST, 6, Done("stop", stop_id=2, prompt=3, completion=11, cached=2)),
    "done_prompt_logprobs": (
        REQUEST,
        7,
        Done("length", prompt=3, completion=1, prompt_logprobs=[None, (-1.5, ((4, -0.25),)), (-3.0, ())]),
    ),
    "done_asr": (
        REQUEST,
        14,
        Done("stop", stop_id=50257, prompt=3, completion=28, asr=AsrResult(no_speech=0.0625, avg_logprob=-0.25)),
    ),
    "done_asr_words": (
        REQUEST,
        15,
        Done("length", prompt=3, completion=2, asr=AsrResult(0.5, -1.5, [0.0, 0.5, 29.75])),
    ),
    # Its attachment, 1,920 samples of f32 little endian, travels beside the envelope.
    "audio": (REQUEST, 16, Audio(index=3, samples=1920)),
    "done_tts": (REQUEST, 17, Done("stop", prompt=2, completion=2, samples=3840)),
    "error": (REQUEST, 8, Error("bad_request", "top_k is beyond the vocabulary", param="top_k")),
    "error_worker": (0, 9, Error("out_of_memory", "no memory for the KV pool", retryable=True)),
    "stats_load": (0, 10, Stats(load=Load("smol", 1 << 20, 269 << 20))),
    "stats": (
        0,
        11,
        Stats(
            waiting=1,
            running=2,
            rows=3,
            rows_total=64,
            kv_pages=5,
            kv_pages_total=8192,
            state_slots=7,
            state_slots_total=65,
            preemptions=9,
            steps=10_000_000_000,
            prefill_tokens=11,
            decode_tokens=12,
        ),
    ),
    "drain": (0, 12, Drain()),
    "bye": (0, 13, Bye("drained")),
}

FOREIGN: dict[str, list[object]] = {
    "unknown_keys": [1, 9, 0, 11, {"future": [{"deep": [1, 2]}], "running": 2}],
    "nil_is_missing": [1, 9, 0, 11, {"waiting": None, "load": None, "running": 2}],
    "nil_body": [1, 11, 0, 3, None],
    "unknown_kind": [1, 200, 0, 1, {"x": 1}],
}


def files() -> dict[str, bytes]:
    """Name → bytes of every golden file."""
    golden = {name: encode(body, request=request, sequence=number) for name, (request, number, body) in CASES.items()}
    return golden | {f"foreign_{name}": msgpack.packb(message) for name, message in FOREIGN.items()}


if __name__ == "__main__":
    for name, data in files().items():
        (FOLDER / f"{name}.bin").write_bytes(data)
