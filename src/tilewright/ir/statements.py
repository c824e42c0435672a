"""Statements of the IR, kernels and programs: frozen nodes.

May import `base`, `layout`, `isa` and the rest of `ir`. Blocks are tuples of statements. The IR
keeps loops: `unroll` is a wish that CUDA follows and the simulator ignores.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.base.locations import Location
from tilewright.ir.expressions import Expr, Var
from tilewright.ir.types import TensorType
from tilewright.isa.declaration import Form


def _where() -> Any:
    return field(default=None, compare=False, kw_only=True, repr=False)


class Stmt:
    """A statement. Nodes are frozen."""

    location: Any


Block = tuple[Stmt, ...]


@dataclass(frozen=True)
class Bind(Stmt):
    """Give a value a name, once; the name is visible to the end of the block."""

    var: Var
    value: Expr
    location: Location | None = _where()


@dataclass(frozen=True)
class Declare(Stmt):
    """Declare a mutable cell of a scalar type; without a value it is undefined until assigned."""

    var: Var
    value: Expr | None
    location: Location | None = _where()


@dataclass(frozen=True)
class Assign(Stmt):
    """Assign to a mutable cell."""

    var: Var
    value: Expr
    location: Location | None = _where()


@dataclass(frozen=True)
class Allocate(Stmt):
    """Allocate a buffer: shared memory of the CTA, or registers of each thread.

    The variable has a `TensorType`. A shared buffer lives as long as the kernel, but may lie over
    those of `over`, which nobody uses while it is in use.
    """

    var: Var
    over: tuple[Var, ...] = ()
    location: Location | None = _where()


@dataclass(frozen=True)
class Store(Stmt):
    """Store an element of a tensor. On a local array of rank 1 it survives lowering."""

    tensor: Expr
    indices: tuple[Expr, ...]
    value: Expr
    location: Location | None = _where()


@dataclass(frozen=True)
class Write(Stmt):
    """Write a value at a pointer, by a plain store: what lowering leaves of `Store`."""

    pointer: Expr
    value: Expr
    location: Location | None = _where()


@dataclass(frozen=True)
class For(Stmt):
    """Count `var` from `start` towards `stop` (exclusive) by `step`, which is not zero.

    `kind` is "serial", "unroll", "vectorized" or "parallel": a wish, never a change of meaning.
    """

    var: Var
    start: Expr
    stop: Expr
    step: Expr
    body: Block
    kind: str = "serial"
    location: Location | None = _where()


@dataclass(frozen=True)
class While(Stmt):
    """Repeat while a condition holds; it is evaluated before each turn."""

    condition: Expr
    body: Block
    location: Location | None = _where()


@dataclass(frozen=True)
class If(Stmt):
    """Run one of two blocks."""

    condition: Expr
    then: Block
    orelse: Block = ()
    location: Location | None = _where()


@dataclass(frozen=True)
class Break(Stmt):
    """Leave the innermost loop."""

    location: Location | None = _where()


@dataclass(frozen=True)
class Continue(Stmt):
    """Begin the next turn of the innermost loop."""

    location: Location | None = _where()


@dataclass(frozen=True)
class Return(Stmt):
    """End the thread's part in the kernel."""

    location: Location | None = _where()


@dataclass(frozen=True)
class Instruct(Stmt):
    """Issue a PTX instruction.

    `operands` are in PTX order, one per register or address (a register group takes as many
    as it counts). Output operands are places: a cell's `Var`, or a `Load` naming the element
    that is written. Addresses are pointers, or numbers of the space's address width.
    With `predicate` only threads in which it holds execute it; `preserve` then keeps the old
    values of the outputs in the others, where they are else undefined.
    """

    form: Form
    operands: tuple[Expr, ...]
    predicate: Expr | None = None
    preserve: bool = False
    location: Location | None = _where()


