"""The examples of `docs/sdk.md` run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from .conftest import Rendezvous

PAGE = Path(__file__).resolve().parents[2] / "docs/sdk.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_examples_run(talking: Rendezvous, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In order, in one namespace, as a reader would type them."""
    monkeypatch.setenv("DENIZEN_RUN_DIR", str(talking.run_dir))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    page = PAGE.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(page))
    assert len(blocks) >= 7
    for block in blocks:
        line = page[: block.start()].count("\n") + 1
        exec(compile("\n" * line + block[1], str(PAGE), "exec"), namespace)
    said = capsys.readouterr().out
    assert "text text" in said  # the models
    assert "'max_tokens'" in said  # the refusal
