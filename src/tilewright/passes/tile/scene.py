"""What is known of a kernel while its tile statements are lowered.

May import `base`, `layout`, `isa`, `ir`, NumPy and `passes.analysis`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.base.dtypes import UINT32
from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.base.targets import Target
from tilewright.ir.expressions import (
    Expr,
    SpecialRegister,
    Var,
    as_constant,
    binary,
    constant,
    int32,
    select,
)
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Allocate, Bind, Block, If, Instruct, Kernel, Stmt
from tilewright.ir.types import Type
from tilewright.ir.visit import block_fields, root, variables, walk, walk_kinds
from tilewright.isa import named
from tilewright.layout import default_layout
from tilewright.layout.fragment import Fragment
from tilewright.passes.analysis.evaluation import Bools, Environment, possible
from tilewright.passes.analysis.ranges import Ranges

# The thread's number in its CTA, which fragments are divided by.
THREAD = SpecialRegister("linear_tid")


# The barriers with the highest numbers are the compiler's.
_LAST_BARRIER, _BARRIERS = 15, 8


class Names:
    """Hands out names that a kernel does not have yet."""

    def __init__(self, kernel: Kernel) -> None:
        self.taken = {each.name for each in walk(kernel) if isinstance(each, Var)}
        self.taken |= {each.name for each in variables(kernel)} | {"T", "range", kernel.name}

    def variable(self, name: str, type: Type) -> Var:
        """Make a variable of a name that is not taken: the one wished for, or it with a number."""
        chosen, number = name, 0
        while chosen in self.taken:
            number += 1
            chosen = f"{name}_{number}"
        self.taken.add(chosen)
        return Var(chosen, type)


@dataclass(frozen=True)
class TileScene:
    """A kernel's target, its threads, and where the elements of its fragments are.

    `fragments` has the layout of each fragment, `registers` the local array that holds a
    thread's part of it, `homes` the first thread of those that a fragment is divided among, all
    by the buffer's name; `layouts` has those of shared buffers that are not plain. What is
    lowered is executed by `threads` threads of the CTA, from `first` on; `meeting` numbers such
    parts of the CTA. `bindings` are the immutable names, `ranges` what is known of numbers.
    """

    target: Target
    threads: int
    names: Names
    fragments: Mapping[str, Fragment] = field(default_factory=dict[str, Fragment])
    registers: Mapping[str, Var] = field(default_factory=dict[str, Var])
    bindings: Mapping[Var, Expr] = field(default_factory=dict[Var, Expr])
    layouts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    homes: Mapping[str, int] = field(default_factory=dict[str, int])
    block: tuple[int, int, int] = (1, 1, 1)
    first: int = 0
    meeting: Mapping[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    ranges: Ranges = field(default_factory=Ranges)

    @property
    def thread(self) -> Expr:
        """Number a thread among those that execute what is lowered."""
        return THREAD if self.first == 0 else THREAD - self.first

    @property
    def full_mask(self) -> Expr:
        """Give the lanes of a thread's warp that the CTA has."""
        threads = int(np.prod(self.block))
        full, rest = constant(0xFFFFFFFF, UINT32), threads % 32
        if rest == 0:
            return full
        last = binary("eq", SpecialRegister("warp_id"), threads // 32)
        return select(last, constant((1 << rest) - 1, UINT32), full)

    def sync(self, location: Location | None) -> Stmt:
        """Let the threads meet that execute what is lowered.

        Raises `FrontendError` (not-supported) for a part of the CTA that is not whole warps.
        """
        if self.threads == int(np.prod(self.block)):
            return Instruct(named.CTA_SYNC, (constant(0, UINT32),), location=location)
        if self.first % 32 == 0 and self.threads == 32:
            return Instruct(named.WARP_SYNC, (constant(0xFFFFFFFF, UINT32),), location=location)
        if self.first % 32 or self.threads % 32:
            raise FrontendError(
                "threads that are no whole warps exchange values here",
                code="not-supported",
                location=location,
                expected="a condition that holds in whole warps",
                found=f"{self.threads} threads from number {self.first} on",
            )
        barrier = self.meeting.get((self.first, self.threads), _BARRIERS)
        if barrier >= _BARRIERS:
            raise FrontendError(
                "too many parts of the CTA exchange values, each among its own threads",
                code="not-supported",
                location=location,
                expected=f"at most {_BARRIERS} conditions on the thread's number",
            )
        operands = (constant(_LAST_BARRIER - barrier, UINT32), constant(self.threads, UINT32))
        return Instruct(named.BARRIER_SYNC, operands, location=location)

    def holding(self, name: str, fragment: Fragment, home: int) -> TileScene:
        """Add the layout of a fragment."""
        return replace(
            self,
            fragments={**self.fragments, name: fragment},
            homes={**self.homes, name: home},
        )

    def fragment(self, tile: Expr) -> Fragment | None:
        """Give the layout of the fragment that a tile is, or is a part of."""
        buffer = root(tile)
        return self.fragments.get(buffer.name) if isinstance(buffer, Var) else None


def scene_of(kernel: Kernel, target: Target) -> TileScene:
    """Give the scene of a kernel's body, of which no layout is known."""
    scene = TileScene(
        target,
        thread_count(kernel),
        Names(kernel),
        bindings={each.var: each.value for each in walk_kinds(kernel.body, Bind)},
        block=block_of(kernel),
    )
    parts: dict[tuple[int, int], int] = {}
    _number_parts(kernel.body, scene, parts)
    return replace(scene, meeting=parts)


def _number_parts(block: Block, scene: TileScene, parts: dict[tuple[int, int], int]) -> None:
    """Number the parts of the CTA that may need a barrier, which are several warps each."""
    for stmt in block:
        if isinstance(stmt, If):
            for arm, holds in ((stmt.then, True), (stmt.orelse, False)):
                inner = narrowed(scene, stmt.condition, holds)
                if arm and inner.threads != scene.threads and inner.threads > 32:
                    parts.setdefault((inner.first, inner.threads), len(parts))
                _number_parts(arm, inner, parts)
            continue
        for name in block_fields(type(stmt)):
            _number_parts(getattr(stmt, name), scene, parts)


def block_of(kernel: Kernel) -> tuple[int, int, int]:
    """Give the threads of a CTA along each axis, which a kernel of the tile dialect states."""
    x, y, z = (int(as_constant(each) or 1) for each in kernel.launch.block)
    return x, y, z


def thread_count(kernel: Kernel) -> int:
    """Count the threads of a CTA."""
    return int(np.prod(block_of(kernel)))


def thread_registers(threads: Any, block: tuple[int, int, int]) -> dict[str, Any]:
    """Give what special registers hold in threads of a CTA, from their numbers."""
    x, y, _ = block
    return {
        "linear_tid": threads,
        "tid.x": threads % x,
        "tid.y": threads // x % y,
        "tid.z": threads // (x * y),
        "laneid": threads % 32,
        "warp_id": threads // 32,
        "warpgroup_id": threads // 128,
        "warp_in_warpgroup": threads // 32 % 4,
        "thread_in_warpgroup": threads % 128,
    }


def narrowed(scene: TileScene, condition: Expr, holds: bool) -> TileScene:
    """Find which threads execute what a condition on the thread's number guards.

    They are those from the first to the last in which it may hold; for a condition of other things
    these are all.
    """
    kept, _ = _executing(scene, condition, holds)
    if kept.all() or not kept.any():
        return scene
    executing = np.flatnonzero(kept)
    first, last = int(executing[0]), int(executing[-1])
    return replace(scene, first=scene.first + first, threads=last - first + 1)


def all_come(scene: TileScene, condition: Expr, holds: bool) -> bool:
    """Tell whether all threads that `narrowed` gives, whole warps, execute what is guarded."""
    kept, sure = _executing(scene, condition, holds)
    inner = narrowed(scene, condition, holds)
    whole = inner.first % 32 == 0 and inner.threads % 32 == 0
    return whole and bool(np.array_equal(kept, sure)) and int(kept.sum()) == inner.threads


def _executing(scene: TileScene, condition: Expr, holds: bool) -> tuple[Bools, Bools]:
    """Tell which threads may, and which certainly do, find a condition to hold, or to fail."""
    threads = np.arange(scene.first, scene.first + scene.threads, dtype=np.int64)
    registers = thread_registers(threads, scene.block)
    found = possible(condition, Environment({}, registers, scene.bindings))
    may, must = (found.true, ~found.false) if holds else (found.false, ~found.true)
    return np.broadcast_to(may, threads.shape), np.broadcast_to(must, threads.shape)


def registers_of(buffer: Var, fragment: Fragment) -> Var:
    """Name the array of a thread's part of a fragment."""
    count = fragment.registers
    plain = default_layout((count,))
    kind = replace(tensor_type(buffer), shape=(int32(count),), space=Space.LOCAL, layout=plain)
    return Var(buffer.name, kind, location=buffer.location)


def allocations(kernel: Kernel) -> dict[str, Allocate]:
    """List the buffers of a kernel by name."""
    return {each.var.name: each for each in walk(kernel.body) if isinstance(each, Allocate)}
