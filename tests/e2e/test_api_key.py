"""P31: with an API key, every route but the probes needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import openai
import pytest

from .conftest import STUB
from .running import Running

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "sk-test-0123456789"
GUARDED = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/stub"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/metrics"),
    ("GET", "/version"),
    ("GET", "/no/such/route"),
    ("POST", "/no/such/route"),
    ("DELETE", "/v1/models"),
]
WRONG = [
    None,
    "",
    "Bearer",
    f"Bearer {KEY[:-1]}",
    f"Bearer {KEY}x",
    f"Bearer  {KEY}",
    f"Bearer {KEY.upper()}",
    f"Basic {KEY}",
    KEY,
]


@pytest.fixture(scope="module")
def guarded(builtin: str) -> Iterator[Running]:
    with Running([*STUB, "--model", f"stub={builtin}"], model="stub", api_key=KEY) as server:
        yield server


@pytest.mark.parametrize(("method", "path"), GUARDED)
@pytest.mark.parametrize("header", WRONG)
def test_p31_every_route_but_the_probes_needs_the_key(
    guarded: Running, method: str, path: str, header: str | None
) -> None:
    headers = {} if header is None else {"Authorization": header}
    response = httpx.request(method, guarded.url + path, headers=headers, json={} if method == "POST" else None)
    assert response.status_code == 401
    error = response.json()["error"]
    assert error["code"] == "invalid_api_key"
    assert KEY not in response.text


@pytest.mark.parametrize("path", ["/health", "/ready"])
@pytest.mark.parametrize("header", [None, "Bearer wrong"])
def test_p31_probes_are_open(guarded: Running, path: str, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    assert httpx.get(guarded.url + path, headers=headers).status_code == 200


def test_p31_the_key_opens_everything(guarded: Running) -> None:
    assert [model.id for model in guarded.client.models.list()] == ["stub"]
    assert guarded.complete("hi", max_tokens=2)["usage"]["completion_tokens"] == 2
    assert guarded.metrics()["denizen_worker_up"] == 1
    assert guarded.http.get("/no/such/route").status_code == 404


def test_p31_the_client_library_is_told(guarded: Running) -> None:
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong", max_retries=0).models.list()


def test_the_key_is_in_no_log_and_in_no_process_list_of_a_worker(guarded: Running) -> None:
    assert KEY not in guarded.log(1 << 20)
    for pid in guarded.workers():
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            assert KEY.encode() not in file.read()
