"""The parameters of the calls, as type checkers see them: those of the HTTP API, by the same names.

The server is what checks them, so one that a newer server knows can be given although it is missing here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class GenerateParameters(TypedDict, total=False):
    """Of `generate`. `docs/http-api.md` says what each does, its default and its range."""

    max_tokens: int | None
    max_completion_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    n: int | None
    seed: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[str, float] | None
    logprobs: bool | int | None
    """A number with `prompt`, a bool with `messages`."""
    # With `messages`.
    top_logprobs: int | None
    chat_template_kwargs: Mapping[str, Any] | None
    reasoning_effort: str | None
    add_generation_prompt: bool | None
    # With `prompt`.
    echo: bool | None
    add_special_tokens: bool | None
    best_of: int | None


class TranscribeParameters(TypedDict, total=False):
    """Of `transcribe`."""

    language: str | None
    prompt: str | None
    temperature: float | None
    max_tokens: int | None
    ignore_eos: bool | None
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] | None
    """Default: `verbose_json`, `json` in a stream; only the first has segments and words in its `Transcript`. `srt` and
    `vtt` come in `Transcript.text`."""
    timestamp_granularities: Sequence[Literal["segment", "word"]] | None
    chunking_strategy: Literal["auto"] | Mapping[str, Any] | None


class SpeakParameters(TypedDict, total=False):
    """Of `speak`."""

    voice: str | None
    language: str | None
    instructions: str | None
    speed: float | None
    seed: int | None
    temperature: float | None
    max_tokens: int | None


class TokenizeParameters(TypedDict, total=False):
    """Of `tokenize`."""

    add_special_tokens: bool | None
    return_token_strs: bool | None
    # With `messages`.
    add_generation_prompt: bool | None
    chat_template_kwargs: Mapping[str, Any] | None
