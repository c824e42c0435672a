"""`T.cuda`: ids, synchronisation, collectives, atomics and the launch of CUDA kernels.

May import `base`, `ir`, `isa.named` and the modules of this folder below it. What issues
instructions takes their forms from `isa.named`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.dtypes import BOOL, FLOAT32, INT32, UINT32, DType, dtype
from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.entry import KernelAttributes, LaunchConfig
from tilewright.frontend.namespaces import Namespace
from tilewright.frontend.tiles import TILE
from tilewright.frontend.values import (
    Pointer,
    Value,
    constant_int,
    lift,
    operate,
    pointer_type,
    wrap,
)
from tilewright.ir.expressions import (
    Bitcast,
    Expr,
    Intrinsic,
    SpecialRegister,
    Var,
    binary,
    cast,
    constant,
    int32,
    select,
    truth,
    unary,
)
from tilewright.ir.statements import Assert, If, Instruct, Print, While
from tilewright.ir.types import ScalarType
from tilewright.isa import named
from tilewright.isa.declaration import Form

_AXES = ("x", "y", "z")
FULL_MASK = 0xFFFFFFFF

# ---------------------------------------------------------------------------- ids


def _axis_id(name: str, register: str) -> Callable[[str], Any]:
    def read(axis: str = "x") -> Any:
        if axis not in _AXES:
            raise FrontendError(
                f"there is no axis {axis!r}",
                code="bad-call",
                location=argument_place(0),
                expected='"x", "y" or "z"',
            )
        return wrap(SpecialRegister(f"{register}.{axis}", location=here()))

    read.__name__, read.__doc__ = name, f"Read the {name} along an axis, int32."
    return read


def _id(name: str, register: str) -> Callable[[], Any]:
    def read() -> Any:
        return wrap(SpecialRegister(register, location=here()))

    read.__name__, read.__doc__ = name, f"Read the {name}, int32."
    return read


_AXIS_IDS = {
    "thread_idx": "tid",
    "block_idx": "ctaid",
    "block_dim": "ntid",
    "grid_dim": "nctaid",
    "cluster_id": "clusterid",
    "cluster_cta_id": "cluster_ctaid",
    "cluster_dim": "cluster_nctaid",
}
_IDS = {
    "linear_thread_id": "linear_tid",
    "thread_rank": "linear_tid",
    "lane_id": "laneid",
    "warp_id": "warp_id",
    "warpgroup_id": "warpgroup_id",
    "warp_in_warpgroup": "warp_in_warpgroup",
    "thread_in_warpgroup": "thread_in_warpgroup",
    "cta_pair_id": "cta_pair_id",
}

# ---------------------------------------------------------------------------- issuing


def _issue(form: Form, *operands: Expr) -> None:
    current().emit(Instruct(form, operands, location=here()))


def _result(name: str, kind: DType, form: Form, *operands: Expr) -> Any:
    """Issue an instruction whose first operand is its result."""
    cell = current().result(name, kind)
    _issue(form, cell, *operands)
    return wrap(cell)


def _u32(value: Any) -> Expr:
    return cast(lift(value, UINT32), UINT32, here())


def _truth(value: Any) -> Expr:
    return truth(lift(value), here())


def _shared(value: Any, position: int = 0) -> Expr:
    """Take a pointer into shared memory."""
    if isinstance(value, Pointer) and pointer_type(value.expr).space is Space.SHARED:
        return value.expr
    found = lift(value) if isinstance(value, Value) else None
    if found is not None and isinstance(found.type, ScalarType) and found.dtype == UINT32:
        return found
    raise FrontendError(
        "a pointer into shared memory is expected",
        code="operand-type",
        location=argument_place(position),
        expected="t.ptr_to([i]) of a shared tensor",
        found=repr(value),
    )


# ---------------------------------------------------------------------------- synchronisation


def cta_sync() -> None:
    """Wait for all threads of the CTA; memory accesses before it are seen after it."""
    _issue(named.CTA_SYNC, constant(0, UINT32))


def warp_sync(mask: Any = FULL_MASK) -> None:
    """Wait for the lanes of a mask."""
    _issue(named.WARP_SYNC, _u32(mask))


def warpgroup_sync(barrier: Any) -> None:
    """Wait for the 128 threads of a warpgroup, at a named barrier."""
    _issue(named.BARRIER_SYNC, _u32(barrier), constant(128, UINT32))


def syncthreads_and(condition: Any) -> Any:
    """Wait for all threads of the CTA, and tell whether the condition holds in every one."""
    zero = constant(0, UINT32)
    return _result("every", BOOL, named.CTA_SYNC_AND, zero, _truth(condition))


def syncthreads_or(condition: Any) -> Any:
    """Wait for all threads of the CTA, and tell whether the condition holds in any one."""
    zero = constant(0, UINT32)
    return _result("any", BOOL, named.CTA_SYNC_OR, zero, _truth(condition))


def elect_sync(mask: Any = FULL_MASK) -> Any:
    """Choose one lane of the warp: true in that one."""
    return _result("elected", BOOL, named.ELECT, _u32(mask))


def thread_fence() -> None:
    """Order this thread's memory accesses for all threads of the GPU."""
    _issue(named.THREAD_FENCE)


