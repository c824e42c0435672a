"""`T.cuda.tcgen05`: descriptors of products, made by the program itself.

May import `base`, `ir`, `isa` and the modules of this folder below it. Each function writes a
descriptor where a pointer leads: `T.address_of` of a cell or of an element of a tensor.

    desc: T.uint64
    T.cuda.tcgen05.encode_matrix_descriptor(T.address_of(desc), a.ptr_to([0, 0]), 1, 64, 3)
"""

from __future__ import annotations

from inspect import signature
from typing import Any

from tilewright.base.dtypes import UINT32, UINT64, DType
from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.issuing import shared_address
from tilewright.frontend.namespaces import Namespace
from tilewright.frontend.storage import CellAddress
from tilewright.frontend.tensors import Pointer, pointer_type
from tilewright.frontend.unsupported import BLOCK_SCALED
from tilewright.frontend.values import as_dtype, lift
from tilewright.ir.expressions import (
    AddressOf,
    Bitcast,
    Expr,
    Load,
    Read,
    Var,
    as_constant,
    binary,
    cast,
    constant,
)
from tilewright.ir.statements import Assign, Store, Write
from tilewright.ir.types import ScalarType
from tilewright.isa import descriptors
from tilewright.isa.tensor_core import shapes

# Bytes that one of the leading and of the stride offset counts.
_UNIT = 16
# The first bits of the fields that choose the scales of B and of A, two bits each.
_SCALE_IDS = (4, 29)
# What a float32 is called as an element of which 19 bits count.
_TF32 = "tf32"


def encode_matrix_descriptor(desc: Any, addr: Any, ldo: Any, sdo: Any, swizzle: Any) -> None:
    """Write the descriptor of a matrix in shared memory, 64 bits.

    `addr` points at its first element; `ldo` and `sdo` are the leading and the stride offset in
    units of 16 bytes; `swizzle` is a number of `layout.SwizzleMode`. PTX ISA, tcgen05, "Shared
    memory descriptor". Raises `FrontendError` (`not-constant`, `bad-call`, `operand-type`).
    """
    mode = _number("swizzle", swizzle)
    if mode not in range(len(descriptors.LAYOUT_TYPES)):
        last = len(descriptors.LAYOUT_TYPES) - 1
        raise _refuse(f"there is no swizzle mode {mode}", "swizzle", f"0 to {last}")
    start = shared_address(addr, 1)
    if not isinstance(start.type, ScalarType):
        start = Bitcast(start, ScalarType(UINT32))
    _require_fits("addr", "address", start)
    _require_fits("ldo", "leading", lift(ldo), _UNIT)
    _require_fits("sdo", "stride", lift(sdo), _UNIT)
    address = binary("shr", start, 4, here())
    word: Expr = constant(descriptors.encode_shared(0, 0, 0, mode), UINT64, here())
    for name, value in (("address", address), ("leading", lift(ldo)), ("stride", lift(sdo))):
        field = next(each for each in descriptors.SHARED_FIELDS if each.name == name)
        bits = binary("and", cast(value, UINT64, here()), (1 << field.width) - 1, here())
        word = binary("or", word, binary("shl", bits, field.first, here()), here())
    _write(desc, word, UINT64)


def encode_instr_descriptor(
    desc: Any,
    d_dtype: Any,
    a_dtype: Any,
    b_dtype: Any,
    M: Any,
    N: Any,
    K: Any,
    trans_a: Any,
    trans_b: Any,
    n_cta_groups: Any = 1,
    neg_a: Any = False,
    neg_b: Any = False,
    sat_d: Any = False,
    is_sparse: Any = False,
) -> None:
    """Write the descriptor of a product without scales, 32 bits.

    Element types are named, float32 as "tf32" too; `trans_a` says that A is M-major, `trans_b`
    that B is N-major. All but `desc` is constant. PTX ISA, tcgen05, "Instruction descriptor".
    Raises `FrontendError` (`not-constant`, `bad-call`) for what no product has.
    """
    formats = (("d_dtype", d_dtype), ("a_dtype", a_dtype), ("b_dtype", b_dtype))
    d, a, b = (_format(name, value) for name, value in formats)
    a, b = (_TF32 if each == "float32" else each for each in (a, b))
    kind = _kind(d, a, b)
    groups = _number("n_cta_groups", n_cta_groups)
    m, n, k = (_number(name, value) for name, value in (("M", M), ("N", N), ("K", K)))
    legal = shapes(kind, 2 if groups == 2 else 1)
    if groups not in (1, 2) or (m, n, k) not in legal:
        message = f"{groups} CTAs have no product of {a} with M={m}, N={n}, K={k}"
        raise _refuse(message, "M", f"(M, N, K) of {legal}")
    transposed = {"trans_a": _number("trans_a", trans_a), "trans_b": _number("trans_b", trans_b)}
    for (name, flag), format in zip(transposed.items(), (a, b), strict=True):
        if flag and not descriptors.transposable(format):
            raise _refuse(f"a matrix of {format} is K-major", name, f"{name}=False")
    word = descriptors.encode_instruction(
        d,
        a,
        b,
        m,
        n,
        transpose_a=bool(transposed["trans_a"]),
        transpose_b=bool(transposed["trans_b"]),
        negate_a=bool(_number("neg_a", neg_a)),
        negate_b=bool(_number("neg_b", neg_b)),
        saturate=bool(_number("sat_d", sat_d)),
        sparse=bool(_number("is_sparse", is_sparse)),
    )
    _write(desc, constant(word, UINT32, here()), UINT32)


