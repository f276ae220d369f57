"""`denizen-bench sweep`: the highest rate under a service level objective; and overload in general."""

from __future__ import annotations

import json
import math
import random
from typing import TYPE_CHECKING, Any

import pytest
from denizen.bench.__main__ import main
from denizen.bench.sweep import Search, cut
from denizen.bench.text import TextLoad
from denizen.bench.workload import Workload

from .mixed_peer import doing_all
from .peer import Behaviour, serving

if TYPE_CHECKING:
    from pathlib import Path

    from .peer import Peer

_CLIENT = ["--max-client-lag", "60000"]


def sweep(peer: Peer, tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "sweep.json"
    status = main(["sweep", "text", "--url", peer.url, "--json", str(out), *_CLIENT, *arguments])
    return status, json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize("limit", [0.3, 3.0, 17.0, 1000.0])
@pytest.mark.parametrize("start", [0.1, 5.0, 40.0])
def test_the_limit_is_found_to_the_precision(limit: float, start: float) -> None:
    search = Search()
    search.run(lambda rate: rate <= limit, start, 0.05, math.inf)
    assert search.good is not None
    assert search.bad is not None
    assert search.good <= limit < search.bad <= search.good * 1.05
    assert len(search.tried) < 25


def test_a_limit_beyond_the_highest_rate_is_left_open() -> None:
    search = Search()
    search.run(lambda rate: True, 3.0, 0.05, 20.0)
    assert (search.good, search.bad) == (20.0, None)
    assert [rate for rate, _ in search.tried] == [3.0, 6.0, 12.0, 20.0]


def test_a_limit_below_everything_ends_the_search() -> None:
    search = Search()
    search.run(lambda rate: False, 4.0, 0.05, math.inf)
    assert search.good is None
    assert search.bad == 4.0 / 1024


def test_noise_at_the_limit_still_ends() -> None:
    for seed in range(50):
        rng, search = random.Random(seed), Search()
        search.run(lambda rate, rng=rng: rate * rng.uniform(0.8, 1.25) <= 10.0, 1.0, 0.05, math.inf)  # type: ignore[misc]
        assert search.good is not None
        assert 7.0 < search.good < 13.0


def test_levels_of_any_length_have_requests_of_their_own() -> None:
    load = TextLoad(Workload(seed=0, requests=10, output_len=(4, 4), prompt_tokens=8), None)  # type: ignore[arg-type]
    one, two = cut(load, 1, 0, 25), cut(load, 1, 1, 25)
    assert [job.index for job in one] == list(range(25))
    assert len({job.prompt for job in [*one, *two]}) == 50  # type: ignore[attr-defined]


def test_a_sweep_finds_what_a_server_can_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two rows and five tokens of 10 ms: 40 requests/s at the very most."""
    with serving(Behaviour(rows=2, token_s=0.01)) as peer:
        arguments = ["--slo", "ttft_p90=0.25", "--start-rate", "10", "--precision", "0.3", "--level-seconds", "1"]
        status, result = sweep(peer, tmp_path, "--output-len", "5", "--requests", "20", *arguments)
    assert status == 0
    assert result["valid"]
    found = result["figures"]["sweep"]
    assert found["highest_rate"] < found["lowest_rate_that_breaks_it"] <= 1.3 * found["highest_rate"]
    assert found["highest_rate"] < 60
    assert found["goodput_share"] > 0.85  # a percentile of few requests lies between two of them
    by_rate = {level["load"]["rate"]: level["summary"]["goodput"] for level in result["results"]}
    assert by_rate[found["highest_rate"]]["misses"] == []
    assert by_rate[found["highest_rate"]]["values"]["ttft_p90"] <= 0.25
    assert [level["rate"] for level in found["levels"]] == list(by_rate)
    out = capsys.readouterr().out
    assert "highest rate under the SLO" in out
    assert "broken: " in out


def test_requests_that_are_refused_break_the_slo_and_not_the_result(tmp_path: Path) -> None:
    with serving(Behaviour(limit=3, token_s=0.02)) as peer:
        arguments = ["--slo", "e2e_p99=30", "--start-rate", "4", "--precision", "1", "--level-seconds", "1"]
        status, result = sweep(peer, tmp_path, "--output-len", "5", "--requests", "4", *arguments)
    assert status == 0
    by_rate = {level["load"]["rate"]: level for level in result["results"]}
    assert by_rate[result["figures"]["sweep"]["highest_rate"]]["failures"] == []
    assert "HTTP 429" in by_rate[result["figures"]["sweep"]["lowest_rate_that_breaks_it"]]["failures"][0]


def test_the_first_rate_is_what_one_user_makes(tmp_path: Path) -> None:
    with serving(Behaviour(token_s=0.02)) as peer:
        arguments = ["--slo", "e2e_p99=30", "--highest-rate", "20", "--level-seconds", "0.1", "--requests", "3"]
        status, result = sweep(peer, tmp_path, "--output-len", "5", *arguments)
    assert status == 0
    rates = [level["rate"] for level in result["figures"]["sweep"]["levels"]]
    assert 0 < rates[0] < 10  # five tokens of 20 ms
    assert rates[-1] == result["figures"]["sweep"]["highest_rate"] == 20
    assert result["figures"]["sweep"]["lowest_rate_that_breaks_it"] is None


def test_no_rate_at_all_is_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as peer:
        arguments = ["--slo", "ttft_p50=1e-9", "--start-rate", "20000", "--level-seconds", "1e-6", "--requests", "2"]
        status, result = sweep(peer, tmp_path, *arguments)
    assert status == 1
    assert result["figures"]["sweep"]["highest_rate"] is None
    assert "no rate down to" in result["problems"][0]
    assert "no rate keeps the SLO" in capsys.readouterr().out


def test_a_client_at_its_limit_makes_the_sweep_invalid(tmp_path: Path) -> None:
    with serving() as peer:
        arguments = ["--slo", "e2e_p99=30", "--start-rate", "50", "--level-seconds", "0.1", "--requests", "4"]
        status, result = sweep(peer, tmp_path, *arguments, "--max-client-lag", "0.000001")
    assert status == 1
    assert "the client was too slow" in result["problems"][0]
    assert result["figures"]["sweep"]["highest_rate"] is None
    assert len(result["results"]) == 1  # what the client cannot send is not tried


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--slo", "ttft_p99=1", "--start-rate", "1000", "--most-levels", "2", "--requests", "2"],
            "raise --most-levels",
        ),
        (["--slo", "rtf_p95=1"], "'rtf' is not one of ttft"),
    ],
)
def test_a_sweep_that_cannot_go_on_says_why(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving() as peer:
        assert main(["sweep", "text", "--url", peer.url, "--level-seconds", "0.001", *_CLIENT, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_one_user_alone_that_fails_ends_the_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Behaviour(refuse={2})) as peer:
        assert main(["sweep", "text", "--url", peer.url, "--slo", "ttft_p99=1", *_CLIENT]) == 2
    assert "one user alone: 1 × HTTP 500" in capsys.readouterr().err


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_rate_beyond_the_server_ends_early_and_says_so(
    tmp_path: Path, processes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One row and five tokens of 20 ms: 10 requests/s; 4,000 requests at 200 would take seven minutes a pass."""
    out = tmp_path / "result.json"
    with serving(Behaviour(rows=1, token_s=0.02)) as peer:
        words = ["text", "--url", peer.url, "--rate", "200", "--requests", "4000", "--output-len", "5", *_CLIENT]
        assert main([*words, "--processes", processes, "--json", str(out)]) == 1
        assert len(peer.requests) < 4000
    result = json.loads(out.read_text(encoding="utf-8"))
    assert result["results"][0]["stopped"].startswith("overloaded: in the last")
    assert result["problems"] == [f"rate 200 req/s: {result['results'][0]['stopped']}"]
    assert "overloaded" in capsys.readouterr().out


def test_a_rate_that_ends_early_breaks_any_slo(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that stands still in the measured pass: the answers before that keep the bound."""
    with serving(Behaviour(stall={300 + 60: 600.0})) as peer:
        rates = ["--start-rate", "50", "--highest-rate", "50", "--level-seconds", "6", "--most-levels", "1"]
        words = ["sweep", "text", "--url", peer.url, "--output-len", "2", "--slo", "e2e_p99=1000", *rates, *_CLIENT]
        assert main(words) == 2
        assert 360 < len(peer.requests) < 600
    assert "no result after 1 levels" in capsys.readouterr().err


def test_goodput_of_a_plain_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "result.json"
    with serving() as peer:
        words = ["text", "--url", peer.url, "--requests", "4", "--slo", "ttft_p99=60", "e2e_max=1e-9", *_CLIENT]
        assert main([*words, "--json", str(out)]) == 0
    result = json.loads(out.read_text(encoding="utf-8"))
    goodput = result["results"][0]["summary"]["goodput"]
    assert (goodput["good"], goodput["misses"]) == (0, ["e2e_max"])
    assert result["options"]["slo"] == ["ttft_p99=60", "e2e_max=1e-09"]
    assert "broken: e2e_max" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "bound", "options"),
    [
        ("tts", "first_playable_p95=30", ["--model", "mouth"]),
        ("asr", "e2e_p95=30", ["--model", "ears", "--synthetic", "--clips", "2", "--seconds", "0.5:1"]),
    ],
)
def test_every_kind_of_load_can_be_swept(kind: str, bound: str, options: list[str], tmp_path: Path) -> None:
    out = tmp_path / "sweep.json"
    limits = ["--start-rate", "10", "--highest-rate", "20", "--level-seconds", "0.3", "--requests", "3"]
    with doing_all() as peer:
        words = ["sweep", kind, "--url", peer.url, "--slo", bound, *limits, *options, *_CLIENT, "--json", str(out)]
        assert main(words) == 0
    result = json.loads(out.read_text(encoding="utf-8"))
    assert result["kind"] == f"sweep {kind}"
    assert result["figures"]["sweep"]["highest_rate"] == 20
    # A level has as many requests as its rate and its time ask for.
    assert [level["summary"]["requests"] for level in result["results"]] == [3, 6]
