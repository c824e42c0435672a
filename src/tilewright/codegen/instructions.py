"""The inline-assembly helper of an instruction, made from its declaration.

May import `base`, `isa` and `ir`. A form becomes one function per combination of operand types
that it is used with; immediates are its template parameters.

    ldmatrix_sync_aligned_m8n8_x2_shared_b16(d[0], d[1], shared_address(tile));
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.base.dtypes import BOOL, DType, dtype
from tilewright.base.narrow import is_narrow
from tilewright.codegen.spelling import Names, broken, scalar_type
from tilewright.isa import conversion
from tilewright.isa.declaration import Form, Operand, accepted_types
from tilewright.isa.named import form as completed

# A predicate operand: how it comes in and goes out, and how an instruction is guarded by it.
_DECLARE = ".reg .pred {name};"
_INTO_PREDICATE = completed(conversion.setp, op="ne", type="b32").text + " {name}, {value}, 0;"
_OUT_OF_PREDICATE = completed(conversion.selp, type="b32").text + " {value}, 1, 0, {name};"
_GUARD = "@{name} "

# The C++ type of an asm operand and its constraint, by the bits and kind of the register.
_CONSTRAINTS = {
    "int16_t": "h",
    "uint16_t": "h",
    "int": "r",
    "unsigned": "r",
    "int64_t": "l",
    "uint64_t": "l",
    "uint128_t": "q",
    "float": "f",
    "double": "d",
}


@dataclass(frozen=True, slots=True)
class Helper:
    """A generated function: its name, its text, and the pieces of the prelude it stands on."""

    name: str
    text: str
    needs: frozenset[str]


@dataclass(frozen=True, slots=True)
class Argument:
    """An operand of a form with the element types of the registers that are passed for it."""

    operand: Operand
    types: tuple[DType, ...]

    @property
    def is_predicate(self) -> bool:
        """Tell the operands that PTX keeps in predicate registers."""
        return self.operand.kind == "predicate" or self.operand.type == "pred"

    @property
    def is_output(self) -> bool:
        """Tell the operands that the instruction writes."""
        return self.operand.role != "in"


def asm_type(type: str) -> str:
    """Give the C++ type of the asm operand that holds a register of a PTX type."""
    if type == "pred":
        return "int"
    first = dtype(accepted_types(type)[0])
    if first.lanes == 1 and first.base in ("float32", "float64"):
        return scalar_type(first)
    bits = max(first.bits * first.lanes, 16)
    if bits == 128:
        return "uint128_t"
    signed = first.kind == "int"
    return {
        16: "int16_t" if signed else "uint16_t",
        32: "int" if signed else "unsigned",
        64: "int64_t" if signed else "uint64_t",
    }[bits]


def address_type(operand: Operand) -> str:
    """Give the C++ type of an address operand: a number of the width of its space."""
    bits = 64 if operand.space is None else operand.space.address_bits
    return "unsigned" if bits == 32 else "uint64_t"


def immediate_type(operand: Operand) -> str:
    """Give the C++ type of an immediate operand."""
    return asm_type(operand.type) if operand.type.endswith("64") else "int"


class _Writer:
    """The state of writing one helper: its parameters, and the operands of its asm statement."""

    def __init__(self) -> None:
        self.names = Names()
        self.parameters: list[str] = []
        self.templates: list[str] = []
        self.before: list[str] = []
        self.after: list[str] = []
        self.outputs: list[str] = []
        self.inputs: list[str] = []
        self.prologue: list[str] = []
        self.epilogue: list[str] = []
        self.needs: set[str] = set()
        # Placeholders in the text, replaced by numbers when all outputs are known.
        self.input_marks: list[str] = []

    def input(self, constraint: str, value: str) -> str:
        """Add an input operand and give the mark that stands for its number."""
        self.inputs.append(f'"{constraint}"({value})')
        mark = f"%<{len(self.inputs) - 1}>"
        self.input_marks.append(mark)
        return mark

    def output(self, constraint: str, value: str, *, kept: bool) -> str:
        """Add an output operand, `kept` if its old value is read too, and give its number."""
        self.outputs.append(f'"{"+" if kept else "="}{constraint}"({value})')
        return f"%{len(self.outputs) - 1}"

    def numbered(self, text: str) -> str:
        """Replace the marks of inputs by their numbers."""
        for index, mark in enumerate(self.input_marks):
            text = text.replace(mark, f"%{len(self.outputs) + index}")
        return text


def helper(
    form: Form,
    arguments: Sequence[Argument],
    name: str,
    *,
    predicated: bool = False,
    preserve: bool = False,
) -> Helper:
    """Write the function that issues a form with operands of the given types.

    A predicated one takes the condition first; with `preserve` its outputs keep their values
    where it does not hold. Parameters follow in PTX order, immediates as template parameters.
    """
    writer = _Writer()
    guard = ""
    if predicated:
        condition = writer.names("condition")
        writer.parameters.append(f"bool {condition}")
        register = _predicate_register(writer, condition, writer.input("r", f"int({condition})"))
        guard = _GUARD.format(name=register)
    rendered = {
        argument.operand.name: _operand(writer, argument, preserve=preserve)
        for argument in arguments
    }
    instruction = guard + f"{form.text} {_operand_list(form, arguments, rendered)}".strip() + ";"
    lines = [*writer.prologue, instruction, *writer.epilogue]
    if len(lines) > 1:
        lines = ["{", *lines, "}"]
    text = _function(writer, name, [writer.numbered(line) for line in lines], form)
    return Helper(name, text, frozenset(writer.needs))


def _touches_memory(form: Form) -> bool:
    """Tell whether the compiler must keep memory accesses on their side of an issue."""
    touches = any(operand.kind == "address" and operand.access for operand in form.operands)
    return form.declaration.volatile or touches


def _volatile(form: Form) -> bool:
    """Tell whether an issue must stay where it is: it acts on more than its thread's registers.

    What lanes do together may not be moved under a condition that some of them fail.
    """
    writes = any(operand.role != "in" for operand in form.operands)
    collective = form.declaration.lanes in ("warp", "warpgroup")
    return _touches_memory(form) or collective or not writes


def _operand_list(form: Form, arguments: Sequence[Argument], rendered: dict[str, str]) -> str:
    template = form.declaration.asm
    if template is None:
        return ", ".join(
            f"[{rendered[a.operand.name]}]"
            if a.operand.kind == "address"
            else rendered[a.operand.name]
            for a in arguments
        )
    template = re.sub(
        r",\s*\[?\{(\w+)\}\]?",
        lambda match: match[0] if match[1] in rendered else "",
        template,
    )
    return re.sub(r"\{(\w+)\}", lambda match: rendered[match[1]], template)


def _operand(writer: _Writer, argument: Argument, *, preserve: bool) -> str:
    """Add an operand's parameters and asm operands, and give its text in the instruction."""
    operand = argument.operand
    match operand.kind:
        case "immediate":
            parameter = writer.names(operand.name)
            writer.templates.append(f"{immediate_type(operand)} {parameter}")
            return writer.input("n", parameter)
        case "address":
            parameter = writer.names(operand.name)
            kind = address_type(operand)
            writer.parameters.append(f"{kind} {parameter}")
            return writer.input(_CONSTRAINTS[kind], parameter)
        case _:
            kept = operand.role == "inout" or (preserve and argument.is_output)
            single = operand.count == 1
            texts = [
                _register(writer, argument, kind, "" if single else str(index), kept=kept)
                for index, kind in enumerate(argument.types)
            ]
            joined = ", ".join(texts)
            return f"{{{joined}}}" if operand.grouped else joined


