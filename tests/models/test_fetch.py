"""Hub downloads against a small hub on loopback, through the process that the front end starts."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.conftest import SOURCE
from tests.models.hub_server import COMMIT, Hub, Repository

ID = "owner/model"
DEADLINE_S = 60.0
#: ``huggingface_hub`` writes 10 MiB at a time: less than that leaves nothing to continue.
SIZE = 24 << 20


@pytest.fixture
def hub():
    weights = random.Random(0).randbytes(SIZE)
    files = {
        "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
        "generation_config.json": b"{}",
        "tokenizer.json": b'{"version": "1.0"}',
        "chat_template.jinja": b"{{ messages }}",
        "model.safetensors": weights,
        "consolidated.safetensors": b"the same weights in another layout",
        "pytorch_model.bin": b"the same weights once more",
        "README.md": b"words",
        "onnx/model.safetensors": b"not of the top folder",
    }
    with Hub({ID: Repository(files)}) as made:
        yield made


class Fetch:
    """One run of the fetching process."""

    def __init__(self, hub: Hub | str, home: Path, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "denizen.worker.fetch", *arguments],
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith(("HF_", "DENIZEN_"))},
                "PYTHONPATH": str(SOURCE),
                "HF_ENDPOINT": hub if isinstance(hub, str) else hub.url,
                "HF_HOME": str(home),
                "DENIZEN_CACHE": str(home / "denizen"),
                "NO_PROXY": "127.0.0.1",
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self) -> list[dict]:
        out, _ = self.process.communicate(timeout=DEADLINE_S)
        self.events = [json.loads(line) for line in out.splitlines()]
        # One terminal event, the last; the exit code agrees with it.
        terminal = [event for event in self.events if event["event"] in ("done", "error")]
        assert terminal == self.events[-1:]
        assert self.process.returncode == (terminal[0]["event"] == "error")
        return self.events

    def path(self) -> Path:
        last = self.finish()[-1]
        assert last["event"] == "done", last
        return Path(last["path"])

    def error(self) -> dict:
        last = self.finish()[-1]
        assert last["event"] == "error", last
        assert "\n" not in last["message"]
        return last


def test_a_model_is_downloaded_with_progress(hub, tmp_path):
    fetch = Fetch(hub, tmp_path, "hub", ID)
    folder = fetch.path()
    wanted = {"config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"}
    assert {file.name for file in folder.iterdir()} == wanted
    for name in wanted:
        assert (folder / name).read_bytes() == hub.repositories[ID].files[name]
    size = len(hub.repositories[ID].files["model.safetensors"])
    steps = [event for event in fetch.events if event.get("file") == "model.safetensors"]
    done = [event["done"] for event in steps]
    assert done == sorted(done)
    assert done[-1] == size
    assert {event["total"] for event in steps} == {size}
    assert all(event["message"] for event in fetch.events if event["event"] == "status")


PRECISIONS = {
    "config.json": b"{}",
    "model.safetensors": b"half precision",
    "model.fp32-00001-of-00002.safetensors": b"full precision",
    "model.fp32-00002-of-00002.safetensors": b"full precision",
    "model.fp16.safetensors": b"half precision once more",
}


def index(*files: str) -> bytes:
    return json.dumps({"weight_map": {f"layer.{number}": file for number, file in enumerate(files)}}).encode()


def weights_of(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir() if file.suffix == ".safetensors"}


def test_weights_in_several_precisions_are_downloaded_once(tmp_path):
    full = index("model.fp32-00001-of-00002.safetensors", "model.fp32-00002-of-00002.safetensors")
    files = PRECISIONS | {"model.safetensors.index.fp32.json": full}
    with Hub({ID: Repository(files)}) as hub:
        assert weights_of(Fetch(hub, tmp_path, "hub", ID).path()) == {"model.safetensors"}


def test_an_index_says_which_weights_there_are(tmp_path):
    """As for the loader: it goes before a single file."""
    shards = {f"model-0000{number}-of-00002.safetensors": b"half" for number in (1, 2)}
    files = PRECISIONS | shards | {"model.safetensors.index.json": index(*shards, *shards)}
    with Hub({ID: Repository(files)}) as hub:
        folder = Fetch(hub, tmp_path, "hub", ID).path()
        assert weights_of(folder) == set(shards)
        assert Fetch("http://127.0.0.1:9", tmp_path, "hub", ID).path() == folder


@pytest.mark.parametrize(
    ("content", "said"),
    [(index("model-00001-of-00001.safetensors"), "has no model-00001-of-00001.safetensors"), (b"[1", "is no index")],
)
def test_an_index_that_is_wrong(tmp_path, content, said):
    with Hub({ID: Repository(PRECISIONS | {"model.safetensors.index.json": content})}) as hub:
        error = Fetch(hub, tmp_path, "hub", ID).error()
    assert error["code"] == "not_found"
    assert said in error["message"]


def test_a_second_run_downloads_nothing(hub, tmp_path):
    folder = Fetch(hub, tmp_path, "hub", ID).path()
    before = len([request for request in hub.requests if request[0] == "GET" and "/resolve/" in request[1]])
    assert Fetch(hub, tmp_path, "hub", ID).path() == folder
    assert len([request for request in hub.requests if request[0] == "GET" and "/resolve/" in request[1]]) == before


def test_a_revision_is_honoured(hub, tmp_path):
    assert Fetch(hub, tmp_path, "hub", ID, "--revision", COMMIT).path().name == COMMIT
    error = Fetch(hub, tmp_path, "hub", ID, "--revision", "nope").error()
    assert error["code"] == "not_found"
    assert "'nope'" in error["message"]


def test_a_cut_connection_is_continued(hub, tmp_path):
    hub.cut["model.safetensors"] = [15 << 20]
    folder = Fetch(hub, tmp_path, "hub", ID).path()
    assert (folder / "model.safetensors").read_bytes() == hub.repositories[ID].files["model.safetensors"]
    first, second = hub.ranges("model.safetensors")
    assert first is None
    assert second == f"bytes={10 << 20}-"


def interrupt(hub: Hub, home: Path, how: signal.Signals) -> None:
    """Ends a run when half of the weights have arrived."""
    hub.hold["model.safetensors"] = threading.Event()
    fetch = Fetch(hub, home, "hub", ID)
    assert hub.halfway.wait(DEADLINE_S)
    deadline = time.monotonic() + DEADLINE_S
    while not any(file.stat().st_size for file in home.rglob("*.incomplete")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    fetch.process.send_signal(how)
    fetch.process.communicate(timeout=DEADLINE_S)
    assert fetch.process.returncode != 0
    hub.hold.pop("model.safetensors").set()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_is_completed_by_the_next_one(hub, tmp_path, how):
    interrupt(hub, tmp_path, how)
    folder = Fetch(hub, tmp_path, "hub", ID).path()
    assert (folder / "model.safetensors").read_bytes() == hub.repositories[ID].files["model.safetensors"]
    assert len(hub.ranges("model.safetensors")) == 2
    assert len(hub.ranges("tokenizer.json")) == 1


def test_a_run_that_is_told_to_stop_leaves_no_half_file(hub, tmp_path):
    interrupt(hub, tmp_path, signal.SIGTERM)
    assert not list(tmp_path.rglob("*.incomplete"))


def test_progress_arrives_while_the_file_is_on_its_way(hub, tmp_path):
    hub.hold["model.safetensors"] = threading.Event()
    fetch = Fetch(hub, tmp_path, "hub", ID)
    assert fetch.process.stdout is not None
    for line in fetch.process.stdout:
        event = json.loads(line)
        if event.get("file") == "model.safetensors":
            break
    else:
        pytest.fail("the process ended without progress on the weights")
    assert event["done"] < event["total"] == SIZE
    hub.hold["model.safetensors"].set()
    assert json.loads(fetch.process.stdout.readlines()[-1])["event"] == "done"
    assert fetch.process.wait(DEADLINE_S) == 0


def test_an_unknown_model(hub, tmp_path):
    error = Fetch(hub, tmp_path, "hub", "owner/nothing").error()
    assert error["code"] == "not_found"
    assert "'owner/nothing' is neither a local folder nor a model of the hub" in error["message"]


@pytest.mark.parametrize("name", ["a/b/c", "../escape", "has space/x", ""])
def test_a_name_that_is_no_hub_id(hub, tmp_path, name):
    assert Fetch(hub, tmp_path, "hub", name).error()["code"] == "usage"


def test_a_gated_model_needs_a_token(hub, tmp_path):
    hub.repositories[ID].gated = True
    hub.repositories[ID].token = "hf_right"
    error = Fetch(hub, tmp_path, "hub", ID).error()
    assert error["code"] == "gated"
    assert f"{hub.url}/{ID}" in error["message"]
    assert "HF_TOKEN" in error["message"]
    assert Fetch(hub, tmp_path, "hub", ID, HF_TOKEN="hf_right").path().is_dir()


def test_a_private_model_needs_a_token(hub, tmp_path):
    hub.repositories[ID].token = "hf_right"
    error = Fetch(hub, tmp_path, "hub", ID).error()
    assert error["code"] == "not_found"
    assert "HF_TOKEN" in error["message"]
    assert Fetch(hub, tmp_path, "hub", ID, HF_TOKEN="hf_right").path().is_dir()


def test_a_repository_without_safetensors(hub, tmp_path):
    del hub.repositories[ID].files["model.safetensors"]
    error = Fetch(hub, tmp_path, "hub", ID).error()
    assert error["code"] == "not_found"
    assert "safetensors" in error["message"]


def test_no_network(tmp_path):
    error = Fetch("http://127.0.0.1:9", tmp_path, "hub", ID).error()
    assert error["code"] == "network"
    assert "check the network" in error["message"]


def test_without_network_the_cache_serves(hub, tmp_path):
    folder = Fetch(hub, tmp_path, "hub", ID).path()
    assert Fetch("http://127.0.0.1:9", tmp_path, "hub", ID).path() == folder
    assert Fetch(hub, tmp_path, "hub", ID, HF_HUB_OFFLINE="1").path() == folder
    (folder / "model.safetensors").unlink()
    assert Fetch(hub, tmp_path, "hub", ID, HF_HUB_OFFLINE="1").error()["code"] == "network"


def test_a_hub_that_is_out_of_order(hub, tmp_path):
    hub.status = 503
    error = Fetch(hub, tmp_path, "hub", ID).error()
    assert error["code"] == "network"
    assert "503" in error["message"]


def test_a_disk_without_room_is_refused_before_the_download(hub, tmp_path, monkeypatch):
    from denizen.worker import hub as downloads
    from denizen.worker.fetch_report import FetchError

    monkeypatch.setattr(downloads.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(FetchError) as caught:
        downloads.check_space(tmp_path / "not" / "yet", 3_000_000, f"'{ID}'", "HF_HOME")
    assert caught.value.code == "disk_full"
    assert "HF_HOME" in str(caught.value)


def test_a_disk_that_fills_up_is_one_clear_error():
    import errno

    from denizen.worker.fetch_report import FetchError
    from denizen.worker.hub import translated

    with pytest.raises(FetchError) as caught, translated(ID):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.code == "disk_full"
    assert "make room" in str(caught.value)


def test_a_folder_that_cannot_be_written_is_named_with_its_variable():
    import errno

    from denizen.worker.fetch_report import FetchError
    from denizen.worker.hub import translated

    with pytest.raises(FetchError) as caught, translated(ID, variable="DENIZEN_CACHE"):
        raise PermissionError(errno.EACCES, "Permission denied", "/srv/cache")
    assert caught.value.code == "io"
    assert "/srv/cache cannot be written" in str(caught.value)
    assert "set DENIZEN_CACHE" in str(caught.value)
