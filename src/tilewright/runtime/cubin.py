"""Facts read out of a cubin, without a tool or a driver.

Imports nothing from this package. A cubin is an ELF file; the resources of a kernel stand in
the `.nv.info` section as attributes (the names are those that `cuobjdump --dump-resource-usage`
goes by).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_REGISTER_COUNT, _FRAME_SIZE = 0x2F, 0x11
_SIZED_VALUE = 4  # the attribute format that carries a byte count
_SYMBOL_TABLE = 2


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    data: bytes
    link: int


@dataclass(frozen=True)
class KernelUsage:
    """Registers of a thread, and bytes of its stack, spills included."""

    registers: int
    stack_bytes: int


def usage(cubin: bytes) -> dict[str, KernelUsage]:
    """Read what each kernel of a cubin uses, by its name."""
    sections = _sections(cubin)
    names = _symbol_names(sections)
    registers: dict[str, int] = {}
    stacks: dict[str, int] = {}
    for section in sections:
        if section.name == ".nv.info":
            for attribute, value in _attributes(section.data):
                table = {_REGISTER_COUNT: registers, _FRAME_SIZE: stacks}.get(attribute)
                if table is not None:
                    symbol, count = struct.unpack("<II", value)
                    table[names[symbol]] = count
    return {name: KernelUsage(registers[name], stacks.get(name, 0)) for name in registers}


def _sections(cubin: bytes) -> list[_Section]:
    (offset,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names_index = struct.unpack_from("<HHH", cubin, 58)
    rows = [struct.unpack_from("<IIQQQQII", cubin, offset + size * i) for i in range(count)]
    names = cubin[rows[names_index][4] :]
    return [
        _Section(_text(names, name), kind, cubin[start : start + length], link)
        for name, kind, _, _, start, length, link, _ in rows
    ]


def _symbol_names(sections: list[_Section]) -> list[str]:
    for section in sections:
        if section.kind == _SYMBOL_TABLE:
            strings = sections[section.link].data
            starts = range(0, len(section.data), 24)
            return [_text(strings, struct.unpack_from("<I", section.data, s)[0]) for s in starts]
    return []


def _attributes(data: bytes) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    position = 0
    while position + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, position)
        position += 4
        if form == _SIZED_VALUE:
            found.append((attribute, data[position : position + size]))
            position += size
    return found


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()
