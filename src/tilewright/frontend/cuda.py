"""`T.cuda`: ids, synchronisation, collectives, atomics and the launch of CUDA kernels.

May import `base`, `ir`, `isa.named` and the modules of this folder below it. What issues
instructions takes their forms from `isa.named`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.base.dtypes import BOOL, FLOAT32, INT32, UINT32, UINT64, dtype
from tilewright.base.errors import FrontendError
from tilewright.base.formats import directives
from tilewright.frontend import clusters, collectives, pairs, unsupported
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.collectives import FULL_MASK
from tilewright.frontend.entry import KernelAttributes, LaunchConfig
from tilewright.frontend.issuing import (
    condition,
    instruction,
    issue,
    result,
    shared_address,
    uint32,
)
from tilewright.frontend.namespaces import Namespace
from tilewright.frontend.storage import decl_tensor
from tilewright.frontend.tensor_descriptors import TCGEN05, runtime_instr_desc
from tilewright.frontend.tensor_maps import tensormap_encode_tiled
from tilewright.frontend.tiles import TILE
from tilewright.frontend.values import lift, wrap
from tilewright.frontend.words import wait_until
from tilewright.ir.expressions import (
    Bitcast,
    Expr,
    Intrinsic,
    SpecialRegister,
    binary,
    cast,
    constant,
    int32,
    select,
    unary,
)
from tilewright.ir.statements import Assert, Print, While
from tilewright.ir.types import PointerType, ScalarType
from tilewright.isa import named
from tilewright.isa.declaration import Form

_AXES = ("x", "y", "z")

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

# ---------------------------------------------------------------------------- synchronisation


def warp_sync(mask: Any = FULL_MASK) -> None:
    """Wait for the lanes of a mask."""
    issue(named.WARP_SYNC, uint32(mask))


def warpgroup_sync(barrier: Any) -> None:
    """Wait for the 128 threads of a warpgroup, at a named barrier."""
    issue(named.BARRIER_SYNC, uint32(barrier), constant(128, UINT32))


def syncthreads_and(predicate: Any) -> Any:
    """Wait for all threads of the CTA, and tell whether a predicate holds in every one."""
    zero = constant(0, UINT32)
    return result("every", BOOL, named.CTA_SYNC_AND, zero, condition(predicate))


def syncthreads_or(predicate: Any) -> Any:
    """Wait for all threads of the CTA, and tell whether a predicate holds in any one."""
    zero = constant(0, UINT32)
    return result("any", BOOL, named.CTA_SYNC_OR, zero, condition(predicate))


def elect_sync(mask: Any = FULL_MASK) -> Any:
    """Choose one lane of the warp: true in that one."""
    return result("elected", BOOL, named.ELECT, uint32(mask))


def thread_fence() -> None:
    """Order this thread's memory accesses for all threads of the GPU."""
    issue(named.THREAD_FENCE)


def _wait(form: Form, bar: Any, phase: Any) -> None:
    builder = current()
    builder.hint = None
    done = builder.declare("done", BOOL, constant(False, BOOL))
    barrier, parity = shared_address(bar), uint32(phase)
    attempt = instruction(form, done, barrier, parity)
    builder.emit(While(unary("not", done), (attempt,), location=here()))


def mbarrier_wait(bar: Any, phase: Any) -> None:
    """Wait until the phase of that parity of an mbarrier has completed."""
    _wait(named.MBARRIER_TRY_WAIT_PARITY, bar, phase)


def mbarrier_wait_acquire_cluster(bar: Any, phase: Any) -> None:
    """Wait for an mbarrier's phase, acquiring what the cluster's CTAs have released."""
    _wait(named.MBARRIER_TRY_WAIT_PARITY_CLUSTER, bar, phase)


def nano_sleep(duration: Any) -> None:
    """Suspend the thread for about a number of nanoseconds."""
    issue(named.NANOSLEEP, uint32(duration))


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
    value = uint32(x)
    below = binary("xor", value, binary("sub", value, 1, here()), here())
    count = Intrinsic("popcount", (below,), ScalarType(INT32), location=here())
    return wrap(select(binary("eq", value, 0, here()), int32(0), count, here()))


def cvta_generic_to_shared(ptr: Any) -> Any:
    """Give the address of a place in shared memory, uint32."""
    return wrap(Bitcast(shared_address(ptr), ScalarType(UINT32), location=here()))


def decl_tmem(addr: Any, *, ty_args: Any) -> Any:
    """View Tensor Memory at an address, uint32, as a tensor; see `decl_tensor`."""
    return decl_tensor(addr, ty_args=ty_args)


def get_tmem_addr(addr: Any, row: Any, col: Any) -> Any:
    """Move an address in Tensor Memory by lanes and columns, uint32."""
    lanes = binary("shl", uint32(row), 16, here())
    return wrap(binary("add", binary("add", uint32(addr), lanes, here()), uint32(col), here()))


# ---------------------------------------------------------------------------- debugging


