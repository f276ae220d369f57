"""What can go wrong between a program and the server, as exceptions. `docs/sdk.md` has the table."""

from __future__ import annotations

from typing import Any


class DenizenError(Exception):
    """Base of all errors of this package."""


class ConnectError(DenizenError, ConnectionError):
    """No connection came about: no server listens there, it refused, or it speaks another version."""


class ServerGone(DenizenError, ConnectionError):
    """The server has ended, or broke the connection; every open call of the client fails with this at once.

    The client is of no use any more: open a new one when the server is back.
    """


class ClientClosed(DenizenError):
    """The client was closed, by this program, before or during the call."""


class Forked(DenizenError):
    """The client, or a stream of it, was opened before this process was forked off: open a client of its own."""


class RequestError(DenizenError):
    """The server refused or failed one request; the client and its other calls are unharmed.

    `status`, `type`, `param` and `code` are those of the HTTP API's error; `docs/http-api.md` lists them.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type
        self.param = param
        """The parameter to change, if it is one."""
        self.code = code
        self.retry_after = retry_after
        """Seconds after which it makes sense to try again; None = not said."""

    def __reduce__(self) -> tuple[Any, ...]:  # exceptions with keyword arguments do not pickle by themselves
        return _rebuild, (type(self), self.message, dict(self.__dict__))


class BadRequest(RequestError, ValueError):
    """A parameter is unknown, of the wrong type or outside its range (400, 413), whichever side noticed it."""


class NotFound(BadRequest):
    """The server has no model of that name (404)."""


class Busy(RequestError):
    """The server takes no more requests now, or no worker can (429, 503): try again after `retry_after` seconds."""


class Timeout(RequestError, TimeoutError):
    """The call took longer than its `timeout`, or than the server's `--request-timeout` (504)."""


class ServerError(RequestError):
    """A fault in the server (500)."""


class SlowReader(RequestError):
    """The call's iterator was left unread while its output piled up; the call was cancelled (`slow_client`)."""


def _rebuild(cls: type[RequestError], message: str, state: dict[str, Any]) -> RequestError:
    error = cls(message, status=state["status"])
    error.__dict__.update(state)
    return error


def bad_request(param: str, message: str, code: str | None = None) -> BadRequest:
    """What this side refuses, in the form in which the server would."""
    return BadRequest(message, status=400, param=param, code=code)


def from_failure(
    status: int, message: str, kind: str, param: str | None, code: str | None, retry_after: float | None
) -> RequestError:
    """The exception for an error that the server answered with."""
    cls: type[RequestError]
    if code == "slow_client":
        cls = SlowReader
    elif status == 404:
        cls = NotFound
    elif status in (429, 503):
        cls = Busy
    elif status in (408, 504):
        cls = Timeout
    elif 400 <= status < 500:
        cls = BadRequest
    else:
        cls = ServerError
    return cls(message, status=status, type=kind, param=param, code=code, retry_after=retry_after)
