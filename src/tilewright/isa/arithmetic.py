"""Arithmetic on scalar registers (PTX ISA 9.7.1 to 9.7.4).

May import `base`, `isa.declaration`, `isa.machine`. Forms that flush, saturate or round other
than to nearest are left out unless they are stated here.

    fma.rn.f32 %f0, %f1, %f2, %f3;
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.base.dtypes import DType, dtype
from tilewright.base.spaces import Space
from tilewright.base.targets import Availability, since
from tilewright.isa.declaration import (
    Declaration,
    Form,
    Operand,
    TileContract,
    TileOperand,
    declare,
    register,
)
from tilewright.isa.machine import Lanes, Machine, packed

INTEGERS = ("u16", "u32", "u64", "s16", "s32", "s64")
FLOATS = ("f32", "f64")
HALVES = ("f16", "bf16")
# PTX type of two elements in one register: the element and the register's type.
PACKED = {"f16x2": ("float16", "b32"), "bf16x2": ("bfloat16", "b32"), "f32x2": ("float32", "b64")}
Step = Callable[..., Lanes]
_EVERY = since(75)


def register_type(type: str) -> str:
    """Give the PTX type of the register that holds a value of a type."""
    return PACKED[type][1] if type in PACKED else type


def pack(m: Machine, pieces: Sequence[Lanes]) -> Lanes:
    """Join two elements into one register, the first in the low half."""
    bits = pieces[0].dtype.bits
    low, high = (m.bitcast(piece, dtype(f"uint{bits}")) for piece in pieces)
    whole = dtype(f"uint{2 * bits}")
    return m.cast(low, whole) | (m.cast(high, whole) << bits)


def elementwise(m: Machine, form: Form, step: Step, *operands: Lanes) -> Sequence[Lanes]:
    """Apply a step to each element of the operands' registers."""
    if form["type"] not in PACKED:
        return (step(m, *operands),)
    element = PACKED[form["type"]][0]
    split = [packed(m, operand, element) for operand in operands]
    return (pack(m, [step(m, *pieces) for pieces in zip(*split, strict=True)]),)


def registers_tile(form: Form) -> TileContract:
    """State the contract of a register instruction: an element of a tile per register."""
    local = (Space.LOCAL,)
    return TileContract(
        "thread",
        tuple(
            TileOperand(
                each.name,
                local,
                (each.count,),
                each.dtype.bits,
                scalar=each.role == "in",
            )
            for each in form.operands
        ),
    )


def _availability(floats: int, half: int, bfloat: int) -> Callable[[Form], Availability]:
    """Say since when there are forms of single, half and bfloat16 precision, packed or not."""

    def targets(form: Form) -> Availability:
        if form["type"] == "f32x2":
            return since(100)
        return since({"f16": half, "bf1": bfloat}.get(form["type"][:3], floats))

    return targets


def inputs(names: str, type: str) -> tuple[Operand, ...]:
    """List input registers of a type, by their letters."""
    return tuple(register(name, register_type(type)) for name in names)


def declare_plain(
    family: str,
    syntax: str,
    types: Sequence[str],
    step: Step,
    *,
    names: str,
    summary: str,
    section: str,
    targets: Callable[[Form], Availability] | Availability = _EVERY,
    exact: bool = True,
) -> Declaration:
    """Declare an instruction whose result and inputs `names` all have the type `{type}`."""

    def compute(m: Machine, form: Form, *operands: Lanes) -> Sequence[Lanes]:
        return elementwise(m, form, step, *operands)

    return declare(
        family,
        syntax,
        slots={"type": tuple(types), "rnd": ("", "rn")},
        summary=summary,
        section=section,
        targets=targets,
        operands=lambda form: (
            register("d", register_type(form["type"]), role="out"),
            *inputs(names, form["type"]),
        ),
        compute=compute,
        tile=registers_tile,
        exact=exact,
        volatile=False,
    )


def operation(op: str) -> Step:
    """Make a step of an operation of the IR."""

    def step(m: Machine, left: Lanes, right: Lanes) -> Lanes:
        return m.binary(op, left, right)

    return step


def function(name: str) -> Step:
    """Make a step of a pure function of the IR."""

    def step(m: Machine, *operands: Lanes) -> Lanes:
        return m.intrinsic(name, *operands)

    return step


# ---------------------------------------------------------------------------- add, sub, mul, fma

_ANY_FLOAT = (*FLOATS, *HALVES, *PACKED)

