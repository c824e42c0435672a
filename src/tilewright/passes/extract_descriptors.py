"""Find the descriptor of a matrix in shared memory from where its elements lie.

May import `isa`, `layout` and NumPy. For each swizzle mode the two strides are read off the
addresses, and then every element is compared with where the tensor core will look for it. What
the core does is stated in PTX ISA, "Shared memory matrix layout" and "Canonical layouts".

    descriptor = extract(bytes, 16, "k", modes(layout, 2, "k", 16))
    descriptor.constant          # 0x4000404000010000: add the start address >> 4
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewright.isa.descriptors import encode_shared
from tilewright.layout import ComposeLayout, Layout, SwizzleMode

Values = npt.NDArray[np.int64]

_UNIT = 16  # bytes: of a chunk, and what addresses and strides are counted in
_LIMIT = 1 << 18  # bytes
_NONE = SwizzleMode.SWIZZLE_NONE
_PAIRED = SwizzleMode.SWIZZLE_128B_ATOM_32B


@dataclass(frozen=True, slots=True)
class _Mode:
    """A swizzle as tensor core and tensor copies apply it to the address of a byte.

    `chunks` of 16 bytes are a span, `deep` spans an atom. The bits of `mask`, taken from bit 7
    on, are XORed into those from `into` on; that repeats after `period` bytes.
    """

    chunks: int
    deep: int
    mask: int
    into: int
    period: int

    def swizzle(self, address: Values) -> Values:
        """Swizzle addresses; twice is not at all."""
        return address ^ (((address >> 7) & self.mask) << self.into)


_MODES = {
    SwizzleMode.SWIZZLE_NONE: _Mode(1, 8, 0, 4, _UNIT),
    SwizzleMode.SWIZZLE_32B_ATOM: _Mode(2, 8, 1, 4, 256),
    SwizzleMode.SWIZZLE_64B_ATOM: _Mode(4, 8, 3, 4, 512),
    SwizzleMode.SWIZZLE_128B_ATOM: _Mode(8, 8, 7, 4, 1024),
    SwizzleMode.SWIZZLE_128B_ATOM_32B: _Mode(8, 4, 3, 5, 512),
}


def swizzled(address: Values, mode: SwizzleMode) -> Values:
    """Give the addresses at which bytes lie that a mode swizzles."""
    return _MODES[mode].swizzle(address)


@dataclass(frozen=True, slots=True)
class SharedMatrix:
    """What a descriptor says besides the start: two distances in bytes, and the swizzle."""

    leading: int
    stride: int
    mode: SwizzleMode

    @property
    def constant(self) -> int:
        """Pack the descriptor, 64 bits, of a matrix that starts at 0."""
        return encode_shared(0, self.leading, self.stride, self.mode)


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why no descriptor describes a matrix: a reason for each mode that was tried."""

    reasons: tuple[tuple[SwizzleMode, str], ...]


def modes(layout: Layout, element_bytes: int, major: str) -> tuple[SwizzleMode, ...]:
    """List the modes to try for a matrix, the layout's own first.

    A matrix of 32-bit elements that is MN-major can only be swizzled in units of 32 bytes.
    """
    if major == "mn" and element_bytes == 4:
        return (_PAIRED,)
    usual = [mode for mode in SwizzleMode if mode is not _PAIRED]
    own = _own_mode(layout, element_bytes)
    return tuple(sorted(usual, key=lambda mode: (mode is not own, mode)))


def _own_mode(layout: Layout, element_bytes: int) -> SwizzleMode | None:
    if not isinstance(layout, ComposeLayout):
        return _NONE
    unit = element_bytes << layout.per_element
    known = unit == _UNIT and layout.atom_len == 3 and layout.swizzle_len <= 3
    return SwizzleMode(layout.swizzle_len) if known else None


def extract(
    bytes: Values, element_bytes: int, major: str, tried: Sequence[SwizzleMode], align: int
) -> SharedMatrix | Unfit:
    """Find a descriptor under which the core finds every element of every matrix.

    `bytes` has the address of element (row, k) of each matrix, of shape (matrices, rows, K),
    counted from a start that is a multiple of `align` bytes. `major` is "k" or "mn". The first
    of the modes that fits is taken.
    """
    reasons: list[tuple[SwizzleMode, str]] = []
    for mode in tried:
        found = _fit(bytes, element_bytes, major, mode, align)
        if isinstance(found, SharedMatrix):
            return found
        reasons.append((mode, found))
    return Unfit(tuple(reasons))


def _fit(
    bytes: Values, element_bytes: int, major: str, mode: SwizzleMode, align: int
) -> SharedMatrix | str:
    kind = _MODES[mode]
    if align % kind.period:
        return f"it is known to begin at a multiple of {align} bytes, not of {kind.period}"
    linear = kind.swizzle(bytes)
    origins = linear[:, :1, :1]
    if (origins != bytes[:, :1, :1]).any() or (origins % _UNIT).any():
        at = int(np.flatnonzero((origins != bytes[:, :1, :1]) | (origins % _UNIT != 0))[0])
        return f"a matrix begins {bytes[at, 0, 0]} bytes after the start, where none may"
    expected, leading, stride = _canonical(linear[0] - origins[0], element_bytes, major, mode)
    for name, value in (("leading", leading), ("stride", stride)):
        if value % _UNIT or not 0 <= value < _LIMIT:
            return f"the {name} offset would be {value} bytes"
    wrong = linear - origins != expected
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        row, k = at[1:]
        return (
            f"element [{row}, {k}] is {(linear - origins)[at]} bytes from the first before the "
            f"swizzle, not {expected[row, k]}"
        )
    return SharedMatrix(leading, stride, mode)


def _canonical(
    found: Values, element_bytes: int, major: str, mode: SwizzleMode
) -> tuple[Values, int, int]:
    """Say where each element must lie, with the strides that some elements are found to have.

    A leading offset that nothing depends on is 16 bytes, such a stride 0.
    """
    kind = _MODES[mode]
    rows, depth = found.shape
    row: Values = np.arange(rows, dtype=np.int64)[:, None]
    k: Values = np.arange(depth, dtype=np.int64)[None, :]
    chunk = _UNIT // element_bytes
    span = _UNIT * kind.chunks
    if major == "k":
        stride = int(found[8, 0]) if rows > 8 else 0
        where = row // 8 * stride + row % 8 * span + k % chunk * element_bytes
        if mode is not _NONE:
            return where + k // chunk * _UNIT, _UNIT, stride
        leading = int(found[0, chunk]) if depth > chunk else _UNIT
        return where + k // chunk * leading, leading, stride
    wide = chunk * kind.chunks
    across = int(found[wide, 0]) if rows > wide else None
    down = int(found[0, kind.deep]) if depth > kind.deep else None
    # Without a swizzle the two offsets have changed places.
    leading, stride = (down, across) if mode is _NONE else (across, down)
    where = row % wide * element_bytes + row // wide * (across or 0)
    where = where + k % kind.deep * span + k // kind.deep * (down or 0)
    return where, _UNIT if leading is None else leading, 0 if stride is None else stride