def _register(writer: _Writer, argument: Argument, kind: DType, suffix: str, *, kept: bool) -> str:
    parameter = writer.names(f"{argument.operand.name}{suffix}")
    spelled = scalar_type(kind)
    reference = "&" if argument.is_output else ""
    writer.parameters.append(f"{spelled} {reference}{parameter}")
    if argument.is_predicate:
        return _predicate(writer, argument, parameter, spelled, kept=kept)
    held = asm_type(argument.operand.type)
    if not argument.is_output:
        return writer.input(_CONSTRAINTS[held], _into_register(writer, parameter, kind, held))
    place = _place(parameter, kind, held)
    if place is None:
        place = writer.names.fresh(f"{parameter}_bits")
        initial = f" = {_into_register(writer, parameter, kind, held)}" if kept else ""
        writer.before.append(f"{held} {place}{initial};")
        writer.after.append(f"{parameter} = {_out_of_register(writer, place, kind, held)};")
    return writer.output(_CONSTRAINTS[held], place, kept=kept)


def _place(parameter: str, kind: DType, held: str) -> str | None:
    """Name the part of a parameter that asm can write directly, if there is one."""
    width = {"h": 16, "r": 32, "l": 64, "q": 128}.get(_CONSTRAINTS[held], 0)
    if is_narrow(kind) and kind.lanes == 1:
        return f"{parameter}.bits" if kind.bits == width else None
    if scalar_type(kind) == held or (kind.is_integer and kind.lanes == 1 and kind.bits == width):
        return parameter
    return None


