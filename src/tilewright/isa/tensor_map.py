"""Tensor maps: what a tensor copy knows of the tensor in global memory and of its boxes.

May import `base`, `isa.declaration` and `isa.machine`. A tensor map is 128 bytes, aligned to 64,
that a launch passes by value. On the chip its bits are NVIDIA's own and the driver writes them;
the simulator's bits are the fields below. CUDA Driver API, "Tensor Map Object Management"; PTX
ISA 5.5 "Tensors".

    TensorMap(address, "float16", (64, 128), (128,), (64, 8), (1, 1), swizzle=3)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.base.dtypes import UINT64, DType, dtype
from tilewright.base.errors import LaunchError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.isa.machine import Lanes, Machine

BYTES = 128
ALIGN = 64
MAX_RANK = 5
# What addresses, strides and rows of boxes are multiples of, in bytes.
GRANULE = 16
# Bytes of a row of a box in shared memory under the swizzle modes 1 to 3.
SPANS = {1: 32, 2: 64, 3: 128}

# The element types of a tensor, with the names of `CUtensorMapDataType`, in the order of its
# numbers from 0 on; "tf32" rounds on loads.
FORMATS = {
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "int32": "INT32",
    "uint64": "UINT64",
    "int64": "INT64",
    "float16": "FLOAT16",
    "float32": "FLOAT32",
    "float64": "FLOAT64",
    "bfloat16": "BFLOAT16",
    "float32_ftz": "FLOAT32_FTZ",
    "tf32": "TFLOAT32",
    "tf32_ftz": "TFLOAT32_FTZ",
}
_FILLED_WITH_NAN = ("float16", "float32", "float64", "bfloat16", "float32_ftz", "tf32", "tf32_ftz")

_MAGIC = 0x54574D50
# Field: the word, the lowest bit and the number of bits.
FIELDS = {
    "magic": (0, 32, 32),
    "rank": (0, 0, 8),
    "element_bytes": (0, 8, 8),
    "swizzle": (0, 16, 8),
    "fill": (0, 24, 4),
    "rounds": (0, 28, 4),
    "address": (1, 0, 64),
    **{f"extent{axis}": (2 + axis, 0, 64) for axis in range(MAX_RANK)},
    **{f"stride{axis}": (6 + axis, 0, 64) for axis in range(1, MAX_RANK)},
    **{f"box{axis}": (11 + axis // 2, 32 * (axis % 2), 16) for axis in range(MAX_RANK)},
    **{f"step{axis}": (11 + axis // 2, 32 * (axis % 2) + 16, 8) for axis in range(MAX_RANK)},
}


# What is wrong with a map: what, expected, found.
Problem = tuple[str, str, str]


@dataclass(frozen=True)
class TensorMap:
    """A tensor map; axes are listed innermost first.

    `format` is one of `FORMATS`; `extents` are in elements, `strides` in bytes, of every axis but
    the innermost, whose elements are contiguous; `box` and `steps` (element strides) are in
    elements. `interleave`, `swizzle`, `l2_promotion` and `oob_fill` are the driver's numbers.
    """

    address: int
    format: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    interleave: int = 0
    swizzle: int = 0
    l2_promotion: int = 0
    oob_fill: int = 0

    @property
    def element_bytes(self) -> int:
        """Count the bytes of an element."""
        return element_bytes(self.format)

    @property
    def reach(self) -> int:
        """Count the bytes from the start of the first element to the end of the last."""
        outer = zip(self.strides, self.extents[1:], strict=True)
        row = self.extents[0] * self.element_bytes
        return row + sum(stride * (extent - 1) for stride, extent in outer)

    def problem(self) -> Problem | None:
        """Say what the driver would refuse; `None` if nothing.

        CUDA Driver API, `cuTensorMapEncodeTiled`.
        """
        if problem := shape_problem(
            self.format, self.box, self.steps, self.interleave, self.swizzle, self.oob_fill
        ):
            return problem
        if self.l2_promotion not in range(4):
            return "L2 promotion", "0 to 3", str(self.l2_promotion)
        if self.address % GRANULE:
            return "address of the tensor", f"a multiple of {GRANULE}", f"{self.address:#x}"
        if any(not 1 <= extent <= 1 << 32 for extent in self.extents):
            return "shape of the tensor", "extents from 1 to 2^32", str(self.extents)
        if any(stride % GRANULE or not 0 <= stride < 1 << 40 for stride in self.strides):
            expected = f"multiples of {GRANULE} bytes, below 2^40"
            return "strides of the tensor", expected, f"{self.strides} bytes"
        return None

    def words(self) -> np.ndarray:
        """Encode the map as the simulator has it: 16 words, uint64."""
        fields = {
            "magic": _MAGIC,
            "rank": len(self.box),
            "element_bytes": self.element_bytes,
            "swizzle": self.swizzle,
            "fill": self.oob_fill,
            "rounds": int(self.format.startswith("tf32")),
            "address": self.address,
        }
        for axis in range(len(self.box)):
            fields[f"extent{axis}"] = self.extents[axis]
            fields[f"box{axis}"] = self.box[axis]
            fields[f"step{axis}"] = self.steps[axis]
            if axis:
                fields[f"stride{axis}"] = self.strides[axis - 1]
        words = [0] * (BYTES // 8)
        for name, value in fields.items():
            word, shift, bits = FIELDS[name]
            words[word] |= (value & ((1 << bits) - 1)) << shift
        return np.array(words, np.uint64)


def refusal(
    name: str, problem: Problem, location: Location | None, hint: str | None = None
) -> LaunchError:
    """Make the error for the map of a name that has a problem."""
    what, expected, found = problem
    return LaunchError(
        f"the tensor map {name!r} cannot be made, because of the {what}",
        code="tensor-map-shape",
        location=location,
        expected=expected,
        found=found,
        hint=hint,
        notes=("axes are listed innermost first",) if found.startswith("(") else (),
    )


def format_of(element: DType) -> str:
    """Name the format of elements of a type: its own, or that of numbers of its width."""
    return element.name if element.name in FORMATS else f"uint{element.bits * element.lanes}"


def element_bytes(format: str) -> int:
    """Count the bytes of an element of a format."""
    return 4 if format.startswith(("tf32", "float32")) else dtype(format).bytes


def row_pitch(format: str, box: Sequence[int], swizzle: int) -> int:
    """Count the bytes from one row of a box to the next in shared memory.

    Under a swizzle it is the whole span, also where a row is narrower.
    """
    return SPANS[swizzle] if swizzle else box[0] * element_bytes(format)


def image_shape(box: Sequence[int], steps: Sequence[int]) -> tuple[int, ...]:
    """Give the extents of a box in shared memory, innermost first: every `step`-th element.

    The step of the innermost axis counts as 1.
    """
    return (box[0], *(-(-b // s) for b, s in zip(box[1:], steps[1:], strict=True)))


def shape_problem(
    format: str,
    box: Sequence[int],
    steps: Sequence[int],
    interleave: int,
    swizzle: int,
    oob_fill: int,
) -> Problem | None:
    """Say what is wrong with what is known of a map when compiling."""
    if format not in FORMATS:
        return "element type of a tensor map", ", ".join(FORMATS), format
    if not 1 <= len(box) <= MAX_RANK:
        return "rank of a tensor map", f"1 to {MAX_RANK}", str(len(box))
    if any(not 1 <= extent <= 256 for extent in box):
        return "box", "extents from 1 to 256", str(tuple(box))
    if any(not 1 <= step <= 8 for step in steps):
        return "element strides", "1 to 8", str(tuple(steps))
    if interleave:
        return "interleave", "0: interleaved layouts are not supported", str(interleave)
    if swizzle not in (0, *SPANS):
        return "swizzle", "0, 1, 2 or 3", str(swizzle)
    row = box[0] * element_bytes(format)
    if row % GRANULE:
        return "rows of the box", f"a multiple of {GRANULE} bytes", f"{row} bytes"
    if swizzle and row > SPANS[swizzle]:
        expected = f"at most {SPANS[swizzle]} bytes, the span of swizzle {swizzle}"
        return "rows of the box", expected, f"{row} bytes"
    if oob_fill not in (0, 1):
        return "fill of what is out of bounds", "0 (zeros) or 1 (NaN)", str(oob_fill)
    if oob_fill and format not in _FILLED_WITH_NAN:
        return "fill of what is out of bounds", f"0 (zeros) for {format}", str(oob_fill)
    return None


class Fields:
    """Fields of the map at a uniform generic address, as far as its first words go."""

    def __init__(self, words: Sequence[Lanes]) -> None:
        self._words = words

    def __getitem__(self, name: str) -> Lanes:
        """Give a field, uint64."""
        word, shift, bits = FIELDS[name]
        value = self._words[word]
        return value if bits == 64 else (value >> shift) & ((1 << bits) - 1)


def head(m: Machine, tensor_map: Lanes) -> Fields:
    """Read the first word of a map, which says what it is."""
    return Fields(m.load(Space.GENERIC, tensor_map, UINT64))


def fields(m: Machine, tensor_map: Lanes) -> Fields:
    """Read a map."""
    count = ALIGN // UINT64.bytes
    halves = (
        m.load(Space.GENERIC, tensor_map + at, UINT64, count) for at in range(0, BYTES, ALIGN)
    )
    return Fields([word for half in halves for word in half])


def require_map(m: Machine, tensor_map: Lanes, rank: int | None = None) -> Fields:
    """Report a fault unless a tensor map, of that rank if one is given, lies at the address.

    Gives its head.
    """
    m.require((tensor_map & (ALIGN - 1)) == 0, "misaligned", "a tensor map is aligned to 64 bytes")
    found = head(m, tensor_map)
    text = "the address is not that of a tensor map"
    m.require(found["magic"] == _MAGIC, "tensor-map", text)
    if rank is not None:
        text = f"the tensor map is of another rank than the {rank} coordinates"
        m.require(found["rank"] == rank, "tensor-map", text)
    return found
