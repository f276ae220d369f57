"""Denizen: resident-decode inference server for small autoregressive models."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("denizen")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0+source"