def _wait(form: Form, bar: Any, phase: Any) -> None:
    builder = current()
    builder.hint = None
    done = builder.declare("done", BOOL, constant(False, BOOL))
    barrier, parity = _shared(bar), _u32(phase)
    attempt = Instruct(form, (done, barrier, parity), location=here())
    builder.emit(While(unary("not", done), (attempt,), location=here()))


def mbarrier_wait(bar: Any, phase: Any) -> None:
    """Wait until the phase of that parity of an mbarrier has completed."""
    _wait(named.MBARRIER_TRY_WAIT_PARITY, bar, phase)


def mbarrier_wait_acquire_cluster(bar: Any, phase: Any) -> None:
    """Wait for an mbarrier's phase, acquiring what the cluster's CTAs have released."""
    _wait(named.MBARRIER_TRY_WAIT_PARITY_CLUSTER, bar, phase)


def nano_sleep(duration: Any) -> None:
    """Suspend the thread for about a number of nanoseconds."""
    _issue(named.NANOSLEEP, _u32(duration))


# ---------------------------------------------------------------------------- across a warp


def any_sync(mask: Any, predicate: Any) -> Any:
    """Tell whether a predicate holds in any lane of a mask."""
    return _result("any", BOOL, named.VOTE_ANY, _truth(predicate), _u32(mask))


def all_sync(mask: Any, predicate: Any) -> Any:
    """Tell whether a predicate holds in every lane of a mask."""
    return _result("every", BOOL, named.VOTE_ALL, _truth(predicate), _u32(mask))


def ballot_sync(mask: Any, predicate: Any) -> Any:
    """Collect a predicate of the lanes of a mask into bits, uint32."""
    return _result("ballot", UINT32, named.VOTE_BALLOT, _truth(predicate), _u32(mask))


def active_mask() -> Any:
    """Collect the lanes that execute this together, uint32."""
    return _result("active", UINT32, named.ACTIVEMASK)


def _shuffle(form: Form, mask: Any, value: Any, lane: Any, width: int, clamp: int) -> Any:
    found = lift(value)
    if not isinstance(found.type, ScalarType):
        raise FrontendError(
            "only numbers are shuffled",
            code="operand-type",
            location=argument_place(1),
            found=str(found.type),
        )
    lanes = constant_int(width, "the width of a shuffle")
    if lanes not in (1, 2, 4, 8, 16, 32):
        raise FrontendError(
            "the width of a shuffle is a power of two up to 32",
            code="bad-call",
            location=argument_place(3),
            found=str(lanes),
        )
    segments = constant((32 - lanes) << 8 | clamp, UINT32)
    operands = (_u32(lane), segments, _u32(mask))
    words = [_result("shuffled", w.dtype, form, w, *operands).expr for w in _words(found)]
    return wrap(_from_words(words, found.dtype))


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
    kind = _reduction(op)
    builder = current()
    name = builder.named(None, op)
    total: Expr = lift(value)
    offset = constant_int(width, "the width of a reduction") // 2
    while offset:
        total = _settled("partial", total)
        other = shfl_xor_sync(FULL_MASK, wrap(total), offset, 32).expr
        total = binary(kind, total, other, here())
        offset //= 2
    return wrap(_settled(name, total))


def _settled(name: str, value: Expr) -> Expr:
    if isinstance(value, Var) and not current().reads_state(value):
        return value
    return current().bind(name, value)


def cta_reduce(value: Any, op: str, num_warps: int, scratch: Any) -> Any:
    """Reduce over the threads of a CTA, through `num_warps` elements of shared memory."""
    kind = _reduction(op)
    builder = current()
    name = builder.named(None, op)
    count = constant_int(num_warps, "the number of warps")
    partial = warp_reduce(value, op)
    with builder.block() as body:
        scratch[wrap(SpecialRegister("warp_id", location=here()))] = partial
    first = binary("eq", SpecialRegister("laneid", location=here()), 0, here())
    builder.emit(If(first, tuple(body), location=here()))
    cta_sync()
    total = scratch[0]
    for index in range(1, count):
        total = operate(kind, total, scratch[index])
    result = wrap(_settled(name, total.expr))
    cta_sync()
    return result


def _fixed_warp(op: str) -> Callable[..., Any]:
    def reduce(value: Any, width: int = 32) -> Any:
        return warp_reduce(value, op, width)

    reduce.__name__, reduce.__doc__ = f"warp_{op}", f"Reduce over the lanes of a warp by {op}."
    return reduce


def _fixed_cta(op: str) -> Callable[..., Any]:
    def reduce(value: Any, num_warps: int, scratch: Any) -> Any:
        return cta_reduce(value, op, num_warps, scratch)

    reduce.__name__, reduce.__doc__ = f"cta_{op}", f"Reduce over the threads of a CTA by {op}."
    return reduce


