"""Where the checker keeps its state: per CTA clocks, what is synchronised, and what was found.

May import `sim.engine`. Native code and Python share the layout. Clocks and shadow memory are
explained in docs/architecture.md, "The checker".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilewright.base.dtypes import UINT32, UINT64
from tilewright.isa.machine import GROUPS, Lanes
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
WATCHED = 16  # allocations of global memory
LOG_ENTRIES = 1 << 17  # runs of it that a CTA has touched
LAST_RUNS = 8192  # that may go on
MOMENTS = 2048  # rows of what warps knew when they did so, or signalled
SIGNALS = 8192  # releases, acquires and fences for other CTAs
SIGNAL_WORDS = 6
LOG_WORDS = 4  # of a run: first byte, byte after the last one, who, and when
LOG_WRITES, LOG_READ_ONLY = 1 << 32, 1 << 52  # in the third
FOUND_FIELDS = (
    *("kind", "site", "other", "owner", "other_owner", "warp", "lanes", "other_warp"),
    *("other_lanes", "space", "address", "size", "count"),
)
NO_SITE = (1 << 32) - 1

# ---- a shadow entry: who last touched bytes of a record of 16, when, where

RECORD_BYTES = 16
TICK_SHIFT, OWNER_SHIFT, LANE_SHIFT, STEP_SHIFT, SITE_SHIFT = 46, 38, 33, 30, 16
MOST_TICKS = (1 << 64 - TICK_SHIFT) - 1
MOST_SITES = (1 << STEP_SHIFT - SITE_SHIFT) - 1
BYTES = (1 << SITE_SHIFT) - 1
# Step s: byte b belongs to the lane b >> s after the first one; to one lane; to any; or to one
# lane that accesses it atomically.
ONE_LANE, ANY_LANE, ATOMIC = 4, 5, 6
CELL_BYTES = 4 * 512 * 34  # of the shadow of Tensor Memory

_AREAS = (
    # What is zero when a CTA begins.
    *(("log_count", 1, 8), ("watched_count", 1, 8), ("last_run", LAST_RUNS, 4)),
    # The turn of the CTA among others; the turn after which nothing is kept, and 1 more.
    *(("turn", 1, 8), ("cut", 1, 8), ("moment_count", 1, 8), ("moment", 2 * WARPS, 4)),
    *(("moment_tick", 2 * WARPS, 4), ("signal_count", 1, 8), ("stamp", 1, 8)),
    *(("signal_new", 1, 8), ("signal", WARPS, 4)),
    # Of each warp its last copy out of shared memory that a group is to tell of.
    *(("stored_tick", WARPS, 4), ("stored_site", WARPS, 4), ("stored_lanes", WARPS, 4)),
    *(("stored_address", WARPS, 8), ("stored_size", WARPS, 8)),
    *(("tick", 1, 8), ("found_count", 1, 8), ("others", 1, 8), ("slot_count", 1, 8)),
    *(("sync_tick", WARPS, 4), ("ahead_lanes", WARPS, 4), ("dirty", WARPS, 4)),
    *(("after_tick", WARPS, 4), ("part_tick", WARPS, 4), ("part_lanes", WARPS, 4)),
    *(("floor", WARPS, 4), ("ahead_floor", WARPS, 4), ("parities", WARPS, 4)),
    *(("cluster_parity", WARPS, 4), ("last", OWNERS, 4)),
    # Of each warp: the lanes that have done something since all have met; what some of its lanes
    # have met, waited for and fenced by themselves.
    *(("acted", WARPS, 4), ("met_tick", WARPS, 4), ("met_lanes", WARPS, 4)),
    *(("copies_tick", WARPS, 4), ("copies_lanes", WARPS, 4), ("part_copies", WARPS, 4)),
    *(("fence_tick", WARPS, 4), ("fence_copies", WARPS, 4)),
    # Arrivals that an mbarrier counts from their issue on: of the one that is issued now, by the
    # number of the mbarrier and 1 more; of mbarriers, when each warp has issued some.
    *(("extra", 1, 8), ("extra_tick", SLOTS * WARPS, 4)),
    *(("slot_address", SLOTS, 4), ("slot_warp", SLOTS, 4), ("slot_lanes", SLOTS, 4)),
    *(("slot_issue", SLOTS, 4), ("slot_site", SLOTS, 4), ("slot_visible", SLOTS, 4)),
    *(("core_target", 1, 8), ("core_shape", 1, 8), ("core_entry", 1, 8), ("core_late", 1, 8)),
    *(("slot_live", SLOTS, 4), ("slot_made", SLOTS, 8), ("slot_last", SLOTS, 8)),
    *(("slot_ended", SLOTS, 4), ("ignored", WARPS, 4), ("ignored_wait", WARPS, 8)),
    *(("come_turn", context.BARRIERS * WARPS, 4), ("come_site", context.BARRIERS * WARPS, 4)),
    *(("issuer", WARPS, 4), ("issuer_lanes", WARPS, 4), ("waited", WARPS * SLOTS, 4)),
    ("waiting_lanes", WARPS * SLOTS, 4),
    ("warp_row", WARPS, ROW_BYTES),
    ("fenced_row", WARPS, ROW_BYTES),
    ("barrier_row", 2 * context.BARRIERS, ROW_BYTES),
    ("cluster_row", 2, ROW_BYTES),
    ("exited_row", 1, ROW_BYTES),
    ("flag_row", 1, ROW_BYTES),
    *(("fenced", WARPS, 4), ("looked", WARPS, 4)),
    *(("held_count", WARPS, 4), ("allocated", 1, 8), ("note_count", 1, 8)),
    # What is written before it is read.
    ("found", FINDINGS, 8 * len(FOUND_FIELDS)),
    ("note", NOTES * NOTE_WORDS, 4),
    *((name, WARPS * HELD, 4) for name in ("held_first", "held_end", "held_site")),
    ("ahead_row", WARPS, ROW_BYTES),
    ("slot_row", 2 * SLOTS, ROW_BYTES),
    ("issue_row", context.QUEUE_RECORDS, ROW_BYTES),
    *(("issue_extra", context.QUEUE_RECORDS, 4), ("extra_row", SLOTS, ROW_BYTES)),
    ("ring", len(GROUPS) * WARPS * RING, 4),
    ("seen_row", 1, ROW_BYTES),
    ("watched", 2 * WATCHED, 8),
)
_FIRST_KEPT = "found"
# What ticks are in: forgotten when they are counted from 1 again.
FORGOTTEN = (
    *("met_tick", "copies_tick", "part_copies", "fence_tick", "fence_copies"),
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
        "waited",
        "warp_row",
        "fenced_row",
        "barrier_row",
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
_BYTES = {name: count * size for name, count, size in _AREAS}


# ---------------------------------------------------------------------------- in Python


def memory(shared: int) -> dict[str, int]:
    """Size the checker's memory of a CTA, by the fields of the context that point there."""
    records = -(-max(shared, 1) // 128) * 8
    return {
        "check": STATE_BYTES,
        "check_shadow": 4 * 8 * records,
        "check_written": 2 * records,
        "check_slots": -(-2 * records // 64) * 64,
        "check_cells": CELL_BYTES,
        "check_log": 8 * LOG_WORDS * LOG_ENTRIES,
        "check_moments": ROW_BYTES * MOMENTS,
        "check_signals": 8 * SIGNAL_WORDS * SIGNALS,
    }


def begin(special: dict[str, np.ndarray], watched: Sequence[tuple[int, int]]) -> None:
    """Forget what the CTA before has done; watch accesses to some of global memory."""
    memory = special["check"]
    memory[: _PLACES[_FIRST_KEPT].offset] = 0
    _words(memory, "tick")[0] = 1
    _words(memory, "watched_count")[0] = len(watched)
    bounds = [each for pair in watched for each in pair]
    _words(memory, "watched")[: len(bounds)] = bounds
    for name in ("check_shadow", "check_written", "check_slots"):
        special[name][:] = 0
    if "tmem" in special:
        special["check_cells"][:] = 0


def _words(memory: np.ndarray, name: str) -> np.ndarray:
    start = _PLACES[name].offset
    return memory[start : start + area_bytes(name)].view(np.uint64)


def found_rows(memory: np.ndarray) -> np.ndarray:
    """Give the table of what was found, a row each."""
    count = int(_words(memory, "found_count")[0])
    return _words(memory, "found").reshape(FINDINGS, -1)[:count]


def notes(memory: np.ndarray) -> list[list[int]]:
    """List what was noted of descriptors and tensor maps, the words of each."""
    start = _PLACES["note"].offset
    words = memory[start : start + area_bytes("note")].view(np.uint32)
    return words.reshape(NOTES, NOTE_WORDS)[: number_of(memory, "note_count")].tolist()


def number_of(memory: np.ndarray, name: str) -> int:
    """Read a count, or another number of the CTA."""
    return int(_words(memory, name)[0])


def take_turn(memory: np.ndarray, turn: int) -> None:
    """Number the turn that the CTA has next: what it does comes after the turns before."""
    _words(memory, "turn")[0] = turn


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


def area_bytes(name: str) -> int:
    """Size an area."""
    return _BYTES[name]


def now(f: NativeMachine) -> Lanes:
    """Read the CTA's tick, uint32."""
    return f.cast(get(f, "tick"), UINT32)
