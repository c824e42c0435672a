"""Accesses to memory as native code: checked, and never beyond an allocation.

May import `base`, `isa` and the rest of `sim.engine`. Accesses are functions of their own, one
per space, element and kind: whole-warp accesses with a contiguous fast path, and uniform ones.
A lane that is inactive or at fault is sent to dummy bytes instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.base.dtypes import BOOL, UINT32, UINT64, DType
from tilewright.base.errors import CompilerBug
from tilewright.base.spaces import Space
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim.engine import context
from tilewright.sim.engine.spelling import memory_type

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

_OUTSIDE = {
    Space.SHARED: "an access lies outside the shared memory of the CTA",
    Space.GLOBAL: "an access lies outside every tensor of the launch",
}
_MISALIGNED = "an access is not aligned to its {size} bytes"
_READ_ONLY = "a kernel writes to a read-only array"


def load(
    m: NativeMachine, space: Space, address: Lanes, dtype: DType, count: int, lanes: int
) -> list[Lanes]:
    """Load consecutive elements per active lane; a uniform address is loaded once."""
    if space == Space.GENERIC:
        return _generic_load(m, address, dtype, count, lanes)
    if not address.width:
        name = _scalar_load(m, space, dtype, count)
        out = m.function.scratch(f"[{count} x {memory_type(dtype)}]")
        m.function.emit(
            f"call void @{name}(ptr %ctx, i64 {_wide(m, address)}, i32 {m.site}, ptr {out})"
        )
        found = [m.load_element(out, dtype, str(index)) for index in range(count)]
        return [m.lanes(dtype, value, 0) for value in found]
    raw, width = load_rows(m, space, address, dtype, count, lanes)
    if count == 1:
        return [m.from_memory(raw, dtype, WARP)]
    kind = memory_type(dtype)
    return [
        m.from_memory(
            m.permute(raw, kind, width, [lane * count + index for lane in range(WARP)]),
            dtype,
            WARP,
        )
        for index in range(count)
    ]


def load_rows(
    m: NativeMachine, space: Space, address: Lanes, dtype: DType, count: int, rows: int
) -> tuple[str, int]:
    """Load the rows of all lanes as one vector in memory's types, lane after lane.

    Only lanes below `rows` are accessed; the others' elements are zero.
    """
    name = _vector_load(m, space, dtype, count)
    width = WARP * count
    vector = f"<{width} x {memory_type(dtype)}>"
    out = m.function.scratch(vector)
    wide = m.spread(m.cast(address, UINT64))
    mask = _mask(m, rows)
    m.function.emit(
        f"call void @{name}(ptr %ctx, <32 x i64> {wide}, i32 {mask}, i32 {m.site}, ptr {out})"
    )
    return m.op(f"load {vector}, ptr {out}, align 64"), width


def store(
    m: NativeMachine, space: Space, address: Lanes, values: Sequence[Lanes], lanes: int
) -> None:
    """Store consecutive elements per active lane; of lanes at one address the highest wins."""
    if space == Space.GENERIC:
        _generic_store(m, address, values, lanes)
        return
    dtype, count = values[0].dtype, len(values)
    if not address.width:
        values = [m.last(value) for value in values]
        name = _scalar_store(m, space, dtype, count)
        slot = m.function.scratch(f"[{count} x {memory_type(dtype)}]")
        for index, value in enumerate(values):
            at = m.op(f"getelementptr {memory_type(dtype)}, ptr {slot}, i64 {index}")
            m.function.emit(f"store {memory_type(dtype)} {m.to_memory(value)}, ptr {at}")
        m.function.emit(
            f"call void @{name}(ptr %ctx, i64 {_wide(m, address)}, i32 {m.site}, ptr {slot})"
        )
        return
    kind = memory_type(dtype)
    vectors = [m.to_memory(m.lanes(dtype, m.spread(value), WARP)) for value in values]
    whole, width = m.concatenate(vectors, kind, WARP)
    if count > 1:
        order = [index * WARP + lane for lane in range(WARP) for index in range(count)]
        whole = m.permute(whole, kind, width, order)
    _call_store(m, space, address, dtype, count, whole, _mask(m, lanes))


def store_rows(
    m: NativeMachine, space: Space, address: Lanes, dtype: DType, count: int, rows: Sequence[str]
) -> None:
    """Store one row of `count` elements at the address of each lane below their number."""
    kind = memory_type(dtype)
    whole, width = m.concatenate(rows, kind, count)
    full = WARP * count
    if width < full:
        whole = m.permute(whole, kind, width, [min(index, width - 1) for index in range(full)])
    _call_store(m, space, address, dtype, count, whole, _mask(m, len(rows)))


def _call_store(
    m: NativeMachine, space: Space, address: Lanes, dtype: DType, count: int, whole: str, mask: str
) -> None:
    name = _vector_store(m, space, dtype, count)
    vector = f"<{WARP * count} x {memory_type(dtype)}>"
    slot = m.function.scratch(vector)
    m.function.emit(f"store {vector} {whole}, ptr {slot}, align 64")
    wide = m.spread(m.cast(address, UINT64))
    m.function.emit(
        f"call void @{name}(ptr %ctx, <32 x i64> {wide}, i32 {mask}, i32 {m.site}, ptr {slot})"
    )


def prefetch(m: NativeMachine, address: Lanes) -> None:
    """Have global memory brought near that lanes read later; addresses may be any.

    Every fourth lane's is: as a rule four lanes read one line of the cache.
    """
    name = "llvm.prefetch.p0"
    m.module.declare(name, f"declare void @{name}(ptr, i32, i32, i32)")
    for lane in range(0, WARP, 4):
        at = m.cast(m.pick(address, m.constant(lane, UINT32)), UINT64)
        pointer = m.op(f"inttoptr i64 {at.value} to ptr")
        m.function.emit(f"call void @{name}(ptr {pointer}, i32 0, i32 3, i32 1)")


def run_pointer(m: NativeMachine, space: Space, address: Lanes, size: Lanes, *, write: bool) -> str:
    """Check a run of bytes whose length is known at run time, and give its host address."""
    wide = m.cast(address, UINT64)
    if space in (Space.SHARED, Space.SHARED_CLUSTER):
        shared = shared_of(m) if write or m.seen is None else m.seen
        offset = wide - shared.start
        outside = (offset + size > shared.size) | (wide < shared.start)
        _scalar_fault(m, outside, "out-of-bounds", Space.SHARED, wide)
        inside = m.select(outside, m.constant(0, UINT64), offset)
        return m.op(f"inttoptr i64 {(shared.host + inside).value} to ptr")
    if space != Space.GLOBAL:
        raise CompilerBug(f"no runs of bytes in {space.value} memory", code="compiler-bug")
    good = in_region(m, wide, size, write=write)
    safe = m.select(good, wide, m.cast(m.field("dummy"), UINT64))
    return m.op(f"inttoptr i64 {safe.value} to ptr")


@dataclass(frozen=True)
class Shared:
    """Where a run of shared memory is kept: its host address, its first address, its bytes."""

    host: Lanes
    start: Lanes
    size: Lanes


def shared_of(m: NativeMachine) -> Shared:
    """Give all of the CTA's shared memory."""
    start = m.constant(context.SHARED_START, UINT64)
    return Shared(m.field("shared"), start, m.field("shared_size"))


