"""Which variables may be unset where it matters: where they go to memory, or decide.

May import `isa`, `ir` and the analyses of `passes`. What is unset and only computed with harms
nobody. A shuffle that reads a lane which its mask does not name gives no value either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

from tilewright.ir.expressions import Binary, Expr, Load, Select, Var, as_constant
from tilewright.ir.operands import read_operands, written_places
from tilewright.ir.print_expressions import print_expr
from tilewright.ir.statements import (
    Allocate,
    Assign,
    Bind,
    Block,
    Break,
    Continue,
    Declare,
    For,
    If,
    Instruct,
    Kernel,
    Return,
    Stmt,
    Store,
    While,
    Write,
)
from tilewright.ir.types import TensorType
from tilewright.ir.visit import children, walk_statements, written
from tilewright.isa import warp_ops
from tilewright.passes.analysis.uniformity import Uniformity, leaves_early

_Names = frozenset[str]
_NONE: _Names = frozenset()
_Place = tuple[str, str]  # a register: a variable, or a local array and which element


def needed(stmt: Stmt) -> tuple[Var, ...]:
    """List the variables that must be set when a statement is come to.

    Of a choice between values only the condition counts.
    """
    found = (each for value in _needed_values(stmt) for each in _decisive(value))
    return tuple({each.name: each for each in found if isinstance(each, Var)}.values())


def needed_elements(stmt: Stmt) -> tuple[Load, ...]:
    """List the elements of local arrays that must be set when a statement is come to."""
    found = (each for value in _needed_values(stmt) for each in _decisive(value))
    return tuple(each for each in found if isinstance(each, Load))


def _needed_values(stmt: Stmt) -> tuple[Expr, ...]:
    match stmt:
        case Write():
            return stmt.pointer, stmt.value
        case If() | While():
            return (stmt.condition,)
        case Instruct() if stmt.form.declaration.lanes == "any":
            touches = any(each.kind == "address" for each in stmt.form.operands)
            return read_operands(stmt) if touches else ()
        case _:
            return ()


def _decisive(expr: Expr) -> Iterator[Expr]:
    """List what a value comes of: of choices, and where one side may not count, what decides."""
    yield expr
    match expr:
        case Select():
            below: Sequence[object] = (expr.condition,)
        case Binary(op="logical_and" | "logical_or"):
            below = (expr.left,)
        case Binary(op="and" | "or") if expr.dtype.is_bool:
            below = ()
        case _:
            below = children(expr)
    for each in below:
        if isinstance(each, Expr):
            yield from _decisive(each)


# ---------------------------------------------------------------------------- shuffles


@dataclass(frozen=True)
class Shuffled:
    """A shuffle: what it gives, what it reads, and which lane of that (`b` and `c` of the ISA)."""

    result: Var
    value: Expr
    offset: Expr
    clamp: Expr
    mask: Expr

    @property
    def names_all(self) -> bool:
        """Tell whether its mask is known to name all lanes."""
        return as_constant(self.mask) == _EVERYONE


_EVERYONE = 0xFFFFFFFF


def shuffled(stmt: Stmt) -> Shuffled | None:
    """Give the parts of a shuffle whose result is a variable."""
    if not isinstance(stmt, Instruct) or stmt.form.declaration not in warp_ops.SHUFFLES:
        return None
    result = stmt.operands[0]
    return Shuffled(result, *stmt.operands[-4:]) if isinstance(result, Var) else None


def from_lanes(kernel: Kernel) -> _Names:
    """Name the variables whose value may come of a lane that is not named by a shuffle's mask.

    None, if no such value goes where it must be defined.
    """
    statements = list(walk_statements(kernel.body))
    names: set[str] = set()
    before = -1
    while len(names) != before:
        before = len(names)
        for stmt in statements:
            if _comes_of_lanes(stmt, names):
                names |= {each.name for each in written(stmt)[:1]}
        if not names:
            return _NONE
    wanted = {each.name for stmt in statements for each in needed(stmt)}
    return frozenset(names) if wanted & names else _NONE


def _comes_of_lanes(stmt: Stmt, names: Set[str]) -> bool:
    shuffle = shuffled(stmt)
    if shuffle is not None:
        return not shuffle.names_all or bool(comes_of(shuffle.value) & names)
    match stmt:
        case Bind() | Assign() | Declare(value=Expr()):
            return stmt.value is not None and bool(comes_of(stmt.value) & names)
        case _:
            return False


def comes_of(expr: Expr) -> _Names:
    """Name the variables that a value comes of."""
    return frozenset(each.name for each in _decisive(expr) if isinstance(each, Var))


# ---------------------------------------------------------------------------- paths


def partly_set(kernel: Kernel) -> _Names:
    """Name the variables that something needs and some path to there has not set."""
    search = _Search()
    search.block(kernel.body, _NONE)
    return frozenset(search.found)


@dataclass
class _Search:
    """Follows which variables may be unset, statement by statement."""

    found: set[str] = field(default_factory=set[str])

    def block(self, block: Block, unset: _Names) -> _Names:
        for stmt in block:
            unset = self.statement(stmt, unset)
        return unset

    def statement(self, stmt: Stmt, unset: _Names) -> _Names:
        self.found |= {each.name for each in needed(stmt)} & unset
        match stmt:
            case Declare(value=None):
                return unset | {stmt.var.name}
            case If():
                return self.block(stmt.then, unset) | self.block(stmt.orelse, unset)
            case For() | While():
                after = self.block(stmt.body, unset)
                return after if _runs_through(stmt) else unset
            case Break() | Continue() | Return():
                return _NONE
            case _:
                return unset - {each.name for each in written(stmt)}


def _runs_through(loop: For | While) -> bool:
    """Tell whether all of a loop's body is sure to be executed."""
    if isinstance(loop, While) or leaves_early(loop.body):
        return False
    bounds = [as_constant(each) for each in (loop.start, loop.stop, loop.step)]
    numbers = [each for each in bounds if isinstance(each, int)]
    return len(numbers) == len(bounds) and len(range(*numbers)) > 0


