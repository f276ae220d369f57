"""What a bf16 recurrent state costs in quality: long texts, teacher-forced, against fp32 `transformers`.

`python -m denizen.bench.state_quality CHECKPOINT DEVICE TEXTS TOKENS SEED` prints one JSON line; a process of its own,
so that it keeps no memory. Each text is fed token by token through captured decode steps of a worker, once with the
state in fp32 and once in bf16, weights and activations being the worker's own on that device. What the first differs by
from the reference is the price of bf16 arithmetic; what the second differs by more is the state's.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from denizen.bench.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

STATES = ("float32", "bfloat16")
#: Positions a text at which logits are compared, spread evenly, and parts of a text that are averaged by themselves.
_POSITIONS, _PARTS = 256, 4
#: Tokens of each text that are prefilled.
_PROMPT = 16


@dataclass(frozen=True)
class Difference:
    """From the reference's logits, over all compared positions."""

    positions: int
    kl_mean: float  #: nats, of the reference from what was computed
    kl_p99: float
    kl_by_part: list[float]  #: mean of each quarter of the texts, in their order
    top_1_agreement: float
    logit_rms: float
    logit_max: float


def measure(checkpoint: Path, device: str, texts: int, tokens: int, seed: int) -> dict[str, Any]:
    """Differences by the state's type. Raises BenchError."""
    module = "denizen.bench.state_quality"
    command = [sys.executable, "-m", module, str(checkpoint), device, str(texts), str(tokens), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"the state's quality could not be measured: {done.stderr.strip()[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(checkpoint: str, device: str, texts: int, tokens: int, seed: int) -> dict[str, Any]:
    """What :func:`measure` gives, in this process."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    model = model.to(device).eval()
    chance = random.Random(seed)
    vocab = model.config.get_text_config().vocab_size
    sequences = [[chance.randrange(vocab) for _ in range(tokens)] for _ in range(texts)]
    step = max(1, (tokens - _PROMPT) // _POSITIONS)
    where = list(range(_PROMPT, tokens, step))
    with torch.inference_mode():
        keep = torch.tensor(where, device=device)
        wanted = [
            model(torch.tensor([ids], device=device), logits_to_keep=keep, use_cache=False).logits[0].float()
            for ids in sequences
        ]
    deviation = float(wanted[0].std())
    del model
    found = {state: asdict(_differences(checkpoint, device, state, sequences, where, wanted)) for state in STATES}
    return {"texts": texts, "tokens": tokens, "logit_deviation": deviation, "states": found}


def _differences(
    checkpoint: str,
    device: str,
    state: str,
    sequences: Sequence[Sequence[int]],
    where: Sequence[int],
    wanted: Sequence[torch.Tensor],
) -> Difference:
    import torch
    from denizen.worker.config import EngineConfig, PoolConfig, SchedulerConfig
    from denizen.worker.models.checkpoint import Checkpoint
    from denizen.worker.models.registry import model_class
    from denizen.worker.served import ServedModel
    from denizen.worker.teacher import KeptLogits, forced_steps

    target = torch.device(device)
    dtype = torch.float32 if target.type == "cpu" else torch.bfloat16
    opened = Checkpoint.open(checkpoint)
    model = model_class(opened).load(opened, target, dtype)
    kept = KeptLogits(model)
    rows, tokens = len(sequences), len(sequences[0])
    served = ServedModel.build(
        "model",
        model,
        target,
        dtype,
        PoolConfig(16, rows * (tokens + 16), state),
        SchedulerConfig(rows, None, max(64, rows * _PROMPT)),
        EngineConfig(),
        buckets=[rows],
    )
    place = {position: index for index, position in enumerate(where)}
    kl: dict[int, list[torch.Tensor]] = {}
    agree = squares = worst = 0.0
    for plan, _, numbers in forced_steps(served, sequences, [_PROMPT] * rows):
        starts = [entry.start for entry in plan.entries]
        if plan.walk != "decode" or starts[0] not in place:
            continue
        assert set(starts) == {starts[0]}, "the texts are not fed in step"
        got = kept.of(served, plan)[: len(starts)]
        want = torch.stack([wanted[number][place[starts[0]]] for number in numbers])
        ours, theirs = got.log_softmax(-1), want.log_softmax(-1)
        kl.setdefault(starts[0], []).append((theirs.exp() * (theirs - ours)).sum(-1))
        agree += float((got.argmax(-1) == want.argmax(-1)).sum())
        squares += float((got - want).square().mean(-1).sum())
        worst = max(worst, float((got - want).abs().max()))
    each = torch.stack([torch.cat(values) for _, values in sorted(kl.items())]).cpu()  # [positions, texts]
    count = each.numel()
    return Difference(
        count,
        float(each.mean()),
        float(each.flatten().quantile(0.99)),
        [float(part.mean()) for part in each.chunk(_PARTS)],
        agree / count,
        (squares / count) ** 0.5,
        worst,
    )


if __name__ == "__main__":
    print(json.dumps(compare(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))))
