"""`denizen-bench`: the command line of the benchmark harness."""

from __future__ import annotations

import argparse
import signal
import sys

try:
    from denizen.bench import arena, cpu_text, frontend, gpu_text, phases, text
except ModuleNotFoundError as missing:  # the base install leaves out what only the harness needs
    if missing.name not in ("aiohttp", "tqdm"):
        raise
    sys.exit(f"denizen-bench: {missing.name} is not installed: pip install 'denizen[bench]'")
from denizen.bench.errors import BenchError

_COMMANDS = (text, cpu_text, gpu_text, frontend, arena, phases)


def main(argv: list[str] | None = None) -> int:
    """Runs one sub-command. Exit status: 0 valid result, 1 invalid result, 2 the run could not be made."""
    if argv is None:
        # The whole process is ours: SIGTERM ends it as Ctrl-C does, so that the servers that it started are stopped.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(
        prog="denizen-bench", description="Measures Denizen, and any OpenAI-compatible server beside it."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add_parser(commands)
    options = parser.parse_args(argv)
    try:
        status: int = options.run(options)
    except BenchError as error:
        print(f"denizen-bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("denizen-bench: interrupted", file=sys.stderr)
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