def reduce_add_sync_u32(mask: Any, value: Any) -> Any:
    """Add up a uint32 over the lanes of a mask."""
    return _result("total", UINT32, named.REDUX_ADD_U32, _u32(value), _u32(mask))


def reduce_min_sync_u32(mask: Any, value: Any) -> Any:
    """Give the smallest uint32 over the lanes of a mask."""
    return _result("least", UINT32, named.REDUX_MIN_U32, _u32(value), _u32(mask))


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
    return _result("old", kind, form, place, cast(lift(value, kind), kind, here()))


def atomic_cas(ptr: Any, old: Any, new: Any) -> Any:
    """Replace an element of memory if it has the bits of `old`; gives what was there."""
    place, space = _atomic_space(ptr)
    kind = place.dtype
    form = _atomic(named.atomic_cas, space, f"b{kind.bits}", kind)
    values = [cast(lift(each, kind), kind, here()) for each in (old, new)]
    return _result("old", kind, form, place, *values)


# ---------------------------------------------------------------------------- numbers


def _conversion(name: str, source: str, target: str) -> Callable[[Any], Any]:
    def convert(x: Any) -> Any:
        return wrap(cast(cast(lift(x), dtype(source)), dtype(target), here()))

    convert.__name__, convert.__doc__ = name, f"Convert {source} to {target}."
    return convert


def _reinterpretation(name: str, source: str, target: str) -> Callable[[Any], Any]:
    def convert(x: Any) -> Any:
        value = cast(lift(x, dtype(source)), dtype(source), here())
        return wrap(Bitcast(value, ScalarType(dtype(target)), location=here()))

    convert.__name__, convert.__doc__ = name, f"Take the bits of {source} as {target}."
    return convert


def fdividef(x: Any, y: Any) -> Any:
    """Divide two float32 numbers."""
    numerator, divisor = (cast(lift(each, FLOAT32), FLOAT32, here()) for each in (x, y))
    return wrap(binary("div", numerator, divisor, here()))


def ffs_u32(x: Any) -> Any:
    """Give the position of the lowest set bit, from 1, or 0 if none is set; int32."""
    value = _u32(x)
    below = binary("xor", value, binary("sub", value, 1, here()), here())
    count = Intrinsic("popcount", (below,), ScalarType(INT32), location=here())
    return wrap(select(binary("eq", value, 0, here()), int32(0), count, here()))


def cvta_generic_to_shared(ptr: Any) -> Any:
    """Give the address of a place in shared memory, uint32."""
    return wrap(Bitcast(_shared(ptr), ScalarType(UINT32), location=here()))


# ---------------------------------------------------------------------------- debugging


def printf(format: str, *values: Any) -> None:
    """Print as C does, once per thread; the format is known when the kernel is compiled."""
    if not isinstance(format, str):
        raise FrontendError(
            "the format is text that is known when the kernel is compiled",
            code="not-constant",
            location=argument_place(0),
        )
    current().emit(Print(format, tuple(lift(each) for each in values), location=here()))


def trap_when_assert_failed(condition: Any) -> None:
    """Trap if a condition does not hold."""
    current().emit(Assert(_truth(condition), "assertion failed", location=here()))


MEMBERS: dict[str, Any] = {
    **{name: _axis_id(name, register) for name, register in _AXIS_IDS.items()},
    **{name: _id(name, register) for name, register in _IDS.items()},
    "LaunchConfig": LaunchConfig,
    "KernelAttributes": KernelAttributes,
    "tile": TILE,
    **{
        each.__name__: each
        for each in (
            *(cta_sync, warp_sync, warpgroup_sync, syncthreads_and, syncthreads_or),
            *(elect_sync, thread_fence, mbarrier_wait, mbarrier_wait_acquire_cluster),
            *(nano_sleep, any_sync, all_sync, ballot_sync, warp_reduce, cta_reduce),
            *(reduce_add_sync_u32, reduce_min_sync_u32, atomic_add, atomic_cas),
            *(fdividef, ffs_u32, cvta_generic_to_shared, printf, trap_when_assert_failed),
            *(_fixed_warp(op) for op in ("sum", "max", "min")),
            *(_fixed_cta(op) for op in ("sum", "max", "min")),
            _conversion("half2float", "float16", "float32"),
            _conversion("bfloat162float", "bfloat16", "float32"),
            _reinterpretation("float_as_uint", "float32", "uint32"),
            _reinterpretation("uint_as_float", "uint32", "float32"),
        )
    },
    "__shfl_sync": shfl_sync,
    "__shfl_up_sync": shfl_up_sync,
    "__shfl_down_sync": shfl_down_sync,
    "__shfl_xor_sync": shfl_xor_sync,
    "__activemask": active_mask,
}
CUDA = Namespace("T.cuda", MEMBERS)