# ---------------------------------------------------------------------------- turns of loops


def read_first(kernel: Kernel) -> frozenset[tuple[int, str]]:
    """Find what a loop may read before anything has written it, where that harms.

    Gives the statements that read, by their identity, with the names of variables and local arrays.
    Whether something has been written on the way is known when the kernel runs.

    A write stands further on in the loop: of a sum, say, which nothing has cleared. In later turns
    the read is as it should be. It harms where the value goes to memory or decides, and where what
    is written comes of what was there.
    """
    search = _Firsts()
    search.block(kernel.body, in_loop=False)
    return frozenset(search.found)


@dataclass
class _Firsts:
    """Follows what some path to a statement has not written, in the order of the text."""

    found: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    unset: set[str] = field(default_factory=set[str])
    loop: Block = ()  # the body of the outermost one,
    sums: Set[_Place] | None = None  # and its sums, once they are asked for

    def block(self, block: Block, *, in_loop: bool) -> None:
        for stmt in block:
            self.statement(stmt, in_loop=in_loop)

    def statement(self, stmt: Stmt, *, in_loop: bool) -> None:
        if in_loop and self.unset:
            self._read(stmt)
        match stmt:
            case Declare(value=None) | Allocate():
                self.unset.add(stmt.var.name)
            case If():
                before = set(self.unset)
                self.block(stmt.then, in_loop=in_loop)
                then, self.unset = self.unset, before
                self.block(stmt.orelse, in_loop=in_loop)
                self.unset |= then
            case For() | While():
                if not in_loop:
                    self.loop, self.sums = stmt.body, None
                before = set(self.unset)
                self.block(stmt.body, in_loop=True)
                if not _runs_through(stmt):
                    self.unset |= before
            case _:
                self.unset -= {each.name for each in written(stmt)}

    def _read(self, stmt: Stmt) -> None:
        wanted = {_place(each) for each in (*needed(stmt), *needed_elements(stmt))}
        for each in read(stmt):
            name, place = register_name(each), _place(each)
            if name in self.unset and (place in wanted or self._is_sum(place)):
                self.found.add((id(stmt), name))

    def _is_sum(self, place: _Place) -> bool:
        if self.sums is None:
            self.sums = _sums(self.loop)
        return place in self.sums


