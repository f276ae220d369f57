"""Two KV pools, one of them a context that is only read: against a dense model, and what the host does for it."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import torch
from denizen.worker.errors import ModelError
from denizen.worker.models.base import CONTEXT, RAGGED, KvPoolSpec, Walk
from denizen.worker.models.streams import check_streams
from denizen.worker.pools.kv import SINK_PAGE
from denizen.worker.request import Request
from denizen.worker.resident.planner import PlanMode
from denizen.worker.resident.tables import PAGES
from denizen.worker.sampling.params import SamplingParams
from denizen.worker.teacher import teacher_forced

from tests.worker.peer import generate
from tests.worker.static_steps import serve_static
from tests.worker.test_engine import MIXED, OUTPUTS, PROMPTS
from tests.worker.toy import CPU, serve_toy
from tests.worker.two_pools import TwoPoolModel, encode

RUNNERS = {"eager": serve_toy, "static": serve_static}
WAYS = {
    "resident": {},
    "lengths only": {"mode": PlanMode.LENGTHS_ONLY},
    "host planned": {"resident": False},
    "small chunks": {"prefill_chunk": 3},
    "pages of one": {"page_size": 1},
    "large pages": {"page_size": 32},
}


def serve(runner: str, encoded: bool = False, **options):
    model = TwoPoolModel(encoded=encoded)
    served = RUNNERS[runner](model=model, **options)
    if encoded:
        _encode_on_admission(served)
    return served


def _encode_on_admission(served) -> None:
    """In place of a walk before prefill: the context is in its pages when the row begins."""
    scheduler, pool = served.scheduler, served.runner.attention["context"]
    admit = scheduler._admit

    def admit_and_encode(request) -> bool:
        admitted = admit(request)
        if admitted:
            pages = request.held.pages["context"]
            encode(served.model, int(request.prompt[0]), pool.keys[0], pool.values[0], pages)
        return admitted

    scheduler._admit = admit_and_encode


@pytest.mark.parametrize("encoded", [False, True], ids=["written in prefill", "read only"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("runner", RUNNERS)
def test_logits_equal_those_of_the_dense_model(runner, way, encoded):
    """Several rows, of several chunks each, begin and go on in the same steps."""
    served = serve(runner, encoded, **WAYS[way])
    sequences, prompts = [PROMPTS[1], PROMPTS[3], PROMPTS[6], PROMPTS[7]], [12, 33, 20, 3]
    for ids, got in zip(sequences, teacher_forced(served, sequences, prompts), strict=True):
        torch.testing.assert_close(got.double(), served.model.dense(ids), atol=2e-5, rtol=0)


@functools.cache
def expected(sampled: bool) -> list[list[int]]:
    tokens = generate(serve("eager"), PROMPTS, OUTPUTS, **(MIXED if sampled else {}))
    assert all(len(set(ids)) > 3 for ids in tokens)
    return tokens


SCHEDULES = {**WAYS, "preempting": {"kv_tokens": 72}, "one row": {"max_rows": 1}}


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("way", SCHEDULES)
@pytest.mark.parametrize("runner", RUNNERS)
def test_tokens_do_not_depend_on_the_schedule(runner, way, overlap):
    for encoded in (False, True):
        served = serve(runner, encoded, **{"buckets": [1, 2, 5, 8]} if runner == "eager" else {}, **SCHEDULES[way])
        assert generate(served, PROMPTS, OUTPUTS, overlap=overlap) == expected(sampled=False)
        if way == "preempting":
            assert served.scheduler.preemptions > 2


@pytest.mark.parametrize("runner", RUNNERS)
def test_draws_and_penalties_do_not_depend_on_the_runner(runner):
    assert generate(serve(runner), PROMPTS, OUTPUTS, **MIXED) == expected(sampled=True)


def test_every_token_looks_at_its_own_context():
    """Without which all that is said here of contexts would hold of a model that ignores them."""
    model = TwoPoolModel()
    ids = PROMPTS[1]
    other = [(ids[0] + 1) % 97, *ids[1:]]
    before = model.dense(ids)[5:]
    model._cross_out.zero_()
    assert (before - model.dense(ids)[5:]).abs().max() > 0.5
    assert (model.dense(ids)[0] - model.dense(other)[0]).abs().max() > 0.1


def _begin(served, count: int, max_tokens: int = 50):
    scheduler = served.scheduler
    for index in range(count):
        prompt = np.asarray([(11 * index + 7 * at) % 97 for at in range(9)], np.int32)
        scheduler.submit(Request(index + 1, prompt, SamplingParams(), max_tokens))
    while len(scheduler.decodable()) < count:
        _run(served, scheduler.plan_prefill())
    return scheduler


def _run(served, plan) -> None:
    served.scheduler.commit(plan)
    result = served.runner.run(plan)
    served.scheduler.complete(plan)
    tokens = iter(result.tokens.tolist())
    for request in plan.sampling:
        if request.accept(next(tokens)) is not None:
            served.scheduler.end(request)


@pytest.mark.parametrize("mode", [PlanMode.HOST_PLAN_FREE, PlanMode.LENGTHS_ONLY])
def test_a_read_only_pool_keeps_its_row_and_its_full_plan_beside_one_that_is_not(mode):
    served = serve("static", mode=mode)
    scheduler = _begin(served, 3)
    mirror, tables = scheduler.mirror, served.runner.tables
    rows = [request.row for request in scheduler.running]
    before = tables.block_table["context"].clone(), mirror.lengths["context"].copy()
    for _ in range(12):
        plan = scheduler.plan_decode()
        assert plan.modes == {"context": PlanMode.FULL, "self": mode}
        assert not any(name.endswith(":context") for name in plan.inputs.sections)
        assert ("indptr:self" in plan.inputs.sections) == (mode is PlanMode.LENGTHS_ONLY)
        assert "indices:self" not in plan.inputs.sections
        lists = plan.reads["context"]
        bucket, pages = plan.bucket, [request.held.pages["context"] for request in plan.requests]
        padding = bucket - len(rows)
        assert lists.indptr.tolist() == [0, *itertools.accumulate([3] * len(rows) + [1] * padding)]
        assert lists.indices.tolist() == [page for own in pages for page in own] + [SINK_PAGE] * padding
        assert lists.last_page_len.tolist() == [10 % 4] * len(rows) + [1] * padding
        assert plan.advance.pools == ("self",)
        _run(served, plan)
        step = served.runner._steps["decode", bucket, plan.graph_slot].attention["context"]
        assert step.pages.indptr.tolist() == lists.indptr.tolist()
        assert step.pages.indices[: lists.indptr[-1]].tolist() == lists.indices.tolist()
        assert step.pages.last_page_len.tolist() == lists.last_page_len.tolist()
    assert torch.equal(tables.block_table["context"], before[0])
    assert tables.lengths["context"][rows].tolist() == [10] * len(rows)
    assert mirror.lengths["context"].tolist() == before[1].tolist()
    assert mirror.lengths["self"][rows].tolist() == [9 + 12] * len(rows)


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_context_is_as_long_as_ever_after_a_thousand_steps(runner):
    served = serve(runner, kv_tokens=2200, max_rows=2, mode=PlanMode.LENGTHS_ONLY)
    scheduler = _begin(served, 2, max_tokens=1100)
    rows = [request.row for request in scheduler.running]
    for number in range(1000):
        _run(served, scheduler.plan_decode())
        for lengths in (scheduler.mirror.lengths, served.runner.tables.lengths):
            assert lengths["context"][rows].tolist() == [10, 10]
            assert lengths["self"][rows].tolist() == [10 + number] * 2
    if runner == "static":  # one plan for each graph slot of the two steps' worth of rows, and the prefill's own
        assert served.runner.read_plans == 2


def test_a_read_only_pool_is_planned_anew_only_when_its_rows_change():
    served = serve("static")
    scheduler = _begin(served, 4)
    runner, counts = served.runner, []
    for number in range(30):
        if number in (10, 20):
            scheduler.end(scheduler.running[number // 10])
        plan = scheduler.plan_decode()
        before = runner.read_plans
        _run(served, plan)
        counts.append(runner.read_plans - before)
    # A plan a graph slot for each set of rows: 4, 3, 2.
    assert counts == [1, 1, *[0] * 8] * 3


def test_a_slot_that_served_other_rows_is_planned_again():
    """The same rows come back, with the same lists: but the plan in the slot's workspace is another's by then."""
    served = serve("static")
    scheduler = _begin(served, 3)
    runner, planner = served.runner, scheduler.planner
    rows = np.sort([request.row for request in scheduler.running])
    groups = {size: planner.group(scheduler.ledger, rows[:size]) for size in (1, 2, 3)}
    for number, size in enumerate((3, 3, 3, 1, 1, 3, 3, 2, 2, 2)):
        plan = planner.prepare_decode(groups[size])
        before = runner.read_plans
        _run(served, plan)
        step = runner._steps["decode", plan.bucket, plan.graph_slot].attention["context"]
        assert step.planned[-1] == step.pages.indptr.tolist() == plan.reads["context"].indptr.tolist()
        assert runner.read_plans == before + (number not in (2, 9))


def _lists(plan) -> list:
    read = plan.reads["context"]
    return [array.tolist() for array in (plan.buffer, read.indptr, read.indices, read.last_page_len)]


@pytest.mark.parametrize("mode", [PlanMode.LENGTHS_ONLY, PlanMode.FULL])
def test_promoted_and_dropped_plans_of_two_pools_equal_plans_made_in_time(mode):
    promoting, dropping, plain = (_begin(serve("eager", mode=mode), 3) for _ in range(3))
    for _ in range(9):
        prepared = promoting.preplan_decode()
        plans = [promoting.plan_decode(prepared)]
        assert plans[0] is prepared
        dropping.planner.drop(dropping.preplan_decode())
        plans += [dropping.plan_decode(), plain.plan_decode()]
        assert _lists(plans[0]) == _lists(plans[1]) == _lists(plans[2])
        for scheduler, plan in zip((promoting, dropping, plain), plans, strict=True):
            scheduler.commit(plan)
            scheduler.complete(plan)
        for key in ("self", "context"):
            mirrors = [scheduler.mirror.lengths[key].tolist() for scheduler in (promoting, dropping, plain)]
            assert mirrors[0] == mirrors[1] == mirrors[2]


def test_a_rewritten_row_is_one_copy_a_pool():
    served = serve("eager", resident=False)
    scheduler = _begin(served, 3)
    plan = scheduler.plan_decode()
    runs = plan.inputs.section(plan.buffer, "runs").reshape(-1, 2)
    layout = scheduler.planner.layout
    scheduler.commit(plan)
    for request in scheduler.running:
        row = request.row
        starts = {name: place.offset + row * place.width for name, place in layout.tables.items()}
        mine = {
            name: [size for start, size in runs.tolist() if begin <= start < begin + layout.tables[name].width]
            for name, begin in starts.items()
        }
        assert [len(sizes) for sizes in mine.values()] == [1, 1, 1]
        for key, pages in request.held.pages.items():
            assert mine[f"kv:{key}"] == [PAGES + len(pages)]


def test_positions_follow_the_pool_that_the_walk_names():
    """Beside a pool that is named first and that decode alone writes; end ids wait for a token a step, not a pool."""
    plain, options = serve("static"), {"min_tokens": 12, "stop_ids": tuple(range(30))}
    tokens = generate(plain, PROMPTS[:5], OUTPUTS, **options)
    assert 12 < min(map(len, tokens)) < OUTPUTS
    for runner in RUNNERS:
        model = TwoPoolModel()
        seen: list[int] = []
        model.kv_pools = (KvPoolSpec("other", 1, 1, 4), *model.kv_pools)
        model.walks = {
            "prefill": model.walks["prefill"],
            "decode": Walk("decode", {"other": 1, "context": 0, "self": 1}, positions="self"),
        }
        forward = model.forward

        def watch(batch, forward=forward, seen=seen):
            if batch.walk == "decode":
                ones = torch.ones(len(batch.token_ids), 1, 4)
                batch.attention["other"].run(0, ones, ones, ones, 0.5)
                live = batch.slots > 0
                # "other" holds what decode wrote, one a step; "self" the prompt too.
                seen.append(int((batch.lengths["self"] - batch.lengths["other"])[live].min()))
                assert torch.equal(batch.positions[live], batch.lengths["self"][live].long() - 1)
                assert batch.lengths["context"][live].tolist() == [10] * int(live.sum())
            return forward(batch)

        model.forward = watch
        assert generate(RUNNERS[runner](model=model), PROMPTS[:5], OUTPUTS, **options) == tokens
        assert min(seen) == min(map(len, PROMPTS[:5]))


def test_the_default_is_the_first_pool_that_takes_a_position_a_token():
    assert Walk("decode", {"context": 0, "a": 1, "b": 1}).positions == "a"
    assert Walk("prefill", {"context": CONTEXT, "a": RAGGED}).positions == "a"
    assert Walk("decode", {"a": 1, "b": 1}, positions="b").positions == "b"


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_padding_reads_a_poisoned_sink_and_leaves_live_rows_unchanged(poison):
    for runner in RUNNERS:
        served = serve(runner, **{"buckets": [8]} if runner == "eager" else {})
        for key in ("context", "self"):
            pool = served.runner.attention[key]
            pool.keys[:, SINK_PAGE] = poison
            pool.values[:, SINK_PAGE] = poison
        for count in (1, 3, 7):
            assert generate(served, PROMPTS[:count], OUTPUTS) == expected(sampled=False)[:count]


def _refused(message: str, pools: dict[str, int], **walks: dict[str, int] | Walk) -> None:
    model = TwoPoolModel()
    model.kv_pools = tuple(KvPoolSpec(key, 1, 1, 8, context=length) for key, length in pools.items())
    for name, walk in walks.items():
        model.walks[name] = walk if isinstance(walk, Walk) else Walk(name, walk)
    with pytest.raises(ModelError, match=message):
        check_streams(model)
    with pytest.raises(ModelError, match=message):
        serve_toy(model=model)


def test_a_context_in_the_querys_own_pool_is_refused():
    _refused(
        r"walk 'prefill': the queries' own positions go to KV pool 'self', which holds a context of 10 positions. "
        r"Cross attention needs the context in a pool of its own: declare another KvPoolSpec for the tokens, and give "
        r"'self' span 0 or CONTEXT",
        {"self": 10},
        prefill={"self": RAGGED},
        decode={"self": 1},
    )


def test_walks_that_do_not_fit_their_pools_are_refused():
    good = {"prefill": {"self": RAGGED}, "decode": {"self": 1}}
    _refused("there is no KV pool 'cross'", {"self": 0}, **{**good, "decode": {"self": 1, "cross": 0}})
    _refused("KV pool 'self' has span CONTEXT, but it follows", {"self": 0}, **{**good, "prefill": {"self": CONTEXT}})
    _refused("positions follow KV pool '', whose span must be 1", {"self": 0}, **{**good, "decode": {"self": 0}})
    both = {"prefill": {"self": RAGGED, "cross": CONTEXT}, "decode": {"self": 1, "cross": CONTEXT}}
    _refused("rows begin in a prefill; write the context of KV pool 'cross' there", {"self": 0, "cross": 4}, **both)
    other = {**good, "decode": Walk("decode", {"self": 1, "cross": 0}, positions="cross")}
    _refused("follow KV pool 'cross', whose span must be 1", {"self": 0, "cross": 4}, **other)


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_model_that_names_no_resident_walk_is_planned_on_the_host(runner):
    model = TwoPoolModel()
    model.resident_walks = frozenset()
    served = RUNNERS[runner](model=model)
    plan = _begin(served, 2).plan_decode()
    assert set(plan.modes.values()) == {PlanMode.FULL}
    assert "indices:self" in plan.inputs.sections
    assert len(plan.inputs.section(plan.buffer, "runs")) == 2 * 2 * 3  # both rows, whole: a run a table
    model = TwoPoolModel()
    model.resident_walks = frozenset()
    assert generate(RUNNERS[runner](model=model), PROMPTS, OUTPUTS) == expected(sampled=False)


def test_a_resident_walk_that_is_none_is_refused():
    model = TwoPoolModel()
    model.resident_walks = frozenset({"decode", "decide"})
    with pytest.raises(ModelError, match="resident_walks names 'decide', which is none of its walks"):
        serve_toy(model=model)


def test_rooms_of_contexts_are_reserved_for_every_row():
    served = serve("eager", max_rows=3)
    pool = served.scheduler.kv["context"]
    assert pool.capacity == 3 * 3
    assert served.runner.attention["context"].keys.shape[1] == 10
    assert served.runner.tables.block_table["context"].shape == (4, 3)
    assert served.runner.tables.words.device == CPU