def printf(format: Any, *values: Any) -> None:
    """Print as C does, once per thread; the format is known when the kernel is compiled.

    Raises `FrontendError` (`operand-count`, `operand-type`) for values that are not those of
    the format, which C would print as something else.
    """
    if not isinstance(format, str):
        raise FrontendError(
            "the format is text that is known when the kernel is compiled",
            code="not-constant",
            location=argument_place(0),
        )
    operands = tuple(lift(each) for each in values)
    _check_format(format, operands)
    current().emit(Print(format, operands, location=here()))


def _check_format(format: str, operands: tuple[Expr, ...]) -> None:
    """Hold a format against what is printed, as C passes it: in 32 or 64 bits, or as double."""
    asked = directives(format)
    if asked is None or any(each.kind == "text" for each in asked):
        raise FrontendError(
            "the format has a directive that cannot be printed",
            code="bad-call",
            location=argument_place(0),
            expected="%d, %u, %x, %c, with ll for 64 bits, %f, %e, %g, %p, or %% for itself",
            found=repr(format),
        )
    if len(asked) != len(operands):
        raise FrontendError(
            "the format asks for another number of values",
            code="operand-count",
            location=here(),
            expected=f"{len(asked)}: {', '.join(each.text for each in asked) or 'none'}",
            found=f"{len(operands)} values",
        )
    for position, (directive, operand) in enumerate(zip(asked, operands, strict=True), 1):
        kind, bits = _passed_as(operand)
        if (directive.kind, directive.bits) != (kind, bits):
            raise FrontendError(
                f"the directive {directive.text} prints another type of value",
                code="operand-type",
                location=argument_place(position),
                expected=_PASSED[directive.kind].format(directive.bits),
                found=str(operand.type),
            )


_PASSED = {
    "int": "an integer of {} bits, or one below 32",
    "float": "a float",
    "pointer": "a pointer",
}


def _passed_as(operand: Expr) -> tuple[str, int]:
    match operand.type:
        case PointerType():
            return "pointer", 64
        case ScalarType(dtype=dtype) if dtype.is_float and dtype.lanes == 1:
            return "float", 64
        case ScalarType(dtype=dtype) if dtype.lanes == 1:
            return "int", max(dtype.bits, 32)
        case _:
            return "nothing", 0


def trap_when_assert_failed(predicate: Any, message: str | None = None) -> None:
    """Trap if a predicate does not hold, with a message, by default the predicate itself."""
    test = condition(predicate)
    text = str(test) if message is None else message
    current().emit(Assert(test, text, location=here()))


def clock64() -> Any:
    """Read the clock, uint64."""
    builder = current()
    register = SpecialRegister("clock64", ScalarType(UINT64), location=here())
    return wrap(builder.bind(builder.named(None, "clock"), register))


_VECTORS = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid")
_CLUSTER_VECTORS = ("cluster_ctaid", "cluster_nctaid")
_REGISTERS = {
    **{f"{name}.{axis}": 32 for name in (*_VECTORS, *_CLUSTER_VECTORS) for axis in _AXES},
    **dict.fromkeys(("laneid", "warpid", "clock"), 32),
    "clock64": 64,
}


def mov_sreg(bits: int, reg: str) -> Any:
    """Read a special register by its PTX name, as an int32 or an int64.

    Raises `FrontendError` (`bad-call`) for registers that the simulator does not have, and for
    another width than the register's.
    """
    width = _REGISTERS.get(reg)
    if width != bits:
        raise FrontendError(
            f"there is no special register {reg!r}" if width is None else f"{reg} is read whole",
            code="bad-call",
            location=argument_place(1 if width is None else 0),
            expected=", ".join(_REGISTERS) if width is None else f"{width} bits",
            found=repr(reg) if width is None else f"{bits} bits",
        )
    builder, unsigned = current(), ScalarType(UINT64 if bits == 64 else UINT32)
    value = cast(SpecialRegister(reg, unsigned, location=here()), dtype(f"int{bits}"), here())
    name = builder.named(None, reg.replace(".", "_"))
    return wrap(builder.bind(name, value) if builder.reads_state(value) else value)


MEMBERS: dict[str, Any] = {
    **{name: _axis_id(name, register) for name, register in _AXIS_IDS.items()},
    **{name: _id(name, register) for name, register in _IDS.items()},
    **collectives.FUNCTIONS,
    **clusters.FUNCTIONS,
    **pairs.FUNCTIONS,
    **unsupported.CUDA,
    "LaunchConfig": LaunchConfig,
    "KernelAttributes": KernelAttributes,
    "tile": TILE,
    "tcgen05": TCGEN05,
    **{
        each.__name__: each
        for each in (
            *(warp_sync, warpgroup_sync, syncthreads_and, syncthreads_or),
            *(elect_sync, thread_fence, mbarrier_wait, mbarrier_wait_acquire_cluster),
            *(nano_sleep, fdividef, ffs_u32, cvta_generic_to_shared),
            *(decl_tmem, get_tmem_addr, tensormap_encode_tiled, runtime_instr_desc),
            *(printf, trap_when_assert_failed, clock64, mov_sreg, wait_until),
            _conversion("half2float", "float16", "float32"),
            _conversion("bfloat162float", "bfloat16", "float32"),
            _reinterpretation("float_as_uint", "float32", "uint32"),
            _reinterpretation("uint_as_float", "uint32", "float32"),
        )
    },
}
CUDA = Namespace("T.cuda", MEMBERS)
