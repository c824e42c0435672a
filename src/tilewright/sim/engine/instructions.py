"""Instructions of a kernel: who takes part, what they wait for, where results go, and when.

May import `base`, `isa`, `ir` and the modules of `sim.engine` below it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import BOOL, UINT32
from tilewright.ir.expressions import Expr, Load, Var, as_constant
from tilewright.ir.operands import declared_operands
from tilewright.ir.statements import Instruct, Stmt
from tilewright.isa import barriers, warp_ops
from tilewright.isa.declaration import Operand, Wait
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim.engine import context
from tilewright.sim.engine.calls import Row, outlined
from tilewright.sim.engine.context import PATH
from tilewright.sim.engine.expressions import Expressions, constant_index, register
from tilewright.sim.engine.flight import awaited_group, is_late
from tilewright.sim.engine.frame import value_dtype
from tilewright.sim.engine.plan import used_names

# Collectives to which lanes may come in groups, each group by a member mask of its own.
_BY_GROUPS = (*warp_ops.SHUFFLES, barriers.bar_warp_sync)


class Instructions(Expressions):
    """Emits instructions."""

    def _instruct(self, stmt: Instruct) -> None:
        form = stmt.form
        self.at(stmt, form.text)
        declared = declared_operands(form, len(stmt.operands))
        assert declared is not None
        pairs = list(zip(declared, stmt.operands, strict=True))
        inputs = [(each, place) for each, place in pairs if each.role != "out"]
        places = [place for each, place in pairs if each.role != "in"]
        live = self.plan.live[id(stmt)] | used_names(place for _, place in inputs)
        live = frozenset(name for name in live if name in self.variables)
        if form.declaration.lanes in ("warp", "warpgroup"):
            self._gather(stmt, inputs, live)
        wait = form.declaration.wait
        operands: Sequence[Row | Lanes]
        if wait is not None:
            operands = self._wait(stmt, wait, inputs, live)
        elif outlined(form) and not is_late(form):
            operands = [self._argument(each, expr) for each, expr in inputs]
        else:
            operands = [self.operand(each, expr) for each, expr in inputs]
        self.module.observer.comes_to(stmt, unread=self._is_unread(stmt, places))
        self.module.observer.issues(self.m, form, operands)
        group = awaited_group(form)
        if group is not None:
            self.flight.wait(self.m, group)
        if not is_late(form):
            self._issue(stmt, operands, places)
            return
        self._hold(places)
        values = [each for each in operands if isinstance(each, Lanes)]
        now, later, after = (self.f.new_label(s) for s in ("now", "later", "after"))
        eager = self.m.field("schedule") == context.SCHEDULES["eager"]
        self.f.branch_if(str(eager.value), now, later)
        self.f.label(now)
        self._issue(stmt, values, places)
        self.f.branch(after)
        self.f.label(later)
        rows = [self._place_row(each) for each in places]
        self.flight.record(self.m, form, values, rows, self._rows(places))
        self.f.branch(after)
        self.f.label(after)

    def _hold(self, places: Sequence[Expr]) -> None:
        """Tell an observer which registers an instruction writes late: runs of the frame."""
        runs: list[tuple[Lanes, int]] = []
        for place in places if self.written is not None else ():
            first, size = self._span(*register(place))
            before = constant_index(runs[-1][0]) if runs else None
            if before is not None and constant_index(first) == before + runs[-1][1]:
                runs[-1] = (runs[-1][0], runs[-1][1] + size)
            else:
                runs.append((first, size))
        for first, size in runs:
            self.module.observer.holds(self.m, first, size)

    def _is_unread(self, stmt: Instruct, places: list[Expr]) -> bool:
        """Tell whether an instruction has results, and nothing looks at any."""
        live = self.plan.live[id(stmt)]
        unread = all(isinstance(each, Var) and each.name not in live for each in places)
        return bool(places) and unread

    def _issue(self, stmt: Instruct, operands: Sequence[Row | Lanes], places: list[Expr]) -> None:
        self.at(stmt, stmt.form.text)
        results = self.calls.issue(self.m, stmt.form, operands, self._rows(places))
        if results is not None:
            for place, result in zip(places, results, strict=True):
                self._set_place(place, result, stmt)

    # ---- operands and results

    def _argument(self, declared: Operand, expr: Expr) -> Row | Lanes:
        """Give an operand of a function: where it is, if that is a row of a local array."""
        if isinstance(expr, Load) and declared.kind == "register":
            assert isinstance(expr.tensor, Var)
            array = self.arrays[expr.tensor.name]
            alike = array.dtype.bits == declared.dtype.bits and not array.dtype.is_bool
            if alike and self.plan.uniformity.is_uniform(expr.indices[0]):
                self._look(expr, expr.location)
                return Row(self._element(array, self.expr(expr.indices[0])), declared.dtype)
        return self.operand(declared, expr)

    def _rows(self, places: list[Expr]) -> Row | None:
        """Give the first of places that are rows of a local array, one after another."""
        loads = [each for each in places if isinstance(each, Load)]
        if not loads or len(loads) < len(places) or any(x.tensor != loads[0].tensor for x in loads):
            return None
        tensor, numbers = loads[0].tensor, [as_constant(each.indices[0]) for each in loads]
        assert isinstance(tensor, Var)
        array, first = self.arrays[tensor.name], numbers[0]
        if first is None or numbers != list(range(int(first), int(first) + len(loads))):
            return None
        return Row(self._element(array, self.m.constant(first, UINT32)), array.dtype)

    def _place_row(self, place: Expr) -> str:
        """Address the row of the warp's frame that a late result goes to."""
        if isinstance(place, Var):
            return self.variables[place.name].slot
        assert isinstance(place, Load) and isinstance(place.tensor, Var)
        return self._element(self.arrays[place.tensor.name], self.expr(place.indices[0]))

    def operand(self, declared: Operand, expr: Expr) -> Lanes:
        """Evaluate an operand in the type that the instruction's meaning takes."""
        value = self.expr(expr)
        if declared.kind == "address":
            return self.m.cast(value, declared.dtype)
        if declared.kind == "predicate":
            return self.m.cast(value, BOOL)
        if value.dtype.bits == declared.dtype.bits and not value.dtype.is_bool:
            return self.m.bitcast(value, declared.dtype)
        return self.m.cast(value, declared.dtype)

    def _set_place(self, place: Expr, result: Lanes, stmt: Stmt) -> None:
        dtype = value_dtype(place)
        if result.dtype.is_bool or dtype.is_bool or result.dtype.bits != dtype.bits:
            value = self.m.cast(result, dtype)
        else:
            value = self.m.bitcast(result, dtype)
        if isinstance(place, Var):
            self.assign(place.name, value)
        else:
            assert isinstance(place, Load)
            self._store(place.tensor, place.indices[0], value, stmt)

    # ---- collectives

    def _gather(
        self, stmt: Instruct, inputs: list[tuple[Operand, Expr]], live: frozenset[str]
    ) -> None:
        """See that the lanes which a collective names are here; wait for those that are not."""
        named = [expr for each, expr in inputs if each.name == "membermask"]
        ready, missing, retry = (self.f.new_label(s) for s in ("ready", "missing", "retry"))
        self.f.branch(retry)
        self.f.label(retry)
        self.refresh()
        all_lanes = self._warp_word(context.LANES_START)
        need = all_lanes
        groups: Lanes | None = None
        if named:
            members = self.m.cast(self.expr(named[0]), UINT32)
            if stmt.form.declaration in _BY_GROUPS and members.width:
                groups = members
                need = self._any_of(members) & all_lanes
                inside = ((members >> self.m.lane_id()) & 1) != 0
            else:
                need = self.m.first(members) & all_lanes
                inside = (self.active() & ~need) == 0
            self.m.require(
                inside,
                "divergent-collective",
                "a lane that the member mask does not name executes this",
            )
        exited = self._warp_word(context.EXITED_START)
        excused = bool(named) or stmt.form.declaration.excuses_exited
        lacking = need & ~self.active() & (~exited if excused else need)
        self.f.branch_if(str((lacking == 0).value), ready, missing)
        self.f.label(missing)
        if not excused:
            self.m.require(
                (need & exited) == 0,
                "divergent-collective",
                "this needs all lanes of the warp, and some have exited",
            )
        self.m.set_word("%path", PATH["wait"], context.WAITS.index("warp"))
        self.m.set_word("%path", PATH["detail"], 0)
        again = self.f.new_label("again") if self.module.observer.watches_lanes else retry
        self._suspend(live, again, "arrive", state=context.GATHERING, need=need)
        if again != retry:
            mask, known = self.m.mask, self._known
            self._go_without(again)
            self.f.branch(retry)
            self.m.mask, self._known = mask, known
        self.f.label(ready)
        if groups is not None:
            self._see_that_groups_agree(groups)

    def _any_of(self, sets: Lanes) -> Lanes:
        """Unite what the active lanes have."""
        assert self.m.mask is not None
        united = self.m.select(self.m.mask, sets, self.m.constant(0, UINT32))
        for distance in (16, 8, 4, 2, 1):
            united = united | self.m.shuffle(united, self.m.lane_id() ^ distance)
        return self.m.pick(united, self.m.constant(0, UINT32))

    def _see_that_groups_agree(self, members: Lanes) -> None:
        """See that lanes that come in groups all name those of their own group, and no others."""
        active, lane = self.active(), self.m.lane_id()
        differs = self.m.constant(0, UINT32)
        for distance in range(1, WARP):
            other = lane ^ distance
            meets = ((members & active) >> other) & 1
            apart = self.m.shuffle(members, other) != members
            differs = differs | self.m.select(apart, meets, self.m.constant(0, UINT32))
        self.m.require(
            differs == 0,
            "divergent-collective",
            "lanes that a member mask names have another one",
        )

    def _go_without(self, label: str) -> None:
        """Tell an observer of lanes that a collective has waited for in vain, if there are any."""
        self.f.label(label)
        self.refresh()
        passed = self._low_word(PATH["need"]) & self._low_word(PATH["detail"])
        passed = passed & self._warp_word(context.EXITED_START)
        with self.f.when(str((passed != 0).value)):
            self.module.observer.goes_without(self.m, passed)

    # ---- waits

    def _wait(
        self,
        stmt: Instruct,
        wait: Wait,
        inputs: list[tuple[Operand, Expr]],
        live: frozenset[str],
    ) -> list[Lanes]:
        """Emit a wait: arrive once, poll, and suspend as long as the poll fails."""
        form = stmt.form
        kept: list[str] = []
        if wait.arrive is not None:
            operands = [self.operand(each, expr) for each, expr in inputs]
            self.module.observer.comes_to(stmt)
            self.module.observer.arrives(self.m, form, operands)
            for index, value in enumerate(wait.arrive(self.m, form, *operands)):
                name = f"wait.{self.m.site}.{index}"
                self.define(name, value, value.width)
                kept.append(name)
        poll, blocked, ready = (self.f.new_label(s) for s in ("poll", "blocked", "ready"))
        self.f.branch(poll)
        self.f.label(poll)
        self.refresh()
        operands = [self.operand(each, expr) for each, expr in inputs]
        state = [self.get(name) for name in kept]
        holds = wait.poll(self.m, form, *operands, *state)
        passes = holds
        if wait.gives_up:
            passes = holds | (self.m.field("give_up") != 0)
        self.f.branch_if(str(passes.value), ready, blocked)
        self.f.label(blocked)
        kind, key = wait.awaits(self.m, form, *operands, *state)
        detail = operands[-1] if operands else self.m.constant(0, UINT32)
        if wait.detail is not None:
            detail = wait.detail(self.m, form, *operands, *state)
        self.module.observer.blocks(self.m, kind, key, detail)
        self.m.set_word("%path", PATH["wait"], context.WAITS.index(kind))
        self.m.set_word("%path", PATH["key"], self.m.first(key))
        self.m.set_word("%path", PATH["detail"], self.m.to_word(self.m.first(detail)))
        self._suspend(live | frozenset(kept), poll, "block", state=context.BLOCKED)
        self.f.label(ready)
        self.module.observer.passes(self.m, holds)
        if wait.gives_up:
            self.m.set_field("give_up", 0)
        with self.f.when(str(holds.value)):
            self.m.bump("progress")
        return operands + state