def in_region(m: NativeMachine, address: Lanes, size: Lanes, *, write: bool) -> Lanes:
    """Tell whether a run of bytes lies in an allocation; a fault is recorded if it does not."""
    found = m.op(
        f"call i1 @{_find_region(m)}(ptr %ctx, i64 {address.value}, i64 {size.value}, "
        f"i32 {m.site}, i32 0, i1 {'true' if write else 'false'})"
    )
    return m.lanes(BOOL, found, 0)


def lies_in_region(m: NativeMachine, address: Lanes, size: Lanes, *, write: bool) -> Lanes:
    """Tell whether a run of bytes lies in an allocation; nothing happens if it does not."""
    name = "lies_in_region"
    if name not in m.module.functions:
        f = m.module.machine(name)
        start, length = f.lanes(UINT64, "%address", 0), f.lanes(UINT64, "%size", 0)
        with f.function.loop(str(f.field("region_count").value)) as index:
            region = _region(f, f.op(f"trunc i64 {index} to i32"))
            inside = _inside(f, region, start, length)
            free = (f.get_word(region, 2) != 0) | ~f.lanes(BOOL, "%write", 0)
            with f.function.when(str((inside & free).value)):
                f.function.emit("ret i1 true")
                f.function.label(f.function.new_label("dead"))
        f.function.emit("ret i1 false")
        f.function.finish("i1", "ptr %ctx, i64 %address, i64 %size, i1 %write", "noinline")
    words = f"i64 {address.value}, i64 {size.value}, i1 {'true' if write else 'false'}"
    return m.lanes(BOOL, m.op(f"call i1 @{name}(ptr %ctx, {words})"), 0)


