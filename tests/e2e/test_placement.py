"""Models and workers side by side, and that the ways to run a step give the same texts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from .conftest import CPU
from .waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Serve
    from .running import Running

ENDINGS = ("reads", "writes", "waits", "answers", "stops", "starts", "again", "and", "tokens", "pages")
PROMPTS = [f"The server {ending}" for ending in ENDINGS]


def texts(server: Running, model: str, tokens: int = 48) -> list[str]:
    """Greedy answers to all prompts at once: lengths differ, so that rows come and go."""

    def ask(numbered: tuple[int, str]) -> str:
        number, prompt = numbered
        answer = server.complete(prompt * (1 + number % 4), model=model, max_tokens=tokens + number, ignore_eos=True)
        text: str = answer["choices"][0]["text"]
        return text

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(ask, enumerate(PROMPTS)))


def test_two_models_side_by_side_answer_as_each_alone(tiny_server: Running) -> None:
    alone = {model: texts(tiny_server, model) for model in ("hybrid", "dense")}
    assert alone["hybrid"] != alone["dense"]
    with ThreadPoolExecutor(2) as pool:
        together = {model: pool.submit(texts, tiny_server, model) for model in alone}
        assert {model: future.result() for model, future in together.items()} == alone
    assert [model.id for model in tiny_server.client.models.list()] == ["hybrid", "dense"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--no-overlap"],
        ["--no-resident"],
        ["--prefill-chunk", "5", "--page-size", "4"],
        ["--workers-per-device", "2", "--max-rows", "3"],
    ],
    ids=lambda flags: flags[0].strip("-"),
)
def test_texts_do_not_depend_on_how_steps_are_run(
    serve: Serve, tiny_server: Running, hybrid_model: Path, dense_model: Path, flags: list[str]
) -> None:
    models = ["--model", f"hybrid={hybrid_model}", "--model", f"dense={dense_model}"]
    server = serve([*CPU, *models, *flags], model="hybrid")
    for model in ("hybrid", "dense"):
        assert texts(server, model) == texts(tiny_server, model)
    server.settles()


def test_running_out_of_pages_repeats_no_token_and_does_not_livelock(
    serve: Serve, tiny_server: Running, hybrid_model: Path, dense_model: Path
) -> None:
    """Symptoms: a duplicate token after preemption; 0 tokens/s for ever because freed pages are not seen."""
    models = ["--model", f"hybrid={hybrid_model}", "--model", f"dense={dense_model}"]
    server = serve([*CPU, *models, "--kv-tokens", "256", "--max-context", "192"], model="hybrid")
    for model in ("hybrid", "dense"):
        assert texts(server, model) == texts(tiny_server, model)
    eventually(lambda: server.metrics()["denizen_preemptions_total"] > 0, "pages did run out")
    server.settles()


def test_two_workers_share_the_load(serve: Serve, hybrid_model: Path) -> None:
    server = serve([*CPU, "--model", f"tiny={hybrid_model}", "--workers-per-device", "2"], model="tiny")
    assert len(server.workers()) == 2

    def steps() -> list[float]:
        lines = server.http.get("/metrics").text.splitlines()
        return [float(line.rpartition(" ")[2]) for line in lines if line.startswith("denizen_steps_total{")]

    def both_took_part() -> bool:
        # A worker that a busy machine held up for a moment gets nothing: ask again.
        texts(server, "tiny")
        server.settles()
        return min(steps()) > 0

    eventually(both_took_part, "both workers run steps")
    assert len(steps()) == 2
