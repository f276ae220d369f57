"""Minutes of random load on a GPU worker's engine: ``python3 tests/gpu/soak.py --minutes 5 [--seed N]``.

A small random Qwen3.5 checkpoint, few pages and few rows: admissions, aborts in every phase, seeds, filters, penalties,
biases, preemptions, refusals, idle gaps and a front end that stands still (``tests/soak``). Between steps, checksums
show that nobody wrote what is not theirs, and the host's mirror equals the device; at the end, requests are run again
alone and every token is judged against fp32 ``transformers``; pools and memory must be back at their start. Exit status
1 if anything was wrong. A fault of the device, or a worker that stands still for a minute, ends it too.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import resource
import sys
import time
from pathlib import Path

import torch
from gpu_models import serve
from worker_support import BOUND, checkpoint, reference

from tests.soak.driver import Soak
from tests.soak.load import ABORTS

_STALL_S = 60
#: Memory that allocators may keep besides, between two idle moments.
_SLACK = {"allocated": 1 << 20, "driver": 64 << 20, "resident": 96 << 20}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-resident", dest="resident", action="store_false", help="plan on the host")
    parser.add_argument("--shared", action="store_true", help="other processes use the GPU: its memory is not judged")
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--kv-tokens", type=int, default=2560)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device is visible: the soak needs a GPU", file=sys.stderr)
        return 2
    faulthandler.dump_traceback_later(180, exit=True)
    folder, model = checkpoint("qwen3_5")
    served = serve(
        folder,
        rows=options.rows,
        chunk=128,
        kv_tokens=options.kv_tokens,
        context=1024,
        resident=options.resident,
        buckets=[4, 8, 16, options.rows],
    )
    ends = time.monotonic() + 60 * options.minutes
    told = [time.monotonic()]

    def turn(soak: Soak) -> None:
        faulthandler.dump_traceback_later(_STALL_S, exit=True)
        if time.monotonic() - told[0] > 10:
            told[0] = time.monotonic()
            left = max(0, round(ends - told[0]))
            figures = ", ".join(f"{value} {name}" for name, value in _figures(soak).items() if isinstance(value, int))
            print(f"{left} s left: {figures}, {len(soak.violations)} violations", flush=True)

    soak = Soak(served, options.seed, lambda _: time.monotonic() > ends, memory=_memory, turn=turn)
    began = time.monotonic()
    soak.run()
    faulthandler.cancel_dump_traceback_later()

    soak.judge(functools.partial(reference, model), BOUND)
    _judge_coverage(soak, options.minutes)
    _judge_memory(soak, ("allocated", "resident") if options.shared else tuple(_SLACK))
    print(f"\n== soak of {time.monotonic() - began:.0f} s, seed {options.seed}, {torch.cuda.get_device_name()}")
    for name, value in _figures(soak).items():
        print(f"{name:28} {value}")
    for name in soak.memory[0] if soak.memory else ():
        first, last = (moment[name] / 2**20 for moment in (soak.memory[0], soak.memory[-1]))
        print(f"{name + ' memory, MiB':28} {first:.1f} early, {last:.1f} at the end")
    for violation in soak.violations:
        print(f"VIOLATION: {violation}")
    print("FAILED" if soak.violations else "passed")
    return 1 if soak.violations else 0


def _figures(soak: Soak) -> dict[str, int | str]:
    return {
        "requests": soak.counts["requests"],
        "aborted": soak.aborts.total(),
        "aborted in": ", ".join(f"{phase} {count}" for phase, count in sorted(soak.aborts.items())),
        "refused": soak.counts["refused"],
        "idle gaps": soak.counts["idle gaps"],
        "preemptions": soak.served.scheduler.preemptions,
        "steps": soak.steps,
        "checks": soak.watch.checks,
        "live positions unchanged": soak.watch.positions,
        "resting rows unchanged": soak.watch.resting,
        "tokens judged": soak.counts["tokens judged"],
        "requests equal alone": f"{soak.counts['equal alone']} of {len(soak.samples)}",
    }


def _judge_coverage(soak: Soak, minutes: float) -> None:
    """A soak that did not get everywhere has shown nothing."""
    if minutes < 1:
        return
    missed = set(ABORTS) - {"twice", "decode"} - set(soak.aborts)
    if missed:
        soak.violations.append(f"nobody was aborted in: {', '.join(sorted(missed))}")
    for name, count in (("preemptions", soak.served.scheduler.preemptions), ("resting rows", soak.watch.resting)):
        if count < 100:
            soak.violations.append(f"only {count} {name}")


def _judge_memory(soak: Soak, names: tuple[str, ...]) -> None:
    if len(soak.memory) < 2:
        soak.violations.append("there was no idle moment to read the memory at")
        return
    for name in names:
        grown = soak.memory[-1][name] - soak.memory[0][name]
        if grown > _SLACK[name]:
            soak.violations.append(f"{name} memory has grown by {grown / 2**20:.1f} MiB")


def _memory() -> dict[str, int]:
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated": torch.cuda.memory_allocated(),
        "driver": total - free,
        "resident": int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize(),
    }


if __name__ == "__main__":
    sys.exit(main())