def _inside(m: NativeMachine, region: str, address: Lanes, size: Lanes) -> Lanes:
    """Tell whether a run of bytes lies in the allocation of a record."""
    low, high = m.get_word(region, 0), m.get_word(region, 1)
    return (address >= low) & (address <= high) & (size <= high - address)


def outside_shared(m: NativeMachine, address: Lanes) -> None:
    """Record the fault of a shared address that lies outside the CTA's memory."""
    _scalar_fault(m, m.constant(True, BOOL), "out-of-bounds", Space.SHARED, address)


def region_end(m: NativeMachine) -> Lanes:
    """Give the end of the allocation that `in_region` has just found."""
    hint = m.op(f"getelementptr i32, ptr {m.pointer('hints')}, i32 {m.site}")
    return m.get_word(_region(m, m.op(f"load i32, ptr {hint}")), 1)


# ---------------------------------------------------------------------------- functions


def _wide(m: NativeMachine, address: Lanes) -> str:
    return str(m.cast(address, UINT64).value)


def _mask(m: NativeMachine, lanes: int) -> str:
    active = m.active() if m.mask is not None else m.constant((1 << WARP) - 1, UINT32)
    return str((active & ((1 << lanes) - 1) if lanes < WARP else active).value)


def _text(code: str, space: Space, size: int) -> str:
    return _MISALIGNED.format(size=size) if code == "misaligned" else _OUTSIDE[space]


def _scalar_fault(
    m: NativeMachine, bad: Lanes, code: str, space: Space, address: Lanes, size: int = 0
) -> None:
    with m.function.when(str(bad.value)):
        lane = m.lanes(UINT32, "0" if m.mask is None else str(m.lowest(m.active()).value), 0)
        m.fault(code, _text(code, space, size), lane, address, space)


def end_after_fault(f: NativeMachine) -> None:
    """Store nothing once a fault has been met, though code runs on to the next look at it."""
    with f.function.when(str((f.field("error") != 0).value)):
        f.function.emit("ret void")
        f.function.label(f.function.new_label("dead"))


def _name(kind: str, space: Space, dtype: DType, count: int) -> str:
    return f"{kind}_{space.value}_{memory_type(dtype)}x{count}"


def _scalar_pointer(
    m: NativeMachine, space: Space, address: Lanes, size: int, *, write: bool
) -> str:
    """Check one access and give its host address, that of dummy bytes if it is bad."""
    if size > 1:
        misaligned = (address & (size - 1)) != 0
        _scalar_fault(m, misaligned, "misaligned", space, address, size)
    return run_pointer(m, space, address, m.constant(size, UINT64), write=write)


def _scalar_load(m: NativeMachine, space: Space, dtype: DType, count: int) -> str:
    name = _name("load_uniform", space, dtype, count)
    if name not in m.module.functions:
        f = m.module.machine(name, "%site")
        size = dtype.bytes * count
        pointer = _scalar_pointer(f, space, f.lanes(UINT64, "%address", 0), size, write=False)
        kind = f"[{count} x {memory_type(dtype)}]"
        align = dtype.bytes
        value = f.op(f"load {kind}, ptr {pointer}, align {align}")
        f.function.emit(f"store {kind} {value}, ptr %out, align {align}")
        f.function.emit("ret void")
        f.function.finish("void", "ptr %ctx, i64 %address, i32 %site, ptr %out", "noinline")
    return name


