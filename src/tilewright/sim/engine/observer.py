"""Who may watch what a kernel does: what the engine calls where something happens.

May import `base`, `isa` and `ir`. The methods emit code where they are called, before what they
tell of takes place. This observer emits none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilewright.base.spaces import Space
from tilewright.ir.expressions import Read
from tilewright.ir.statements import Instruct, Write
from tilewright.isa.declaration import Form
from tilewright.isa.machine import Lanes

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine


class Observer:
    """Watches nothing.

    One that `watches_registers` is told of those that are read early, one that `watches_lanes` of
    lanes that a collective lacks.
    """

    watches_registers = False
    watches_lanes = False

    def accesses(
        self, m: NativeMachine, space: Space, address: Lanes, size: int, *, write: bool
    ) -> None:
        """Tell of a plain access of the active lanes, of `size` bytes each."""

    def stores_at_once(self, m: NativeMachine, space: Space, address: Lanes, value: Lanes) -> None:
        """Tell that the active lanes store values, which may differ, and at which addresses."""

    def comes_to(self, node: Instruct | Read | Write, *, unread: bool = False) -> None:
        """Tell which part of the kernel the next calls are about.

        `unread` tells that the kernel looks at none of the results of an instruction.
        """

    def arrives(self, m: NativeMachine, form: Form, operands: Sequence[Lanes]) -> None:
        """Tell that an instruction which waits arrives where it does."""

    def issues(self, m: NativeMachine, form: Form, operands: Sequence[Any]) -> None:
        """Tell that the active lanes carry an instruction out; if it waits, it has.

        Operands are as `engine.calls` takes them.
        """

    def blocks(self, m: NativeMachine, kind: str, key: Lanes, detail: Lanes) -> None:
        """Tell that the active lanes cannot go on from an instruction that waits, as often as so.

        What they wait for is as `Wait.awaits` and `Wait.detail` say.
        """

    def passes(self, m: NativeMachine, holds: Lanes) -> None:
        """Tell that they go on: what they wait for holds, or they give up.

        `issues` follows.
        """

    def holds(self, m: NativeMachine, first: Lanes, size: int) -> None:
        """Tell that bytes of the warp's frame are results of the instruction, and come later."""

    def touches(self, m: NativeMachine, first: Lanes, size: int) -> None:
        """Tell that bytes of the frame which an instruction may write late are read or written."""

    def reads_unset(self, m: NativeMachine, lanes: Lanes, *, shuffled: bool = False) -> None:
        """Tell that lanes read a register that nothing has written.

        Or one in which a shuffle has put what no lane has given.
        """

    def goes_without(self, m: NativeMachine, lanes: Lanes) -> None:
        """Tell that a collective goes on without lanes that it has waited for.

        They have gone on behind a construct that it is in, and then returned.
        """

    def queues(self, m: NativeMachine, form: Form, number: Lanes, barrier: Lanes) -> None:
        """Tell that an operation has been given a place in the queue."""

    def lands(self, f: NativeMachine, number: Lanes, record: str) -> None:
        """Tell that an operation of the queue is carried out."""

    def takes(self, f: NativeMachine, number: Lanes) -> None:
        """Tell that what an operation of the queue reads is put aside, as it lands later."""

    def updates_mbarrier(self, m: NativeMachine, barrier: Lanes, word: Lanes) -> None:
        """Tell that the eight bytes of an mbarrier are written, for one lane or an agent."""

    def completes(self, m: NativeMachine, kind: str, key: Lanes, count: Lanes) -> None:
        """Tell how often the "barrier" of that number, or that of the "cluster", has completed.

        It may be as often as before.
        """

    def phase_begins(self, m: NativeMachine, barrier: Lanes) -> None:
        """Tell that a phase of the mbarrier at a uniform address begins."""

    def exits(self, f: NativeMachine, lanes: Lanes) -> None:
        """Tell that lanes of the running warp return."""

    def ends(self, f: NativeMachine) -> None:
        """Tell that the CTA ends, whose shared memory is still there; it may have met a fault."""
