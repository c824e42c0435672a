"""`T.ptx`: instructions by their spelling, and the operands of a call of one.

May import `base`, `ir`, `isa` and the modules of this folder below it. What an instruction takes
is read off its declaration.

    >>> T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), 1)
    >>> T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), 1)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.base.dtypes import DType, dtype
from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.issuing import choices
from tilewright.frontend.taking import Taken, as_place
from tilewright.frontend.tensors import (
    Pointer,
    Region,
    Tensor,
    TensorMap,
    offset,
    pointer_type,
)
from tilewright.frontend.values import Value, lift, lift_index, wrap
from tilewright.ir.expressions import (
    Expr,
    Load,
    Read,
    Var,
    as_constant,
    constant,
    default_dtype,
    truth,
)
from tilewright.ir.operands import declared_operands
from tilewright.ir.statements import If, Instruct, Stmt, Store, Write
from tilewright.ir.types import ScalarType, TensorType
from tilewright.isa.declaration import (
    Form,
    Operand,
    Spelling,
    accepted_types,
    accepts,
    family_of_attribute,
    spell,
    token_of_attribute,
    unknown_family,
)


class Sink:
    """The operand `_`: a result that nobody wants."""

    def __repr__(self) -> str:
        return "T.ptx.SINK"


SINK = Sink()
# Which pointers an address operand of a space takes.
_FITTING = {
    Space.SHARED_CLUSTER: (Space.SHARED_CLUSTER, Space.SHARED),
    Space.GENERIC: (Space.GENERIC, Space.GLOBAL, Space.PARAM),
}


class Instruction:
    """An instruction as far as it is spelled: an attribute adds a modifier, a call issues it."""

    __slots__ = ("spelling",)

    def __init__(self, spelling: Spelling) -> None:
        self.spelling = spelling

    def __getattr__(self, name: str) -> Instruction:
        if name.startswith("_"):
            raise AttributeError(name)
        return Instruction(self.spelling.extend(token_of_attribute(name), here()))

    def __getitem__(self, text: Any) -> Any:
        raise FrontendError(
            "an instruction that is being spelled has no items",
            code="bad-call",
            location=here(),
            expected="a modifier after a dot, or all of the instruction's text at once",
            found=f"{self!r}[{text!r}]",
            hint=f"T.ptx[{f'{self.spelling.text}.{text}'!r}](…)" if isinstance(text, str) else None,
        )

    def __call__(self, *operands: Any, pred: Any = None, preserve_dst: bool = False) -> None:
        issue(self.spelling, operands, pred, preserve_dst)

    def __repr__(self) -> str:
        return f"T.ptx[{self.spelling.text!r}]"


class Instructions:
    """`T.ptx`: every instruction, by attribute or by its PTX text."""

    SINK = SINK

    def __getattr__(self, name: str) -> Instruction:
        if name.startswith("_"):
            raise AttributeError(name)
        family = family_of_attribute(name)
        if family is None:
            raise unknown_family(name, here())
        return Instruction(Spelling(family, (), here()))

    def __getitem__(self, text: Any) -> Instruction:
        if not isinstance(text, str):
            raise FrontendError(
                "an instruction is given as the text that PTX writes",
                code="bad-call",
                location=here(),
                expected='T.ptx["…"]',
                found=repr(text),
            )
        return Instruction(spell(text, here()))

    @staticmethod
    def addr(base: Any, bytes: int = 0) -> Any:
        """Move an address by a constant number of bytes."""
        if isinstance(base, Pointer):
            return wrap(offset(base.expr, lift_index(bytes)))
        return lift_scalar(base) + bytes

    @staticmethod
    def pred(value: Any) -> Any:
        """Make a predicate of a number: whether it is not zero."""
        return wrap(truth(lift(value), here()))

    def __repr__(self) -> str:
        return "T.ptx"


def lift_scalar(value: Any) -> Any:
    """Wrap a number as a value of the kernel."""
    return value if isinstance(value, Value) else wrap(lift(value))


def complete(instruction: Any) -> tuple[Form, ...]:
    """List the complete forms that an instruction may mean.

    Raises `FrontendError` (`incomplete-instruction`, `unknown-modifier`).
    """
    if isinstance(instruction, str):
        instruction = Instruction(spell(instruction, argument_place(0)))
    if isinstance(instruction, Form):
        return (instruction,)
    if not isinstance(instruction, Instruction):
        raise FrontendError(
            "an instruction is expected",
            code="bad-call",
            location=argument_place(0),
            expected='T.ptx["…"] or the text of an instruction',
            found=repr(instruction),
        )
    return instruction.spelling.forms()


# ---------------------------------------------------------------------------- issuing


def issue(spelling: Spelling, operands: Sequence[Any], pred: Any, preserve: bool) -> None:
    """Issue the form that the operands choose, by their number and then by their types.

    Raises `FrontendError` (`operand-count`, `operand-type`, `not-constant`).
    """
    located = Spelling(spelling.family, spelling.tokens, here())
    forms = located.forms()
    fitting = [(form, declared_operands(form, len(operands))) for form in forms]
    candidates = [(form, expected) for form, expected in fitting if expected is not None]
    if not candidates:
        raise _wrong_count(spelling, forms, operands)
    failure: FrontendError | None = None
    for form, expected in candidates:
        try:
            call = Call(form, expected, operands)
        except FrontendError as error:
            failure = failure or error
            continue
        call.emit(None if pred is None else truth(lift(pred), argument_place("pred")), preserve)
        return
    assert failure is not None
    raise failure


def _wrong_count(
    spelling: Spelling, forms: Sequence[Form], operands: Sequence[Any]
) -> FrontendError:
    count = len(operands)
    listed = any(isinstance(each, list | tuple) for each in operands)
    expected = dict.fromkeys(_signature(form) for form in forms)
    return FrontendError(
        f"{spelling.text} is called with the wrong number of operands",
        code="operand-count",
        location=here(),
        expected="; or ".join(expected) or "none",
        found=f"{count} operand{'s' * (count != 1)}" + (", lists among them" if listed else ""),
        hint=_ONE_BY_ONE if listed else None,
    )


_ONE_BY_ONE = "the registers of a group are operands of their own: …(r[0], r[1]), or …(*registers)"


def _signature(form: Form) -> str:
    names: list[str] = []
    for each in form.operands:
        if each.count > 1:
            names += [f"{each.name}{index}" for index in range(each.count)]
        else:
            names.append(f"[{each.name}]" if each.optional else each.name)
    return f"{len(names)} ({', '.join(names)})" if names else "no operands"


class Call:
    """A form with the operands of one call, converted to what the IR takes."""

    def __init__(self, form: Form, expected: Sequence[Operand], given: Sequence[Any]) -> None:
        self.form = form
        # Results that go to memory, or to nowhere, pass through a cell.
        self.through: list[tuple[int, DType, Expr | None, bool]] = []
        # Arguments of helpers that the instruction writes to.
        self.taken: list[Taken] = []
        self.operands: list[Expr | None] = []
        for position, (operand, value) in enumerate(zip(expected, given, strict=True)):
            where = argument_place(position)
            self.operands.append(self._convert(operand, value, position, where))

    def emit(self, predicate: Expr | None, preserve: bool) -> None:
        """Add the instruction to the kernel, with what brings its results to their places."""
        builder = current()
        if predicate is not None and self.through and builder.reads_state(predicate):
            predicate = builder.bind("predicate", predicate)
        operands = list(self.operands)
        stores: list[Stmt] = []
        for position, kind, place, is_read in self.through:
            first = place if place is not None and is_read else None
            cell = builder.declare("result", kind, first)
            builder.cells.discard(cell.name)
            operands[position] = cell
            match place:
                case Load():
                    stores.append(Store(place.tensor, place.indices, cell, location=here()))
                case Read():
                    stores.append(Write(place.pointer, cell, location=here()))
                case _:
                    pass
        complete = tuple(each for each in operands if each is not None)
        assert len(complete) == len(operands)
        builder.emit(Instruct(self.form, complete, predicate, preserve, location=here()))
        if predicate is None:
            builder.blocks[-1].extend(stores)
        elif stores:
            # Where the instruction was not executed there is nothing to bring anywhere.
            builder.emit(If(predicate, tuple(stores), location=here()))
        for each in self.taken:
            builder.blocks[-1].extend(each.updates())

    def _convert(
        self, operand: Operand, value: Any, position: int, where: Location | None
    ) -> Expr | None:
        if isinstance(value, list | tuple):
            raise self._wrong(operand, "one operand", "a list", where, _ONE_BY_ONE)
        match operand:
            case Operand(kind="immediate"):
                return self._immediate(operand, value, where)
            case Operand(kind="address"):
                return self._address(operand, value, where)
            case Operand(role="in"):
                return self._input(operand, value, where)
            case _:
                return self._place(operand, value, position, where)

    def _immediate(self, operand: Operand, value: Any, where: Location | None) -> Expr:
        found = lift(value)
        number = as_constant(found)
        if number is None:
            raise FrontendError(
                f"the operand {operand.name!r} of {self.form.text} is a constant",
                code="not-constant",
                location=where,
                found=f"{found.type} {found}",
            )
        if operand.values is not None and number not in operand.values:
            raise self._wrong(operand, choices(operand.values), str(number), where)
        return constant(number, dtype(accepted_types(operand.type)[0]), where)

    def _address(self, operand: Operand, value: Any, where: Location | None) -> Expr:
        space = operand.space
        assert space is not None
        if isinstance(value, Pointer):
            found = pointer_type(value.expr).space
            if found not in _FITTING.get(space, (space,)):
                raise self._wrong(
                    operand, f"a pointer into {space.value} memory", str(value.expr.type), where
                )
            return value.expr
        bits = space.address_bits
        expected = f"a pointer into {space.value} memory, or a uint{bits}"
        if isinstance(value, Tensor | TensorMap):
            hint = "take the address of an element: t.ptr_to([i]) or T.address_of(t)"
            if isinstance(value, TensorMap):
                hint = f"take its address: T.address_of({value.var.name})"
            raise self._wrong(operand, expected, str(value.expr.type), where, hint)
        address = self._lifted(operand, value, dtype(f"uint{bits}"), where)
        kind = address.type
        if not isinstance(kind, ScalarType) or not kind.dtype.is_integer or kind.dtype.bits != bits:
            hint = "T.address_of(t[i]) is the address of an element"
            raise self._wrong(operand, expected, str(kind), where, hint)
        return address

    def _lifted(self, operand: Operand, value: Any, literal: DType, where: Location | None) -> Expr:
        try:
            return lift(value, literal)
        except FrontendError as error:
            raise self._wrong(operand, literal.name, error.found or "", where) from error

    def _input(self, operand: Operand, value: Any, where: Location | None) -> Expr:
        own = dtype(accepted_types(operand.type)[0])
        literal = own
        if not isinstance(value, Value):
            standing_alone = default_dtype(value) if isinstance(value, int | float) else own
            literal = standing_alone if accepts(operand.type, standing_alone) else own
        found = self._lifted(operand, value, literal, where)
        number = isinstance(found.type, ScalarType) and not found.dtype.is_float
        if operand.type == "pred" and number:
            return truth(found, where)
        if not isinstance(found.type, ScalarType) or not accepts(operand.type, found.dtype):
            raise self._wrong(operand, _types(operand), str(found.type), where)
        number = as_constant(found)
        if operand.values is not None and number is not None and number not in operand.values:
            raise self._wrong(operand, choices(operand.values), str(number), where)
        return found

    def _place(
        self, operand: Operand, value: Any, position: int, where: Location | None
    ) -> Expr | None:
        is_read = operand.role == "inout"
        own = dtype(accepted_types(operand.type)[0])
        if isinstance(value, Sink):
            self.through.append((position, own, None, is_read))
            return None
        place = as_place(value)
        cells = current().cells
        if not isinstance(place, Load | Read) and not (
            isinstance(place, Var) and place.name in cells
        ):
            found = "a tensor" if isinstance(value, Tensor | Region) else _describe(value)
            raise self._wrong(
                operand,
                "a place that can be written: a cell, or an element of a tensor",
                found,
                where,
                "declare a cell (`x: T.float32`), or write to an element of T.alloc_local(…)",
            )
        if not accepts(operand.type, place.dtype):
            raise self._wrong(operand, _types(operand), str(place.type), where)
        if isinstance(value, Taken):
            self.taken.append(value)
        if isinstance(place, Load) and _is_local_array(place.tensor):
            return place
        if isinstance(place, Load | Read):
            self.through.append((position, place.dtype, place, is_read))
            return None
        return place

    def _wrong(
        self,
        operand: Operand,
        expected: str,
        found: str,
        where: Location | None,
        hint: str | None = None,
    ) -> FrontendError:
        return FrontendError(
            f"the operand {operand.name!r} of {self.form.text} does not fit",
            code="operand-type",
            location=where,
            expected=expected,
            found=found,
            hint=hint,
        )


def _is_local_array(tensor: Expr) -> bool:
    return isinstance(tensor.type, TensorType) and tensor.type.space is Space.LOCAL


def _types(operand: Operand) -> str:
    return " or ".join(accepted_types(operand.type)) + f", because of .{operand.type}"


def _describe(value: Any) -> str:
    return f"{value.expr.type} {value.expr}" if isinstance(value, Value) else repr(value)
