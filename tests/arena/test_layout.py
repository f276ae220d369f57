"""Python's view of the layout is the extension's; the bytes in /dev/shm are what it says."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from denizen import _native
from denizen._native import FIELDS, HostArena

SHM = Path("/dev/shm")


def word(data: bytes, field: str, index: int = 0) -> int:
    """A little-endian word of the header."""
    offset, size = FIELDS[f"header.{field}"]
    assert size >= 8 * (index + 1)
    return int.from_bytes(data[offset + 8 * index :][:8], "little")


def test_a_header_is_where_the_exported_fields_say() -> None:
    slots: Any = (5, 4, 3, 0, 0)
    host, fd = HostArena.create("nobody", epoch=77, request_ring=10, result_ring=20, request_slots=slots)
    os.close(fd)
    objects = [(SHM / name).read_bytes() for name in host.names]
    for role, data in enumerate(objects, 1):
        assert word(data, "MAGIC") == _native.MAGIC
        assert (word(data, "ABI") >> 32, word(data, "ABI") & 0xFFFFFFFF) == _native.ABI
        assert word(data, "TOTAL_LEN") == len(data)
        assert word(data, "FIELDS_HASH") == _native.FIELDS_HASH
        assert word(data, "EPOCH") == 77
        assert word(data, "ROLE") == role
    requests, results = objects
    assert [word(requests, "CLASS_COUNTS", i) for i in range(5)] == list(slots)
    assert (word(requests, "RING_CAPACITY"), word(results, "RING_CAPACITY")) == (10, 20)
    assert word(results, "RETURNS_CAPACITY") == sum(slots)
    assert [word(requests, "INSTANCE", i) for i in (0, 1)] == [word(results, "INSTANCE", i) for i in (0, 1)]
    assert (word(requests, "WRITER_PID"), word(results, "WRITER_PID")) == (os.getpid(), 0)
    assert word(requests, "WRITER_START") == int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


def test_a_small_message_is_in_its_descriptor() -> None:
    host, fd = HostArena.create("nobody")
    os.close(fd)
    host.send(b"inline bytes", b"and attachment")
    data = (SHM / host.names[0]).read_bytes()
    entry = data[_native.HEADER_LEN :][: _native.DESCRIPTOR_LEN]
    offset, size = FIELDS["descriptor.INLINE"]
    assert entry[offset:].startswith(b"inline bytesand attachment")
    assert size == _native.INLINE_LEN
    assert word(data, "TAIL") == 1
    assert host.stats()["slots_in_use"] == 0


def test_the_field_hash_covers_the_exported_table() -> None:
    """The same FNV-1a over the exported table gives the exported hash, so neither can change alone."""
    value = 0xCBF29CE484222325
    table = b"".join(
        name.encode() + offset.to_bytes(8, "little") + size.to_bytes(8, "little")
        for name, (offset, size) in FIELDS.items()
    )
    for byte in table + b"".join(size.to_bytes(8, "little") for size in _native.CLASS_SIZES):
        value = ((value ^ byte) * 0x100000001B3) % (1 << 64)
    assert value == _native.FIELDS_HASH


def test_the_stub_names_what_the_extension_has() -> None:
    """``_native.pyi`` and the extension list the same public names."""
    stub = Path(_native.__file__).with_name("_native.pyi").read_text()
    declared = set(re.findall(r"^(?:class |def )?([A-Za-z_]\w*)(?=[(:])", stub, re.MULTILINE))
    declared -= {"Stats", "Heartbeat", "Swept"}  # types of dictionaries
    assert declared == {name for name in dir(_native) if not name.startswith("__")}
    for cls in (_native.Arena, _native.HostArena):
        body = stub.partition(f"class {cls.__name__}:")[2].partition("\nclass ")[0].partition("\ndef ")[0]
        methods = set(re.findall(r"^    def (\w+)\(", body, re.MULTILINE))
        assert methods == {name for name in vars(cls) if name not in ("__doc__", "__module__")}


def test_objects_are_private() -> None:
    host, fd = HostArena.create("nobody")
    os.close(fd)
    for name in host.names:
        assert (SHM / name).stat().st_mode & 0o777 == 0o600
        assert name.startswith(f"denizen-{os.geteuid()}-")
