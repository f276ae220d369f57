"""Whole-server tests: `denizen serve` with real worker processes, over real sockets."""
