"""What the command line shows. ``UPDATE_SNAPSHOTS=1 pytest tests/frontend/test_cli.py`` rewrites the snapshots."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .conftest import Denizen

SNAPSHOTS = Path(__file__).parent / "snapshots"


def check_snapshot(name: str, text: str) -> None:
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("help", []),
        ("serve-help", ["serve"]),
        ("transcribe-help", ["transcribe"]),
        ("doctor-help", ["doctor"]),
    ],
)
def test_help_reads_as_before(denizen: Denizen, name: str, arguments: list[str]) -> None:
    result = denizen(*arguments, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    check_snapshot(name, result.stdout)


def test_version_is_one_line(denizen: Denizen) -> None:
    result = denizen("--version")
    assert result.returncode == 0
    name, version = result.stdout.split()
    assert name == "denizen"
    assert version.count(".") == 2


def test_no_command_shows_the_help_and_fails(denizen: Denizen) -> None:
    result = denizen()
    assert result.returncode == 2
    assert "Usage: denizen <COMMAND>" in result.stderr


def test_help_does_not_show_the_key_of_the_environment(denizen: Denizen) -> None:
    assert "s3cret" not in denizen("serve", "--help", env={"DENIZEN_API_KEY": "s3cret"}).stdout


def test_doctor_shows_what_there_is(denizen: Denizen) -> None:
    result = denizen("doctor")
    for what in ("Denizen", "Python", "packages", "torch", "CUDA", "GPU", "FlashInfer", "/dev/shm", "cache"):
        assert what in result.stdout, result.stdout
    assert (result.returncode == 0) == ("BAD" not in result.stdout)


def test_doctor_fails_and_says_why_where_python_is_missing(denizen: Denizen, tmp_path: Path) -> None:
    result = denizen("doctor", "--python", str(tmp_path / "nothing"))
    assert result.returncode == 1
    assert "BAD   Python" in result.stdout
    assert "there is no such file" in result.stdout
