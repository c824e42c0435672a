"""Where the checker keeps its state: per CTA clocks, what is synchronised, and what was found.

May import `sim.engine`. Native code and Python share the layout. Clocks and shadow memory are
explained in docs/architecture.md, "The checker".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilewright.base.dtypes import UINT32, UINT64
from tilewright.isa.machine import GROUPS, WARP, Lanes
from tilewright.sim.engine import context

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine

WARPS = context.WARPS
OWNERS = 256
# A clock row: a tick per owner; then of each warp which of its generic accesses the asynchronous
# proxy sees, the same where fences executed by another than the writer count, and which of its
# copies the proxy sees. Then a part, of each warp: a tick up to which some of its lanes are known,
# these lanes, and the ticks up to which the proxy sees what they have done, and they have waited
# for their copies.
SEEN, SEEN_LOOSELY, SEEN_COPIES, PART_TICK, PART_LANES, PART_SEEN, PART_COPIES = (
    OWNERS + WARPS * place for place in range(7)
)
ROW = PART_COPIES + WARPS
ROW_BYTES = 4 * ROW
CHUNK_SHIFT = 4  # so many bits of a clock's number are one's within its chunk of a row

# Owners, by their first number: who accesses memory. One per warp, but the last ones, which are
# operations seen through an mbarrier, by the number of that mbarrier.
WARP_OWNER, TENSOR, COPIES, BULK_READS, BULK_WRITES, CELL_LOADS, CELL_STORES, BARRIER_OWNER = (
    32 * kind for kind in range(8)
)
GROUP_OWNERS = {"cp_async_group": COPIES, "bulk_group": BULK_WRITES}

SLOTS = 64  # mbarriers that have clocks of their own
RING = 64  # groups of a warp whose ticks are kept
FINDINGS = 128
NOTES = 256  # uses of descriptors and tensor maps
NOTE_WORDS = 12
HELD = 64  # runs of registers of a warp that loads write later
WATCHED = 64  # allocations of global memory
LOG_ENTRIES = 1 << 17  # runs of it that a CTA has touched
LAST_RUNS = 8192  # that may go on
MOMENTS = 2048  # rows of what warps knew when they did so, or signalled
SIGNALS = 8192  # releases, acquires and fences for other CTAs
SIGNAL_WORDS = 6
LOG_WORDS = 4  # of a run: first byte, byte after the last one, who, and when
LOG_WRITES, LOG_READ_ONLY = 1 << 32, 1 << 52  # in the third
# There too: an entry of a warp whose lanes lie apart; a pattern of how they do (`scattered`).
LOG_SCATTERED, LOG_PATTERN = 1 << 62, 1 << 63
LOG_FENCE = 1 << 61  # no run, but a proxy fence, which has its lanes in place of the bounds
LOG_WARP_SHIFT, LOG_LANE_SHIFT, LOG_OWNER_SHIFT, LOG_STEP_SHIFT, LOG_ONE_LANE = 33, 38, 43, 46, 6
LOG_SCOPE_SHIFT = 49
LOG_ALIKE = 1 << 58  # a store of a constant: at one place of the kernel all store the same
PATTERNS = 64  # places whose last pattern is known
MOST_SCATTERED = 1 << 18  # lanes of such entries, of a CTA
FOUND_FIELDS = (
    *("kind", "site", "other", "owner", "other_owner", "warp", "lanes", "other_warp"),
    *("other_lanes", "space", "address", "size", "acting", "count"),
)
NO_SITE = (1 << 32) - 1

# ---- a shadow entry: who last touched bytes of a record of 16, when, where

RECORD_BYTES = 16
LINE_RECORDS = 8  # of a line (`lines`)
LINES_TOGETHER = 4  # so many are looked at together, from any line on
TICK_SHIFT, OWNER_SHIFT, LANE_SHIFT, STEP_SHIFT, SITE_SHIFT = 46, 38, 33, 30, 16
MOST_TICKS = (1 << 64 - TICK_SHIFT) - 1
MOST_SITES = (1 << STEP_SHIFT - SITE_SHIFT) - 1
BYTES = (1 << SITE_SHIFT) - 1
# Step s: byte b belongs to the lane b >> s after the first one; to one lane; to several, the first
# of which is told; and alike where they access it atomically.
ONE_LANE, ANY_LANE, ATOMIC, ANY_ATOMIC = 4, 5, 6, 7
# In place of the entry of a line (`lines`): its records have what is known; or nobody has written
# there since the CTA began.
SETTLED, EMPTY = 0, (1 << 64) - 1
LATE_READS = 64  # of an owner, that are listed (`late`)
CELL_BYTES = 4 * 512 * 34  # of the shadow of Tensor Memory

OF_SLOTS = ("extra_tick", "waited", "waiting_lanes", "came_tick")
_AREAS = (
    # What is zero when a CTA begins.
    *(("log_count", 1, 8), ("watched_count", 1, 8)),
    *(("pattern", PATTERNS, 4), ("scattered", 1, 8)),
    # The turn of the CTA among others; the turn after which nothing is kept, and 1 more.
    *(("turn", 1, 8), ("cut", 1, 8), ("moment_count", 1, 8), ("moment", 2 * WARPS, 4)),
    *(("moment_tick", 2 * WARPS, 4), ("signal_count", 1, 8), ("stamp", 1, 8)),
    *(("signal_new", 1, 8), ("signal", WARPS, 4)),
    # Of each warp its last copy out of shared memory that a group is to tell of.
    *(("stored_tick", WARPS, 4), ("stored_site", WARPS, 4), ("stored_lanes", WARPS, 4)),
    *(("stored_address", WARPS, 8), ("stored_size", WARPS, 8)),
    # The lanes of an access, while it is judged; whether there has been an atomic one (`hidden`).
    *(("acting", 1, 8), ("hidden", 1, 8)),
    *(("tick", 1, 8), ("found_count", 1, 8), ("others", 1, 8), ("slot_count", 1, 8)),
    *(("sync_tick", WARPS, 4), ("ahead_lanes", WARPS, 4), ("dirty", WARPS, 4)),
    *(("after_tick", WARPS, 4), ("part_tick", WARPS, 4), ("part_lanes", WARPS, 4)),
    *(("floor", WARPS, 4), ("ahead_floor", WARPS, 4), ("parities", WARPS, 4)),
    *(("cluster_parity", WARPS, 4), ("last", OWNERS, 4)),
    # Of each warp: the lanes that have done something since all have met; what some of its lanes
    # have met, waited for and fenced by themselves.
    *(("acted", WARPS, 4), ("met_tick", WARPS, 4), ("met_lanes", WARPS, 4)),
    *(("more_tick", WARPS, 4), ("more_lanes", WARPS, 4)),  # another set that has met
    ("core_tick", WARPS * WARP, 4),  # when each thread has last had the tensor core do something
    *(("copies_tick", WARPS, 4), ("copies_lanes", WARPS, 4), ("part_copies", WARPS, 4)),
    *(("fence_tick", WARPS, 4), ("fence_copies", WARPS, 4)),
    # Of an arrival that is issued now, and that an mbarrier counts from then on: the number of the
    # mbarrier, and 1 more.
    ("extra", 1, 8),
    *(("slot_address", SLOTS, 4), ("slot_warp", SLOTS, 4), ("slot_lanes", SLOTS, 4)),
    *(("slot_issue", SLOTS, 4), ("slot_site", SLOTS, 4), ("slot_visible", SLOTS, 4)),
    *(("core_target", 1, 8), ("core_shape", 1, 8), ("core_entry", 1, 8), ("core_late", 1, 8)),
    *(("slot_live", SLOTS, 4), ("slot_made", SLOTS, 8), ("slot_last", SLOTS, 8)),
    *(("slot_ended", SLOTS, 4), ("ignored", WARPS, 4), ("ignored_wait", WARPS, 8)),
    # Of each mbarrier who arrived last; of each warp its last wait, if no phase had ended since it
    # had looked before: it has told the warp nothing.
    *(("slot_came", SLOTS, 8), ("idle_wait", WARPS, 8)),
    *(("come_turn", context.BARRIERS * WARPS, 4), ("come_site", context.BARRIERS * WARPS, 4)),
    *(("issuer", WARPS, 4), ("issuer_lanes", WARPS, 4)),
    # Whether clocks do not have all orders of waits and arrivals.
    *(("loose", 1, 8), ("slot_before", SLOTS, 4)),
    *(("cluster_row", 2, ROW_BYTES), ("exited_row", 1, ROW_BYTES), ("flag_row", 1, ROW_BYTES)),
    *(("fenced", WARPS, 4), ("looked", WARPS, 4)),
    *(("held_count", WARPS, 4), ("allocated", 1, 8), ("freed", 1, 8), ("note_count", 1, 8)),
    *(("late_owners", 1, 8), ("late_live", 2 * WARPS, 8)),
    *(("barriers_used", 1, 8), ("barrier_floor", 2 * context.BARRIERS, 4)),
    # Rows are zero of the warps that are there, and of barriers once they are in use.
    *(("warp_row", WARPS, ROW_BYTES), ("fenced_row", WARPS, ROW_BYTES)),
    ("barrier_row", 2 * context.BARRIERS, ROW_BYTES),
    # Of mbarriers, once they are in use, and of each warp: when it has last issued an arrival that
    # is counted from then on; when it has last looked and found that a phase has ended, by which
    # lanes; when it has last arrived.
    *((name, SLOTS * WARPS, 4) for name in OF_SLOTS),
    ("last_run", LAST_RUNS, 4),
    # Which chunks of rows have been in use since this memory is there: the others are zero.
    ("used", 1, 8),
    # What is written before it is read.
    ("found", FINDINGS, 8 * len(FOUND_FIELDS)),
    ("note", NOTES * NOTE_WORDS, 4),
    ("moment_floor", MOMENTS, 4),
    *((name, WARPS * HELD, 4) for name in ("held_first", "held_end", "held_site")),
    *((name, 2 * WARPS * LATE_READS, 2) for name in ("late_low", "late_high")),
    *((name, 2 * WARPS * LATE_READS, 4) for name in ("late_tick", "late_left")),
    ("late_entry", 2 * WARPS * LATE_READS, 8),
    ("late_place", 2 * WARPS * LATE_READS, 64),
    ("ahead_row", WARPS, ROW_BYTES),
    *(("slot_row", 2 * SLOTS, ROW_BYTES), ("before_row", SLOTS, ROW_BYTES)),
    ("waiting_site", SLOTS * WARPS, 4),
    # By which of its lanes in that phase, and where.
    *(("came_lanes", SLOTS * WARPS, 4), ("came_site", SLOTS * WARPS, 4)),
    ("issue_row", context.QUEUE_RECORDS, ROW_BYTES),
    *(("issue_extra", context.QUEUE_RECORDS, 4), ("extra_row", SLOTS, ROW_BYTES)),
    ("ring", len(GROUPS) * WARPS * RING, 4),
    ("seen_row", 1, ROW_BYTES),
    ("watched", 2 * WATCHED, 8),
)
# What ticks are in: forgotten when they are counted from 1 again.
FORGOTTEN = (
    *("late_owners", "late_live", "hidden"),
    *(
        "met_tick",
        "more_tick",
        "core_tick",
        "copies_tick",
        "part_copies",
        "fence_tick",
        "fence_copies",
    ),
    *("extra_tick", "extra_row"),
    *(
        "stored_tick",
        "sync_tick",
        "after_tick",
        "part_tick",
        "floor",
        "ahead_floor",
        "last",
        "slot_issue",
    ),
    *(
        "slot_ended",
        *("slot_before", "before_row", "came_tick"),
        "waited",
        "warp_row",
        "fenced_row",
        *("barrier_row", "barrier_floor"),
        "cluster_row",
        "exited_row",
        "flag_row",
        "ahead_row",
    ),
    *("slot_row", "issue_row", "ring"),
)


@dataclass(frozen=True)
class _Area:
    offset: int
    size: int


def _place() -> tuple[dict[str, _Area], int]:
    areas: dict[str, _Area] = {}
    at = 0
    for name, count, size in _AREAS:
        areas[name] = _Area(at, size)
        at += -(-count * size // 64) * 64
    return areas, at


_PLACES, STATE_BYTES = _place()
ZEROED_BYTES = _PLACES["warp_row"].offset  # when a CTA begins; rows beside them
_WORD = struct.Struct("=Q")
_BYTES = {name: count * size for name, count, size in _AREAS}


# ---------------------------------------------------------------------------- in Python


ZEROED = "check"  # of its memory, what is zero when there has been no CTA yet


def memory(shared: int) -> dict[str, int]:
    """Size the checker's memory of a CTA, by the fields of the context that point there."""
    records = -(-max(shared, 1) // 128) * 8
    return {
        "check": STATE_BYTES,
        "check_shadow": 4 * 8 * records,
        "check_hidden": 4 * 8 * records,
        "check_written": 2 * records,
        "check_lines": records + 8 * LINES_TOGETHER,
        "check_slots": -(-2 * records // 64) * 64,
        "check_cells": CELL_BYTES,
        "check_log": 8 * LOG_WORDS * LOG_ENTRIES,
        "check_moments": ROW_BYTES * MOMENTS,
        "check_signals": 8 * SIGNAL_WORDS * SIGNALS,
    }


def found_rows(memory: np.ndarray) -> np.ndarray:
    """Give the table of what was found, a row each."""
    start = _PLACES["found"].offset
    table = memory[start : start + area_bytes("found")].view(np.uint64)
    return table.reshape(FINDINGS, -1)[: number_of(memory, "found_count")]


def notes(memory: np.ndarray) -> bytes:
    """Give what was noted of descriptors and tensor maps, `NOTE_WORDS` uint32 each."""
    start = _PLACES["note"].offset
    return memory[start : start + 4 * NOTE_WORDS * number_of(memory, "note_count")].tobytes()


def numbers(memory: np.ndarray, name: str) -> np.ndarray:
    """Give an area of 32-bit numbers."""
    start = _PLACES[name].offset
    return memory[start : start + area_bytes(name)].view(np.uint32)


def number_of(memory: np.ndarray, name: str) -> int:
    """Read a count, or another number of the CTA."""
    return _WORD.unpack_from(memory.data, _PLACES[name].offset)[0]


def take_turn(memory: np.ndarray, turn: int) -> None:
    """Number the turn that the CTA has next: what it does comes after the turns before."""
    _WORD.pack_into(memory.data, _PLACES["turn"].offset, turn)


# ---------------------------------------------------------------------------- in native code


def at(f: NativeMachine, name: str, index: Lanes | int = 0) -> str:
    """Address an element of an area."""
    area = _PLACES[name]
    if isinstance(index, int):
        offset: object = area.offset + index * area.size
    else:
        offset = (f.cast(index, UINT64) * area.size + area.offset).value
    return f.op(f"getelementptr i8, ptr {f.pointer('check')}, i64 {offset}")


def get(f: NativeMachine, name: str, index: Lanes | int = 0) -> Lanes:
    """Read a number, uint32 or uint64 as the area has them."""
    kind = UINT64 if _PLACES[name].size == 8 else UINT32
    return f.lanes(kind, f.op(f"load i{kind.bits}, ptr {at(f, name, index)}"), 0)


def put(f: NativeMachine, name: str, index: Lanes | int, value: Lanes | int) -> None:
    """Write a number."""
    kind = UINT64 if _PLACES[name].size == 8 else UINT32
    text = f.cast(f.lift(value, kind), kind).value
    f.function.emit(f"store i{kind.bits} {text}, ptr {at(f, name, index)}")


def clock(f: NativeMachine, row: str, owner: Lanes | int) -> Lanes:
    """Read the tick of an owner out of a row, uint32."""
    return f.lanes(UINT32, f.op(f"load i32, ptr {clock_at(f, row, owner)}"), 0)


def clock_at(f: NativeMachine, row: str, owner: Lanes | int) -> str:
    """Address the tick of an owner in a row."""
    index: object = owner if isinstance(owner, int) else f.cast(owner, UINT64).value
    return f.op(f"getelementptr i32, ptr {row}, i64 {index}")


def set_clock(f: NativeMachine, row: str, owner: Lanes | int, tick: Lanes) -> None:
    """Let a row know of what an owner has done up to a tick."""
    later = f.binary("max", clock(f, row, owner), f.cast(tick, UINT32))
    f.function.emit(f"store i32 {later.value}, ptr {clock_at(f, row, owner)}")
    use(f, owner)


def use(f: NativeMachine, owner: Lanes | int) -> None:
    """Note that rows may have a tick of an owner, or of those beside it."""
    one = f.constant(1, UINT64) << (f.cast(f.lift(owner, UINT32), UINT64) >> CHUNK_SHIFT)
    put(f, "used", 0, get(f, "used") | one)


def area_bytes(name: str) -> int:
    """Size an area."""
    return _BYTES[name]


def now(f: NativeMachine) -> Lanes:
    """Read the CTA's tick, uint32."""
    return f.cast(get(f, "tick"), UINT32)