def runtime_instr_desc(desc: Any, sf_id: Any) -> None:
    """Write which scales, 0 to 3, a product with scales takes of each word, for A and for B alike.

    `desc` points at the product's descriptor, a uint32. PTX ISA, tcgen05, "Instruction descriptor",
    the matrix scale factor ids. Raises `FrontendError` (`operand-type`).
    """
    number = cast(lift(sf_id, UINT32), UINT32, here())
    word: Expr = _target(desc, UINT32)
    for at in _SCALE_IDS:
        word = binary("and", word, 0xFFFFFFFF - (3 << at), here())
        word = binary("or", word, binary("shl", number, at, here()), here())
    _write(desc, word, UINT32)


def _kind(d: str, a: str, b: str) -> str:
    """Name the kind of product that multiplies such elements."""
    for kind, formats in descriptors.FORMATS.items():
        if {a, b} <= formats.keys() and d in descriptors.D_FORMATS:
            return kind
    known = "; ".join(", ".join(formats) for formats in descriptors.FORMATS.values())
    expected = f"A and B of {known}; D of {', '.join(descriptors.D_FORMATS)}"
    raise _refuse(f"no product multiplies {a} by {b} into {d}", "a_dtype", expected)


def _format(name: str, value: Any) -> str:
    if value == _TF32:
        return _TF32
    try:
        return as_dtype(value).name
    except FrontendError as error:
        raise _refuse(f"{value!r} names no element type", name, '"float16", …') from error


def _number(name: str, value: Any) -> int:
    found = as_constant(lift(value))
    if found is None:
        raise FrontendError(
            f"{name} is a constant",
            code="not-constant",
            location=_place(name),
            found=f"{lift(value).type} {lift(value)}",
        )
    return int(found)


def _require_fits(name: str, field: str, value: Expr, unit: int = 1) -> None:
    """Require a constant, which counts so many bytes, to be one that its field can hold."""
    held = next(each for each in descriptors.SHARED_FIELDS if each.name == field)
    number, last = as_constant(value), ((1 << held.width) - 1) * held.unit // unit
    step = held.unit // unit
    if number is not None and (number not in range(last + 1) or number % step):
        steps = f"a multiple of {step} from " if step > 1 else ""
        message = f"the {field} field of a matrix descriptor cannot hold {number}"
        raise _refuse(message, name, f"{steps}0 to {last}")


def _write(desc: Any, value: Expr, kind: DType) -> None:
    """Write a descriptor where a pointer leads."""
    builder, where = current(), here()
    match _target(desc, kind):
        case Load() as element:
            builder.emit(Store(element.tensor, element.indices, value, location=where))
        case Read() as word:
            builder.emit(Write(word.pointer, value, location=where))
        case var:
            builder.emit(Assign(var, value, location=where))


def _target(desc: Any, kind: DType) -> Var | Load | Read:
    """Give the place where a pointer leads: a cell, an element or a word of memory."""
    match desc:
        case CellAddress(var=var) if var.dtype == kind:
            return var
        case Pointer(expr=AddressOf() as place) if pointer_type(place).dtype == kind:
            return Load(place.tensor, place.indices, ScalarType(kind), location=here())
        case Pointer() if pointer_type(desc.expr).dtype == kind:
            return Read(desc.expr, ScalarType(kind), location=here())
        case _:
            raise FrontendError(
                f"a descriptor is written to a {kind}",
                code="operand-type",
                location=argument_place(0),
                expected=f"T.address_of(x) of a cell or an element of type {kind}",
                found=repr(desc),
            )


def _place(name: str) -> Location | None:
    """Give the place of an argument, by keyword or by position."""
    by_name = argument_place(name)
    return by_name if by_name != here() else argument_place(_POSITIONS[name])


def _refuse(message: str, name: str, expected: str) -> FrontendError:
    return FrontendError(message, code="bad-call", location=_place(name), expected=expected)


_POSITIONS = {
    name: position
    for function in (encode_matrix_descriptor, encode_instr_descriptor)
    for position, name in enumerate(signature(function).parameters)
}
TCGEN05 = Namespace(
    "T.cuda.tcgen05",
    {
        **{each.__name__: each for each in (encode_matrix_descriptor, encode_instr_descriptor)},
        "encode_instr_descriptor_block_scaled": BLOCK_SCALED,
    },
)