add = declare_plain(
    "add",
    "{type}",
    INTEGERS,
    operation("add"),
    names="ab",
    summary="Add integers.",
    section='9.7.1.1 "add"',
)
add_float = declare_plain(
    "add",
    "{rnd}{type}",
    _ANY_FLOAT,
    operation("add"),
    names="ab",
    summary="Add, rounding to nearest even.",
    section='9.7.3.3 "add", 9.7.4.1 "add"',
    targets=_availability(75, 75, 90),
)
sub = declare_plain(
    "sub",
    "{type}",
    INTEGERS,
    operation("sub"),
    names="ab",
    summary="Subtract integers.",
    section='9.7.1.2 "sub"',
)
sub_float = declare_plain(
    "sub",
    "{rnd}{type}",
    _ANY_FLOAT,
    operation("sub"),
    names="ab",
    summary="Subtract, rounding to nearest even.",
    section='9.7.3.4 "sub", 9.7.4.2 "sub"',
    targets=_availability(75, 75, 90),
)
mul_float = declare_plain(
    "mul",
    "{rnd}{type}",
    _ANY_FLOAT,
    operation("mul"),
    names="ab",
    summary="Multiply, rounding to nearest even.",
    section='9.7.3.5 "mul", 9.7.4.3 "mul"',
    targets=_availability(75, 75, 90),
)
fma = declare_plain(
    "fma",
    "rn.{type}",
    _ANY_FLOAT,
    function("fma"),
    names="abc",
    summary="Multiply and add with one rounding, to nearest even.",
    section='9.7.3.6 "fma", 9.7.4.4 "fma"',
    targets=_availability(75, 75, 80),
)
div = declare_plain(
    "div",
    "{type}",
    INTEGERS,
    operation("truncdiv"),
    names="ab",
    summary="Divide integers, towards zero.",
    section='9.7.1.8 "div"',
)
div_float = declare_plain(
    "div",
    "rn.{type}",
    FLOATS,
    operation("div"),
    names="ab",
    summary="Divide, rounding to nearest even.",
    section='9.7.3.8 "div"',
)
rem = declare_plain(
    "rem",
    "{type}",
    INTEGERS,
    operation("truncmod"),
    names="ab",
    summary="Give the remainder of a division towards zero.",
    section='9.7.1.9 "rem"',
)

# ---------------------------------------------------------------------------- wide products


def _wide(type: str) -> str:
    return f"{type[0]}{2 * int(type[1:])}"


def _element(type: str) -> DType:
    return dtype({"u": "uint", "s": "int"}[type[0]] + type[1:])


def _product(m: Machine, form: Form, a: Lanes, b: Lanes) -> Lanes:
    if form["mode"] == "lo":
        return a * b
    double = _element(_wide(form["type"]))
    product = m.cast(a, double) * m.cast(b, double)
    if form["mode"] == "wide":
        return product
    return m.cast(product >> a.dtype.bits, a.dtype)


def _multiply(m: Machine, form: Form, a: Lanes, b: Lanes, *c: Lanes) -> Sequence[Lanes]:
    product = _product(m, form, a, b)
    return (product + c[0],) if c else (product,)


def _product_rule(form: Form) -> str | None:
    if form["mode"] != "lo" and form["type"].endswith("64"):
        return f".{form['mode']} takes at most 32 bits here"
    return None


def _product_operands(names: str) -> Callable[[Form], Sequence[Operand]]:
    def operands(form: Form) -> Sequence[Operand]:
        result = _wide(form["type"]) if form["mode"] == "wide" else form["type"]
        inputs = [register(name, form["type"]) for name in names]
        addends = [register("c", result)] if form.declaration.family == "mad" else []
        return (register("d", result, role="out"), *inputs, *addends)

    return operands


def _integer_product(family: str, summary: str, section: str) -> Declaration:
    return declare(
        family,
        "{mode}{type}",
        slots={"mode": ("lo", "hi", "wide"), "type": INTEGERS},
        summary=summary,
        section=section,
        targets=since(75),
        operands=_product_operands("ab"),
        compute=_multiply,
        legal=_product_rule,
        tile=registers_tile,
        volatile=False,
    )


mul = _integer_product("mul", "Multiply integers: low half, high half, or whole.", '9.7.1.3 "mul"')
mad = _integer_product("mad", "Multiply integers and add.", '9.7.1.4 "mad"')

# ---------------------------------------------------------------------------- one operand and more

minimum, maximum = (
    declare_plain(
        op,
        "{type}",
        (*INTEGERS, *FLOATS, *HALVES, "f16x2", "bf16x2"),
        operation(op),
        names="ab",
        summary=f"Give the {op}imum; a number wins over NaN, and -0 is less than +0.",
        section=f'9.7.1 "{op}", 9.7.3 "{op}", 9.7.4 "{op}"',
        targets=_availability(75, 80, 80),
    )
    for op in ("min", "max")
)


def _negative(m: Machine, a: Lanes) -> Lanes:
    return -a


def _reciprocal(m: Machine, a: Lanes) -> Lanes:
    return m.constant(1.0, a.dtype) / a


abs_ = declare_plain(
    "abs",
    "{type}",
    ("s16", "s32", "s64", *FLOATS, *HALVES, "f16x2", "bf16x2"),
    function("abs"),
    names="a",
    summary="Give the absolute value.",
    section='9.7.1 "abs", 9.7.3 "abs", 9.7.4 "abs"',
    targets=_availability(75, 75, 80),
)
neg = declare_plain(
    "neg",
    "{type}",
    ("s16", "s32", "s64", *FLOATS, *HALVES, "f16x2", "bf16x2"),
    _negative,
    names="a",
    summary="Negate.",
    section='9.7.1 "neg", 9.7.3 "neg", 9.7.4 "neg"',
    targets=_availability(75, 75, 80),
)
rcp = declare_plain(
    "rcp",
    "rn.{type}",
    FLOATS,
    _reciprocal,
    names="a",
    summary="Give the reciprocal, rounding to nearest even.",
    section='9.7.3.13 "rcp"',
)
sqrt = declare_plain(
    "sqrt",
    "rn.{type}",
    FLOATS,
    function("sqrt"),
    names="a",
    summary="Give the square root, rounding to nearest even.",
    section='9.7.3.15 "sqrt"',
)
