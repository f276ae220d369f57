"""What a step reads from the host: named arrays, packed into one buffer."""

from __future__ import annotations

import numpy as np

#: Words to which sections of a step's inputs are aligned: 16 bytes.
_ALIGN = 4
_PADDING = np.zeros(_ALIGN, np.int32)


class StepInputs:
    """Everything a step reads from the host, in one int32 buffer, so that it travels in one copy."""

    def __init__(self) -> None:
        self._parts: list[np.ndarray] = []
        self.sections: dict[str, tuple[int, int, tuple[int, ...]]] = {}
        self._size = 0

    def put(self, name: str, values: np.ndarray) -> None:
        begin = self._size
        end = begin + values.size
        self.sections[name] = (begin, end, values.shape)
        self._parts.append(values.ravel())
        if padding := -end % _ALIGN:
            self._parts.append(_PADDING[:padding])
        self._size = end + padding

    def section(self, buffer: np.ndarray, name: str) -> np.ndarray | None:
        """The flat section ``name`` of a packed buffer; None if there is none."""
        place = self.sections.get(name)
        return None if place is None else buffer[place[0] : place[1]]

    def pack(self) -> np.ndarray:
        """The buffer, not to be written to; sections are ``buffer[begin:end]``, reshaped."""
        if len(self._parts) == 1 and self._parts[0].dtype == np.int32:
            return self._parts[0]
        return np.concatenate(self._parts, dtype=np.int32, casting="unsafe")