def _into_register(writer: _Writer, value: str, kind: DType, held: str) -> str:
    if is_narrow(kind) and kind.lanes == 1:
        return f"{value}.bits" if kind.bits == 16 else f"{held}({value}.bits)"
    integral = kind.lanes == 1 and (kind.is_integer or kind.is_bool)
    if integral and held not in ("float", "double"):
        return value if kind.bits > 8 else f"{held}({value})"
    if scalar_type(kind) == held:
        return value
    writer.needs.add("bit_cast")
    return f"bit_cast<{held}>({value})"


def _out_of_register(writer: _Writer, value: str, kind: DType, held: str) -> str:
    if is_narrow(kind) and kind.lanes == 1:
        return f"{scalar_type(kind)}{{uint8_t({value})}}"
    if kind.lanes == 1 and (kind.is_integer or kind.is_bool) and held not in ("float", "double"):
        return f"{scalar_type(kind)}({value})"
    writer.needs.add("bit_cast")
    return f"bit_cast<{scalar_type(kind)}>({value})"


def _predicate_register(writer: _Writer, parameter: str, value: str) -> str:
    register = f"p_{parameter}"
    writer.prologue.append(_DECLARE.format(name=register))
    writer.prologue.append(_INTO_PREDICATE.format(name=register, value=value))
    return register


def _predicate(
    writer: _Writer, argument: Argument, parameter: str, spelled: str, *, kept: bool
) -> str:
    if not argument.is_output:
        mark = writer.input("r", f"int({parameter})")
        return _predicate_register(writer, parameter, mark)
    place = writer.names.fresh(f"{parameter}_bit")
    writer.before.append(f"int {place}{f' = int({parameter})' if kept else ''};")
    bit = f"{place} != 0" if spelled == "bool" else f"{spelled}({place})"
    writer.after.append(f"{parameter} = {bit};")
    number = writer.output("r", place, kept=kept)
    if kept:
        register = _predicate_register(writer, parameter, number)
    else:
        register = f"p_{parameter}"
        writer.prologue.append(_DECLARE.format(name=register))
    writer.epilogue.append(_OUT_OF_PREDICATE.format(name=register, value=number))
    return register


def _function(writer: _Writer, name: str, lines: Sequence[str], form: Form) -> str:
    head = f"template <{', '.join(writer.templates)}>\n" if writer.templates else ""
    keyword = "asm volatile" if _volatile(form) else "asm"
    pieces = [*(f'"{line}\\n"' for line in lines[:-1]), f'"{lines[-1]}"']
    indent = " " * (len(keyword) + 3)
    body = [f"  {keyword}({pieces[0]}", *(f"{indent}{piece}" for piece in pieces[1:])]
    clobbers = ['"memory"'] if _touches_memory(form) else []
    sections = [writer.outputs, writer.inputs, clobbers]
    while sections and not sections[-1]:
        sections.pop()
    body += [f"{indent}: {', '.join(section)}".rstrip() for section in sections]
    statements = [f"  {line}" for line in writer.before]
    statements += ["\n".join(body) + ");"]
    statements += [f"  {line}" for line in writer.after]
    signature = broken(f"__device__ __forceinline__ void {name}({', '.join(writer.parameters)}) {{")
    return head + "\n".join([*signature, *statements]) + "\n}\n"


def overload_key(arguments: Sequence[Argument]) -> tuple[object, ...]:
    """Give what tells the overloads of a form's helper apart."""
    return tuple((a.operand.name, a.types) for a in arguments)


def helper_name(form: Form) -> str:
    """Give the name of a form's helper before it is made unique: the mnemonic with underscores."""
    return re.sub(r"\W+", "_", form.text)


def passed_type(operand: Operand, given: DType) -> DType:
    """Give the element type of the parameter for a register: a predicate is a boolean."""
    return BOOL if operand.kind == "predicate" and operand.role == "in" else given
