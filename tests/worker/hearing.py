"""A toy that hears: two KV pools, a context made from a request's audio, rules on its logits, times of its words.

Everything about it depends on what is easily mixed up: its context on the audio of its own row, its rules on a state
that moves with every token, its times on the pages that the request held. :meth:`HearingModel.transcript` says without
pages, pools, rows or batches what must come out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from denizen.worker.errors import RequestError
from denizen.worker.models.base import Batch, RowCache, RowInput, Speech, StatePoolSpec, StateSpec, Walk

from tests.worker.toy import serve_toy
from tests.worker.two_pools import TwoPoolModel

if TYPE_CHECKING:
    from denizen.worker.asr import AsrOptions

#: Samples that one position of the context hears, and words of a row's state.
FRAME, STATE = 4, 8
#: Ids from here on are languages, when one is looked for.
LANGUAGES = 90
VOCAB = 97


class HearingModel(TwoPoolModel):
    family = "hearing"
    kind = "asr"
    prefill_rows = (1, 2, 4)

    def __init__(self, context_length: int = 120, **options) -> None:
        super().__init__(VOCAB, context_length, **options)
        self.max_samples = FRAME * self.positions
        self.walks = {
            "prefill": Walk(
                "prefill",
                self.walks["prefill"].streams,
                inputs={
                    "audio": RowInput((self.max_samples,), torch.float32),
                    "rules": RowInput((STATE,), torch.int32),
                },
            ),
            "decode": self.walks["decode"],
        }
        self.state_pools = (StatePoolSpec("rules", (StateSpec("words", 1, (STATE,), torch.int32),)),)
        generator = torch.Generator().manual_seed(7)
        like = self._head
        self._listen = (torch.randn(FRAME, like.shape[0], generator=generator) * 2).to(like)
        self._silence = torch.randn(like.shape[0], generator=generator).to(like)
        self.heard: list[int] = []  #: rows of each prefill step

    def heard_context(self, audio: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[n * positions, heads, dim]`` of audio ``[n, max_samples]``."""
        frames = torch.tanh(audio.to(self._listen.dtype).view(-1, self.positions, FRAME) @ self._listen + self._frame)
        key, value = (frames.view(-1, frames.shape[-1]) @ self._cross_kv).view(-1, 2, *self.cross).unbind(1)
        return key, value

    def _new_context(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        self.heard.append(len(batch.slots))
        return self.heard_context(batch.inputs["audio"])

    def check(self, speech: Speech) -> None:
        if speech.options.detect and speech.prompt[-1] != 1:
            raise RequestError("to detect a language the prompt must end with 1", param="asr")

    def row_inputs(self, speech: Speech) -> dict[str, np.ndarray]:
        return {"audio": speech.pcm, "rules": rules_of(speech)}

    def observe(self, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        first = batch.cu_seqlens[:-1].long().clamp(max=len(hidden) - 1)
        return torch.sigmoid((hidden[first] @ self._silence).float() * 0.1)

    def constrain(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        words, slots = batch.state["rules"]["words"][0], batch.state_slots["rules"].long()
        if batch.walk == "prefill":
            state = batch.inputs["rules"]
        else:
            state = words[slots]
            state[:, 1] += 1
        words.index_copy_(0, slots, state)
        last = batch.token_ids[(batch.cu_seqlens[1:].long() - 1).clamp(min=0)]
        return constrained(logits, state, last)

    def align(self, speech: Speech, caches: dict[str, RowCache]) -> list[float]:
        total = sum(float(caches[key].layer(0)[part].double().sum()) for key in ("context", "self") for part in (0, 1))
        return times_of(speech.outputs, speech.options, total)

    def transcript(
        self, prompt: list[int], audio: np.ndarray, options: AsrOptions, max_tokens: int, stop: int | None
    ) -> Transcript:
        """The greedy answer, in fp64."""
        outputs: list[int] = []
        while len(outputs) < max_tokens and (not outputs or outputs[-1] != stop):
            outputs.append(int(self.logits_of(prompt, audio, options, outputs, last=True)[0].argmax()))
        return self.judged(prompt, audio, options, outputs, stop)[0]

    def judged(
        self, prompt: list[int], audio: np.ndarray, options: AsrOptions, outputs: list[int], stop: int | None
    ) -> tuple[Transcript, float]:
        """What is to be said of ``outputs``, in fp64, and how far the worst of them is from the best, in deviations of
        the logits: infinite if the rules forbid it."""
        steps = self.logits_of(prompt, audio, options, outputs[:-1])
        scores = [float(logits.log_softmax(-1)[token]) for logits, token in zip(steps, outputs, strict=True)]
        worst = max(
            float((logits.max() - logits[token]) / logits[logits > -torch.inf].std(correction=0).clamp(min=1e-9))
            for logits, token in zip(steps, outputs, strict=True)
        )
        said = outputs[:-1] if outputs[-1] == stop else outputs
        key, value = self._heard(audio)
        ids = torch.tensor((prompt + outputs)[:-1], device=self._head.device)
        own = (self._embedding[ids] + self._position[: len(ids)]) @ self._qkv
        total = float(key.double().sum() + value.double().sum() + own[:, self.own[0] * self.own[2] :].double().sum())
        silence = self._over(prompt, key, value)[0] @ self._silence.double() * 0.1
        average = sum(scores[options.given :]) / (max(len(said) - options.given, 0) + 1)
        answer = Transcript(outputs, float(torch.sigmoid(silence)), average, times_of(said, options, total))
        return answer, worst

    def logits_of(
        self, prompt: list[int], audio: np.ndarray, options: AsrOptions, outputs: list[int], last: bool = False
    ) -> torch.Tensor:
        """fp64 ``[n, vocab]`` under the rules: of all outputs and the token after them, or of that alone."""
        device, ids = self._head.device, prompt + outputs
        begin = len(outputs) if last else 0
        hidden = self._over(ids, *self._heard(audio))[len(prompt) + begin - 1 :]
        speeches = [Speech(np.array(prompt), outputs[:end], options, audio) for end in range(begin, len(outputs) + 1)]
        state = torch.from_numpy(np.stack([rules_of(speech) for speech in speeches])).to(device)
        before = torch.tensor(ids[len(prompt) + begin - 1 :], device=device)
        return constrained(hidden @ self._head.double(), state, before)

    def _heard(self, audio: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        padded = torch.zeros(1, self.max_samples)
        padded[0, : len(audio)] = torch.from_numpy(audio)
        return self.heard_context(padded.to(self._head.device))


@dataclass
class Transcript:
    tokens: list[int]  #: the end id included
    no_speech: float
    avg_logprob: float
    times: list[float]


def rules_of(speech: Speech) -> np.ndarray:
    """int32 ``[STATE]``: whether parities alternate, tokens so far, given tokens, the forced ones."""
    forced = list(speech.options.forced)
    words = [int(speech.options.timestamps), len(speech.outputs), speech.options.given, *forced]
    return np.array(words + [0] * (STATE - len(words)), np.int32)


def constrained(logits: torch.Tensor, state: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """No token twice in a row; with timestamps, even and odd ids alternate; a language first and forced ids then."""
    ids = torch.arange(logits.shape[1], device=logits.device)
    count, given = state[:, 1:2], state[:, 2:3]
    banned = ids == last[:, None]
    banned |= (state[:, :1] != 0) & ((ids + count) % 2 == 1)
    forced = state.gather(1, (count.long() + 2).clamp(max=STATE - 1))
    banned = torch.where(count < given, ids != forced, banned)
    best = logits.masked_fill(ids < LANGUAGES, -torch.inf).argmax(-1, keepdim=True)
    banned = torch.where((count == 0) & (given > 0), ids != best, banned)
    return logits.masked_fill_(banned, -torch.inf)


def times_of(said: list[int], options: AsrOptions, total: float) -> list[float]:
    texts = len(said) - options.given
    return [] if texts <= 0 else [round(at + total, 3) for at in range(texts + 1)]


def serve_hearing(serve=serve_toy, **options):
    """``serve``: ``serve_toy`` or ``serve_static``."""
    options.setdefault("model", HearingModel())
    return serve(name="hearing", **options)


def sound(number: int, samples: int) -> np.ndarray:
    """Samples of a request's own."""
    return np.random.default_rng(number).standard_normal(samples).astype(np.float32)
