"""Kernels that issue every form of a declaration once, for the assembler to judge.

May import `base`, `isa` and `ir`. What NVRTC accepts of them certifies the syntax, the operand
types and the targets that a declaration states.

    program = certification_program(forms)      # a lowered program: generate(program, target)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.base.dtypes import UINT8, UINT32, UINT64, DType, dtype
from tilewright.base.spaces import Space
from tilewright.base.targets import Availability, Target, known_targets
from tilewright.base.targets import target as target_named
from tilewright.ir.expressions import (
    Constant,
    Expr,
    Offset,
    Read,
    SharedBase,
    Var,
    constant,
    equal,
    int32,
)
from tilewright.ir.statements import Block, Declare, If, Instruct, Kernel, Launch, Program, Write
from tilewright.ir.types import PointerType, ScalarType
from tilewright.isa.declaration import Declaration, Form, Operand, accepted_types

_ELEMENT = 16  # bytes from one value of the kernel's memory to the next
_THREADS = 128


def oldest_target(available: Availability) -> Target | None:
    """Find the first target, oldest first, that has an instruction."""
    found = (target_named(name) for name in known_targets())
    return next((each for each in found if each in available), None)


def sampled(declaration: Declaration, most: int) -> tuple[Form, ...]:
    """List the forms of a declaration, evenly thinned out where there are more than `most`.

    Every token of every slot remains.
    """
    forms = tuple(declaration.forms())
    if len(forms) <= most:
        return forms
    step = -(-len(forms) // most)
    chosen = dict.fromkeys(forms[::step])
    seen = {token for form in chosen for token in form.modifiers}
    for form in forms:
        if not seen.issuperset(form.modifiers):
            chosen[form] = None
            seen.update(form.modifiers)
    return tuple(chosen)


class _Values:
    """Values out of memory, so that nothing is constant, and cells for results."""

    def __init__(self, memory: Var) -> None:
        self._memory = memory
        self._count = 0
        self.statements: list[Declare] = []
        self.results: list[Var] = []

    def _next(self) -> int:
        self._count += 1
        return self._count

    def place(self, kind: DType) -> Offset:
        """Give a pointer to the next value of an element type."""
        pointer = PointerType(Space.GLOBAL, kind, _ELEMENT)
        return Offset(self._memory, int32(self._next() * _ELEMENT), pointer)

    def loaded(self, kind: DType) -> Read:
        """Give a value of an element type."""
        return Read(self.place(kind), ScalarType(kind))

    def cell(self, kind: DType, *, keeps: bool) -> Var:
        """Give a cell of an element type, for a result."""
        cell = Var(f"v{self._next()}", ScalarType(kind))
        self.statements.append(Declare(cell, self.loaded(kind) if keeps else None))
        self.results.append(cell)
        return cell


def _operand(operand: Operand, values: _Values) -> list[Expr]:
    if operand.kind == "immediate":
        return [_immediate(operand)]
    if operand.kind == "address":
        return [_address(operand, values)]
    kind = dtype(accepted_types(operand.type)[0])
    if operand.role == "in":
        return [values.loaded(kind) for _ in range(operand.count)]
    return [values.cell(kind, keeps=operand.role == "inout") for _ in range(operand.count)]


def _immediate(operand: Operand) -> Constant:
    first = next(iter(operand.values)) if operand.values else 0
    return constant(first, UINT64 if operand.type.endswith("64") else dtype("int32"))


def _address(operand: Operand, values: _Values) -> Expr:
    match operand.space:
        case Space.SHARED:
            pointer = PointerType(Space.SHARED, UINT8, 1024)
            return Offset(SharedBase(pointer), int32(0), pointer)
        case Space.GLOBAL:
            return values.place(UINT8)
        case space:
            narrow = space is not None and space.address_bits == 32
            return values.loaded(UINT32 if narrow else UINT64)


def _issue(form: Form, number: int) -> Block:
    """Issue a form once, in a block of its own, and store its results."""
    memory = Var("memory", PointerType(Space.GLOBAL, UINT8, _ELEMENT))
    values = _Values(memory)
    operands = [each for operand in form.operands for each in _operand(operand, values)]
    instruct = Instruct(form, tuple(operands))
    stores = [Write(values.place(result.dtype), result) for result in values.results]
    chosen = Var("chosen", ScalarType(dtype("int32")))
    return (If(equal(chosen, number), (*values.statements, instruct, *stores)),)


def certification_program(forms: Sequence[Form], name: str = "certify") -> Program:
    """Build a lowered program whose one kernel issues each of the forms."""
    memory = Var("memory", PointerType(Space.GLOBAL, UINT8, _ELEMENT))
    chosen = Var("chosen", ScalarType(dtype("int32")))
    one = int32(1)
    launch = Launch((one, one, one), (int32(_THREADS), one, one), (one, one, one), int32(0))
    body = tuple(stmt for number, form in enumerate(forms) for stmt in _issue(form, number))
    kernel = Kernel(name, (memory, chosen), launch, body, shared_bytes=1024)
    return Program(name, (), (), (kernel,))


def batches(declarations: Iterable[Declaration], most: int) -> dict[Target, tuple[Form, ...]]:
    """Group the forms of declarations by the oldest target that has them."""
    found: dict[Target, list[Form]] = {}
    for declaration in declarations:
        for form in sampled(declaration, most):
            where = oldest_target(form.targets)
            if where is not None:
                found.setdefault(where, []).append(form)
    return {where: tuple(forms) for where, forms in found.items()}
