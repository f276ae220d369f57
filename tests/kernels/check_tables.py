"""Kernels over the device tables: page gather, row writes, the ends of a decode step."""

from __future__ import annotations

import dataclasses

import torch
from denizen.kernels.decode_step import (
    DecodeInputs,
    advance_rows,
    advance_rows_triton,
    decode_inputs,
    decode_inputs_triton,
)
from denizen.kernels.mailbox import allocate_mailbox, publish, publish_triton
from denizen.kernels.page_gather import page_gather, page_gather_triton
from denizen.kernels.prefill_step import PrefillInputs, prefill_inputs, prefill_inputs_triton
from denizen.kernels.row_writes import apply_row_writes, apply_row_writes_triton
from kernel_support import DEVICE, generator, on_device, same, strided

PAGE, SINK = 4, 0


def _tables(rows: int, max_pages: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = generator(seed)
    table = strided(torch.randint(1, 1000, (rows, max_pages), generator=g, dtype=torch.int32))
    return table, g.get_state()


def _gather(slots: list[int], lengths: list[int], table: torch.Tensor, capacity: int) -> None:
    slot, length = torch.tensor(slots, dtype=torch.int32), torch.tensor(lengths, dtype=torch.int32)
    rows = len(slots)
    shapes = (rows + 1, capacity + 8, rows)
    want = [torch.full((n,), -77, dtype=torch.int32) for n in shapes]
    got = [torch.full((n,), -77, dtype=torch.int32, device=DEVICE) for n in shapes]
    page_gather(slot, table, length, PAGE, SINK, want[0], want[1][:capacity], want[2])
    wide = on_device(table.as_strided((table.shape[0], table.stride(0)), (table.stride(0), 1)))
    device_table = wide[:, : table.shape[1]]
    device_slot, device_length = on_device(slot), on_device(length)
    page_gather_triton(device_slot, device_table, device_length, PAGE, SINK, got[0], got[1][:capacity], got[2])
    for name, a, b in zip(("indptr", "indices", "last_page_len"), got, want, strict=True):
        same(a, b, f"{name} of slots {slots}, lengths {lengths}, capacity {capacity}")


def test_page_gather_at_page_boundaries() -> None:
    table, _ = _tables(9, 40, 1)
    edges = [1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE - 1, 3 * PAGE, 3 * PAGE + 1, 40 * PAGE]
    _gather(list(range(1, 9)), edges, table, 200)
    for edge in edges:
        _gather([1], [edge], table, 41)  # a live request in the first usable row, alone
        _gather([0, 1, 0], [999, edge, 0], table, 43)  # beside padding whose lengths say anything


def test_page_gather_of_random_batches() -> None:
    table, state = _tables(40, 150, 2)
    g = torch.Generator()
    g.set_state(state)
    for rows in (1, 2, 5, 16, 33):
        slots = (torch.randperm(39, generator=g)[:rows] + 1).tolist()
        for at in torch.randint(0, rows, (rows // 3,), generator=g).tolist():
            slots[at] = 0
        lengths = torch.randint(1, 150 * PAGE + 1, (rows,), generator=g).tolist()
        _gather(slots, lengths, table, 40 * 150)


def test_page_gather_never_writes_past_the_buffer() -> None:
    table, _ = _tables(9, 40, 3)
    for capacity in (1, 7, 30):  # ends within the first row, and within a later one
        _gather([3, 0, 5, 8], [20, 1, 90, 33], table, capacity)


def test_row_writes_equal_the_reference() -> None:
    g = generator(4)
    for lengths in ([1], [3, 1, 250, 0, 17], [0, 0], [5] * 70):
        count = sum(lengths)
        places = torch.randperm(len(lengths), generator=g) * 300
        runs = torch.stack((places, torch.tensor(lengths)), dim=1).to(torch.int32)
        payload = torch.randint(-(1 << 31), 1 << 31, (count,), generator=g).to(torch.int32)
        words = torch.randint(0, 1 << 30, (300 * len(lengths),), generator=g, dtype=torch.int32)
        got = on_device(words)
        apply_row_writes(words, runs, payload)
        apply_row_writes_triton(
            got, on_device(runs), on_device(payload) if count else on_device(torch.zeros(1, dtype=torch.int32))
        )
        same(got, words, f"row writes of lengths {lengths[:6]}")


def test_decode_inputs_and_advance_equal_the_reference() -> None:
    g = generator(5)
    rows, max_pages = 20, 30
    for batch in (1, 3, 16):
        words = torch.randint(1, 1000, (rows, 4 + max_pages), generator=g, dtype=torch.int32)
        words[:, 0] = torch.randint(0, max_pages * PAGE, (rows,), generator=g)
        words[0] = -55  # the null row: whatever it holds is neither read nor changed
        slots = (torch.randperm(rows - 1, generator=g)[:batch] + 1).to(torch.int32)
        slots[batch // 2 :: 4] = 0
        tokens = torch.randint(0, 1 << 18, (batch,), generator=g)
        results = []
        for device in (torch.device("cpu"), DEVICE):
            table = words.clone().to(device)
            columns = table[:, 0], table[:, 1], table[:, 2], table[:, 4:]
            out = DecodeInputs.allocate(batch, device)
            for field in dataclasses.astuple(out):
                field.fill_(-77)
            enter, leave = (decode_inputs, advance_rows) if not results else (decode_inputs_triton, advance_rows_triton)
            enter(slots.to(device), columns[1], columns[0], columns[3], PAGE, SINK, out)
            leave(slots.to(device), tokens.to(device), out.lengths, columns[0], columns[1], columns[2])
            some = (torch.arange(batch) % 3 == 1).to(device)
            leave(slots.to(device), tokens.to(device) + 1, out.lengths + 5, columns[0], columns[1], columns[2], some)
            results.append((table, out))
        for name in ("tokens", "positions", "lengths", "write_at"):
            same(getattr(results[1][1], name), getattr(results[0][1], name), f"{name} of {batch} rows")
        same(results[1][0], results[0][0], f"tables after {batch} rows")
        same(results[1][0][0], words[0], "the null row")


def test_prefill_inputs_equal_the_reference() -> None:
    g = generator(6)
    rows, max_pages = 20, 90
    words = torch.randint(1, 1000, (rows, 4 + max_pages), generator=g, dtype=torch.int32)
    words[:, 0] = torch.randint(0, 40, (rows,), generator=g)
    words[0] = -55  # the null row is not read
    for counts, batch, bucket in (([1], 1, 1), ([130, 1, PAGE, 70], 4, 256), ([5, 3], 6, 16), ([40] * 5, 8, 200)):
        slots = torch.zeros(batch, dtype=torch.int32)
        slots[: len(counts)] = (torch.randperm(rows - 1, generator=g)[: len(counts)] + 1).to(torch.int32)
        cu_seqlens = torch.tensor([0, *counts, *[0] * (batch - len(counts))]).cumsum(0).to(torch.int32)
        results = []
        for device, fill in ((torch.device("cpu"), prefill_inputs), (DEVICE, prefill_inputs_triton)):
            table = words.clone().to(device)
            out = PrefillInputs.allocate(batch, bucket, device)
            for field in dataclasses.astuple(out):
                field.fill_(-77)
            fill(slots.to(device), cu_seqlens.to(device), table[:, 0], table[:, 4:], PAGE, SINK, out)
            results.append(out)
        for name in ("positions", "write_at", "lengths", "last"):
            same(getattr(results[1], name), getattr(results[0], name), f"{name} of {counts} in {batch} x {bucket}")


def test_a_mailbox_receives_each_step() -> None:
    g = generator(7)
    boxes = [allocate_mailbox(40, DEVICE) for _ in range(2)]
    before = (1 << 31) - 3  # the count goes on from below zero
    steps = [torch.tensor([before], dtype=torch.int32, device=device) for device in ("cpu", DEVICE)]
    for number, rows in enumerate((40, 1, 17)):
        tokens = torch.randint(0, 1 << 18, (rows,), generator=g)
        publish(tokens, steps[0], boxes[0])
        publish_triton(on_device(tokens), steps[1], boxes[1])
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        assert int(boxes[1][0]) == (before + 1, before + 2, -(1 << 31))[number]
        same(boxes[1], boxes[0], f"mailbox of step {number}")
        same(steps[1], steps[0], f"steps delivered after {number}")
