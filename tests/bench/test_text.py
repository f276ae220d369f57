"""`denizen-bench text` against a peer that misbehaves."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from denizen.bench import api
from denizen.bench.__main__ import main
from denizen.bench.api import error_text

from .peer import Behaviour, serving

if TYPE_CHECKING:
    from pathlib import Path

    from .peer import Peer


# A busy machine is no failure here, and the peer shares this process.
_LAG = ["--max-client-lag", "60000"]


def bench(peer: Peer, tmp_path: Path, *arguments: str, api_key: str | None = None) -> tuple[int, dict[str, Any]]:
    """Runs a small benchmark; returns its exit status and its result file."""
    out = tmp_path / "result.json"
    words = ["text", "--url", peer.url, "--requests", "4", "--output-len", "3:6", "--json", str(out)]
    words += [*_LAG, *arguments]
    if api_key:
        words += ["--api-key", api_key]
    status = main(words)
    return status, json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize("flags", [[], ["--ignore-eos"], ["--no-stream"], ["--endpoint", "completions"]])
def test_a_sound_server_gives_a_valid_result(tmp_path: Path, flags: list[str]) -> None:
    with serving() as peer:
        status, result = bench(peer, tmp_path, "--concurrency", "1", "2", *flags)
    assert status == 0
    assert result["valid"] is True
    assert result["schema"] == "denizen.bench/1"
    assert [level["load"]["concurrency"] for level in result["results"]] == [1, 2]
    assert len(peer.requests) == 16  # two levels of two passes
    measured = peer.requests[4:8]
    summary = result["results"][0]["summary"]
    assert summary["requests"] == 4  # the first pass is dropped
    assert summary["output_tokens"] == sum(body["max_tokens"] for body in measured)
    assert len(result["results"][0]["passes"]) == 1
    # Nor is its time in the rates.
    assert summary["wall"] == result["results"][0]["passes"][0]["wall"]
    assert summary["requests_per_s"] == pytest.approx(4 / summary["wall"])
    assert summary["prompt_tokens"] == 4 * 7
    assert summary["e2e"]["count"] == 4
    if "--no-stream" in flags:
        assert summary["ttft"] is summary["tpot"] is summary["itl"] is None
        assert "stream" not in measured[0]
    else:
        assert summary["ttft"]["count"] == summary["tpot"]["count"] == 4
        assert summary["itl"]["count"] == sum(body["max_tokens"] - 1 for body in measured)
        assert measured[0]["stream_options"] == {"include_usage": True}
    assert all(body.get("ignore_eos", False) is ("--ignore-eos" in flags) for body in peer.requests)
    assert {path.removeprefix("/v1/") for path in peer.paths} == {
        "completions" if "completions" in flags else "chat/completions"
    }


def test_open_loop_runs(tmp_path: Path) -> None:
    with serving() as peer:
        status, result = bench(peer, tmp_path, "--rate", "400")
    assert status == 0
    assert result["results"][0]["load"] == {"mode": "open", "rate": 400}


# Requests 0..3 are the warm-up, 4..7 the measured pass.
@pytest.mark.parametrize(
    ("behaviour", "message", "flags"),
    [
        (Behaviour(refuse={5}), "HTTP 500: out of order", []),
        (Behaviour(refuse={5}), "HTTP 500: out of order", ["--no-stream"]),
        (Behaviour(error_event={6}), "error event: worker died", []),
        (Behaviour(truncate={4}), "ended without [DONE]", []),
        (Behaviour(drop={7}), "broken connection", []),
        (Behaviour(hang={7}), "no complete answer within 0.5 s", ["--timeout", "0.5"]),
        (Behaviour(short={4}), "tokens instead of", []),
        (Behaviour(short={4}), "tokens instead of", ["--no-stream", "--ignore-eos"]),
        (Behaviour(overcount={6}), "events carried text", []),
        (Behaviour(usage=False), "without usage", ["--no-stream"]),
    ],
)
def test_failures_make_the_result_invalid(
    tmp_path: Path, behaviour: Behaviour, message: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(behaviour) as peer:
        status, result = bench(peer, tmp_path, *flags)
    assert status == 1
    assert result["valid"] is False
    failures = result["results"][0]["failures"]
    assert len(failures) == 1
    assert message in failures[0]
    summary = result["results"][0]["summary"]
    assert summary["failed"] >= 1
    assert summary["requests"] == 4
    # What failed must not count as work done.
    assert (summary["e2e"] or {"count": 0})["count"] == 4 - summary["failed"]
    assert "INVALID" in capsys.readouterr().out


def test_a_failure_in_the_warm_up_alone_is_still_a_failure(tmp_path: Path) -> None:
    with serving(Behaviour(refuse={0})) as peer:
        status, result = bench(peer, tmp_path)
    assert status == 1
    assert result["valid"] is False
    assert result["results"][0]["summary"]["failed"] == 0


def test_streams_without_usage_are_counted_from_events_and_marked(tmp_path: Path) -> None:
    with serving(Behaviour(usage=False)) as peer:
        status, result = bench(peer, tmp_path)
    assert status == 0
    summary = result["results"][0]["summary"]
    assert summary["unchecked"] == 4
    assert summary["output_tokens"] == sum(body["max_tokens"] for body in peer.requests[4:])


def test_the_key_is_sent_and_never_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Behaviour(api_key="hunter2")) as peer:
        status, _ = bench(peer, tmp_path, api_key="hunter2")
        assert status == 0
        assert main(["text", "--url", peer.url, "--api-key", "wrong"]) == 2
    assert "hunter2" not in (tmp_path / "result.json").read_text(encoding="utf-8")
    assert "401: wrong key" in capsys.readouterr().err


def test_records_have_one_line_a_request(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    with serving() as peer:
        bench(peer, tmp_path, "--records", str(out))
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["measured_pass"] for row in rows] == [0] * 4 + [1] * 4
    for row in rows:
        assert row["scheduled"] <= row["sent"] <= row["first"] <= row["last"] <= row["end"]
        assert row["e2e"] == pytest.approx(row["end"] - row["scheduled"])
        assert len(row["gaps"]) == row["events"] - 1 == row["completion_tokens"] - 1


def test_the_same_seed_sends_the_same_requests(tmp_path: Path) -> None:
    def bodies(seed: str) -> tuple[list[dict[str, Any]], str]:
        with serving() as peer:
            _, result = bench(peer, tmp_path, "--seed", seed)
        return peer.requests, result["data"]["sha256"]

    assert bodies("5") == bodies("5")
    assert bodies("5") != bodies("6")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "absent"], "--model absent: the server offers tiny"),
        (["--passes", "1"], "--passes must be at least 2"),
        (["--prompts", "/nonexistent/prompts.txt"], "--prompts"),
    ],
)
def test_a_run_that_cannot_start_says_why(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving() as peer:
        assert main(["text", "--url", peer.url, *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not peer.requests


def test_no_server_at_the_url_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as peer:
        url = peer.url
    assert main(["text", "--url", url]) == 2
    assert "is --url right?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--concurrency", "0"), ("--concurrency", "x"), ("--rate", "-1"), ("--output-len", "9:3"), ("--requests", "1.5")],
)
def test_a_bad_flag_value_is_named(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["text", flag, value])
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert flag in message
    assert value in message


@pytest.mark.parametrize(
    ("flag", "place", "message"),
    [
        ("--out", "file", "is a file; name a folder"),
        ("--out", "file/deeper", "is no folder"),
        ("--json", "", "is a folder; name a file"),
        ("--json", "file/result.json", "is no folder"),
        ("--records", "file/records.jsonl", "is no folder"),
        ("--launch-log", "file/log", "is no folder"),
    ],
)
def test_a_place_that_cannot_be_written_is_named_before_the_run(
    flag: str, place: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with serving() as peer:
        with pytest.raises(SystemExit) as caught:
            main(["text", "--url", peer.url, flag, str(tmp_path / place)])
        assert not peer.requests
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert flag in said
    assert message in said


@pytest.mark.parametrize(("encoding", "reads_on"), [("ascii", True), ("utf-8", False)])
def test_what_was_measured_is_written_whoever_reads_the_report(tmp_path: Path, encoding: str, reads_on: bool) -> None:
    """A terminal without lines and dashes, and a pipe whose reader has gone."""
    out = tmp_path / "result.json"
    with serving() as peer:
        command = [sys.executable, "-m", "denizen.bench", "text", "--url", peer.url, "--requests", "2", *_LAG]
        with subprocess.Popen(
            [*command, "--json", str(out)],
            env={**os.environ, "PYTHONIOENCODING": encoding},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as run:
            assert run.stdout is not None
            if not reads_on:
                run.stdout.close()
                run.stdout = None
            said, complaints = run.communicate(timeout=120)
    assert complaints == b""
    assert json.loads(out.read_text(encoding="utf-8"))["valid"]
    if reads_on:
        assert b"TTFT ms" in said
        assert run.returncode == 0


def test_a_server_cannot_write_to_the_terminal() -> None:
    assert error_text('{"error": {"message": "red\\u001b[31m\\nand bell\\u0007"}}') == "red [31m and bell"
    assert error_text("<html>\x1b]0;title\x07</html>") == "<html> ]0;title </html>"
    assert error_text("") == "(empty body)"
    assert len(error_text("x" * 100_000)) == 500


def test_a_server_that_hangs_before_the_run_is_said_to_hang(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(api, "_PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert main(["text", "--url", f"http://127.0.0.1:{silent.getsockname()[1]}"]) == 2
    assert "does not answer within 0.2 s; is --url right?" in capsys.readouterr().err
