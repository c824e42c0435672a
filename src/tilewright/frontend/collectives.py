"""`T.cuda` across threads: votes, shuffles, reductions and atomic operations.

May import `base`, `ir`, `isa.named` and the modules of this folder below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.dtypes import BOOL, UINT32, DType, dtype
from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.base.targets import MAX_THREADS
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.issuing import condition, issue, result, uint32
from tilewright.frontend.tensors import Pointer, pointer_type
from tilewright.frontend.values import constant_int, lift, operate, stored, wrap
from tilewright.ir.expressions import (
    Bitcast,
    Expr,
    SpecialRegister,
    Var,
    binary,
    cast,
    constant,
    truth,
)
from tilewright.ir.statements import If
from tilewright.ir.types import ScalarType
from tilewright.isa import named
from tilewright.isa.declaration import Form

FULL_MASK = 0xFFFFFFFF

# ---------------------------------------------------------------------------- across a warp


def any_sync(mask: Any, predicate: Any) -> Any:
    """Tell whether a predicate holds in any lane of a mask."""
    return result("any", BOOL, named.VOTE_ANY, condition(predicate, 1), uint32(mask))


def all_sync(mask: Any, predicate: Any) -> Any:
    """Tell whether a predicate holds in every lane of a mask."""
    return result("every", BOOL, named.VOTE_ALL, condition(predicate, 1), uint32(mask))


def ballot_sync(mask: Any, predicate: Any) -> Any:
    """Collect a predicate of the lanes of a mask into bits, uint32."""
    return result("ballot", UINT32, named.VOTE_BALLOT, condition(predicate, 1), uint32(mask))


def active_mask() -> Any:
    """Collect the lanes that execute this together, uint32."""
    return result("active", UINT32, named.ACTIVEMASK)


def _shuffle(form: Form, mask: Any, value: Any, lane: Any, width: int, clamp: int) -> Any:
    found = lift(value)
    if not isinstance(found.type, ScalarType):
        raise FrontendError(
            "only numbers are shuffled",
            code="operand-type",
            location=argument_place(1),
            found=str(found.type),
        )
    lanes = _segment(width, "shuffle", argument_place("width", 3))
    segments = constant((32 - lanes) << 8 | clamp, UINT32)
    operands = (uint32(lane), segments, uint32(mask))
    words = [result("shuffled", w.dtype, form, w, *operands).expr for w in _words(found)]
    return wrap(_from_words(words, found.dtype))


def _segment(width: Any, what: str, where: Location | None) -> int:
    """Read how many lanes exchange values among themselves."""
    lanes = constant_int(width, f"the width of a {what}")
    if lanes not in (1, 2, 4, 8, 16, 32):
        raise FrontendError(
            f"the width of a {what} is a power of two up to 32",
            code="bad-call",
            location=where,
            expected="1, 2, 4, 8, 16 or 32",
            found=str(lanes),
        )
    return lanes


def _words(value: Expr) -> list[Expr]:
    """Split a value into 32-bit registers, lowest first."""
    bits = value.dtype.bits * value.dtype.lanes
    if bits == 32:
        return [value]
    if value.dtype.is_bool:
        return [cast(value, UINT32)]
    raw = _bits(value, dtype(f"uint{bits}"))
    if bits < 32:
        return [cast(raw, UINT32)]
    return [cast(binary("shr", raw, shift), UINT32) for shift in range(0, bits, 32)]


def _bits(value: Expr, kind: DType) -> Expr:
    same = value.dtype == kind
    return value if same else Bitcast(value, ScalarType(kind), location=here())


def _from_words(words: Sequence[Expr], kind: DType) -> Expr:
    bits = kind.bits * kind.lanes
    if bits == 32:
        return words[0]
    if kind.is_bool:
        return truth(words[0])
    raw = dtype(f"uint{bits}")
    whole = cast(words[0], raw)
    for index, word in enumerate(words[1:], start=1):
        whole = binary("or", whole, binary("shl", cast(word, raw), 32 * index))
    return _bits(whole, kind)


def shfl_sync(mask: Any, value: Any, lane: Any, width: int = 32) -> Any:
    """Read a value of a lane, in segments of `width` lanes."""
    return _shuffle(named.SHFL_IDX, mask, value, lane, width, 31)


def shfl_up_sync(mask: Any, value: Any, delta: Any, width: int = 32) -> Any:
    """Read a value of the lane `delta` below; the lowest lanes keep their own."""
    return _shuffle(named.SHFL_UP, mask, value, delta, width, 0)


def shfl_down_sync(mask: Any, value: Any, delta: Any, width: int = 32) -> Any:
    """Read a value of the lane `delta` above; the highest lanes keep their own."""
    return _shuffle(named.SHFL_DOWN, mask, value, delta, width, 31)


def shfl_xor_sync(mask: Any, value: Any, lane_mask: Any, width: int = 32) -> Any:
    """Read a value of the lane whose number differs in the bits of `lane_mask`."""
    return _shuffle(named.SHFL_BFLY, mask, value, lane_mask, width, 31)


_REDUCTIONS = {"sum": "add", "add": "add", "max": "max", "min": "min"}


def _reduction(op: str) -> str:
    if op not in _REDUCTIONS:
        raise FrontendError(
            f"there is no reduction {op!r}",
            code="bad-call",
            location=argument_place(1),
            expected=", ".join(_REDUCTIONS),
        )
    return _REDUCTIONS[op]


def warp_reduce(value: Any, op: str, width: int = 32) -> Any:
    """Reduce over each `width` lanes of a warp by "sum", "max" or "min"; all get the result."""
    return _warp_reduce(value, op, width, argument_place("width", 2))


def _warp_reduce(value: Any, op: str, width: Any, where: Location | None) -> Any:
    kind = _reduction(op)
    builder = current()
    name = builder.named(None, op)
    total: Expr = lift(value)
    offset = _segment(width, "reduction", where) // 2
    while offset:
        total = _settled("partial", total)
        other = shfl_xor_sync(FULL_MASK, wrap(total), offset, 32).expr
        total = binary(kind, total, other, here())
        offset //= 2
    return wrap(_settled(name, total))


def cta_sync() -> None:
    """Wait for all threads of the CTA; memory accesses before it are seen after it."""
    issue(named.CTA_SYNC, constant(0, UINT32))


def _settled(name: str, value: Expr) -> Expr:
    if isinstance(value, Var) and not current().reads_state(value):
        return value
    return current().bind(name, value)


def cta_reduce(value: Any, op: str, num_warps: int, scratch: Any) -> Any:
    """Reduce over the threads of a CTA, through `num_warps` elements of shared memory."""
    return _cta_reduce(value, op, num_warps, scratch, argument_place("num_warps", 2))


def _cta_reduce(value: Any, op: str, num_warps: Any, scratch: Any, where: Location | None) -> Any:
    kind = _reduction(op)
    builder = current()
    name = builder.named(None, op)
    count = constant_int(num_warps, "the number of warps")
    if not 1 <= count <= MAX_THREADS // 32:
        raise FrontendError(
            "a CTA does not have this number of warps",
            code="bad-call",
            location=where,
            expected=f"1 … {MAX_THREADS // 32}",
            found=str(count),
        )
    partial = warp_reduce(value, op)
    with builder.block() as body:
        scratch[wrap(SpecialRegister("warp_id", location=here()))] = partial
    first = binary("eq", SpecialRegister("laneid", location=here()), 0, here())
    builder.emit(If(first, tuple(body), location=here()))
    cta_sync()
    total = scratch.at(0)
    for index in range(1, count):
        total = operate(kind, total, scratch.at(index))
    result = wrap(_settled(name, total.expr))
    cta_sync()
    return result


def _fixed_warp(op: str) -> Callable[..., Any]:
    def reduce(value: Any, width: int = 32) -> Any:
        return _warp_reduce(value, op, width, argument_place("width", 1))

    reduce.__name__, reduce.__doc__ = f"warp_{op}", f"Reduce over the lanes of a warp by {op}."
    return reduce


def _fixed_cta(op: str) -> Callable[..., Any]:
    def reduce(value: Any, num_warps: int, scratch: Any) -> Any:
        return _cta_reduce(value, op, num_warps, scratch, argument_place("num_warps", 1))

    reduce.__name__, reduce.__doc__ = f"cta_{op}", f"Reduce over the threads of a CTA by {op}."
    return reduce


def reduce_add_sync_u32(mask: Any, value: Any) -> Any:
    """Add up a uint32 over the lanes of a mask."""
    return result("total", UINT32, named.REDUX_ADD_U32, uint32(value), uint32(mask))


def reduce_min_sync_u32(mask: Any, value: Any) -> Any:
    """Give the smallest uint32 over the lanes of a mask."""
    return result("least", UINT32, named.REDUX_MIN_U32, uint32(value), uint32(mask))


# ---------------------------------------------------------------------------- atomics


def _atomic_space(ptr: Any) -> tuple[Expr, str]:
    if not isinstance(ptr, Pointer):
        raise FrontendError(
            "a pointer is expected",
            code="operand-type",
            location=argument_place(0),
            expected="t.ptr_to([i]) or T.address_of(t[i])",
            found=repr(ptr),
        )
    space = pointer_type(ptr.expr).space
    if space not in (Space.GLOBAL, Space.SHARED):
        raise FrontendError(
            "atomic operations act on global or shared memory",
            code="operand-type",
            location=argument_place(0),
            found=str(ptr.expr.type),
        )
    return ptr.expr, space.value


_ADDED = {
    "int32": "s32",
    "uint32": "u32",
    "uint64": "u64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
}


def _atomic(find: Callable[[str, str], Form], space: str, kind: str | None, found: DType) -> Form:
    if kind is not None:
        try:
            return find(space, kind)
        except AssertionError:
            pass
    raise FrontendError(
        f"there is no such atomic operation on {found} in {space} memory",
        code="operand-type",
        location=argument_place(0),
    )


def atomic_add(ptr: Any, value: Any) -> Any:
    """Add to an element of memory, at once; gives what was there."""
    place, space = _atomic_space(ptr)
    kind = place.dtype
    form = _atomic(named.atomic_add, space, _ADDED.get(kind.name), kind)
    return result("old", kind, form, place, stored(value, kind))


def atomic_cas(ptr: Any, old: Any, new: Any) -> Any:
    """Replace an element of memory if it has the bits of `old`; gives what was there."""
    place, space = _atomic_space(ptr)
    kind = place.dtype
    form = _atomic(named.atomic_cas, space, f"b{kind.bits}", kind)
    values = [stored(each, kind) for each in (old, new)]
    return result("old", kind, form, place, *values)


FUNCTIONS: dict[str, Any] = {
    **{
        each.__name__: each
        for each in (
            *(any_sync, all_sync, ballot_sync, warp_reduce, cta_reduce),
            *(cta_sync, reduce_add_sync_u32, reduce_min_sync_u32, atomic_add, atomic_cas),
            *(_fixed_warp(op) for op in ("sum", "max", "min")),
            *(_fixed_cta(op) for op in ("sum", "max", "min")),
        )
    },
    "__shfl_sync": shfl_sync,
    "__shfl_up_sync": shfl_up_sync,
    "__shfl_down_sync": shfl_down_sync,
    "__shfl_xor_sync": shfl_xor_sync,
    "__activemask": active_mask,
}
