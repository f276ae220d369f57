"""The environment block of a result."""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING

import pytest
from denizen.bench import environment

if TYPE_CHECKING:
    from pathlib import Path


def test_the_environment_names_machine_and_source_and_no_secret() -> None:
    found = environment.describe(["denizen-bench", "text", "--api-key", "hunter2", "--url", "x", "--api-key=hunter2"])
    assert "hunter2" not in json.dumps(found)
    assert found["command"][-1] == "--api-key=***"
    assert found["cpus"] >= 1
    assert found["packages"]["aiohttp"]
    assert set(found) >= {"cpu", "gpus", "commit", "dirty", "python", "platform", "started", "load_average"}


def test_sources_that_travelled_bring_their_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DENIZEN_COMMIT", "abc")
    for value, dirty in (("0", False), ("1", True)):
        monkeypatch.setenv("DENIZEN_DIRTY", value)
        found = environment.describe([])
        assert (found["commit"], found["dirty"]) == ("abc", dirty)
    monkeypatch.delenv("DENIZEN_COMMIT")
    monkeypatch.delenv("DENIZEN_DIRTY")
    assert environment.describe([])["commit"] != "abc"
    monkeypatch.setattr(environment, "_run", lambda *command: None)
    found = environment.describe([])
    assert (found["commit"], found["dirty"]) == (None, None)


def test_variables_that_change_what_is_measured_are_kept_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("DENIZEN_API_KEY", "hunter2")
    monkeypatch.setenv("SHELL_THING", "private")
    found = environment.describe([])
    assert found["variables"]["OMP_NUM_THREADS"] == "3"
    assert found["variables"]["DENIZEN_API_KEY"] == "***"
    assert "hunter2" not in json.dumps(found)
    assert "SHELL_THING" not in found["variables"]


SMI = """#!/bin/sh
case "$1" in
  *{unknown}*) echo 'Field "{unknown}" is not a valid field to query.'; exit 2 ;;
esac
for field in $(echo "${{1#--query-gpu=}}" | tr , ' '); do row="$row, $field of 0"; other="$other, $field of 1"; done
echo "${{row#, }}"
echo "${{other#, }}"
"""


@pytest.mark.parametrize("unknown", ["no_such_field", "persistence_mode"])
def test_gpus_are_described_even_if_a_field_is_unknown(
    unknown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(SMI.format(unknown=unknown), encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = environment.describe([])
    assert len(found["gpus"]) == 2
    assert found["gpus"][1]["uuid"] == "uuid of 1"
    assert set(found["gpus"][0]) >= {"name", "driver_version", "clocks.sm", "power.limit", "mig.mode.current"}
    assert ("persistence_mode" in found["gpus"][0]) is (unknown != "persistence_mode")
    environment.finish(found)
    assert found["gpus_after"][0]["clocks.sm"] == "clocks.sm of 0"
    started, finished = (datetime.datetime.fromisoformat(found[name]) for name in ("started", "finished"))
    assert started <= finished


def test_a_machine_without_gpus_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = environment.describe([])
    assert found["gpus"] == []
    environment.finish(found)
    assert "gpus_after" not in found


def test_a_checkpoint_of_the_hub_says_its_revision(tmp_path: Path) -> None:
    cached = tmp_path / "models--a--b" / "snapshots" / "0123abc"
    cached.mkdir(parents=True)
    assert environment.model_revision(cached) == "0123abc"
    (tmp_path / "link").symlink_to(cached)
    assert environment.model_revision(tmp_path / "link") == "0123abc"
    notes = tmp_path / "own" / ".cache" / "huggingface" / "download"
    notes.mkdir(parents=True)
    (notes / "a.metadata").write_text("", encoding="utf-8")
    (notes / "config.json.metadata").write_text("4567def\netag\n1.0\n", encoding="utf-8")
    assert environment.model_revision(tmp_path / "own") == "4567def"
    assert environment.model_revision(tmp_path) is None
    assert environment.model_revision(tmp_path / "absent") is None
