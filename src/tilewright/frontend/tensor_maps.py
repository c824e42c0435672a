"""Tensor maps: the host makes them, kernels point at them.

May import `base`, `isa`, `ir` and the modules of this folder below it.

    amap: T.let[T.Ptr(T.TensorMap)] = T.stack_alloca("tensormap", 1)
    T.cuda.tensormap_encode_tiled(
        amap, A.data, 64, n, 128, 64, 8, 1, 1, descriptor_dtype="float16", rank=2, swizzle=3
    )
    T.device_entry(launch=…)
    … T.address_of(amap) …
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.base.dtypes import INT32, INT64
from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.tensors import Pointer, Tensor, TensorMap
from tilewright.frontend.values import as_dtype_or_none, lift, lift_index
from tilewright.ir.expressions import Binary, Expr, as_constant, binary, cast
from tilewright.ir.statements import EncodeTensorMap
from tilewright.ir.types import TensorMapType
from tilewright.isa import tensor_map
from tilewright.isa.tensor_map import FORMATS, MAX_RANK, format_of

_ON_HOST = "move it before T.device_entry(…)"
_COUNTS = (("extents", 0), ("byte strides", -1), ("extents of the box", 0), ("element strides", 0))


def stack_alloca(kind: str, count: Any = 1) -> TensorMap:
    """Make room for a tensor map on the host, `T.stack_alloca("tensormap", 1)`."""
    if kind != "tensormap" or count != 1:
        raise FrontendError(
            "the host makes room for one tensor map at a time",
            code="bad-call",
            location=here(),
            expected='T.stack_alloca("tensormap", 1)',
            found=f"T.stack_alloca({kind!r}, {count})",
        )
    _require_host("room for a tensor map is made")
    builder = current()
    return TensorMap(builder.variable(builder.named(None, "tensor_map"), TensorMapType()))


def tensormap_encode_tiled(
    descriptor: Any,
    data: Any,
    *numbers: Any,
    descriptor_dtype: Any,
    rank: Any,
    interleave: Any = 0,
    swizzle: Any = 0,
    l2_promotion: Any = 0,
    oob_fill: Any = 0,
    force_cu_dtype: Any = -1,
) -> None:
    """Make a tensor map of the tensor at a pointer, on the host, once.

    `numbers` are, axis by axis from the innermost: the extents in elements, the strides in bytes
    of all axes but the innermost, the box and the element strides. The options are the driver's
    numbers; `force_cu_dtype` is one for the element type, in place of `descriptor_dtype`, of
    which else only the width matters where the driver does not have the type.

    Raises `FrontendError` for a call that cannot be, and `LaunchError` (`tensor-map-shape`) for
    numbers that no tensor map can have. CUDA Driver API, `cuTensorMapEncodeTiled`.
    """
    _require_host("a tensor map is made")
    target = _unmade(descriptor)
    axes = _option("rank", rank)
    if not 1 <= axes <= MAX_RANK:
        raise FrontendError(
            f"a tensor map has 1 to {MAX_RANK} axes",
            code="bad-call",
            location=argument_place("rank"),
            found=str(axes),
        )
    parts = _split(numbers, axes)
    extents, strides = ([_wide(each) for each in part] for part in parts[:2])
    box, steps = ([cast(each, INT32) for each in part] for part in parts[2:])
    made = EncodeTensorMap(
        target.var,
        _global_pointer(data),
        tuple(extents),
        tuple(strides),
        tuple(box),
        tuple(steps),
        _format(descriptor_dtype, force_cu_dtype),
        _option("interleave", interleave),
        _option("swizzle", swizzle),
        _option("l2_promotion", l2_promotion),
        _option("oob_fill", oob_fill),
        location=here(),
    )
    _check(made)
    current().emit(made)


# ---------------------------------------------------------------------------- the call


def _require_host(what: str) -> None:
    builder = current()
    if builder.in_kernel:
        raise FrontendError(
            f"{what} on the host, and this is part of the kernel",
            code="bad-call",
            location=here(),
            hint=_ON_HOST,
        )
    if builder.depth:
        raise FrontendError(
            f"{what} for every launch, and this is inside a branch or a loop of the host",
            code="bad-call",
            location=here(),
            hint="move it out; its numbers may be computed by T.select(…)",
        )


def _unmade(descriptor: Any) -> TensorMap:
    """Take a tensor map that has room and nothing in it yet."""
    if not isinstance(descriptor, TensorMap):
        raise FrontendError(
            "what is encoded is not a tensor map",
            code="operand-type",
            location=argument_place(0),
            expected='T.stack_alloca("tensormap", 1)',
            found=repr(descriptor),
        )
    name, builder = descriptor.var.name, current()
    made = {stmt.var.name: stmt for stmt in builder.blocks[0] if isinstance(stmt, EncodeTensorMap)}
    first = made[name].location if name in made else None
    if name in made or name in {var.name for var in builder.reader.params}:
        raise FrontendError(
            f"the tensor map {name!r} is made already"
            + ("" if name in made else ", by the caller: it is a parameter"),
            code="bad-call",
            location=argument_place(0),
            hint='make another: T.stack_alloca("tensormap", 1)',
            notes=() if first is None else (f"made at {first.header()}",),
        )
    return descriptor


def _option(name: str, value: Any) -> int:
    number = as_constant(lift(value))
    if not isinstance(number, int):
        raise FrontendError(
            f"{name} is a constant integer",
            code="not-constant",
            location=argument_place(name),
            found=repr(value),
        )
    return int(number)


def _split(numbers: Sequence[Any], rank: int) -> list[list[Expr]]:
    """Part the numbers into extents, strides, box and element strides."""
    counts = [(what, rank + more) for what, more in _COUNTS]
    if len(numbers) != 4 * rank - 1:
        raise FrontendError(
            "a tensor map is made of another number of operands",
            code="operand-count",
            location=here(),
            expected=f"{4 * rank + 1} for rank {rank}: the map, the pointer, "
            + ", ".join(f"{count} {what}" for what, count in counts),
            found=f"{2 + len(numbers)}",
        )
    parts: list[list[Expr]] = []
    start = 0
    for what, count in counts:
        places = range(start, start + count)
        parts.append([_integer(numbers[at], what, at + 2) for at in places])
        start += count
    return parts


def _integer(value: Any, what: str, position: int) -> Expr:
    literal = INT64 if isinstance(value, int) else None
    return lift_index(lift(value, literal), f"each of the {what}", argument_place(position))


def _wide(number: Expr) -> Expr:
    """Compute in 64 bits, sums and products too: a tensor may have more than 2^31 bytes."""
    match number:
        case Binary(op="add" | "sub" | "mul") if number.dtype == INT32:
            return binary(number.op, _wide(number.left), _wide(number.right), number.location)
        case _:
            return cast(number, INT64)


def _global_pointer(data: Any) -> Expr:
    if isinstance(data, Pointer) and data.expr.type.space in (Space.GLOBAL, Space.GENERIC):
        return data.expr
    raise FrontendError(
        "a tensor map describes a tensor in global memory",
        code="operand-type",
        location=argument_place(1),
        expected="a pointer into global memory, such as A.data or A.ptr_to([i, j])",
        found=str(data.expr.type) if isinstance(data, Tensor | Pointer) else repr(data),
    )


def _format(kind: Any, forced: Any) -> str:
    """Choose the element type: by the driver's number, by name, or by its width."""
    number = _option("force_cu_dtype", forced)
    if number != -1:
        if number not in range(len(FORMATS)):
            raise FrontendError(
                "no element type of tensor maps has this number",
                code="bad-call",
                location=argument_place("force_cu_dtype"),
                expected=", ".join(f"{at} ({name})" for at, name in enumerate(FORMATS)),
                found=str(number),
            )
        return tuple(FORMATS)[number]
    if isinstance(kind, str) and kind in FORMATS:
        return kind
    found = as_dtype_or_none(kind)
    if found is not None and (format := format_of(found)) in FORMATS:
        return format
    raise FrontendError(
        "tensor maps do not have this element type",
        code="unknown-name",
        location=argument_place("descriptor_dtype"),
        expected=", ".join(FORMATS),
        found=repr(kind),
        hint="force_cu_dtype=… gives the driver's number",
    )


# ---------------------------------------------------------------------------- its numbers


def _check(made: EncodeTensorMap) -> None:
    """Refuse what is wrong already; numbers that are not known yet stand for right ones."""
    rank, granule = len(made.box), tensor_map.GRANULE
    inner = granule // tensor_map.element_bytes(made.format)
    known = tensor_map.TensorMap(
        0,
        made.format,
        _known(made.extents, (1,) * rank),
        _known(made.strides, (0,) * (rank - 1)),
        _known(made.box, (inner, *(1,) * (rank - 1))),
        _known(made.steps, (1,) * rank),
        made.interleave,
        made.swizzle,
        made.l2_promotion,
        made.oob_fill,
    )
    if problem := known.problem():
        raise tensor_map.refusal(made.var.name, problem, made.location)


def _known(numbers: Sequence[Expr], otherwise: Sequence[int]) -> tuple[int, ...]:
    found = [as_constant(each) for each in numbers]
    pairs = zip(found, otherwise, strict=True)
    return tuple(default if number is None else int(number) for number, default in pairs)
