"""Downloads a checkpoint from the Hugging Face hub, or finds it in the hub's cache.

Everything goes through ``huggingface_hub``, so its cache, ``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_HOME`` and
``HF_HUB_OFFLINE`` mean what they mean everywhere. A connection that breaks is continued where it broke; a run that was
ended is continued by the next one at the first file that it had not finished.
"""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from denizen.worker.fetch_report import FetchError
from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from denizen.worker.fetch_report import Report

_CONFIG = "config.json"
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
#: What goes with the weights.
_PATTERNS = ["*.json", "*.jinja"]
#: Room to leave on the disk, in bytes.
_MARGIN = 64 << 20


def fetch_hub(repository: str, revision: str | None, report: Report) -> Path:
    """The folder of a complete snapshot. Raises :class:`FetchError`."""
    report.status(f"Looking up {repository} on the hub")
    try:
        with translated(repository, revision):
            files = _list(repository, revision, report)
            return _download(repository, revision, files, report)
    except FetchError as error:
        if error.code != "network":
            raise
        cached = _cached(repository, revision)
        if cached is None:
            raise
        report.status(f"{error}; using the copy in the cache")
        return cached


class _Files:
    """What there is to download: names and sizes at one commit."""

    def __init__(self, commit: str, sizes: dict[str, int]) -> None:
        self.commit = commit
        self.sizes = sizes


def _list(repository: str, revision: str | None, report: Report) -> _Files:
    """Files of the top folder that a checkpoint needs; of its weights those that are loaded, in one precision."""
    info = HfApi().model_info(repository, revision=revision, files_metadata=True)
    names = {entry.rfilename: entry.size or 0 for entry in info.siblings or [] if "/" not in entry.rfilename}
    if _CONFIG not in names or not {_SINGLE, _INDEX} & set(names):
        raise FetchError(
            f"'{repository}' on the hub has no {_CONFIG} with {_SINGLE} or {_INDEX}; choose a repository that holds "
            "the model in safetensors",
            "not_found",
        )
    if info.sha is None:
        raise FetchError(f"the hub named no commit for '{repository}'; try again", "network")
    weights = {_SINGLE}
    if _INDEX in names:
        bar = _bar(_INDEX, names[_INDEX], report)
        weights = _shards(Path(hf_hub_download(repository, _INDEX, revision=info.sha, tqdm_class=bar)))
    if missing := weights - set(names):
        raise FetchError(
            f"'{repository}' on the hub has no {min(missing)}, which its {_INDEX} names; choose another revision",
            "not_found",
        )
    wanted = weights | {name for name in names if any(Path(name).match(pattern) for pattern in _PATTERNS)}
    return _Files(info.sha, {name: names[name] for name in wanted})


def _shards(index: Path) -> set[str]:
    """Files that an index of weights names."""
    try:
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return {str(Path(file)) for file in files}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FetchError(f"{index} is no index of weights; fetch it again", "not_found") from None


def _download(repository: str, revision: str | None, files: _Files, report: Report) -> Path:
    missing = {
        name: size
        for name, size in files.sizes.items()
        if not isinstance(try_to_load_from_cache(repository, name, revision=files.commit), str)
    }
    check_space(Path(constants.HF_HUB_CACHE), sum(missing.values()), f"'{repository}'", "HF_HOME")
    # Small files first: a checkpoint that is refused is refused early.
    for name in sorted(missing, key=missing.__getitem__):
        hf_hub_download(repository, name, revision=files.commit, tqdm_class=_bar(name, missing[name], report))
        report.progress(name, missing[name], missing[name])
    # By commit, the cache does not learn which branch this was; without network it has to know.
    hf_hub_download(repository, _CONFIG, revision=revision)
    config = hf_hub_download(repository, _CONFIG, revision=files.commit, local_files_only=True)
    return Path(config).parent


def check_space(folder: Path, needed: int, what: str, variable: str) -> None:
    """Raises :class:`FetchError` where ``needed`` bytes do not fit in ``folder``, which ``variable`` moves."""
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed and needed + _MARGIN > free:
        raise FetchError(
            f"{what} needs {needed / 1e9:.2f} GB in {folder}, where {free / 1e9:.2f} GB are free; make room, or set "
            f"{variable} to a folder on a larger disk",
            "disk_full",
        )


def _bar(name: str, size: int, report: Report) -> type:
    """A progress bar class as ``huggingface_hub`` makes one for a file; it reports instead of drawing."""

    class Bar:
        def __init__(self, *_: Any, total: int | None = None, initial: int = 0, **__: Any) -> None:
            self.total = total or size
            self.n = initial
            report.progress(name, self.n, self.total)

        def update(self, count: int | float | None = 1) -> None:
            self.n += int(count or 0)
            report.progress(name, self.n, self.total)

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def __getattr__(self, _: str) -> Any:
            """Whatever else a bar can do draws something."""
            return lambda *_, **__: None

    return Bar


def _cached(repository: str, revision: str | None) -> Path | None:
    """A complete snapshot that an earlier run left in the cache."""
    try:
        folder = Path(snapshot_download(repository, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError, OSError):
        return None
    if not (folder / _CONFIG).is_file():
        return None
    if (folder / _INDEX).is_file():
        return folder if all((folder / shard).is_file() for shard in _shards(folder / _INDEX)) else None
    return folder if (folder / _SINGLE).is_file() else None


@contextlib.contextmanager
def translated(what: str, revision: str | None = None, variable: str = "HF_HOME") -> Iterator[None]:
    """Turns what libraries raise while ``what`` is fetched into :class:`FetchError`, one line with a remedy.

    ``variable`` names the folder where it is put.
    """
    try:
        yield
    except FetchError:
        raise
    except GatedRepoError:
        raise FetchError(
            f"'{what}' is gated: accept its licence at {constants.ENDPOINT}/{what} and set HF_TOKEN to a token of that "
            "account",
            "gated",
        ) from None
    except RevisionNotFoundError:
        raise FetchError(f"'{what}' has no revision '{revision}' on the hub; check its name", "not_found") from None
    except RepositoryNotFoundError:
        raise FetchError(
            f"'{what}' is neither a local folder nor a model of the hub at {constants.ENDPOINT}; check the name, or "
            "set HF_TOKEN if it is private",
            "not_found",
        ) from None
    except HFValidationError:
        raise FetchError(f"'{what}' is neither a local folder nor a hub id (OWNER/NAME)", "usage") from None
    except (OfflineModeIsEnabled, LocalEntryNotFoundError, httpx.TransportError, ConnectionError) as error:
        raise FetchError(
            f"the hub cannot be reached for '{what}' ({_reason(error)}); check the network", "network"
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "an error"
        raise FetchError(
            f"the hub at {constants.ENDPOINT} answered {status} for '{what}'; try again later", "network"
        ) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FetchError(
                f"the disk is full while '{what}' is written; make room and start again", "disk_full"
            ) from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise FetchError(
                f"{error.filename} cannot be written ({error.strerror}), so '{what}' cannot be kept; set {variable} to "
                "a folder that can",
                "io",
            ) from None
        raise FetchError(f"'{what}' cannot be fetched: {_reason(error)}", "io") from None


def _reason(error: BaseException) -> str:
    """The first line of the innermost message."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error) or type(error).__name__).splitlines()[0]
