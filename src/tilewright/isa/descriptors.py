"""The descriptors of tensor-core operands and instructions, bit by bit.

May import `base`, `isa.declaration` and `isa.machine`. Both directions stand here: the compiler
packs descriptors, the simulator reads them from their bits. PTX ISA, "Instruction descriptor" and
"Shared memory descriptor" of tcgen05.

    >>> encode_instruction("float32", "float16", "float16", 128, 64)
    135266320
    >>> hex(encode_shared(0, 16, 1024, 3))
    '0x4000404000010000'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.base.dtypes import UINT32
from tilewright.isa.machine import Lanes, Machine, SharedTile, uint32

_CODE = "undefined-operation"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a descriptor: its first bit, its width, and what one of it counts."""

    name: str
    first: int
    width: int
    unit: int = 1

    def place(self, value: int) -> int:
        """Put a value where the field is; it must be a multiple of the unit, and fit."""
        number = value // self.unit
        fits = value % self.unit == 0 and 0 <= number < 1 << self.width
        assert fits, f"the field {self.name!r} of a descriptor cannot be {value}"
        return number << self.first

    def take(self, word: Lanes) -> Lanes:
        """Read the field out of a descriptor of 32 or 64 bits, as uint32."""
        bits = word.machine.cast(word >> self.first, UINT32) & ((1 << self.width) - 1)
        return bits * self.unit if self.unit > 1 else bits


def _pack(fields: Sequence[Field], values: dict[str, int]) -> int:
    return sum(field.place(values.pop(field.name, 0)) for field in fields)


# ---------------------------------------------------------------------------- instructions

# Bits that are listed nowhere are reserved and zero.
DENSE_FIELDS = (
    Field("sparse_selector", 0, 2),
    Field("sparse", 2, 1),
    Field("saturate", 3, 1),
    Field("d_format", 4, 2),
    Field("a_format", 7, 3),
    Field("b_format", 10, 3),
    Field("negate_a", 13, 1),
    Field("negate_b", 14, 1),
    Field("transpose_a", 15, 1),
    Field("transpose_b", 16, 1),
    Field("N", 17, 6, 8),
    Field("M", 24, 5, 16),
    Field("max_shift", 30, 2),
)
SCALED_FIELDS = (
    Field("sparse", 2, 1),
    Field("scale_b_id", 4, 2),
    Field("a_format", 7, 3),
    Field("b_format", 10, 3),
    Field("negate_a", 13, 1),
    Field("negate_b", 14, 1),
    Field("transpose_a", 15, 1),
    Field("transpose_b", 16, 1),
    Field("N", 17, 6, 8),
    Field("scale_format", 23, 1),
    Field("M", 27, 2, 128),
    Field("scale_a_id", 29, 2),
    Field("deep", 31, 1),
)

D_FORMATS = {"float16": 0, "float32": 1, "int32": 2}
# The formats of A and B by the kind of instruction; "tf32" is float32 of which 19 bits count.
FORMATS: dict[str, dict[str, int]] = {
    "f16": {"float16": 0, "bfloat16": 1},
    "tf32": {"tf32": 2},
    "f8f6f4": {
        "float8_e4m3fn": 0,
        "float8_e5m2": 1,
        "float6_e2m3fn": 3,
        "float6_e3m2fn": 4,
        "float4_e2m1fn": 5,
    },
    "i8": {"uint8": 0, "int8": 1},
}
# In the kinds that only take 4-bit elements these have a number of their own.
_FOUR_BITS = {"float4_e2m1fn": 1}
SCALE_FORMATS = {"float8_e4m3fn": 0, "float8_e8m0fnu": 1}


def kind_of(format: str) -> str:
    """Name the kind of instruction that takes a format of A or B without scales."""
    return next(kind for kind, formats in FORMATS.items() if format in formats)


def transposable(format: str) -> bool:
    """Tell the formats of which a matrix may be MN-major: those of no less than 8 bits."""
    return not format.startswith(("float4", "float6"))


def encode_instruction(
    d_format: str,
    a_format: str,
    b_format: str,
    M: int,
    N: int,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    negate_a: bool = False,
    negate_b: bool = False,
    saturate: bool = False,
    sparse: bool = False,
    sparse_selector: int = 0,
    max_shift: int = 0,
) -> int:
    """Pack the descriptor of a product without scales, 32 bits.

    Formats are names of element types, and "tf32". `M` and `N` are the instruction's, K follows
    from the kind; `transpose_a` says that A is M-major, `transpose_b` that B is N-major.
    """
    kind = FORMATS[kind_of(a_format)]
    values = {
        "sparse_selector": sparse_selector,
        "sparse": int(sparse),
        "saturate": int(saturate),
        "d_format": D_FORMATS[d_format],
        "a_format": kind[a_format],
        "b_format": kind[b_format],
        "negate_a": int(negate_a),
        "negate_b": int(negate_b),
        "transpose_a": int(transpose_a),
        "transpose_b": int(transpose_b),
        "N": N,
        "M": M,
        "max_shift": max_shift,
    }
    return _pack(DENSE_FIELDS, values)


