"""Checked reads from a decoded msgpack map: what is absent takes its default, what is wrong is named."""

from __future__ import annotations

from typing import Any

U32 = (1 << 32) - 1
U64 = (1 << 64) - 1


class ProtocolError(ValueError):
    """A peer sent something that is not an envelope of this protocol. ``request`` is None when it is not known."""

    def __init__(self, message: str, request: int | None = None) -> None:
        super().__init__(message)
        self.request = request


class Fields:
    """A map received from a peer. ``nil`` equals missing; unknown keys are never looked at."""

    def __init__(self, where: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise ProtocolError(f"{where}: must be a map")
        self._where = where
        self._map = value

    def raw(self, key: str) -> Any:
        return self._map.get(key)

    def has(self, key: str) -> bool:
        return self._map.get(key) is not None

    def _get(self, key: str, required: bool) -> Any:
        value = self._map.get(key)
        if value is None and required:
            raise ProtocolError(f"{self._where}: {key} is missing")
        return value

    def _fail(self, key: str, expected: str) -> ProtocolError:
        return ProtocolError(f"{self._where}: {key} must be {expected}")

    def optional_integer(self, key: str, low: int = 0, high: int = U64, required: bool = False) -> int | None:
        value = self._get(key, required)
        if value is None:
            return None
        if type(value) is not int or not low <= value <= high:
            raise self._fail(key, f"an integer from {low} to {high}")
        return value

    def integer(self, key: str, low: int = 0, high: int = U64, default: int = 0, required: bool = False) -> int:
        value = self.optional_integer(key, low, high, required)
        return default if value is None else value

    def number(self, key: str, default: float) -> float:
        value = self._map.get(key)
        if value is None:
            return default
        if type(value) not in (float, int):
            raise self._fail(key, "a number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._map.get(key)
        if value is None:
            return default
        if type(value) is not bool:
            raise self._fail(key, "true or false")
        return value

    def text(self, key: str, default: str = "", required: bool = False) -> str:
        value = self._get(key, required)
        if value is None:
            return default
        if type(value) is not str:
            raise self._fail(key, "a string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        values = self.items(key)
        if not all(type(value) is str for value in values):
            raise self._fail(key, "an array of strings")
        return tuple(values)

    def items(self, key: str) -> list[Any]:
        value = self._map.get(key)
        if value is None:
            return []
        if type(value) is not list:
            raise self._fail(key, "an array")
        return value

    def integers(self, key: str, high: int) -> tuple[int, ...]:
        values = self.items(key)
        if not all(type(value) is int and 0 <= value <= high for value in values):
            raise self._fail(key, f"an array of integers from 0 to {high}")
        return tuple(values)

    def pairs(self, key: str) -> tuple[tuple[int, float], ...]:
        """``[id, number]`` pairs."""
        values = self.items(key)
        for pair in values:
            if type(pair) is not list or len(pair) != 2 or type(pair[0]) is not int or not 0 <= pair[0] <= U32:
                raise self._fail(key, "an array of [id, number]")
            if type(pair[1]) not in (float, int):
                raise self._fail(key, "an array of [id, number]")
        return tuple((pair[0], float(pair[1])) for pair in values)

    def text_map(self, key: str) -> dict[str, str]:
        value = self._map.get(key)
        if value is None:
            return {}
        if type(value) is not dict or not all(type(k) is str and type(v) is str for k, v in value.items()):
            raise self._fail(key, "a map of strings")
        return value


def check_depth(value: Any, limit: int) -> None:
    """Raises when ``value`` nests deeper than ``limit`` containers. Iterative: the input is hostile."""
    level: list[Any] = [value]
    for _ in range(limit):
        inner: list[Any] = []
        for item in level:
            if type(item) is list:
                inner.extend(child for child in item if type(child) in (list, dict))
            elif type(item) is dict:
                inner.extend(child for child in item.values() if type(child) in (list, dict))
        if not inner:
            return
        level = inner
    raise ProtocolError(f"envelope nests deeper than {limit}")
