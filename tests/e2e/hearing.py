"""Transcriptions as the tests ask for them, and what `transformers` makes of the same sound with the same weights."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from denizen.bench.quality import count, normalize

from .calling import Caller
from .sounds import RATE, wav

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import httpx
    import torch
    from denizen.bench.schema import WordErrors

    from .running import Running

PATH = "/v1/audio/transcriptions"
SLOW = 280.0
"""Seconds that a long file may take on a loaded machine."""


def post(
    server: Running, file: bytes, name: str | None = "clip.wav", path: str = PATH, **fields: Any
) -> httpx.Response:
    """Uploads a file; a field that is a list is sent once for each value."""
    files = {"file": (name, file)} if name is not None else {"file": ("", file, "application/octet-stream")}
    return server.http.post(path, files=files, data={"model": server.model, **fields}, timeout=SLOW)


def heard(server: Running, file: bytes | np.ndarray, **fields: Any) -> str:
    """The text of a transcription that must succeed. `file`, or samples at 16 kHz."""
    response = post(server, wav(file) if isinstance(file, np.ndarray) else file, **fields)
    assert response.status_code == 200, response.text
    text = response.json()["text"]
    assert isinstance(text, str)
    return text


def verbose(server: Running, samples: np.ndarray, *granularities: str, **fields: Any) -> dict[str, Any]:
    """`verbose_json` of a transcription that must succeed; its times are sound, whatever was asked."""
    if granularities:
        fields["timestamp_granularities[]"] = list(granularities)
    response = post(server, wav(samples), response_format="verbose_json", **fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert abs(answer["duration"] - len(samples) / RATE) < 0.01
    for kind in ("segments", "words"):
        check_times(answer.get(kind, []), answer["duration"])
    return answer


def check_times(spans: Sequence[dict[str, Any]], duration: float) -> None:
    """Spans follow each other within the audio."""
    before = 0.0
    for span in spans:
        assert before <= span["start"] <= span["end"], spans
        before = span["start"]
    if spans:
        assert max(span["end"] for span in spans) <= duration + 1e-3


def events(server: Running, file: bytes, **fields: Any) -> Iterator[dict[str, Any]]:
    """The events of a streamed transcription. Closing the iterator closes the connection."""
    form = {"model": server.model, "stream": "true", **fields}
    with server.http.stream("POST", PATH, files={"file": ("a.wav", file)}, data=form, timeout=SLOW) as response:
        assert response.status_code == 200, response.read().decode()
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("data:") and line != "data: [DONE]":
                yield json.loads(line[5:])


def errors(pairs: Sequence[tuple[str, str]]) -> WordErrors:
    """Word errors of (reference, text) pairs, after Whisper's normaliser."""
    return count([(normalize(reference, "en"), normalize(text, "en")) for reference, text in pairs])


def upload(server: Running, file: bytes, *, part: float = 1.0, **fields: str) -> Caller:
    """Sends the head of an upload and `part` of its body."""
    boundary = "cut-here"
    form = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in {"model": server.model, **fields}.items()
    )
    form += f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    body = form.encode() + file + f"\r\n--{boundary}--\r\n".encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        f"Content-Type: multipart/form-data; boundary={boundary}\r\n\r\n"
    )
    return Caller(server, head.encode() + body[: round(part * len(body))])


class Reference:
    """`transformers` with a checkpoint, fp32, greedy, with timestamps."""

    def __init__(self, folder: Path, language: str | None = None) -> None:
        """`language` for models that know several."""
        import torch
        from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

        self.model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        self._extractor = WhisperFeatureExtractor.from_pretrained(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._fixed = {"language": language, "task": "transcribe"} if language else {}

    def features(self, pcm: np.ndarray) -> torch.Tensor:
        """Of one window, padded: ``[1, bins, frames]``."""
        found = self._extractor(pcm.astype(np.float32), sampling_rate=RATE, return_tensors="pt")
        features: torch.Tensor = found.input_features
        return features

    def text(self, pcm: np.ndarray) -> str:
        """Of one window, or of sequential windows that begin where the last timestamp of the one before ends."""
        import torch

        more = {} if len(pcm) <= 30 * RATE else {"truncation": False, "padding": "longest"}
        features = self._extractor(
            pcm.astype(np.float32), sampling_rate=RATE, return_tensors="pt", return_attention_mask=True, **more
        )
        with torch.inference_mode():
            ids = self.model.generate(
                features.input_features,
                attention_mask=features.attention_mask,
                return_timestamps=True,
                condition_on_prev_tokens=len(pcm) > 30 * RATE,
                do_sample=False,
                num_beams=1,
                **self._fixed,
            )
        text: str = self.tokenizer.decode(ids[0], skip_special_tokens=True)
        return text

    def words(self, pcm: np.ndarray) -> list[tuple[str, float, float]]:
        """Words of one window with their start and end, by the alignment heads."""
        from transformers import pipeline

        recognize = pipeline(
            "automatic-speech-recognition",
            model=self.model,
            tokenizer=self.tokenizer,
            feature_extractor=self._extractor,
        )
        found = recognize(pcm.astype(np.float32), return_timestamps="word", generate_kwargs=self._fixed)
        return [(chunk["text"].strip(), *chunk["timestamp"]) for chunk in found["chunks"]]
