"""The harness's one exception."""


class BenchError(Exception):
    """A run that cannot start or go on; the message says what to do and is shown as it is."""
