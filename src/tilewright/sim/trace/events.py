"""The buffer that a CTA writes its events to: its layout, and the code that fills it.

May import `isa` and `sim.engine`. Native code and Python share the layout: a head of 64-bit words,
then events of as many words each. When the buffer is full the host takes it over.

Time is counted in units: one per instruction or access that a path carries out, and one per step
of an operation in flight. An event is of the unit that has begun last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.base.dtypes import UINT64
from tilewright.isa.machine import Lanes
from tilewright.sim.engine.module import Module
from tilewright.sim.engine.native import NativeMachine

# `left` is how many events may still be written, `dropped` how many were not, `turn` 1 + the warp
# whose path has the turn, or 0.
_HEAD = ("time", "used", "size", "left", "dropped", "turn")
HEAD_WORDS = 8
EVENT_WORDS = 8
BUFFERED = 4096
KINDS = (
    *("turn", "issue", "arrive", "block", "queue", "land", "take"),
    *("mbarrier", "complete", "exit"),
)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a CTA.

    `lanes` are those of `warp`. What `a`, `b` and `c` are depends on the kind: see `hooks`.
    """

    time: int
    kind: str
    site: int
    warp: int
    lanes: int
    a: int
    b: int
    c: int


# ---------------------------------------------------------------------------- native code


def _head(f: NativeMachine, name: str) -> Lanes:
    return f.get_word(f.pointer("trace"), _HEAD.index(name))


def _set_head(f: NativeMachine, name: str, value: Lanes | int) -> None:
    f.set_word(f.pointer("trace"), _HEAD.index(name), value)


def emit(module: Module) -> None:
    """Emit the functions that write events and count time."""
    module.memories.add("trace")
    _note(module)
    _tick(module)


def _note(module: Module) -> None:
    """Write an event. Lanes 0 stand for the lane that code runs for."""
    f = module.machine("trace_note")
    with f.function.when(str((_head(f, "left") == 0).value)):
        _set_head(f, "dropped", _head(f, "dropped") + 1)
        f.function.emit("ret void")
        f.function.label(f.function.new_label("dead"))
    with f.function.when(str((_head(f, "used") == _head(f, "size")).value)):
        f.function.emit(f"call void {f.pointer('drain')}(ptr %ctx)")
    used = _head(f, "used")
    at = used * EVENT_WORDS + HEAD_WORDS
    event = f.op(f"getelementptr i64, ptr {f.pointer('trace')}, i64 {at.value}")
    given = {name: f.lanes(UINT64, f"%{name}", 0) for name in ("kind", "a", "b", "c")}
    site, lanes = (
        f.lanes(UINT64, f.op(f"zext i32 %{name} to i64"), 0) for name in ("site", "lanes")
    )
    acting = f.field("acting")
    one = f.constant(1, UINT64) << ((acting - 1) & 31)
    own = f.select(acting != 0, one, f.constant(0, UINT64))
    lanes = f.select(lanes != 0, lanes, own)
    words = (
        *(_head(f, "time"), given["kind"], site, f.field("warp"), lanes),
        *(given["a"], given["b"], given["c"]),
    )
    for index, word in enumerate(words):
        f.set_word(event, index, word)
    _set_head(f, "used", used + 1)
    _set_head(f, "left", _head(f, "left") - 1)
    f.function.emit("ret void")
    parameters = "ptr %ctx, i64 %kind, i32 %site, i32 %lanes, i64 %a, i64 %b, i64 %c"
    f.function.finish("void", parameters, "noinline")


def _tick(module: Module) -> None:
    """Begin a unit of time, of the running warp or of nobody; who has the turn may change."""
    f = module.machine("trace_tick")
    turn = f.lanes(UINT64, "%turn", 0)
    with f.function.when(str((turn != _head(f, "turn")).value)):
        _set_head(f, "turn", turn)
        kind = KINDS.index("turn")
        f.function.emit(
            f"call void @trace_note(ptr %ctx, i64 {kind}, i32 0, i32 0, i64 %turn, i64 0, i64 0)"
        )
    _set_head(f, "time", _head(f, "time") + 1)
    f.function.emit("ret void")
    f.function.finish("void", "ptr %ctx, i64 %turn", "noinline")


# ---------------------------------------------------------------------------- in Python


def memory() -> dict[str, int]:
    """Size the buffer of a CTA, by the field of the context that points there."""
    return {"trace": 8 * (HEAD_WORDS + EVENT_WORDS * BUFFERED)}


def begin(buffer: np.ndarray, limit: int) -> None:
    """Make the buffer of a CTA ready for so many events."""
    words = buffer.view(np.uint64)
    words[:HEAD_WORDS] = 0
    words[_HEAD.index("size")] = BUFFERED
    words[_HEAD.index("left")] = limit


def take(buffer: np.ndarray) -> np.ndarray:
    """Take the events out of a buffer: a row of words each."""
    words = buffer.view(np.uint64)
    used = int(words[_HEAD.index("used")])
    words[_HEAD.index("used")] = 0
    return words[HEAD_WORDS:][: EVENT_WORDS * used].reshape(-1, EVENT_WORDS).copy()


def resume(buffer: np.ndarray, time: int) -> None:
    """Let a CTA go on at a time, others having gone on meanwhile."""
    buffer.view(np.uint64)[_HEAD.index("time")] = time


def pause(buffer: np.ndarray) -> int:
    """End the turn of a warp, as others go on; tell the time. There must be room for an event."""
    words = buffer.view(np.uint64)
    time, used, left, turn = (int(words[_HEAD.index(n)]) for n in ("time", "used", "left", "turn"))
    if turn and left:
        event = words[HEAD_WORDS + EVENT_WORDS * used :][:EVENT_WORDS]
        event[:] = 0
        event[:2] = time, KINDS.index("turn")
        words[_HEAD.index("used")] = used + 1
        words[_HEAD.index("left")] = left - 1
    words[_HEAD.index("turn")] = 0
    return time


def ended(buffer: np.ndarray) -> tuple[int, int]:
    """Tell how much time has passed in a CTA, and how many of its events are lost."""
    words = buffer.view(np.uint64)
    return int(words[_HEAD.index("time")]), int(words[_HEAD.index("dropped")])


def read(rows: np.ndarray) -> list[Event]:
    """Read events out of their rows."""
    words: list[list[int]] = rows.tolist()
    return [
        Event(time, KINDS[kind], site, warp, lanes, a, b, c)
        for time, kind, site, warp, lanes, a, b, c in words
    ]
