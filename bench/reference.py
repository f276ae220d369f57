"""The child process of `denizen-bench cpu-text` that runs `transformers.generate`.

`python -m denizen.bench.reference CHECKPOINT THREADS` reads one JSON line a request from stdin, `{"prompt": text,
"max_tokens": n}`, generates greedily in fp32 at batch 1, never stopping early, and writes one JSON line: `ids` (the
prompt's), `tokens`, and `first`, `last`, `end`, in seconds from the request's start to the first token, the last token,
and the call's return.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


class Times:
    """A `transformers` streamer that notes when each token came."""

    def __init__(self) -> None:
        self.tokens: list[float] = []
        self._prompt_seen = False

    def put(self, _: Any) -> None:
        # `generate` hands over the prompt first.
        if self._prompt_seen:
            self.tokens.append(time.perf_counter())
        self._prompt_seen = True

    def end(self) -> None:
        pass


def main(checkpoint: str, threads: int) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint)
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        ids = tokenizer(request["prompt"], return_tensors="pt")
        times = Times()
        start = time.perf_counter()
        out = model.generate(**ids, max_new_tokens=request["max_tokens"], do_sample=False, streamer=times)
        end = time.perf_counter()
        prompt = ids["input_ids"][0].tolist()
        reply = {
            "ids": prompt,
            "tokens": out.shape[1] - len(prompt),
            "first": times.tokens[0] - start,
            "last": times.tokens[-1] - start,
            "end": end - start,
        }
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
