"""Tests of the whole project: cross-language and end-to-end ones, and those of the Python packages."""
