"""What all clients of an OpenAI-compatible API share: where it is, how a request may fail, which models there are."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from denizen.bench.errors import BenchError
from denizen.bench.http1 import Pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from denizen.bench.load import Clock
    from denizen.bench.schema import Attempt


#: Seconds for a list of models, which is no work.
_PATIENCE = 30.0


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where and how requests are sent. It travels to the processes that generate load."""

    url: str
    """Base URL, with or without `/v1`."""
    model: str
    api_key: str | None = None
    timeout: float = 600.0

    def route(self, path: str) -> str:
        return self.url.rstrip("/").removesuffix("/v1") + path

    def connect(self) -> Client:
        """A client that can send this target's jobs."""
        return Client(self)


T = TypeVar("T", bound=Target)


class Client:
    """One connection pool to one target. Use as an async context manager."""

    def __init__(self, target: Target) -> None:
        self._timeout = target.timeout
        self._models = target.route("/v1/models")
        headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
        self._pool = Pool(target.url, headers)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pool.close()

    async def models(self, flags: str = "--") -> list[str]:
        """Names that the server offers; none if it has no list of them.

        Raises BenchError, which names the option `url`, if it cannot be asked.
        """
        url = self._models
        answer = Whole()
        patience = min(self._timeout, _PATIENCE)
        try:
            async with asyncio.timeout(patience):
                await self._pool.request(path_of(url), answer)
            if answer.status == 404:
                return []
            if answer.status != 200:
                raise BenchError(f"{url} answered {answer.status}: {error_text(answer.text())}")
            return [str(model["id"]) for model in json.loads(answer.text())["data"]]
        except TimeoutError as error:
            raise BenchError(f"{url} does not answer within {patience:g} s; is {flags}url right?") from error
        except OSError as error:
            raise BenchError(f"no server answers at {url} ({error}); is {flags}url right?") from error
        except (ValueError, KeyError, TypeError) as error:
            raise BenchError(f"{url} did not answer with a list of models; is it an OpenAI-compatible API?") from error

    async def send(self, job: Any, scheduled: float, clock: Clock) -> Any:
        """Sends a job of the target's kind; whatever goes wrong is in the record's `error`."""
        raise NotImplementedError

    async def exchange(
        self,
        record: Attempt,
        clock: Clock,
        path: str,
        payload: bytes,
        answer: Whole,
        read: Callable[[], None],
        content_type: str = "application/json",
        pace: float | None = None,
    ) -> None:
        """Sends `payload`, times it, and calls `read` when an answer with status 200 is complete.

        With a `pace` the answer is read at so many bytes a second. What goes wrong, in `read` too, becomes the record's
        `error`.
        """
        record.sent = clock.now()
        try:
            async with asyncio.timeout(self._timeout):
                await self._pool.request(path, answer, payload, content_type, pace)
            record.end = clock.now()
            if answer.status != 200:
                record.error = f"HTTP {answer.status}: {error_text(answer.text())}"
            else:
                read()
        except Left:
            record.end = clock.now()
        except ErrorEvent as error:
            record.error = f"error event: {error}"
        except TimeoutError:
            record.error = f"no complete answer within {self._timeout:g} s"
        except OSError as error:
            record.error = f"broken connection: {error or type(error).__name__}"
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            record.error = f"an answer that is not OpenAI's ({type(error).__name__}: {error})"
        if record.error is not None:
            record.end = clock.now()


class ErrorEvent(Exception):
    """A stream carried an error; its message."""


class Left(Exception):
    """The client goes away before the end of the answer, as it was told to."""


class Whole:
    """Keeps an answer (:class:`denizen.bench.http1.Sink`)."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._parts: list[bytes] = []

    def begin(self, status: int, headers: dict[str, str]) -> None:
        self.status, self.headers = status, headers

    def feed(self, data: bytes) -> None:
        self._parts.append(data)

    def content(self) -> bytes:
        return b"".join(self._parts)

    def text(self) -> str:
        return self.content().decode(errors="replace")


def choose_model(target: T, flags: str = "--") -> T:
    """The target with the model that is meant: the one it names, or else the only one that the server offers.

    A server without a list of models, as some that speak are, is believed to have the one that is named.

    `flags` is what the options that name server and model start with. Raises BenchError if there is no such model, or
    more than one to choose from.
    """

    async def ask() -> list[str]:
        async with Client(target) as client:
            return await client.models(flags)

    offered = asyncio.run(ask())
    names = ", ".join(offered) or "none"
    if not target.model:
        if len(offered) != 1:
            raise BenchError(f"{flags}model is needed: the server offers {names}")
        return dataclasses.replace(target, model=offered[0])
    if offered and target.model not in offered:
        raise BenchError(f"{flags}model {target.model}: the server offers {names}")
    return target


def path_of(url: str) -> str:
    """What of a URL goes into the request line."""
    parts = urlsplit(url)
    return parts.path + (f"?{parts.query}" if parts.query else "")


def error_text(text: str) -> str:
    """The message of an error in OpenAI's shape, else the start of the text."""
    try:
        error = json.loads(text)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        text = text[:2000]
    # It goes to a terminal, which must not obey it.
    shown = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(shown.split())[:500] or "(empty body)"
