"""`denizen-bench text`: load on any OpenAI-compatible server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denizen.bench.client import TextTarget
from denizen.bench.errors import BenchError
from denizen.bench.kind import Kind
from denizen.bench.options import json_field, lengths, positive_int, share_of
from denizen.bench.schema import FullLoad, Record
from denizen.bench.summary import check, summarize
from denizen.bench.workload import Nuisances, Workload, read_prompts

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from denizen.bench.schema import LoadSummary
    from denizen.bench.strain import Strain
    from denizen.bench.workload import Job


def _add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests")
    group.add_argument("--endpoint", choices=("chat", "completions"), default="chat", help="default: %(default)s")
    group.add_argument("--requests", type=positive_int, default=64, metavar="N", help="a pass (default: %(default)s)")
    prompts = group.add_mutually_exclusive_group()
    prompts.add_argument(
        "--prompt-tokens", type=positive_int, default=64, metavar="N", help="random words (default: %(default)s)"
    )
    prompts.add_argument("--prompts", type=Path, metavar="FILE", help="one a line, or .jsonl (`prompt` or `messages`)")
    group.add_argument(
        "--prefix-tokens", type=positive_int, default=0, metavar="N", help="that prompts begin with and share"
    )
    group.add_argument(
        "--prefixes", type=positive_int, default=1, metavar="N", help="different ones, drawn evenly (default: 1)"
    )
    group.add_argument(
        "--turns", type=positive_int, default=1, metavar="N", help="requests of a conversation (default: 1)"
    )
    group.add_argument(
        "--output-len", type=lengths, default=(64, 64), metavar="MIN:MAX", help="max_tokens, drawn (default: 64:64)"
    )
    group.add_argument("--ignore-eos", action="store_true", help="fixed lengths: end ids do not end an answer")
    group.add_argument("--temperature", type=float, default=0.0, help="default: %(default)s")
    group.add_argument("--no-stream", dest="stream", action="store_false", help="whole answers: E2E only")
    group.add_argument("--stream", action="store_true", default=True, help="stream answers (the default)")
    group.add_argument(
        "--extra",
        type=json_field,
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="another field of every body, such as top_k=20; repeatable",
    )
    nuisances = parser.add_argument_group("clients that misbehave, apart from the numbers of the rest")
    nuisances.add_argument(
        "--cancel", type=share_of, metavar="SHARE:TOKENS", help="share that goes away after so many events with text"
    )
    nuisances.add_argument(
        "--slow-readers", type=share_of, metavar="SHARE:BYTES", help="share that reads so many bytes a second"
    )


def _prepare(options: argparse.Namespace, _: Path) -> tuple[TextTarget, TextLoad]:
    if options.cancel and not options.stream:
        raise BenchError("--cancel needs streamed answers: leave out --no-stream")
    if options.slow_readers and not options.stream:
        raise BenchError("--slow-readers needs streamed answers: leave out --no-stream")
    if options.turns > 1 and options.endpoint != "chat":
        raise BenchError("--turns needs --endpoint chat")
    if options.prefix_tokens and options.prompts:
        raise BenchError("--prefix-tokens goes with --prompt-tokens, not with --prompts")
    if options.prefixes > 1 and not options.prefix_tokens:
        raise BenchError("--prefixes needs --prefix-tokens")
    cancel, cancel_after = options.cancel or (0.0, 1)
    slow, slow_pace = options.slow_readers or (0.0, 1000)
    target = TextTarget(
        url=options.url,
        model=options.model or "",
        endpoint=options.endpoint,
        api_key=options.api_key,
        stream=options.stream,
        ignore_eos=options.ignore_eos,
        timeout=options.timeout,
        extra={"temperature": options.temperature, **dict(options.extra)},
        slow_pace=slow_pace,
    )
    workload = Workload(
        seed=options.seed,
        requests=options.requests,
        output_len=options.output_len,
        prompt_tokens=options.prompt_tokens,
        prompts=read_prompts(options.prompts) if options.prompts else None,
        prefix_tokens=options.prefix_tokens,
        prefixes=options.prefixes,
        turns=options.turns,
        nuisances=Nuisances(cancel, cancel_after, slow),
    )
    return target, TextLoad(workload, target)


@dataclass(frozen=True)
class TextLoad:
    """Requests for text (:class:`denizen.bench.levels.Load`)."""

    workload: Workload
    target: TextTarget

    @property
    def requests(self) -> int:
        return self.workload.requests

    def data(self) -> dict[str, Any]:
        return {"sha256": self.workload.sha256()}

    def jobs(self, level: int, number: int) -> list[Job]:
        return self.workload.jobs(level, number)

    def check(self, record: Record) -> str | None:
        return check(record, ignore_eos=self.target.ignore_eos, stream=self.target.stream)

    def summarize(
        self, records: Sequence[Record], wall: float, strains: Sequence[Strain], users: int | None
    ) -> LoadSummary:
        return summarize(records, wall, strains, users)

    def total(self, records: Sequence[Record], passes: Sequence[LoadSummary], strains: Sequence[Strain]) -> LoadSummary:
        summary = summarize(records, sum(part.wall for part in passes), strains)
        full = [part.full_load for part in passes if part.full_load is not None]
        if full:
            seconds, tokens = sum(part.seconds for part in full), sum(part.output_tokens for part in full)
            summary.full_load = FullLoad(seconds, tokens, tokens / seconds)
        return summary


KIND = Kind(
    name="text",
    help="load on an OpenAI-compatible server: latency and throughput",
    description="Sends chat or completion requests to any OpenAI-compatible server and reports TTFT, TPOT, ITL, "
    "E2E, output tokens/s and requests/s. Any failed request makes the result invalid and the exit status 1.",
    record=Record,
    add_options=_add_options,
    prepare=_prepare,
)
