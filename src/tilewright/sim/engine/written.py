"""Which lanes have not written what is needed of them, as it is kept while a kernel runs.

May import `isa`, `ir` and the modules of `sim.engine` below it. An observer that watches registers
is told. What has to be kept is known from the program (`unset`); it lies in the warp's frame, as
sets of lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.base.dtypes import UINT32, UINT64
from tilewright.ir.expressions import Expr, Var
from tilewright.ir.print_expressions import print_expr
from tilewright.ir.statements import Allocate, Assign, Bind, Declare, For, Instruct, Stmt, While
from tilewright.ir.visit import walk_statements, written
from tilewright.isa import warp_ops
from tilewright.isa.machine import Lanes
from tilewright.sim.engine.unset import (
    Shuffled,
    comes_of,
    from_lanes,
    needed,
    needed_elements,
    partly_set,
    partly_stored,
    read,
    read_first,
    register_name,
    shuffled,
    stored,
)

if TYPE_CHECKING:
    from tilewright.sim.engine.expressions import Expressions


class Written:
    """Follows variables and elements of local arrays, statement by statement.

    `unset` names what nothing before a statement can have written.
    """

    def __init__(self, code: Expressions) -> None:
        self.code = code
        self.m = code.m
        self.unset: set[str] = set()
        kernel, uniformity = code.plan.kernel, code.plan.uniformity
        # Where the frame has the lanes that have not set a variable of which some path has not,
        self._partly = {name: code.reserve(4) for name in sorted(partly_set(kernel))}
        # those in which what comes of shuffles comes of a lane that is not there,
        self._strange = {name: code.reserve(4) for name in sorted(from_lanes(kernel))}
        # all lanes, until one has written it, of what a loop may read before anything is written,
        self._first = read_first(kernel)
        self._untouched = {name: code.reserve(4) for name in sorted({n for _, n in self._first})}
        # and those that have not set elements of an array, one element after another.
        lengths = sorted(partly_stored(kernel, uniformity).items())
        self._elements = {name: code.reserve(4 * length) for name, length in lengths}

    def before(self, stmt: Stmt) -> None:
        """Tell the observer of lanes that need what they have not written."""
        if self._partly or self._strange:
            self._need(stmt)
        if self._elements:
            self._need_elements(stmt)
        if self._untouched:
            self._need_touched(stmt)

    def after(self, stmt: Stmt) -> None:
        """Note what a statement has written, or makes anew."""
        match stmt:
            case Declare(value=None) | Allocate():
                self.unset.add(stmt.var.name)
                self._note(stmt.var.name, unset=True)
                self._touch(stmt.var.name, unset=True)
            case _:
                for each in written(stmt):
                    self.unset.discard(each.name)
                    self._note(each.name, unset=False)
                    self._touch(each.name, unset=False)
        if self._strange:
            self._note_strange(stmt)
        if self._elements:
            self._note_elements(stmt)

    def enter(self, loop: For | While) -> None:
        """Note that a loop begins: a turn may have written what stands in it."""
        inside = (each.name for one in walk_statements(loop.body) for each in written(one))
        self.unset.difference_update(inside)

    # ---- sets of lanes

    def _at(self, offset: Lanes | int) -> str:
        at = offset if isinstance(offset, int) else offset.value
        return self.code.f.value(f"getelementptr i8, ptr %frame, i64 {at}")

    def _miss(self, stmt: Stmt, place: Expr, cells: Sequence[Lanes | int], *, read: bool) -> None:
        """Tell of lanes that the first set has, once: no set has them afterwards."""
        code, slots = self.code, [self._at(each) for each in cells]
        lacking = code.cell(slots[0]) & code.active()
        with code.f.when(str((lacking != 0).value)):
            with code.blaming(stmt.location, print_expr(place)):
                code.module.observer.reads_unset(self.m, lacking, shuffled=read)
            for each in slots:
                code.set_cell(each, code.cell(each) & ~lacking)

    # ---- what nothing has written

    def _need_touched(self, stmt: Stmt) -> None:
        for place in read(stmt):
            name = register_name(place)
            if (id(stmt), name) in self._first and name not in self.unset:
                self._miss(stmt, place, [self._untouched[name]], read=False)

    def _touch(self, name: str, *, unset: bool) -> None:
        """Note that the active lanes have something anew, or that one has written it."""
        if name in self._untouched:
            cell, lanes = self._at(self._untouched[name]), self.code.active()
            before = self.code.cell(cell)
            none = self.m.constant(0, UINT32)
            self.code.set_cell(
                cell, before | lanes if unset else self.m.select(lanes == 0, before, none)
            )

    # ---- variables

    def _need(self, stmt: Stmt) -> None:
        for var in needed(stmt):
            if var.name in self._partly and var.name not in self.unset:
                self._miss(stmt, var, [self._partly[var.name]], read=False)
            if var.name in self._strange:
                cells = [each for name, each in self._strange.items() if name != var.name]
                self._miss(stmt, var, [self._strange[var.name], *cells], read=True)

    def _note(self, name: str, *, unset: bool) -> None:
        """Note that the active lanes have a variable anew, or have written it."""
        if name in self._partly:
            cell, lanes = self._at(self._partly[name]), self.code.active()
            before = self.code.cell(cell)
            self.code.set_cell(cell, before | lanes if unset else before & ~lanes)

    # ---- what comes of shuffles

    def _note_strange(self, stmt: Stmt) -> None:
        """Note in which lanes what a statement has written comes of a lane that is not there."""
        names = [each.name for each in written(stmt) if each.name in self._strange]
        if not names:
            return
        lanes, shuffle = self.m.constant(0, UINT32), shuffled(stmt)
        if shuffle is not None:
            lanes = self._strange_sources(shuffle, stmt)
        elif isinstance(stmt, Bind | Assign | Declare) and stmt.value is not None:
            lanes = self._strangers(stmt.value)
        active = self.code.active()
        for name in names:
            cell = self._at(self._strange[name])
            self.code.set_cell(cell, (self.code.cell(cell) & ~active) | (lanes & active))

    def _strangers(self, expr: Expr) -> Lanes:
        """Give the lanes in which a value comes of a lane that is not there."""
        lanes = self.m.constant(0, UINT32)
        for name in sorted(comes_of(expr) & self._strange.keys()):
            lanes = lanes | self.code.cell(self._at(self._strange[name]))
        return lanes

    def _strange_sources(self, shuffle: Shuffled, stmt: Stmt) -> Lanes:
        """Give the lanes that have read a lane which they do not name, or which has no value."""
        assert isinstance(stmt, Instruct)
        operands = shuffle.offset, shuffle.clamp, shuffle.mask
        if any(shuffle.result.name in comes_of(each) for each in operands):
            return self.m.constant(0, UINT32)  # what it was is not known any more
        *which, members = (self.m.cast(self.code.expr(each), UINT32) for each in operands)
        source, _ = warp_ops.source_lane(self.m, stmt.form["mode"], *which)
        here = self.code.active()
        # A mask of all that leaves one of them out is a fault of its own.
        lacking = ~(here & members if members.width else here) | self._strangers(shuffle.value)
        return self.m.bits(((lacking >> source) & 1) != 0)

    # ---- elements

    def _need_elements(self, stmt: Stmt) -> None:
        for each in needed_elements(stmt):
            assert isinstance(each.tensor, Var)
            name, index = each.tensor.name, each.indices[0]
            known = name in self._elements and name not in self.unset
            if known and self.code.plan.uniformity.is_uniform(index):
                self._miss(stmt, each, [self._element(name, index)], read=False)

    def _note_elements(self, stmt: Stmt) -> None:
        """Note that the active lanes have an array anew, or have written elements of it."""
        active = self.code.active()
        if isinstance(stmt, Allocate) and stmt.var.name in self._elements:
            for cell in self._all(stmt.var.name):
                self.code.set_cell(cell, self.code.cell(cell) | active)
        for tensor, index in stored(stmt):
            if tensor.name in self._elements:
                # Which one a lane has written by an index of its own is not kept.
                one = self.code.plan.uniformity.is_uniform(index)
                whole = () if one else self._all(tensor.name)
                for cell in whole or (self._at(self._element(tensor.name, index)),):
                    self.code.set_cell(cell, self.code.cell(cell) & ~active)

    def _all(self, name: str) -> list[str]:
        first, length = self._elements[name], self.code.arrays[name].length
        return [self._at(first + 4 * index) for index in range(length)]

    def _element(self, name: str, index: Expr) -> Lanes:
        """Say where in the frame the set of an element is whose index all lanes share."""
        at = self.m.cast(self.code.expr(index), UINT64)
        length, none = self.code.arrays[name].length, self.m.constant(0, UINT64)
        return self.m.select(at < length, at, none) * 4 + self._elements[name]
