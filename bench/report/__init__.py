"""What a run leaves for its readers: the printed table, files, plots, one HTML page.

# Layout

- `result.py` reads a result; everything else here works on its JSON, so that a file gives the same report as a run
- `quantities.py` knows what numbers are called; `sections.py` and `figures.py` turn them into tables (`tables.py`)
- `flat.py` makes CSV, `markdown.py` Markdown rows, `plots/` pictures, `page.py` the HTML page from `page.html`
- `output.py` ends a run: prints, and writes what was asked for
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from denizen.bench.report.quantities import level_name
from denizen.bench.report.tables import table

if TYPE_CHECKING:
    from denizen.bench.schema import LoadResult

__all__ = ["load_name", "table"]


def load_name(result: LoadResult[Any]) -> str:
    """What a load level is called: its own name if it has one."""
    return level_name(result.load)
