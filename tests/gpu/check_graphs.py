"""Decode and prefill chains captured once and replayed over changing tables, against the CPU references."""

from __future__ import annotations

import time

import torch
from denizen.kernels.attention_inputs import attention_inputs, rope_table
from denizen.kernels.conv import causal_conv_prefill
from denizen.kernels.decode_step import DecodeInputs, advance_rows, decode_inputs
from denizen.kernels.gate import sigmoid_gate
from denizen.kernels.gated_delta import gated_delta_prefill
from denizen.kernels.gated_delta_gates import gated_delta_gates
from denizen.kernels.mailbox import allocate_mailbox, publish
from denizen.kernels.page_gather import page_gather
from denizen.kernels.sample import gumbel_argmax
from denizen.worker.attention.flashinfer import FlashInferAttention, SlotWorkspace
from denizen.worker.models.base import KvPoolSpec
from gpu_support import CUDA, capture, dense_attention
from kernel_support import close, generator, same

PAGE, PAGES, SINK, HEADS, KV_HEADS, DIM = 16, 200, 0, 8, 2, 256


def test_a_resident_decode_step_needs_nothing_but_a_plan() -> None:
    """A layer of gated attention between a token and its successor, 40 steps across page boundaries, one capture."""
    g = generator(1)
    bucket, rows, vocab = 8, 12, 5000
    width = HEADS * 2 * DIM + 2 * KV_HEADS * DIM
    spec = KvPoolSpec("kv", 1, KV_HEADS, DIM)
    pool = FlashInferAttention(spec, HEADS, PAGES, PAGE, CUDA, torch.bfloat16)
    step = pool.decode_step(bucket, SlotWorkspace.allocate(pool.float_workspace(bucket, bucket)))
    assert step.lengths_only
    embedding = torch.randn(vocab, width, generator=g).to(torch.bfloat16).to(CUDA)
    head = (torch.randn(vocab, HEADS * DIM, generator=g) * 0.1).to(torch.bfloat16).to(CUDA)
    weights = [(1 + 0.1 * torch.randn(DIM, generator=g)).to(CUDA) for _ in range(2)]
    angles = rope_table(1e4 ** -(torch.arange(0, 64, 2) / 64), 1.0, 1024).to(CUDA)
    table = torch.zeros(rows, 4 + 16, dtype=torch.int32, device=CUDA)
    lengths, last_token, counts, pages = table[:, 0], table[:, 1], table[:, 2], table[:, 4:]
    free = (torch.randperm(PAGES - 1, generator=g) + 1).to(torch.int32)
    starts = {7: 1, 3: 14, 1: 15, 9: 16, 5: 31}  # row of the table: its length; the other rows of the bucket pad
    for index, (row, length) in enumerate(starts.items()):
        pages[row] = free[16 * index : 16 * index + 16].to(CUDA)
        lengths[row], last_token[row] = length, 100 + row
    slots = torch.tensor([7, 0, 3, 1, 0, 9, 5, 0], dtype=torch.int32, device=CUDA)
    live = [i for i, slot in enumerate(slots.tolist()) if slot]
    temperature = torch.tensor([0.0, 0, 0.8, 1.0, 0, 0, 1.0, 0], device=CUDA)
    seed = torch.arange(bucket, device=CUDA)
    inputs = DecodeInputs.allocate(bucket, CUDA)
    results: dict[str, torch.Tensor] = {}

    def walk() -> None:
        decode_inputs(slots, last_token, lengths, pages, PAGE, SINK, inputs)
        arrays = step.pages
        page_gather(slots, pages, inputs.lengths, PAGE, SINK, arrays.indptr, arrays.indices, arrays.last_page_len)
        projected = embedding.index_select(0, inputs.tokens)
        keys, values = step.cache(0)
        query = attention_inputs(
            projected, HEADS, KV_HEADS, True, *weights, 1e-6, angles, inputs.positions, inputs.write_at, keys, values
        )
        attended = step.attend(0, query)
        gate = projected[:, : HEADS * 2 * DIM].view(bucket, HEADS, 2 * DIM)[..., DIM:]
        logits = sigmoid_gate(attended, gate).view(bucket, -1) @ head.t()
        tokens = gumbel_argmax(logits, temperature, seed, inputs.lengths.long())
        advance_rows(slots, tokens, inputs.lengths, lengths, last_token, counts)
        results.update(query=query, attended=attended, logits=logits, tokens=tokens)

    before = table.clone()
    graph = capture(walk)
    table.copy_(before)
    step.freeze()
    held = {slots.tolist()[i]: before[slots[i].long(), 0].item() for i in live}
    for number in range(40):
        mirror = [held.get(slot, 0) + 1 for slot in slots.tolist()]
        step.plan(torch.tensor([0, *[-(-n // PAGE) for n in mirror]]).cumsum(0).to(torch.int32))
        graph.replay()
        for i in live:
            slot, length = slots.tolist()[i], mirror[i]
            want = dense_attention(
                results["query"][i : i + 1],
                pool.keys[0],
                pool.values[0],
                pages[slot, : -(-length // PAGE)],
                length,
                DIM**-0.5,
            )
            close(results["attended"][i : i + 1], want, 8e-3, f"step {number} row {i}")
            held[slot] = length
        want_tokens = gumbel_argmax(
            results["logits"].cpu(), temperature.cpu(), seed.cpu(), torch.tensor(mirror, dtype=torch.int64)
        )
        same(results["tokens"][live], want_tokens[live], f"tokens of step {number}")
        same(last_token[slots[live].long()], want_tokens[live].to(torch.int32), f"last tokens of step {number}")
    assert lengths[slots[live].long()].tolist() == [held[slots.tolist()[i]] for i in live]
    assert counts[slots[live].long()].tolist() == [40] * len(live)
    same(table[0], torch.zeros_like(table[0]), "the null row")


def test_one_captured_prefill_serves_any_rows_of_its_bucket() -> None:
    tokens, rows, heads, dim, slots_total = 256, 6, 4, 128, 12
    channels = 3 * heads * dim
    g = generator(2)
    weight = (torch.randn(channels, 4, generator=g) * 0.5).to(torch.bfloat16)
    rate, bias = -torch.exp(torch.rand(heads, generator=g)), torch.randn(heads, generator=g)
    host = {
        "mixed": torch.zeros(tokens, channels + 2 * heads, dtype=torch.bfloat16),
        "cu_seqlens": torch.zeros(rows + 1, dtype=torch.int32),
        "slots": torch.zeros(rows, dtype=torch.int32),
        "fresh": torch.zeros(rows, dtype=torch.bool),
        "conv": torch.randn(slots_total, 3, channels, generator=g).to(torch.bfloat16),
        "state": torch.randn(slots_total, heads, dim, dim, generator=g) * 0.2,
    }
    device = {name: value.to(CUDA, copy=True) for name, value in host.items()}
    constants = [x.to(CUDA) for x in (weight, rate, bias)]
    out: list[torch.Tensor] = []

    def walk(values: dict[str, torch.Tensor], parts: list[torch.Tensor], live: int, total: int) -> torch.Tensor:
        mixed = values["mixed"][:total]
        where = values["cu_seqlens"][: live + 1], values["slots"][:live], values["fresh"][:live]
        convolved = causal_conv_prefill(mixed[:, :channels], parts[0], where[0], values["conv"], *where[1:])
        query, key, value = (x.reshape(total, heads, dim) for x in convolved.split(heads * dim, dim=1))
        log_decay, beta = gated_delta_gates(
            mixed[:, channels : channels + heads], mixed[:, channels + heads :], *parts[1:]
        )
        longest = tokens if total == tokens else max(int((where[0][1:] - where[0][:-1]).max()), 1)
        return gated_delta_prefill(
            query, key, value, log_decay, beta, where[0], longest, values["state"], where[1], where[2]
        )

    graph = capture(lambda: out.append(walk(device, constants, rows, tokens)))
    for name in ("conv", "state"):
        device[name].copy_(host[name])
    for seed in range(5):
        g = generator(10 + seed)
        live = int(torch.randint(1, rows + 1, (1,), generator=g))
        counts = [int(torch.randint(1, tokens // live + 1, (1,), generator=g)) for _ in range(live)]
        total = sum(counts)
        host["mixed"].copy_(torch.randn(tokens, channels + 2 * heads, generator=g))
        host["cu_seqlens"].copy_(torch.tensor([0, *counts, *[0] * (rows - live)]).cumsum(0))
        host["slots"].zero_()
        host["slots"][:live] = (torch.randperm(slots_total - 1, generator=g)[:live] + 1).to(torch.int32)
        host["fresh"].copy_(torch.rand(rows, generator=g) < 0.5)
        for name in ("mixed", "cu_seqlens", "slots", "fresh"):
            device[name].copy_(host[name])
        device["mixed"][total:] = float("nan")
        graph.replay()
        want = walk(host, [weight, rate, bias], live, total)
        close(out[-1][:total], want, 2e-2, f"outputs, seed {seed}")
        for name in ("conv", "state"):
            close(device[name][1:], host[name][1:], 2e-2, f"{name}, seed {seed}")


def test_the_host_polls_what_a_graph_publishes() -> None:
    """Two slots in turn, as in overlap: the tokens belong to the step whose count the host saw, 2,000 times."""
    rows, replays = 128, 2000
    tokens = torch.zeros(rows, dtype=torch.int64, device=CUDA)
    boxes = [allocate_mailbox(rows, CUDA) for _ in range(2)]
    counts = [torch.zeros(1, dtype=torch.int32, device=CUDA) for _ in range(2)]

    def walk(slot: int) -> None:
        tokens.add_(1)
        publish(tokens, counts[slot], boxes[slot])

    graphs = [capture(lambda slot=slot: walk(slot)) for slot in range(2)]
    tokens.zero_()
    for count in counts:
        count.zero_()
    for box in boxes:
        box.zero_()
    torch.cuda.synchronize()
    views = [box.numpy() for box in boxes]
    graphs[0].replay()
    for number in range(1, replays + 1):
        slot = (number - 1) % 2
        if number < replays:
            graphs[1 - slot].replay()  # the next step is queued before this one is read
        deadline = time.monotonic() + 10
        while views[slot][0] != (number + 1) // 2:
            assert time.monotonic() < deadline, f"step {number} did not arrive"
        assert (views[slot][1:] == number).all(), f"tokens of step {number}: {views[slot][1:5]}"