def encode_scaled_instruction(
    kind: str,
    a_format: str,
    b_format: str,
    scale_format: str,
    M: int,
    N: int,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    negate_a: bool = False,
    negate_b: bool = False,
    sparse: bool = False,
    scale_a_id: int = 0,
    scale_b_id: int = 0,
    deep: bool = False,
) -> int:
    """Pack the descriptor of a block-scaled product, 32 bits.

    `kind` is "mxf8f6f4", "mxf4" or "mxf4nvf4"; `deep` chooses K = 96 where K is else 64.
    """
    formats = FORMATS["f8f6f4"] if kind == "mxf8f6f4" else _FOUR_BITS
    values = {
        "sparse": int(sparse),
        "scale_b_id": scale_b_id,
        "a_format": formats[a_format],
        "b_format": formats[b_format],
        "negate_a": int(negate_a),
        "negate_b": int(negate_b),
        "transpose_a": int(transpose_a),
        "transpose_b": int(transpose_b),
        "N": N,
        "scale_format": SCALE_FORMATS[scale_format],
        "M": M,
        "scale_a_id": scale_a_id,
        "deep": int(deep),
    }
    return _pack(SCALED_FIELDS, values)


def _reserved(fields: Sequence[Field], width: int) -> int:
    """Give the bits of a descriptor of a width that no field has."""
    used = sum(((1 << field.width) - 1) << field.first for field in fields)
    return ~used & ((1 << width) - 1)


def decode_instruction(m: Machine, idesc: Lanes) -> dict[str, Lanes]:
    """Read the fields of a descriptor without scales, uint32 each; reserved bits must be 0."""
    unused = _reserved(DENSE_FIELDS, 32)
    m.require((idesc & unused) == 0, _CODE, "an instruction descriptor has reserved bits set")
    return {field.name: field.take(idesc) for field in DENSE_FIELDS}


# ---------------------------------------------------------------------------- shared memory

# Bits that are listed nowhere are zero: PTX ISA fixes bits 53 to 60, and leaves the others out.
SHARED_FIELDS = (
    Field("address", 0, 14, 16),
    Field("leading", 16, 14, 16),
    Field("stride", 32, 14, 16),
    Field("version", 46, 3),
    Field("base_offset", 49, 3),
    Field("absolute", 52, 1),
    Field("layout", 61, 3),
)
_VERSION = 1
# The layout field by the swizzle mode (`layout.SwizzleMode`): none, 32, 64 and 128 bytes, and
# 128 bytes that move in units of 32.
LAYOUT_TYPES = (0, 6, 4, 2, 1)
# What `SharedTile.swizzle` is for each mode.
SWIZZLES = (0, 1, 3, 7, 6)
PAIRED = SWIZZLES[4]


def encode_shared(
    address: int,
    leading: int,
    stride: int,
    swizzle_mode: int,
    base_offset: int = 0,
    version: int = _VERSION,
) -> int:
    """Pack the descriptor of a matrix in shared memory, 64 bits.

    `address`, `leading` and `stride` are in bytes, multiples of 16 below 2^18; `swizzle_mode` is
    a number of `layout.SwizzleMode`. Adding `bytes >> 4` moves the start of the matrix.
    """
    values = {
        "address": address,
        "leading": leading,
        "stride": stride,
        "version": version,
        "base_offset": base_offset,
        "layout": LAYOUT_TYPES[swizzle_mode],
    }
    return _pack(SHARED_FIELDS, values)


def decode_shared(m: Machine, desc: Lanes, transposed: Lanes, bits: int) -> SharedTile:
    """Read the descriptor of a matrix of elements of so many bits.

    `transposed` (uint32, 0 or 1) says that it is MN-major. Faults (`undefined-operation`) on
    reserved bits that are set, another version, an absolute leading offset, a layout that there
    is not, and a swizzle that such a matrix cannot have (PTX ISA, "Valid combinations of
    type-size, major-ness and swizzling").
    """
    fields = {field.name: field.take(desc) for field in SHARED_FIELDS}
    unused = _reserved(SHARED_FIELDS, 64)
    m.require((desc & unused) == 0, _CODE, "a matrix descriptor has reserved bits set")
    m.require(
        (fields["version"] == _VERSION) & (fields["absolute"] == 0),
        _CODE,
        "a matrix descriptor has version 1 and relative offsets",
    )
    layout = fields["layout"]
    known = layout == LAYOUT_TYPES[0]
    swizzle = uint32(m, SWIZZLES[0])
    for number, pattern in zip(LAYOUT_TYPES[1:], SWIZZLES[1:], strict=True):
        chosen = layout == number
        known = known | chosen
        swizzle = m.select(chosen, uint32(m, pattern), swizzle)
    m.require(known, _CODE, "a matrix descriptor names no layout that there is")
    paired = swizzle == PAIRED
    if bits == 32:
        text = "an MN-major matrix of 32-bit elements is swizzled in units of 32 bytes"
        m.require((transposed == 0) | paired, _CODE, text)
        text = "a K-major matrix has no swizzle in units of 32 bytes"
        m.require((transposed != 0) | ~paired, _CODE, text)
    else:
        text = "only an MN-major matrix of 32-bit elements is swizzled in units of 32 bytes"
        m.require(~paired, _CODE, text)
    return SharedTile(
        fields["address"],
        fields["leading"],
        fields["stride"],
        swizzle,
        fields["base_offset"],
        transposed,
    )
