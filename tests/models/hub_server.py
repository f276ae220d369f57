"""A small Hugging Face hub on loopback: the few endpoints that a download uses, with what can go wrong."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repository:
    files: dict[str, bytes]
    gated: bool = False
    token: str | None = None  #: who may see it; None = everyone
    revisions: tuple[str, ...] = ("main", COMMIT)


@dataclass
class Hub:
    """Use as a context manager. ``requests``: method, path and Range header of each request, in order."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    #: name → bytes of it that are sent before the connection is cut, once each
    cut: dict[str, list[int]] = field(default_factory=dict)
    #: name → event that a download of it waits for after its first half; ``halfway`` says that it got there
    hold: dict[str, threading.Event] = field(default_factory=dict)
    halfway: threading.Event = field(default_factory=threading.Event)
    status: int | None = None  #: answer everything with this

    def __enter__(self) -> Hub:
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for event in self.hold.values():
            event.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def ranges(self, name: str) -> list[str | None]:
        """Range headers of the downloads of a file."""
        return [header for method, path, header in self.requests if method == "GET" and path.endswith("/" + name)]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address) -> None:
        """A client that was killed is part of a test, not an error of the server."""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.split("?")[0]
        self.hub.requests.append((self.command, path, self.headers.get("Range")))
        parts = path.strip("/").split("/")
        if self.hub.status is not None:
            self._json(self.hub.status, {"error": "out of order"})
        elif parts[:2] == ["api", "models"]:
            self._info("/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main")
        elif len(parts) > 4 and parts[2] == "resolve":
            self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self._json(404, {"error": "no such page"})

    def _repository(self, name: str, revision: str) -> Repository | None:
        """None where the error has been sent."""
        found = self.hub.repositories.get(name)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if found is None or (found.token and not found.gated and token != found.token):
            self._json(404 if found is None else 401, {"error": "Repository not found"}, "RepoNotFound")
        elif found.gated and token != found.token:
            self._json(401, {"error": "Access to this model is restricted"}, "GatedRepo")
        elif revision not in found.revisions:
            self._json(404, {"error": "Invalid rev id"}, "RevisionNotFound")
        else:
            return found
        return None

    def _info(self, name: str, revision: str) -> None:
        repository = self._repository(name, revision)
        if repository is not None:
            siblings = [{"rfilename": file, "size": len(data)} for file, data in repository.files.items()]
            self._json(
                200, {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
            )

    def _file(self, name: str, revision: str, file: str) -> None:
        repository = self._repository(name, revision)
        if repository is None:
            return
        data = repository.files.get(file)
        if data is None:
            self._json(404, {"error": "Entry not found"}, "EntryNotFound")
            return
        begin = 0
        header = self.headers.get("Range")
        if header is not None:
            begin = int(header.removeprefix("bytes=").split("-")[0])
        self.send_response(206 if header is not None else 200)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - begin))
        if header is not None:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        end = len(data)
        if self.hub.cut.get(file):
            end = min(end, begin + self.hub.cut[file].pop(0))
        if file in self.hub.hold:
            self.wfile.write(data[begin : end // 2])
            self.wfile.flush()
            begin = end // 2
            self.hub.halfway.set()
            self.hub.hold[file].wait(60)
        self.wfile.write(data[begin:end])
        if end < len(data):
            self.close_connection = True
            self.connection.close()

    def _json(self, status: int, body: dict[str, object], code: str | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if code is not None:
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", str(body["error"]))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
