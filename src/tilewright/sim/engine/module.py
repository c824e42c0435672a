"""LLVM modules and functions as text, with what the reports need to know of them.

May import `base` and `isa`. Text is emitted rather than built as objects because it is an order of
magnitude faster; LLVM checks it when it parses it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.base.targets import Target
from tilewright.sim.engine.observer import Observer
from tilewright.sim.engine.sites import Sites

if TYPE_CHECKING:
    from tilewright.sim.engine.native import NativeMachine
    from tilewright.sim.engine.queue import Agent

_NAME = re.compile(r"@([\w.]+)")


@dataclass(kw_only=True)
class Module(Sites):
    """An LLVM module under construction.

    `memories` names the fields of the context whose memory only some kernels need. `exact` is the
    target whose arithmetic `exact` numerics follow, `None` with `fast` ones. `observer` adds code
    that watches.
    """

    cpu_features: frozenset[str]
    new_machine: Callable[[Module, str, str], NativeMachine]
    functions: dict[str, str] = field(default_factory=dict[str, str])
    declarations: dict[str, str] = field(default_factory=dict[str, str])
    agents: dict[object, Agent] = field(default_factory=dict[object, Any])
    memories: set[str] = field(default_factory=set[str])
    _pieces: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    _piece: str = ""
    block: tuple[int, int, int] | None = None
    exact: Target | None = None
    observer: Observer = field(default_factory=Observer)

    def machine(self, name: str, site: str = "0") -> NativeMachine:
        """Begin a function in which instructions can be traced."""
        return self.new_machine(self, name, site)

    def declare(self, name: str, declaration: str) -> str:
        """Declare an external function or an intrinsic once."""
        self.declarations.setdefault(name, declaration)
        return name

    @contextmanager
    def together(self, piece: str) -> Generator[None]:
        """Compile the functions that are entered meanwhile as one piece; others are one each."""
        self._piece = piece
        yield
        self._piece = ""

    def enter(self, name: str, head: str, text: str, *, seldom: bool = False) -> None:
        """Enter a function: how it is declared, and its whole text; the same one may come again.

        Those that are called `seldom` are a piece of their own, which is compiled quickly.
        """
        if name in self.functions:
            assert self.functions[name] == text, f"two functions have the name {name}"
            return
        self.functions[name] = text
        self.declarations[name] = f"declare {head}"
        piece = f"{self._piece}, seldom" if self._piece and seldom else self._piece
        self._pieces.setdefault(piece or name, []).append(name)

    def pieces(self) -> list[str]:
        """Give the module as LLVM assembly, in pieces that refer to one another by name.

        A piece depends on what is in it only, so that it is compiled once for all kernels.
        """
        return [self._text(names) for names in self._pieces.values()]

    def _text(self, names: Sequence[str]) -> str:
        defined = "".join(self.functions[name] for name in names)
        used = sorted(set(_NAME.findall(defined)) - set(names))
        return "\n".join([*(self.declarations[name] for name in used), defined, "!0 = !{}", ""])


class Function:
    """The body of one LLVM function under construction: straight text and structured control."""

    def __init__(self, module: Module, name: str) -> None:
        self.module = module
        self.name = name
        self.lines: list[str] = []
        self.entry: list[str] = []
        self._count = 0
        self._block_start = 0
        self._scratch: dict[str, list[str]] = {}
        self._scratch_used: dict[str, int] = {}

    @property
    def block_lines(self) -> int:
        """Count the lines of the basic block that is being written."""
        return len(self.lines) - self._block_start

    @property
    def basic_block(self) -> int:
        """Tell basic blocks apart: no two have the same number."""
        return self._block_start

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

    def scratch(self, type: str) -> str:
        """Reserve a stack slot for the statement at hand: `forget_scratch` gives it back."""
        used = self._scratch_used.get(type, 0)
        self._scratch_used[type] = used + 1
        slots = self._scratch.setdefault(type, [])
        if used == len(slots):
            slots.append(self.slot(type))
        return slots[used]

    def forget_scratch(self) -> None:
        """Let the slots that `scratch` gave be used again."""
        self._scratch_used.clear()

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

    def finish(
        self, result: str, parameters: str, attributes: str = "", *, by_content: bool = False
    ) -> str:
        """Close the function, enter it in the module, and give its name.

        `by_content` has a hash of its text complete the name, so that it is the same wherever the
        text is: what calls it is then the same too.
        """
        body = "\n".join(["entry:", *self.entry, "  br label %start", "start:", *self.lines])
        if by_content:
            text = f"{result} {parameters} {body}"
            self.name += "_" + hashlib.sha256(text.encode()).hexdigest()[:16]
        head = f"{result} @{self.name}({parameters})"
        text = f"define {head} {attributes} {{\n{body}\n}}\n"
        self.module.enter(self.name, head, text, seldom="cold" in attributes.split())
        return self.name


def literal(value: int | float | bool, type: str) -> str:
    """Spell a constant of an LLVM type; a float is written by the bits of its double."""
    if type == "i1":
        return "true" if value else "false"
    if type in ("float", "double"):
        number = float(np.float32(value)) if type == "float" else float(value)
        return f"0x{np.float64(number).view(np.uint64):016X}"
    return str(int(value))
