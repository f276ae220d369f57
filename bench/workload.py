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
    _digests: dict[tuple[int, int], bytes] = field(default_factory=dict, repr=False)

    def jobs(self, level: int, number: int) -> list[Job]:
        """The jobs of pass `number` of load level `level`."""
        rng = random.Random(f"{self.seed}/{level}/{number}")
        order: list[str | list[dict[str, Any]]] = []
        while self.prompts and len(order) < self.requests:
            order.extend(rng.sample(self.prompts, len(self.prompts)))
        jobs = []
        digest = hashlib.sha256()
        for index in range(self.requests):
            text = order[index] if self.prompts else words(rng, self.prompt_tokens)
            job = Job(
                index=index,
                prompt=text if isinstance(text, str) else "",
                messages=None if isinstance(text, str) else text,
                max_tokens=rng.randint(*self.output_len),
                seed=rng.getrandbits(31),
            )
            jobs.append(job)
            row = [job.prompt, job.messages, job.max_tokens, job.seed]
            digest.update(json.dumps(row, ensure_ascii=False).encode())
        self._digests[level, number] = digest.digest()
        return jobs

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