def _scalar_store(m: NativeMachine, space: Space, dtype: DType, count: int) -> str:
    """Emit a store by one lane; what it changes counts as progress, what it repeats does not."""
    name = _name("store_uniform", space, dtype, count)
    if name not in m.module.functions:
        f = m.module.machine(name, "%site")
        end_after_fault(f)
        size = dtype.bytes * count
        pointer = _scalar_pointer(f, space, f.lanes(UINT64, "%address", 0), size, write=True)
        kind = f"i{size * 8}"
        old = f.op(f"load {kind}, ptr {pointer}, align {dtype.bytes}")
        new = f.op(f"load {kind}, ptr %in, align {dtype.bytes}")
        with f.function.when(f.op(f"icmp ne {kind} {old}, {new}")):
            f.function.emit(f"store {kind} {new}, ptr {pointer}, align {dtype.bytes}")
            f.bump("progress")
        f.function.emit("ret void")
        f.function.finish("void", "ptr %ctx, i64 %address, i32 %site, ptr %in", "noinline")
    return name


def _vector_load(m: NativeMachine, space: Space, dtype: DType, count: int) -> str:
    name = _name("load", space, dtype, count)
    if name not in m.module.functions:
        f = m.module.machine(name, "%site")
        element, width = memory_type(dtype), WARP * count
        whole, row = f"<{width} x {element}>", f"<{count} x {element}>"
        pointers, contiguous, base = _vector_pointers(f, space, dtype, count, write=False)
        fast, slow, after = (f.function.new_label(s) for s in ("fast", "slow", "after"))
        f.function.branch_if(contiguous, fast, slow)
        f.function.label(fast)
        straight = f.op(f"load {whole}, ptr {base}, align {dtype.bytes}")
        f.function.emit(f"store {whole} {straight}, ptr %out, align 64")
        f.function.branch(after)
        f.function.label(slow)
        for lane in range(WARP):
            pointer = f.op(f"extractelement <32 x ptr> {pointers}, i32 {lane}")
            value = f.op(f"load {row}, ptr {pointer}, align {dtype.bytes}")
            at = f.op(f"getelementptr {element}, ptr %out, i64 {lane * count}")
            f.function.emit(f"store {row} {value}, ptr {at}, align {dtype.bytes}")
        f.function.branch(after)
        f.function.label(after)
        f.function.emit("ret void")
        f.function.finish(
            "void", "ptr %ctx, <32 x i64> %address, i32 %mask, i32 %site, ptr %out", "noinline"
        )
    return name


def _vector_store(m: NativeMachine, space: Space, dtype: DType, count: int) -> str:
    name = _name("store", space, dtype, count)
    if name not in m.module.functions:
        f = m.module.machine(name, "%site")
        end_after_fault(f)
        element, width = memory_type(dtype), WARP * count
        whole, row = f"<{width} x {element}>", f"<{count} x {element}>"
        pointers, contiguous, base = _vector_pointers(f, space, dtype, count, write=True)
        fast, slow, after = (f.function.new_label(s) for s in ("fast", "slow", "after"))
        f.function.branch_if(contiguous, fast, slow)
        f.function.label(fast)
        value = f.op(f"load {whole}, ptr %in, align 64")
        f.function.emit(f"store {whole} {value}, ptr {base}, align {dtype.bytes}")
        f.function.branch(after)
        f.function.label(slow)
        for lane in range(WARP):
            pointer = f.op(f"extractelement <32 x ptr> {pointers}, i32 {lane}")
            at = f.op(f"getelementptr {element}, ptr %in, i64 {lane * count}")
            value = f.op(f"load {row}, ptr {at}, align {dtype.bytes}")
            f.function.emit(f"store {row} {value}, ptr {pointer}, align {dtype.bytes}")
        f.function.branch(after)
        f.function.label(after)
        f.bump("progress")
        f.function.emit("ret void")
        f.function.finish(
            "void", "ptr %ctx, <32 x i64> %address, i32 %mask, i32 %site, ptr %in", "noinline"
        )
    return name


