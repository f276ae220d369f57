"""Where a server waits for clients on this machine: `RUN_DIR/NAME.sock`."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from denizen.shm.errors import ConnectError


def run_dir() -> Path:
    """`$DENIZEN_RUN_DIR`, else `$XDG_RUNTIME_DIR/denizen`, else `/tmp/denizen-UID`."""
    if chosen := os.environ.get("DENIZEN_RUN_DIR"):
        return Path(chosen)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "denizen"
    return Path(f"/tmp/denizen-{os.getuid()}")


def socket_path(name: str = "default", path: str | os.PathLike[str] | None = None) -> Path:
    """The socket of the server called `name` (`denizen serve --shm-name`), or `path` itself.

    Raises ConnectError if the folder belongs to somebody else or is open to others, who could stand in for the server.
    """
    if path is not None:
        return Path(path)
    if not name or "/" in name or name.startswith("."):
        raise ConnectError(
            f"name={name!r} is no server name: it has no '/' and does not begin with '.'; for a path, give path=…"
        )
    folder = run_dir()
    try:
        found = folder.stat()
    except OSError as error:
        raise ConnectError(
            f"no server called '{name}': {folder} cannot be read ({error.strerror}); "
            "start `denizen serve`, or set DENIZEN_RUN_DIR to the server's"
        ) from None
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ConnectError(
            f"{folder} must belong to user {os.getuid()} and be closed to others (mode 0700); it belongs to "
            f"{found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}. Remove it, or set DENIZEN_RUN_DIR"
        )
    return folder / f"{name}.sock"
