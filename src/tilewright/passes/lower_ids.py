"""Lower the ids of warps and warpgroups to thread indices.

May import `base` and `ir`. Threads are numbered x first (CUDA C++ Programming Guide, "Thread
Hierarchy"), and 32 of them in a row make a warp; extents of the block that are constant fold.

    # block=(128, 1, 1):  warp_id  ->  tid.x // 32
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.ir.expressions import Expr, SpecialRegister, as_constant, int32
from tilewright.ir.rewrite import rewrite
from tilewright.ir.statements import Kernel, Program

_WARP = 32
_WARPGROUP = 128

# The registers of this IR that are not PTX's, as functions of the linear thread number.
_DERIVED: dict[str, Callable[[Expr], Expr]] = {
    "linear_tid": lambda thread: thread,
    "warp_id": lambda thread: thread // _WARP,
    "warpgroup_id": lambda thread: thread // _WARPGROUP,
    "warp_in_warpgroup": lambda thread: thread // _WARP % (_WARPGROUP // _WARP),
    "thread_in_warpgroup": lambda thread: thread % _WARPGROUP,
}


def lower_ids(program: Program) -> Program:
    """Replace ids that PTX has no register for by expressions of those that it has."""
    return replace(program, kernels=tuple(map(_lower_kernel, program.kernels)))


def _lower_kernel(kernel: Kernel) -> Kernel:
    block = [as_constant(extent) for extent in kernel.launch.block]
    known = [int(each) if isinstance(each, int) else None for each in block]
    thread = _linear(known)

    def lower(register: SpecialRegister) -> Expr | None:
        if register.name in _DERIVED:
            return _DERIVED[register.name](thread)
        return _folded(register.name, known)

    return replace(kernel, body=rewrite(kernel.body, ((SpecialRegister, lower),)))


def _linear(block: list[int | None]) -> Expr:
    """Number a block's threads; an axis of extent 1 has none to number."""
    linear: Expr = int32(0)
    for axis, name in reversed(list(enumerate("xyz"))):
        if block[axis] == 1:
            continue
        extent = block[axis]
        width = SpecialRegister(f"ntid.{name}") if extent is None else int32(extent)
        linear = linear * width + SpecialRegister(f"tid.{name}")
    return linear


def _folded(name: str, block: list[int | None]) -> Expr | None:
    """Fold the extent of an axis that is constant, and the index along one of extent 1."""
    for extent, axis in zip(block, "xyz", strict=True):
        if extent is not None and name == f"ntid.{axis}":
            return int32(extent)
        if extent == 1 and name == f"tid.{axis}":
            return int32(0)
    return None