@dataclass(frozen=True)
class Apply(Stmt):
    """Apply an instruction to tiles: `T.cuda.tile.apply`; vanishes in `lower_tiles`.

    Operands are views or scalars; `parameters` are the keyword arguments but `scope`. `places`
    says where each operand, by its name in the declaration, and each parameter is written.
    """

    form: Form
    operands: tuple[Expr, ...]
    scope: str
    parameters: tuple[tuple[str, Any], ...] = ()
    places: tuple[tuple[str, Location | None], ...] = field(default=(), compare=False, repr=False)
    location: Location | None = _where()

    def at(self, name: str) -> Apply:
        """Give the operation as one that stands where an operand or a parameter is written."""
        return replace(self, location=dict(self.places).get(name) or self.location)


@dataclass(frozen=True)
class Print(Stmt):
    """Print as C's `printf` does, once per active thread."""

    format: str
    operands: tuple[Expr, ...]
    location: Location | None = _where()


# What a breakpoint may show: its operands, shared memory, Tensor Memory.
PARTS = ("regs", "shared", "tmem")


@dataclass(frozen=True)
class Breakpoint(Stmt):
    """Show the state of the active threads, where a kernel is simulated; elsewhere it is nothing.

    `operands` are values to show under their labels; `parts`, of `PARTS`, says what is shown.
    """

    labels: tuple[str, ...]
    operands: tuple[Expr, ...]
    parts: tuple[str, ...]
    location: Location | None = _where()

    @property
    def text(self) -> str:
        """Tell the breakpoint from others at its place."""
        return f"breakpoint: {', '.join(self.parts)} {', '.join(self.labels)}"


@dataclass(frozen=True)
class Assert(Stmt):
    """Trap, with a message, if a condition does not hold."""

    condition: Expr
    message: str
    location: Location | None = _where()


# ---------------------------------------------------------------------------- programs


@dataclass(frozen=True)
class Launch:
    """The shape of a launch; entries are int32 expressions of the kernel's parameters.

    `options` are the further fields of `LaunchConfig`, as given.
    """

    grid: tuple[Expr, Expr, Expr]
    block: tuple[Expr, Expr, Expr]
    cluster: tuple[Expr, Expr, Expr]
    dynamic_shared_bytes: Expr
    options: tuple[tuple[str, Any], ...] = ()
    location: Location | None = _where()


@dataclass(frozen=True)
class Kernel:
    """A device function and how it is launched.

    Before lowering, parameters are tensors and scalars, and shapes may mention shape symbols
    (`symbols`, int32 variables solved from the arguments). After `lower_views` parameters are
    pointers and scalars, and `shared_bytes` is the size of the one block of shared memory.
    `buffers` are the shared ones, for reports: each has its first byte and its declared type.
    `relaid` names those that the program also sees under another layout.
    """

    name: str
    params: tuple[Var, ...]
    launch: Launch
    body: Block
    symbols: tuple[Var, ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()
    shared_bytes: int = 0
    buffers: tuple[tuple[str, tuple[int, TensorType]], ...] = field(default=(), compare=False)
    relaid: frozenset[str] = field(default=frozenset(), compare=False)
    location: Location | None = _where()


@dataclass(frozen=True)
class LaunchKernel(Stmt):
    """Start a kernel, from the host."""

    kernel: str
    location: Location | None = _where()


@dataclass(frozen=True)
class EncodeTensorMap(Stmt):
    """Make a tensor map on the host, once; `var` has a `TensorMapType`.

    Kernels take it as a parameter of that variable's name; `AddressOf(var, ())` is its generic
    address there. Axes are listed innermost first: `extents` and `strides` (bytes, of all axes
    but the innermost) are int64 expressions, `box` and `steps` (element strides) int32 ones.
    `format` is one of `isa.tensor_map.FORMATS`; the rest are the driver's numbers.
    """

    var: Var
    pointer: Expr
    extents: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    box: tuple[Expr, ...]
    steps: tuple[Expr, ...]
    format: str
    interleave: int = 0
    swizzle: int = 0
    l2_promotion: int = 0
    oob_fill: int = 0
    location: Location | None = _where()


@dataclass(frozen=True)
class Program:
    """Host statements and the kernels that they launch. Parameters are the host function's."""

    name: str
    params: tuple[Var, ...]
    host: Block
    kernels: tuple[Kernel, ...]
    location: Location | None = _where()
