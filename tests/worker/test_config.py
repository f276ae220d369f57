"""The worker's configuration, from the JSON of the protocol."""

from __future__ import annotations

import json

import pytest
from denizen.worker.config import ModelConfig, WorkerConfig, default_rows
from denizen.worker.errors import ConfigError

DEVICES = [("cpu", "text"), ("cuda", "text"), ("cpu", "asr"), ("cuda", "asr")]
FULL = {
    "worker": 2,
    "device": "cpu",
    "threads": 2,
    "models": [{"name": "a", "path": "/a"}, {"name": "b", "path": "/b"}],
    "page_size": 32,
    "kv_tokens": 4096,
    "max_rows": 7,
    "max_context": 512,
    "prefill_chunk": 128,
    "overlap": False,
    "resident": False,
}


def test_every_key_arrives():
    config = WorkerConfig.from_json(json.dumps(FULL))
    assert (config.worker, config.device, config.threads) == (2, "cpu", 2)
    assert config.models == (ModelConfig("a", "/a"), ModelConfig("b", "/b"))
    assert (config.pools.page_size, config.pools.kv_tokens) == (32, 4096)
    limits = config.scheduler
    assert (limits.max_rows, limits.max_context, limits.prefill_chunk) == (7, 512, 128)
    assert (config.engine.overlap, config.engine.resident) == (False, False)


def test_null_equals_missing_and_rows_depend_on_the_device():
    nulls = WorkerConfig.from_json(json.dumps(dict.fromkeys(FULL)))
    assert nulls == WorkerConfig.from_json("{}") == WorkerConfig()
    assert nulls.scheduler.max_rows is None
    assert [default_rows(device, kind) for device, kind in DEVICES] == [64, 256, 64, 64]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "must be a JSON object"),
        ('{"rows": 1}', "unknown key 'rows'"),
        ('{"max_rows": 0}', "'max_rows' must be at least 1"),
        ('{"max_rows": true}', "'max_rows' must be of type int"),
        ('{"overlap": 1}', "'overlap' must be of type bool"),
        ('{"kv_tokens": -5}', "'kv_tokens' must be at least 1"),
        ('{"device": "gpu"}', "device 'gpu' is unknown"),
        ('{"models": [{"name": "a"}]}', "'models'"),
        ('{"models": [{"name": "a", "path": "/a"}, {"name": "a", "path": "/b"}]}', "two models are named 'a'"),
    ],
)
def test_what_is_wrong_is_named(text, message):
    with pytest.raises(ConfigError, match=r".*") as caught:
        WorkerConfig.from_json(text)
    assert message in str(caught.value)
