"""A machine that only watches: what an instruction would do to memory, and what it orders.

May import `isa`, `sim.engine` and the modules of `sim.check` below it. Tracing the meaning of an
instruction through it gives code that holds its accesses against the shadow memory and moves the
clocks, and does nothing else: no data are loaded but those that addresses depend on, and no fault
is recorded. What an agent does later is watched at the issue, as its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.base.dtypes import BOOL, UINT32, UINT64, DType
from tilewright.base.spaces import Space
from tilewright.isa import mbarrier, memory
from tilewright.isa.declaration import Form, Fragment
from tilewright.isa.machine import GROUPS, WARP, Box, Lanes, SharedTile, Update
from tilewright.isa.tensor_copy import BOX_ALIGN
from tilewright.sim.check import (
    accesses,
    clocks,
    descriptors,
    exits,
    judge,
    once,
    phases,
    protocols,
    regions,
    rows,
    signals,
    state,
    strays,
    tiles,
    touches,
)
from tilewright.sim.check import cells as cell_shadow
from tilewright.sim.check.arrivals import ARRIVALS, arrives
from tilewright.sim.check.bounds import ANYWHERE
from tilewright.sim.check.rows import ask, run
from tilewright.sim.check.signals import Signalling
from tilewright.sim.engine import context, queue
from tilewright.sim.engine.module import Module
from tilewright.sim.engine.native import NativeMachine

_SIZES = (1, 2, 4, 8, 16)


def owner_of(m: NativeMachine, form: Form, barrier: Lanes, *, write: bool) -> Lanes:
    """Give the owner of what an operation of the running warp does later, uint32.

    `barrier` is the address of the mbarrier that it is seen through, if it is.
    """
    time = form.time
    warp = rows.warp(m)
    if time.agent == "tensor":
        return warp + state.TENSOR
    if time.completes == "bulk_group":
        return warp + (state.BULK_WRITES if write else state.BULK_READS)
    if time.completes == "cp_async_group" or time.agent == "copy":
        return warp + state.COPIES
    if time.completes == "tmem_load":
        return warp + state.CELL_LOADS
    if time.completes == "tmem_store":
        return warp + state.CELL_STORES
    return (clocks.slot(m, barrier) & 31) + state.BARRIER_OWNER


class WatchMachine(NativeMachine):
    """The machine at one point of the code that watches an instruction."""

    def __init__(self, module: Module, name: str, site: str, form: Form | None) -> None:
        super().__init__(module, name, site)
        self.form = form
        self._later = False  # while it is watched what an agent does
        self._owners: dict[bool, Lanes] = {}  # of an operation: who reads, and who writes,
        self._acting: Lanes | None = None  # and the lanes that issue it
        self._barrier = self.constant(0, UINT32)
        self._arrived = False
        self._counted = False
        self._group: Lanes | None = None
        self._of_mbarrier = False
        self._signalled = False
        self.signalling: Signalling | None = None  # what to keep of it, for other CTAs
        # The first address and the size of the buffer that is accessed; whether results are unread.
        self.span: tuple[Lanes, Lanes] | None = None
        self.unread = False
        self.alike = False  # whether a constant is stored

    # ---- who acts

    def _lanes(self) -> Lanes:
        """Give the lanes that act, as a set."""
        if self.mask is not None:
            return self.active()
        if self._acting is not None:
            return self._acting
        acting = self.cast(self.field("acting"), UINT32)
        one = self.constant(1, UINT32) << ((acting - 1) & 31)
        return self.select(acting == 0, self.constant(-1, UINT32), one)

    def _owner(self, *, write: bool) -> Lanes:
        if write in self._owners:
            return self._owners[write]
        if self._later and self.form is not None:
            return owner_of(self, self.form, self._barrier, write=write)
        return rows.warp(self)

    def _actor(self, *, write: bool, flags: int = 0) -> tuple[tuple[str, Lanes | str], ...]:
        owner = self._owner(write=write)
        if self._later and self.form is not None:
            through = self.form.order.proxy == "async" and not flags & judge.CELLS
            flags |= judge.ASYNC if through else 0
        if self._strong and not flags & judge.MBARRIER:
            flags |= judge.STRONG if write else judge.UPDATES * self._updates
        flags |= judge.ALIKE * self.alike
        words = (self.lanes(UINT32, self.site, 0), owner, self.constant(flags, UINT32))
        return tuple(("i32", each) for each in (self._lanes(), *words))

    @property
    def _strong(self) -> bool:
        """Tell whether accesses are atomic, or ordered: two of them never race."""
        if self.form is None:
            return False
        order = self.form.order
        ordered = bool(order.scope) and not order.fence
        return not self._later and (self._updates or ordered)

    @property
    def _updates(self) -> bool:
        """Tell whether accesses read what they write."""
        spaces = (Space.SHARED, Space.GLOBAL, Space.GENERIC)
        operands = () if self.form is None else self.form.operands
        return any(each.access == "update" and each.space in spaces for each in operands)

    def flag(self) -> None:
        """Watch an access that may order others: atomic, volatile or with an order of its own."""
        if self._signalled:
            signals.finish(self)
        if self.form is None or not self._strong or self._of_mbarrier or self.form.time.agent:
            return
        order = self.form.order
        kinds = {each.access for each in self.form.operands if each.kind == "address"}
        lanes = ("i32", self._lanes())
        if kinds & {"write", "update"}:
            run(self, clocks.set_flag, lanes, ("i1", "true" if order.releases else "false"))
        if kinds & {"read", "update"}:
            if not self.unread:
                acquires = "true" if order.acquires else "false"
                run(self, clocks.look_at_flag, lanes, ("i1", acquires))
            elif order.acquires:
                # What nobody looks at tells no more than what was read before.
                run(self, clocks.acquire_read, lanes)

    def _pattern(self) -> Lanes:
        """Say whose bytes a run of them are, as in an entry of shadow memory."""
        return touches.pattern(self, self._lanes(), self.constant(self._strong, BOOL))

    # ---- shared memory

    def access(
        self, space: Space, address: Lanes, size: int, *, write: bool, mbarrier: bool = False
    ) -> None:
        """Watch an access of the active lanes, of `size` bytes each."""
        if space in (Space.GENERIC, Space.GLOBAL):
            self._global(self.cast(address, UINT64), size, write)
        if space is Space.GENERIC:
            address = self.cast(address, UINT64) - context.SHARED_WINDOW
        elif space is not Space.SHARED:
            return
        if address.width and size in _SIZES:
            outer = self.mask
            where = self._low(address)
            if not mbarrier:
                self.mask = strays.keep_within(self, where, size, outer)
            actor = self._actor(write=write, flags=judge.MBARRIER if mbarrier else 0)
            step = self.constant(state.ATOMIC if self._strong else 0, UINT32)
            words = (("<32 x i32>", where), ("i32", step))
            run(self, accesses.VECTORS[write, size], *words, *actor)
            self.mask = outer
            return

        def one(at: Lanes) -> None:
            self._run(at, self.constant(size, UINT64), write)

        self.each_lane(one, self.cast(address, UINT64))

    def _low(self, address: Lanes) -> Lanes:
        """Give addresses of shared memory as uint32, 0 for what is none."""
        if address.dtype.bits == 32:
            return self.cast(address, UINT32)
        wide = self.cast(address, UINT64)
        none = self.lanes(UINT32, self.spread(self.constant(0, UINT32)), WARP)
        return self.select(wide < 1 << 32, self.cast(wide, UINT32), none)

    def _global(self, address: Lanes, size: int, write: bool) -> None:
        """Watch accesses to global memory, by lanes that may have addresses of their own."""
        owner = self._owner(write=write)
        lanes, how = self._lanes(), self._how(write=write)
        if address.width:
            regions.lanes_access(self, address, size, how, lanes, owner)
        else:
            length = self.constant(size, UINT64)
            regions.run_access(self, address, length, how, lanes, owner)
        self._signal(address, lanes, write)

    def _how(self, *, write: bool) -> int:
        """Say how global memory is accessed."""
        scope, read_only = 0, False
        if self.form is not None:
            scope = signals.SCOPES[self.form.order.scope] if self._strong else 0
            read_only = self.form.declaration is memory.ld_nc
        return regions.how(write=write, scope=scope, read_only=read_only, alike=self.alike)

    def _signal(self, address: Lanes, lanes: Lanes, write: bool) -> None:
        """Keep what an access may tell other CTAs, or learn from them."""
        form = self.form
        if form is None or self.signalling is None or self._later:
            return
        places = [each.access for each in form.operands if each.kind == "address"]
        # An update counts once, where it writes.
        if len(places) != 1 or (places[0] == "update" and not write):
            return
        what, unread = 0, self.unread
        if self._strong:
            what = signals.kind_of(form, places[0], self.signalling, unread=unread)
        elif form.declaration is memory.ld_nc and not unread:
            # That is a fault of its own; what it should have ordered is not.
            what = signals.READ | signals.ACQUIRES
        if what & (signals.READ | signals.WRITE):
            self._signalled = True
            signals.signal(self, address, lanes, what)

    def _run(self, address: Lanes, size: Lanes, write: bool, *, mbarrier: bool = False) -> None:
        words = [("i64", self.cast(each, UINT64)) for each in (address, size)]
        actor = self._actor(write=write, flags=judge.MBARRIER if mbarrier else 0)
        if mbarrier:
            run(self, accesses.RUNS[write], *words, ("i64", self._pattern()), *actor)
        else:
            run(self, touches.SHARED[write], *words, *actor, *self._within())

    def _within(self) -> tuple[tuple[str, Lanes | str], ...]:
        """Give the span of the buffer that is accessed, and how, as arguments."""
        strong = "true" if self._strong else "false"
        return (*(("i32", each) for each in self._span()), ("i1", strong))

    def _span(self) -> tuple[Lanes, Lanes]:
        low, room = (self.constant(each, UINT32) for each in ANYWHERE)
        return self.span or (low, room)

    def touch(
        self, space: Space, address: Lanes, size: int, count: int = WARP, *, write: bool
    ) -> None:
        """Watch an access of the active lanes below `count`; one by all if the address is."""
        if not address.width:
            match space:
                case Space.GENERIC:
                    numbers = (self.cast(address, UINT64), self.constant(size, UINT64))
                    words = [("i64", each) for each in numbers]
                    actor = (*self._actor(write=write), *self._within())
                    how = self.constant(self._how(write=write), UINT64)
                    run(self, touches.GENERIC[write], *words, *actor, ("i64", how))
                    self._signal(self.cast(address, UINT64), self._lanes(), write)
                case Space.GLOBAL:
                    self._global(self.cast(address, UINT64), size, write)
                case Space.SHARED:
                    self._run(address, self.constant(size, UINT64), write)
                case _:
                    pass
            return
        outer = self.mask
        if count < WARP and outer is not None:
            self.mask = self.unpack(self.active() & ((1 << count) - 1))
        self.access(space, address, size, write=write)
        self.mask = outer

    def load(
        self, space: Space, address: Lanes, dtype: DType, count: int = 1, *, lanes: int = WARP
    ) -> list[Lanes]:
        """Watch a load; only what one lane reads by a generic address is read."""
        self.touch(space, address, dtype.bytes * count, lanes, write=False)
        if space is Space.GENERIC and self.mask is None:
            return super().load(space, address, dtype, count, lanes=lanes)
        return [self._nothing(dtype, address.width) for _ in range(count)]

    def _nothing(self, dtype: DType, width: int) -> Lanes:
        zero = self.constant(0, dtype)
        return self.lanes(dtype, self.spread(zero), WARP) if width else zero

    def store(
        self, space: Space, address: Lanes, values: Sequence[Lanes], *, lanes: int = WARP
    ) -> None:
        """Watch a store."""
        if self.mask is not None and lanes == WARP and not (self._later or self._strong):
            once.store(self, space, address, values, self.lanes(UINT32, self.site, 0))
        self.touch(space, address, values[0].dtype.bytes * len(values), lanes, write=True)

    def load_matrix(
        self,
        space: Space,
        address: Lanes,
        dtype: DType,
        count: int,
        which: np.ndarray,
        lane: np.ndarray,
    ) -> list[Lanes]:
        """Watch the rows that are loaded."""
        self.touch(space, address, dtype.bytes * count, int(lane.max()) + 1, write=False)
        return [self._nothing(dtype, WARP) for _ in which]

    def store_matrix(
        self,
        space: Space,
        address: Lanes,
        registers: Sequence[Lanes],
        which: np.ndarray,
        lane: np.ndarray,
    ) -> None:
        """Watch the rows that are stored."""
        size = registers[0].dtype.bytes * which.shape[1]
        self.touch(space, address, size, len(which), write=True)

    def copy(
        self, to: Space, target: Lanes, source_space: Space, source: Lanes, size: Lanes
    ) -> None:
        """Watch both sides of a copy."""
        for space, address, write in ((source_space, source, False), (to, target, True)):
            if space in (Space.SHARED, Space.SHARED_CLUSTER):
                self._run(address, size, write)
                if not write:
                    self._take(address, size)
            else:
                owner = self._owner(write=write)
                how = self._how(write=write)
                regions.run_access(self, address, size, how, self._lanes(), owner)

    def _take(self, address: Lanes, size: Lanes) -> None:
        """Note what must have been read when the CTA ends."""
        if self._later and self.form is not None and self.form.time.completes == "bulk_group":
            exits.reads(self, address, size, self._lanes())

    def load_box(self, box: Box, fill: Lanes, rounds: Lanes) -> None:
        """Watch a box that is written to shared memory."""
        self._box(box, write=True)

    def store_box(self, box: Box) -> None:
        """Watch a box that is read from shared memory."""
        self._box(box, write=False)

    def _box(self, box: Box, *, write: bool) -> None:
        rows = self.constant(1, UINT64)
        for size in box.sizes[1:]:
            rows = rows * size
        row = box.sizes[0] * box.strides[0]
        numbers = (box.shared, row, box.pitch, rows, box.swizzle)
        words = [("i64", self.cast(each, UINT64)) for each in numbers]
        start, size = words[0][1], (rows - 1) * words[2][1] + words[1][1]
        who = (self._lanes(), self.lanes(UINT32, self.site, 0))
        good = strays.is_within(self, self._span(), start, size, *who, BOX_ALIGN)
        with self.function.when(str(good.value)):
            actor = self._actor(write=write)
            run(self, accesses.BOXES[write], *words, ("i64", self._pattern()), *actor)
            if write:
                descriptors.note_box(self, box, row, rows, self._lanes())
        if not write:
            self._take(box.shared, row)
        owner = self._owner(write=not write)
        regions.box_access(self, box, self._how(write=not write), self._lanes(), owner)

    # ---- products

    def product(
        self,
        a: Sequence[Lanes],
        b: Sequence[Lanes],
        c: Sequence[Lanes],
        fragments: tuple[Fragment, Fragment, Fragment],
        types: tuple[DType, DType, DType],
    ) -> list[Lanes]:
        """Watch nothing: registers are a warp's own."""
        return list(c)

    def load_cells(self, cells: Lanes) -> Lanes:
        """Watch cells that are loaded."""
        self._cells(cells, write=False)
        return self._nothing(UINT32, WARP)

    def store_cells(self, cells: Lanes, value: Lanes) -> None:
        """Watch cells that are stored."""
        self._cells(cells, write=True)

    def _cells(self, cells: Lanes, *, write: bool) -> None:
        where = self.lanes(UINT32, self.spread(self.cast(cells, UINT32)), WARP)
        self._later = True
        actor = self._actor(write=write, flags=judge.CELLS)
        self._later = False
        run(self, cell_shadow.VECTORS[write], ("<32 x i32>", where), *actor)

    def product_tiles(
        self,
        d: Lanes,
        a: SharedTile | Lanes,
        b: SharedTile,
        shape: tuple[Lanes, Lanes, int],
        types: tuple[DType, DType],
        update: Update,
    ) -> None:
        """Watch the tiles that are read, and the accumulator."""
        rows, columns, depth = shape
        actor = self._actor(write=False)
        for tile, count in ((a, rows), (b, columns)):
            if isinstance(tile, SharedTile):
                tiles.read(self, tile, types[0], count, depth, self._pattern(), actor)
                descriptors.note_tile(self, tile, types[0], count, depth, self._lanes())
            else:
                width = depth * types[0].bits // 32
                of_cells = self._actor(write=False, flags=judge.CELLS)
                cell_shadow.read_block(self, tile, count, width, of_cells)
        of_cells = self._actor(write=True, flags=judge.CELLS)
        cell_shadow.accumulate(self, d, rows, columns, update.accumulate, of_cells)

    # ---- mbarriers

    def begin(self, operands: Sequence[Lanes]) -> None:
        """Watch what an instruction of several lanes does all at once."""
        assert self.form is not None
        if self.form.time.agent not in ("", "copy") and self.form.declaration.lanes == "any":
            protocols.issue(self, operands)
        if self.form.declaration in ARRIVALS:
            counted = [each for each in self.form.operands if each.role != "out"][1:]
            many = bool(counted) and counted[0].name == "count"
            protocols.arrive(self, operands[0], operands[1] if many else None)

    def mbarrier_word(self, address: Lanes) -> Lanes:
        """Read an mbarrier, which must be known to be initialised."""
        self._of_mbarrier = True
        if self._later or (self.form and self.form.declaration is mbarrier.init):
            return self.constant(0, UINT64)
        if address.width:
            self.access(Space.SHARED, address, mbarrier.BYTES, write=False, mbarrier=True)
        else:
            size = self.constant(mbarrier.BYTES, UINT64)
            self._run(address, size, False, mbarrier=True)
        return super().load(Space.SHARED, address, UINT64)[0]

    def set_mbarrier_word(self, address: Lanes, word: Lanes) -> None:
        """Watch an mbarrier being initialised, invalidated or arrived at."""
        self._of_mbarrier = True
        if self._later:
            return
        assert self.form is not None
        if self.form.declaration in (mbarrier.init, mbarrier.inval):
            self._own_mbarrier(address)
            return
        who = (self._lanes(), self.lanes(UINT32, self.site, 0))
        words = tuple(("i32", each) for each in (self.cast(address, UINT32), *who))
        run(self, protocols.touch, *words)
        if arrives(self.form):
            run(self, protocols.note_arrival, *words)
        if self.form.declaration in ARRIVALS:
            run(self, protocols.arrive_in_turn, *words)
        if self.form.time.agent:
            run(self, clocks.expect_arrival, words[0])
        if self.form.order.releases:
            self._hand_on(address)
        elif self.form.declaration is not mbarrier.expect_tx:
            phases.loosen(self)

    def each_lane(
        self, body: Callable[..., Sequence[Lanes] | None], *operands: Lanes
    ) -> list[Lanes]:
        """Run `body` on scalars, and remember which lanes do the same at one address."""
        before = self._group
        if self.mask is not None:
            self._group = None if operands[0].width else self.active()
        results = super().each_lane(body, *operands)
        self._group = before
        return results

    def _hand_on(self, address: Lanes) -> None:
        """Watch a release at an mbarrier; lanes that arrive there together release together."""
        lanes = self._lanes()
        together = lanes if self._group is None else self._group
        words = (("i32", self.cast(address, UINT32)), ("i32", together))
        with self.function.when(str(((lanes & together & (0 - together)) != 0).value)):
            run(self, clocks.arrive_at_mbarrier, *words)

    def _own_mbarrier(self, address: Lanes) -> None:
        def one(at: Lanes) -> None:
            size = self.constant(mbarrier.BYTES, UINT64)
            who = (self._lanes(), self.lanes(UINT32, self.site, 0))
            words = tuple(("i32", each) for each in (self.cast(at, UINT32), *who))
            if self.form is None or self.form.declaration is not mbarrier.init:
                run(self, protocols.end, *words)
                self._run(at, size, True)
                return
            fresh = ask(self, protocols.begin, "i1", *words)
            with self.function.when(fresh):
                self._run(at, size, True)
            run(self, clocks.initialise, *words)
            run(self, phases.begin, words[0])

        if address.width:
            self.each_lane(one, address)
        else:
            one(address)

    def wait_at_mbarrier(self, address: Lanes, ready: Lanes) -> None:
        """Watch a wait that has ended, for the lanes that it has succeeded for."""
        assert self.form is not None
        site = self.lanes(UINT32, self.site, 0)
        acquires = "true" if self.form.order.acquires else "false"
        if not self.form.order.acquires:
            phases.loosen(self)

        def one(at: Lanes) -> None:
            lanes = self._lanes()
            words = (("i32", self.cast(at, UINT32)), ("i32", lanes))
            with self.function.when(str((lanes != 0).value)):
                if self.unread:
                    run(self, protocols.ignore, *words, ("i32", site))
                else:
                    run(self, phases.look, *words, ("i32", site))
                    run(self, clocks.wait_at_mbarrier, *words, ("i1", acquires))
                    run(self, protocols.heed, words[0])

        assert self.mask is not None
        outer = self.mask
        if not self.unread:
            self.mask = outer & self.lanes(ready.dtype, self.spread(ready), WARP)
        if address.width:
            self.each_lane(one, address)
        else:
            one(address)
        self.mask = outer

    def mbarrier_in_use(self, barrier: Lanes) -> Lanes:
        """Do not look."""
        return self.constant(0, UINT32) != 0

    # ---- barriers, groups

    def set_barrier_state(self, barrier: Lanes, field: str, value: Lanes) -> None:
        """Watch an arrival at a barrier of the CTA."""
        if field == "arrived" and not self._arrived:
            self._arrived = True
            turn = self.barrier_state(barrier, "generation")
            come = (self.cast(barrier, UINT32), turn, self.lanes(UINT32, self.site, 0))
            run(self, protocols.come, *(("i32", each) for each in come))
            words = (self.cast(barrier, UINT32), turn, self._lanes())
            run(self, clocks.arrive, *(("i32", each) for each in words))
        self._counted |= field == "counted"
        # That it completes is asked last.
        if field == "generation" and not self._counted:
            run(self, clocks.excuse, ("i32", self.cast(barrier, UINT32)))

    def set_cluster_state(self, field: str, value: Lanes) -> None:
        """Watch an arrival at the barrier of the cluster."""
        if field == "arrived" and not self._arrived:
            self._arrived = True
            words = (self.cluster_state("generation"), self._lanes())
            assert self.form is not None
            releases = "true" if self.form.order.releases else "false"
            if not self.form.order.releases:
                phases.loosen(self)
            run(self, clocks.arrive_at_cluster, *(("i32", w) for w in words), ("i1", releases))
            if self.signalling is not None:
                signals.arrive_at_cluster(self, *words, self.form.order.releases)

    def set_warp_state(self, field: str, value: Lanes) -> None:
        """Change nothing."""

    def set_cta_state(self, field: str, value: Lanes) -> None:
        """Watch columns of Tensor Memory being allocated or freed."""
        if field == "tmem_columns":
            actor = self._actor(write=True, flags=cell_shadow.FREEING)
            run(self, cell_shadow.columns, ("i32", self.cast(value, UINT32)), *actor)

    def _made(self, group: str) -> Lanes:
        """Count the groups that lanes which act have made: those of the lane with the most."""
        self.module.memories.add("groups")
        kind = self.constant(GROUPS.index(group), UINT64)
        made = self.restore(queue.made_of(self, kind, self.field("warp")), UINT32)
        none = self.lanes(UINT32, self.spread(self.constant(0, UINT32)), WARP)
        counted = self.select(self.unpack(self._lanes()), made, none)
        name = f"llvm.vector.reduce.umax.v{WARP}i32"
        most = self.call("i32", name, (f"<{WARP} x i32>", str(counted.value)))
        return self.lanes(UINT32, most, 0)

    def commit_group(self, group: str) -> None:
        """Note when a group is made."""
        kind = self.constant(GROUPS.index(group), UINT32)
        run(self, clocks.commit, ("i32", kind), ("i32", self._made(group)))

    def groups_done(self, group: str, keep: Lanes, *, read: bool = False) -> Lanes:
        """Watch a wait for groups that has ended."""
        kind = self.constant(GROUPS.index(group), UINT32)
        owners = {"cp_async_group": [state.COPIES]}.get(group, [state.BULK_READS])
        if group == "bulk_group" and not read:
            owners.append(state.BULK_WRITES)
        for owner in owners:
            who = rows.warp(self) + owner
            words = (kind, who, self._made(group), self.cast(keep, UINT32), self._lanes())
            run(self, clocks.wait_for_groups, *(("i32", each) for each in words))
        return self.constant(1, UINT32) != 0

    # ---- agents

    def issue(
        self,
        form: Form,
        operands: Sequence[Lanes],
        barrier: Lanes | None = None,
        lane: Lanes | None = None,
    ) -> None:
        """Watch an operation: what its agent is to do."""
        if barrier is not None:
            self._use(barrier, form)
        if form.time.agent == "copy" and barrier is not None:
            return
        self._later = True
        self._barrier = self.constant(0, UINT32) if barrier is None else barrier
        self._owners = {each: self._owner(write=each) for each in (False, True)}
        self._acting = self._lanes() if self.mask is None else None
        assert form.declaration.lands is not None
        form.declaration.lands(self, form, *operands)
        self._owners, self._acting = {}, None
        self._later = False

    def _use(self, barrier: Lanes, form: Form) -> None:
        """Watch the use of an mbarrier by an agent, which may be of the asynchronous proxy."""
        through = "false" if form.time.agent == "copy" else "true"

        def one(at: Lanes) -> None:
            self._run(at, self.constant(mbarrier.BYTES, UINT64), False, mbarrier=True)
            words = (self.cast(at, UINT32), self._lanes(), self.lanes(UINT32, self.site, 0))
            run(self, accesses.use, *(("i32", each) for each in words), ("i1", through))
            run(self, protocols.touch, *(("i32", each) for each in words))
            if arrives(form):
                run(self, protocols.note_arrival, *(("i32", each) for each in words))

        if barrier.width:
            self.each_lane(one, barrier)
        else:
            one(barrier)

    # ---- what does nothing here

    def elect(self, members: Lanes) -> Lanes:
        """Choose the lowest lane: chance is for the instruction itself."""
        return self.lowest(members) & 31

    def tally(self, barrier: Lanes, expected: Lanes, come: Lanes) -> None:
        """Count nothing."""

    def clear_tally(self, barrier: Lanes) -> None:
        """Count nothing."""

    def bump(self, name: str) -> None:
        """Count nothing."""

    def require(self, condition: Lanes, code: str, message: str) -> None:
        """Report nothing: the instruction itself does."""

    def fault(
        self,
        code: str,
        text: str,
        lane: Lanes,
        address: Lanes,
        space: Space | None = None,
        *,
        mbarrier: bool = False,
    ) -> None:
        """Report nothing."""

    def trap(self) -> None:
        """Report nothing."""