def _vector_pointers(
    f: NativeMachine, space: Space, dtype: DType, count: int, *, write: bool
) -> tuple[str, str, str]:
    """Check the accesses of a warp.

    Gives the lanes' host addresses (dummy bytes for inactive and bad ones), whether all lanes
    are active and contiguous, and the host address of lane 0.
    """
    size = dtype.bytes * count
    address = f.lanes(UINT64, "%address", WARP)
    f.mask = f.unpack(f.lanes(UINT32, "%mask", 0))
    good = f.mask
    if size > 1:
        misaligned = f.ballot((address & (size - 1)) != 0)
        _vector_fault(f, misaligned, address, "misaligned", space, size)
        good = good & ~f.unpack(misaligned)
        f.mask = good
    if space == Space.GLOBAL:
        good = f.unpack(_global_lanes(f, address, size, write=write))
        host, base = address, f.constant(0, UINT64)
    else:
        offset = address - context.SHARED_START
        limit = f.field("shared_size")
        outside = (address < context.SHARED_START) | (offset + size > limit)
        bad = f.ballot(outside)
        _vector_fault(f, bad, address, "out-of-bounds", Space.SHARED)
        good = good & ~f.unpack(bad)
        base = f.field("shared")
        host = offset + base
    # Stores of inactive lanes must not be seen by their loads, which give zero.
    dummy = f.field("dummy") + (context.DUMMY_BYTES // 2 if write else 0)
    safe = f.select(good, host, dummy)
    pointers = f.op(f"inttoptr <32 x i64> {safe.value} to <32 x ptr>")
    start = f.pick(host, f.constant(0, UINT32))
    steps = f.cast(f.lane_id(), UINT64) * size + start
    in_row = f.bits(good & (steps == host))
    contiguous = str((in_row == (1 << WARP) - 1).value)
    return pointers, contiguous, f.op(f"extractelement <32 x ptr> {pointers}, i32 0")


def _vector_fault(
    f: NativeMachine, bad: Lanes, address: Lanes, code: str, space: Space, size: int = 0
) -> None:
    with f.function.when(str((bad != 0).value)):
        lane = f.lowest(bad)
        f.fault(code, _text(code, space, size), lane, f.pick(address, lane), space)


def _global_lanes(f: NativeMachine, address: Lanes, size: int, *, write: bool) -> Lanes:
    """Give the lanes whose access lies in an allocation, trying the site's last one first."""
    hint = f.op(f"getelementptr i32, ptr {f.pointer('hints')}, i32 %site")
    region = _region(f, f.op(f"load i32, ptr {hint}"))
    low, high, writable = (f.get_word(region, index) for index in range(3))
    outside = (address < low) | (address > high) | (high - address < size)
    if write:
        outside = outside | (writable == 0)
    strays = f.ballot(outside)
    good = f.function.slot("i32", 4)
    f.function.emit(f"store i32 {f.active().value}, ptr {good}")
    with f.function.when(str((strays != 0).value)):
        mask, f.mask = f.mask, f.unpack(strays)
        find = _find_region(f)
        flag = "true" if write else "false"

        def look(where: Lanes, lane: Lanes) -> None:
            found = f.op(
                f"call i1 @{find}(ptr %ctx, i64 {where.value}, i64 {size}, i32 %site, "
                f"i32 {lane.value}, i1 {flag})"
            )
            missing = f.op(f"xor i1 {found}, true")
            bit = f.constant(1, UINT32) << lane
            with f.function.when(missing):
                left = f.op(f"load i32, ptr {good}")
                fewer = f.lanes(UINT32, left, 0) & ~bit
                f.function.emit(f"store i32 {fewer.value}, ptr {good}")

        f.each_lane(look, address, f.lane_id())
        f.mask = mask
    return f.lanes(UINT32, f.op(f"load i32, ptr {good}"), 0)


def _region(f: NativeMachine, index: str) -> str:
    at = f.op(f"mul i32 {index}, 3")
    return f.op(f"getelementptr i64, ptr {f.pointer('regions')}, i32 {at}")


def _find_region(m: NativeMachine) -> str:
    """Emit the search for the allocation of a run of bytes; a fault is recorded if there is none.

    Leaves the allocation's number as the site's hint.
    """
    name = "find_region"
    if name in m.module.functions:
        return name
    f = m.module.machine(name, "%site")
    address, size = f.lanes(UINT64, "%address", 0), f.lanes(UINT64, "%size", 0)
    hint = f.op(f"getelementptr i32, ptr {f.pointer('hints')}, i32 %site")
    read_only = f.function.slot("i1", 1)
    f.function.emit(f"store i1 false, ptr {read_only}")
    with f.function.loop(str(f.field("region_count").value)) as index:
        number = f.op(f"trunc i64 {index} to i32")
        region = _region(f, number)
        inside = _inside(f, region, address, size)
        with f.function.when(str(inside.value)):
            refused = (f.get_word(region, 2) == 0) & f.lanes(BOOL, "%write", 0)
            f.function.emit(f"store i1 {refused.value}, ptr {read_only}")
            with f.function.when(str((~refused).value)):
                f.function.emit(f"store i32 {number}, ptr {hint}")
                f.function.emit("ret i1 true")
                f.function.label(f.function.new_label("dead"))
    lane = f.lanes(UINT32, "%lane", 0)
    protected = f.lanes(BOOL, f.op(f"load i1, ptr {read_only}"), 0)
    with f.function.when(str(protected.value)):
        f.fault("read-only", _READ_ONLY, lane, address, Space.GLOBAL)
    with f.function.when(str((~protected).value)):
        f.fault("out-of-bounds", _OUTSIDE[Space.GLOBAL], lane, address, Space.GLOBAL)
    f.function.emit("ret i1 false")
    f.function.finish(
        "i1", "ptr %ctx, i64 %address, i64 %size, i32 %site, i32 %lane, i1 %write", "noinline"
    )
    return name


# ---------------------------------------------------------------------------- generic


def _generic_load(
    m: NativeMachine, address: Lanes, dtype: DType, count: int, lanes: int
) -> list[Lanes]:
    outer = m.mask
    if outer is None:
        return _generic_load_by_one(m, address, dtype, count)
    wide = m.lanes(UINT64, m.spread(address), WARP)
    in_shared = wide >= context.SHARED_WINDOW
    m.mask = outer & ~in_shared
    there = load(m, Space.GLOBAL, wide, dtype, count, lanes)
    m.mask = outer & in_shared
    here = load(m, Space.SHARED, wide - context.SHARED_WINDOW, dtype, count, lanes)
    m.mask = outer
    return [m.select(in_shared, a, b) for a, b in zip(here, there, strict=True)]


def _generic_store(m: NativeMachine, address: Lanes, values: Sequence[Lanes], lanes: int) -> None:
    outer = m.mask
    if outer is None:
        for space, where in _generic_choice(m, address):
            store(m, space, where, values, lanes)
        return
    wide = m.lanes(UINT64, m.spread(address), WARP)
    in_shared = wide >= context.SHARED_WINDOW
    m.mask = outer & ~in_shared
    store(m, Space.GLOBAL, wide, values, lanes)
    m.mask = outer & in_shared
    store(m, Space.SHARED, wide - context.SHARED_WINDOW, values, lanes)
    m.mask = outer


def _generic_load_by_one(m: NativeMachine, address: Lanes, dtype: DType, count: int) -> list[Lanes]:
    element = memory_type(dtype)
    slots = [m.function.scratch(element) for _ in range(count)]
    for space, where in _generic_choice(m, address):
        found = load(m, space, where, dtype, count, WARP)
        for slot, value in zip(slots, found, strict=True):
            m.function.emit(f"store {element} {m.to_memory(value)}, ptr {slot}")
    return [m.from_memory(m.op(f"load {element}, ptr {slot}"), dtype, 0) for slot in slots]


def _generic_choice(m: NativeMachine, address: Lanes) -> Iterator[tuple[Space, Lanes]]:
    """Emit a choice of the space that a generic address of one lane lies in."""
    wide = m.cast(address, UINT64)
    in_shared = wide >= context.SHARED_WINDOW
    with m.function.when(str(in_shared.value)):
        yield Space.SHARED, wide - context.SHARED_WINDOW
    with m.function.when(str((~in_shared).value)):
        yield Space.GLOBAL, wide
