"""What a step reads from the host: named arrays, packed into one buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from denizen.worker.models.base import Speech
    from denizen.worker.request import Request

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


def inputs_of(
    requests: Sequence[Request], bring: Callable[[Speech], Mapping[str, np.ndarray]]
) -> dict[str, list[np.ndarray]]:
    """What each request brings into the step in which it begins, by name. Too large for the packed buffer."""
    brought = [bring(request.speech) for request in requests if request.speech is not None]
    assert len(brought) == len(requests)
    return {name: [inputs[name] for inputs in brought] for name in brought[0]}
