"""Vectors of numbers in C++: taking elements out, putting them together.

May import `base` and `codegen.spelling`. A vector of numbers below a byte is one of bytes, which
hold them packed, the first in the lowest bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import DType
from tilewright.codegen.spelling import scalar_type


def element(vector: str, kind: DType, lane: int) -> str:
    """Write an element of a vector; a number is its own."""
    if kind.lanes == 1:
        return vector
    if kind.bits >= 8:
        return f"{vector}.at[{lane}]"
    byte, shift = divmod(lane * kind.bits, 8)
    text = f"{vector}.at[{byte}] >> {shift}"
    if shift + kind.bits > 8:
        text = f"({text} | {vector}.at[{byte + 1}] << {8 - shift})"
    return f"{scalar_type(kind.scalar)}{{uint8_t({text} & {(1 << kind.bits) - 1})}}"


def joined(elements: Sequence[str], kind: DType) -> str:
    """Write a vector of elements."""
    parts = elements if kind.bits >= 8 else [_byte(elements, kind, at) for at in range(kind.bytes)]
    return f"{scalar_type(kind)}{{{{{', '.join(parts)}}}}}"


def _byte(elements: Sequence[str], kind: DType, byte: int) -> str:
    """Write a byte of a vector of numbers below one."""
    parts: list[str] = []
    for lane, text in enumerate(elements):
        shift = lane * kind.bits - 8 * byte
        if -kind.bits < shift < 8:
            move = f" << {shift}" if shift > 0 else f" >> {-shift}" if shift else ""
            parts.append(f"{text}.bits{move}")
    return f"uint8_t({' | '.join(parts)})"
