"""Writes the golden envelopes of clients over shared memory: ``python tests/golden/sdk/generate.py``.

``SERVER`` are what the front end writes, byte for byte. ``CLIENT`` are what it reads, from this version of a client and
from others. Change them only together with ``docs/design/sdk.md``.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgpack

FOLDER = Path(__file__).parent

WELCOME, CALL, CANCEL, CHUNK, RESULT, FAILED, BYE, PART = range(32, 40)

# name: (kind, request, sequence, body)
SERVER: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "welcome": (
        WELCOME,
        0,
        0,
        {
            "version": "0.1.0",
            "models": [{"id": "smol", "kind": "text", "context": 8192, "vocab": 49152}],
            "limits": {"max_in_flight": 1024, "max_body": 33554432, "request_timeout_s": 600.0},
        },
    ),
    "chunk_text": (CHUNK, 7, 1, {"index": 0, "text": "Hé", "tokens": [12, 300, 70000]}),
    "chunk_end": (
        CHUNK,
        7,
        300,
        {
            "index": 1,
            "text": "!",
            "reasoning": "so",
            "finish_reason": "stop",
            "tokens": [2],
            "logprobs": {"content": [{"token": "!", "logprob": -0.5, "top_logprobs": []}], "refusal": None},
        },
    ),
    "chunk_segment": (
        CHUNK,
        2**64 - 1,
        2,
        {"text": " He", "segments": [{"id": 0, "start": 0.0, "end": 1.5}], "words": [{"word": " He", "start": 0.25}]},
    ),
    "result": (RESULT, 7, 70000, {"tokens": [[1, 2], []], "result": {"object": "text_completion", "choices": []}}),
    "result_text": (RESULT, 8, 5, {"result": "1\n00:00:00,000 --> 00:00:01,000\nHe\n"}),
    "result_in_parts": (RESULT, 9, 6, {"result_len": 300000}),
    "part": (PART, 9, 5, {}),
    "failed": (
        FAILED,
        7,
        3,
        {
            "error": {
                "message": "3 requests are in flight already; try again in 1 s",
                "type": "rate_limit_error",
                "param": None,
                "code": "rate_limit_exceeded",
            },
            "status": 429,
            "retry_after_s": 1,
        },
    ),
    "failed_param": (
        FAILED,
        7,
        3,
        {
            "error": {
                "message": "'top_p' must be between 0 and 1, not 2",
                "type": "invalid_request_error",
                "param": "top_p",
                "code": None,
            },
            "status": 400,
        },
    ),
    "bye": (BYE, 0, 9, {"code": "shutting_down", "why": "the server is shutting down"}),
}

BODY = {"model": "smol", "prompt": struct.pack("<3I", 1, 2, 49151), "temperature": 0.5, "stop": ["\n"], "seed": -1}

CLIENT: dict[str, tuple[int, int, int, dict[str, Any] | None]] = {
    "call": (CALL, 1, 0, {"endpoint": "completions", "body": BODY}),
    "call_in_parts": (CALL, 2**64 - 1, 1, {"endpoint": "chat.completions", "body_len": 1000000}),
    "call_audio": (
        CALL,
        2,
        2,
        {"endpoint": "audio.transcriptions", "body": {"model": "whisper"}, "rate": 44100, "audio_len": 8000000},
    ),
    "call_foreign": (
        CALL,
        3,
        3,
        {"later": {"deep": [[[[[[[[[[1]]]]]]]]]]}, "endpoint": "models", "rate": None, "body": {}, "more": b"\0"},
    ),
    "cancel": (CANCEL, 1, 4, {}),
    "cancel_foreign": (CANCEL, 1, 4, None),
    "client_part": (PART, 2, 5, {}),
    "client_bye": (BYE, 0, 6, {"why": "closed"}),
}


def main() -> None:
    for name, (kind, request, sequence, body) in {**SERVER, **CLIENT}.items():
        (FOLDER / f"{name}.bin").write_bytes(msgpack.packb([1, kind, request, sequence, body]))


if __name__ == "__main__":
    main()
