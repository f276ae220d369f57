"""The requests of a run: prompts and output lengths, all drawn from one seed."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from denizen.bench.errors import BenchError

if TYPE_CHECKING:
    from pathlib import Path

# Short, frequent words: in most vocabularies each is one token with its leading space, so that a prompt of n words has
# about n tokens. The report gives the server's own count.
_VOCABULARY = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city name team minute idea body back parent face others level "
    "office door health person art war history party result change morning reason research girl guy moment air teacher"
)
_WORDS = _VOCABULARY.split()


@dataclass(frozen=True, slots=True)
class Job:
    """One request to be sent."""

    index: int
    prompt: str
    messages: list[dict[str, Any]] | None
    """For the chat endpoint if the file gives whole conversations; else `prompt` becomes the one user message."""
    max_tokens: int
    seed: int
    cancel_after: int | None = None
    """Events with text after which the client goes away."""
    slow: bool = False
    """Whether the client reads the answer slowly."""
    conversation: int | None = None
    """Jobs of one conversation follow each other; each is sent with the messages and answers before it."""


@dataclass(frozen=True, slots=True)
class Nuisances:
    """Clients that misbehave, as shares of all requests."""

    cancel: float = 0.0
    cancel_after: int = 1
    """Events with text."""
    slow: float = 0.0


@dataclass
class Workload:
    """Makes each pass's jobs; two workloads with equal arguments make equal jobs.

    Every (level, pass) draws anew, so that a prefix cache filled by one pass does not speed up the next.
    """

    seed: int
    requests: int
    output_len: tuple[int, int]
    prompt_tokens: int = 64
    prompts: list[str | list[dict[str, Any]]] | None = None
    """From a file: each pass takes them in a shuffled order, repeating if there are fewer than `requests`."""
    prefix_tokens: int = 0
    """Words that a prompt begins with and shares with others."""
    prefixes: int = 1
    """So many of them, the same ones in all passes of a level."""
    turns: int = 1
    """Requests of a conversation."""
    nuisances: Nuisances = Nuisances()
    _digests: dict[tuple[int, int], bytes] = field(default_factory=dict, repr=False)

    def jobs(self, level: int, number: int) -> list[Job]:
        """The jobs of pass `number` of load level `level`."""
        rng = random.Random(f"{self.seed}/{level}/{number}")
        # Drawn apart, so that the requests are the same with and without nuisances.
        odd = random.Random(f"{self.seed}/{level}/{number}/nuisances")
        order: list[str | list[dict[str, Any]]] = []
        while self.prompts and len(order) < self.requests:
            order.extend(rng.sample(self.prompts, len(self.prompts)))
        jobs = []
        digest = hashlib.sha256()
        shared = self._shared(level)
        for index in range(self.requests):
            text = order[index] if self.prompts else words(rng, self.prompt_tokens)
            turn = index % self.turns
            if shared and turn == 0:
                text = f"{rng.choice(shared)} {text}"
            max_tokens, seed = rng.randint(*self.output_len), rng.getrandbits(31)
            if turn == 0:
                conversation = rng.getrandbits(63) if self.turns > 1 else None
            job = Job(
                index=index,
                prompt=text if isinstance(text, str) else "",
                messages=None if isinstance(text, str) else text,
                max_tokens=max_tokens,
                seed=seed,
                cancel_after=self.nuisances.cancel_after if odd.random() < self.nuisances.cancel else None,
                slow=odd.random() < self.nuisances.slow,
                conversation=conversation,
            )
            jobs.append(job)
            row = [job.prompt, job.messages, job.max_tokens, job.seed, job.cancel_after, job.slow, turn]
            digest.update(json.dumps(row, ensure_ascii=False).encode())
        self._digests[level, number] = digest.digest()
        return jobs

    def _shared(self, level: int) -> list[str]:
        """The prefixes of a level's prompts."""
        rng = random.Random(f"{self.seed}/{level}/prefixes")
        return [words(rng, self.prefix_tokens) for _ in range(self.prefixes)] if self.prefix_tokens else []

    def sha256(self) -> str:
        """Hash of all jobs made so far."""
        return digest_of(self._digests)


def digest_of(passes: dict[tuple[int, int], bytes]) -> str:
    """Hash of the hashes of passes by (level, pass), each counted once however often it was made."""
    return hashlib.sha256(b"".join(passes[key] for key in sorted(passes))).hexdigest()


def words(rng: random.Random, count: int) -> str:
    """A prompt of `count` random words, about as many tokens."""
    return " ".join(rng.choices(_WORDS, k=count))


def read_prompts(path: Path) -> list[str | list[dict[str, Any]]]:
    """Prompts from a text file (one a line) or JSONL (a string, or an object with `prompt` or `messages`, a line).

    Raises BenchError naming the file and line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"--prompts {path}: {error}") from error
    prompts: list[str | list[dict[str, Any]]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if path.suffix != ".jsonl":
            prompts.append(line)
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BenchError(f"--prompts {path}, line {number}: not JSON ({error})") from error
        if isinstance(row, dict):
            row = row.get("messages", row.get("prompt"))
        is_messages = isinstance(row, list) and bool(row) and all(isinstance(message, dict) for message in row)
        if not isinstance(row, str) and not is_messages:
            raise BenchError(f"--prompts {path}, line {number}: expected a string, or `prompt` or `messages`")
        prompts.append(row)
    if not prompts:
        raise BenchError(f"--prompts {path}: no prompts in it")
    return prompts
