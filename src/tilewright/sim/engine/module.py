"""LLVM modules and functions as text, with what the reports need to know of them.

May import `base` and `isa`. Text is emitted rather than built as objects because it is an order of
magnitude faster; LLVM checks it when it parses it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.sim.engine.sites import Sites

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine
    from tilewright.sim.engine.queue import Agent


@dataclass(kw_only=True)
class Module(Sites):
    """An LLVM module under construction.

    `memories` names the fields of the context whose memory only some kernels need.
    """

    cpu_features: frozenset[str]
    new_machine: Callable[[Module, str, str], NativeMachine]
    functions: dict[str, str] = field(default_factory=dict[str, str])
    declarations: dict[str, str] = field(default_factory=dict[str, str])
    agents: list[Agent] = field(default_factory=list[Any])
    agent_numbers: dict[object, int] = field(default_factory=dict[object, int])
    memories: set[str] = field(default_factory=set[str])
    waits_for_groups: bool = False
    block: tuple[int, int, int] | None = None
    numerics: str = "fast"

    def machine(self, name: str, site: str = "0") -> NativeMachine:
        """Begin a function in which instructions can be traced."""
        return self.new_machine(self, name, site)

    def declare(self, name: str, declaration: str) -> str:
        """Declare an external function or an intrinsic once."""
        self.declarations.setdefault(name, declaration)
        return name

    def text(self) -> str:
        """Give the module as LLVM assembly."""
        return "\n".join([*self.declarations.values(), *self.functions.values(), "!0 = !{}", ""])


class Function:
    """The body of one LLVM function under construction: straight text and structured control."""

    def __init__(self, module: Module, name: str) -> None:
        self.module = module
        self.name = name
        self.lines: list[str] = []
        self.entry: list[str] = []
        self._count = 0
        self._block_start = 0

    @property
    def block_lines(self) -> int:
        """Count the lines of the basic block that is being written."""
        return len(self.lines) - self._block_start

    def value(self, text: str) -> str:
        """Emit an instruction that yields a value, and name it."""
        name = f"%v{self._count}"
        self._count += 1
        self.lines.append(f"  {name} = {text}")
        return name

    def emit(self, text: str) -> None:
        """Emit an instruction that yields nothing."""
        self.lines.append(f"  {text}")

    def new_label(self, stem: str) -> str:
        """Invent a label."""
        self._count += 1
        return f"{stem}{self._count}"

    def label(self, name: str) -> None:
        """Begin a basic block."""
        self._block_start = len(self.lines)
        self.lines.append(f"{name}:")

    def branch(self, label: str) -> None:
        """End the block by a jump."""
        self.emit(f"br label %{label}")

    def branch_if(self, condition: str, then: str, otherwise: str) -> None:
        """End the block by a choice."""
        self.emit(f"br i1 {condition}, label %{then}, label %{otherwise}")

    def slot(self, type: str, align: int = 64) -> str:
        """Reserve a stack slot in the entry block."""
        name = f"%s{len(self.entry)}"
        self.entry.append(f"  {name} = alloca {type}, align {align}")
        return name

    @contextmanager
    def when(self, condition: str) -> Generator[None]:
        """Emit code that runs if a condition holds."""
        then, after = self.new_label("then"), self.new_label("after")
        self.branch_if(condition, then, after)
        self.label(then)
        yield
        self.branch(after)
        self.label(after)

    @contextmanager
    def loop(self, count: str, type: str = "i64") -> Generator[str]:
        """Emit a loop that counts from 0 to `count`, exclusive; yields the counter."""
        slot = self.slot(type, 8)
        head, body, after = (self.new_label(stem) for stem in ("head", "body", "after"))
        self.emit(f"store {type} 0, ptr {slot}")
        self.branch(head)
        self.label(head)
        counter = self.value(f"load {type}, ptr {slot}")
        self.branch_if(self.value(f"icmp ult {type} {counter}, {count}"), body, after)
        self.label(body)
        yield counter
        following = self.value(f"add {type} {counter}, 1")
        self.emit(f"store {type} {following}, ptr {slot}")
        self.branch(head)
        self.label(after)

    def finish(self, result: str, parameters: str, attributes: str = "") -> None:
        """Close the function and enter it in the module."""
        body = "\n".join(["entry:", *self.entry, "  br label %start", "start:", *self.lines])
        head = f"define {result} @{self.name}({parameters}) {attributes}"
        self.module.functions[self.name] = f"{head} {{\n{body}\n}}\n"


def literal(value: int | float | bool, type: str) -> str:
    """Spell a constant of an LLVM type; a float is written by the bits of its double."""
    if type == "i1":
        return "true" if value else "false"
    if type in ("float", "double"):
        number = float(np.float32(value)) if type == "float" else float(value)
        return f"0x{np.float64(number).view(np.uint64):016X}"
    return str(int(value))