def _place(register: Var | Load) -> _Place:
    index = print_expr(register.indices[0]) if isinstance(register, Load) else ""
    return register_name(register), index


def _sums(body: Block) -> set[_Place]:
    """Find the variables and elements whose new value comes of their old one, turn by turn."""
    edges = {
        (_place(source), target)
        for stmt in walk_statements(body)
        for target in _targets(stmt)
        for source in read(stmt)
    }
    count = -1
    while len(edges) != count:
        # What comes of nothing, or nothing comes of, is no sum.
        count = len(edges)
        sources, targets = {one for one, _ in edges}, {other for _, other in edges}
        edges = {(one, other) for one, other in edges if one in targets and other in sources}
    return {one for one, _ in edges}


def _targets(stmt: Stmt) -> Iterator[_Place]:
    for tensor, index in stored(stmt):
        yield tensor.name, print_expr(index)
    arrays = {tensor.name for tensor, _ in stored(stmt)}
    for var in written(stmt):
        if var.name not in arrays:
            yield var.name, ""


def read(stmt: Stmt) -> tuple[Var | Load, ...]:
    """List the variables and elements of local arrays that a statement is sure to read."""
    match stmt:
        case Instruct():
            values: Sequence[Expr | None] = read_operands(stmt)
        case Store():
            values = (*stmt.indices, stmt.value)
        case Bind() | Assign() | Declare():
            values = (stmt.value,)
        case Write():
            values = (stmt.pointer, stmt.value)
        case If() | While():
            values = (stmt.condition,)
        case _:
            values = ()
    found = (each for value in values if value is not None for each in _decisive(value))
    return tuple(each for each in found if isinstance(each, Var | Load))


def register_name(place: Var | Load) -> str:
    """Name the variable, or the local array, that a place is of."""
    var = place.tensor if isinstance(place, Load) else place
    assert isinstance(var, Var)
    return var.name


# ---------------------------------------------------------------------------- local arrays

_MOST_ELEMENTS = 64


def partly_stored(kernel: Kernel, uniformity: Uniformity) -> dict[str, int]:
    """Give the lengths of the arrays of which only some lanes may have set an element in need."""
    wanted = {
        each.tensor.name
        for stmt in walk_statements(kernel.body)
        for each in needed_elements(stmt)
        if isinstance(each.tensor, Var)
    }
    if not wanted:
        return {}
    stores = list(_stores(kernel.body, uniformity, parted=False))
    by_all = {(name, index) for name, index, _, parted in stores if not parted}
    return {
        name: length
        for name, index, length, parted in stores
        if parted and name in wanted and length <= _MOST_ELEMENTS
        if not {(name, index), (name, None)} & by_all
    }


def _stores(
    block: Block, uniformity: Uniformity, *, parted: bool
) -> Iterator[tuple[str, object, int, bool]]:
    """List writes of elements: array, index if that is a constant, length, whether lanes part."""
    for stmt in block:
        for tensor, index in stored(stmt):
            assert isinstance(tensor.type, TensorType)
            length = as_constant(tensor.type.shape[0])
            if isinstance(length, int):
                yield tensor.name, as_constant(index), length, parted
        match stmt:
            case If():
                inner = parted or uniformity.is_divergent(stmt)
                yield from _stores(stmt.then + stmt.orelse, uniformity, parted=inner)
            case For() | While():
                inner = parted or uniformity.is_divergent(stmt)
                yield from _stores(stmt.body, uniformity, parted=inner)
            case _:
                pass


def stored(stmt: Stmt) -> tuple[tuple[Var, Expr], ...]:
    """List the elements of local arrays that a statement writes: the array, and the index."""
    match stmt:
        case Store():
            pairs = [(stmt.tensor, stmt.indices)]
        case Instruct():
            places = (each for each in written_places(stmt) if isinstance(each, Load))
            pairs = [(each.tensor, each.indices) for each in places]
        case _:
            return ()
    return tuple((tensor, at[0]) for tensor, at in pairs if isinstance(tensor, Var))
