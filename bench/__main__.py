"""`denizen-bench`: the command line of the benchmark harness."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from typing import TYPE_CHECKING

from denizen.bench.errors import BenchError

if TYPE_CHECKING:
    from types import FrameType

_EXTRA = ("aiohttp", "jinja2", "jiwer", "matplotlib", "soundfile", "tqdm", "whisper_normalizer")
_REMEDY = "denizen-bench: {} is not installed: pip install 'denizen[bench]'"
try:
    from denizen.bench import (
        arena,
        asr,
        compare,
        cpu_text,
        frontend,
        gpu_asr,
        gpu_text,
        mixed,
        phases,
        plot,
        sdk,
        sweep,
        text,
        tts,
        tts_wer,
    )
except ModuleNotFoundError as missing:  # the base install leaves out what only the harness needs
    if missing.name not in _EXTRA:
        raise
    sys.exit(_REMEDY.format(missing.name))

_KINDS = (text.KIND, asr.KIND, tts.KIND)
_MIXED = mixed.Mixed(_KINDS)
_COMMANDS = (tts_wer, cpu_text, gpu_text, gpu_asr, frontend, arena, sdk, phases, plot)


def main(argv: list[str] | None = None) -> int:
    """Runs one sub-command.

    Exit status: 0 valid result, 1 invalid result, 2 the run could not be made, 130 interrupted.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no lines or dashes gets question marks
    if argv is None:
        # The whole process is ours: SIGTERM, and a terminal that goes away, end it as Ctrl-C does, so that the servers
        # that it started are stopped. `nohup` ignores SIGHUP, and means it.
        signal.signal(signal.SIGTERM, _interrupt)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, _interrupt)
    parser = argparse.ArgumentParser(
        prog="denizen-bench", description="Measures Denizen, and any OpenAI-compatible server beside it."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for kind in _KINDS:
        kind.add_parser(commands)
    _MIXED.add_parser(commands)
    sweep.add_parser(commands, _KINDS)
    compare.add_parser(commands, (*_KINDS, _MIXED))
    for command in _COMMANDS:
        command.add_parser(commands)
    options = parser.parse_args(argv)
    try:
        status: int = options.run(options)
    except BenchError as error:
        print(f"denizen-bench: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as missing:
        if missing.name not in _EXTRA:
            raise
        print(_REMEDY.format(missing.name), file=sys.stderr)
        return 2
    except BrokenPipeError:  # nobody reads on; the files that were asked for have been written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("denizen-bench: interrupted", file=sys.stderr)
        return 130
    return status


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Does what Ctrl-C does at this moment: an event loop that runs ends its tasks first."""
    does = signal.getsignal(signal.SIGINT)
    if callable(does):
        does(signal.SIGINT, frame)
    else:  # it is ignored, as in the background of a script
        raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
