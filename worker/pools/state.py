"""Accounting of numbered slots: recurrent-state slots of a state pool, and rows of the device tables."""

from __future__ import annotations

from denizen.worker.errors import CapacityError

#: Slot and row that pad batches; never given to a request.
NULL_SLOT = 0


class SlotPool:
    """Slots ``1..slots - 1``; slot 0 is the null slot. Used by the plan thread only."""

    def __init__(self, key: str, slots: int) -> None:
        if slots < 2:
            raise CapacityError(f"pool '{key}' needs at least one slot besides the null slot; raise max_rows")
        self.key = key
        self.slots = slots
        self._free = list(range(slots - 1, NULL_SLOT, -1))
        self._owned = bytearray(slots)

    @property
    def capacity(self) -> int:
        return self.slots - 1

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.capacity - len(self._free)

    def take(self) -> int | None:
        """A free slot (the one freed last), or None."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._owned[slot] = 1
        return slot

    def give(self, slot: int) -> None:
        """Takes a slot back. A slot that nobody owns is a bug of the caller and raises."""
        if not self._owned[slot]:
            raise AssertionError(f"slot {slot} of pool '{self.key}' was freed twice")
        self._owned[slot] = 0
        self._free.append(slot)
