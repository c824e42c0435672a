"""A kernel for each declared instruction: every form once, on values that differ by lane.

Instructions come from the declarations: what is added there is tested on the GPU without a line
here, as long as its results are determined. Floating-point values are small integers, and then,
in a kernel apart, bits at random: of every exponent, and for products of matrices infinities and
NaNs too.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.base.dtypes import BOOL, UINT8, UINT32, UINT64, DType, dtype
from tilewright.base.spaces import Space
from tilewright.base.targets import Target
from tilewright.codegen.certify import sampled
from tilewright.ir.expressions import (
    Expr,
    Offset,
    Read,
    SharedBase,
    SpecialRegister,
    Var,
    binary,
    cast,
    constant,
    int32,
    select,
)
from tilewright.ir.statements import (
    Declare,
    Instruct,
    Kernel,
    Launch,
    LaunchKernel,
    Program,
    Stmt,
    Write,
)
from tilewright.ir.types import PointerType, ScalarType
from tilewright.isa import named
from tilewright.isa.declaration import Declaration, Form, Operand, accepted_types, families

THREADS = 64
SLOT = 64  # bytes of memory that each thread has for each form
VALUE = 16  # bytes from one value to the next
MOST = 48  # forms of a declaration
# What is not the same everywhere: the PTX ISA does not determine it, or it takes a partner.
_UNDETERMINED = {"elect.sync", "nanosleep", "mbarrier", "cp", "tcgen05", "wgmma", "activemask"}


def kernels(target: Target) -> Iterator[tuple[str, Program, tuple[Any, ...], Any]]:
    """Yield a name, a program, its arguments and the regions of the forms' results."""
    for family, declarations in families().items():
        for number, declaration in enumerate(declarations):
            if family in _UNDETERMINED or not declaration.exact:
                continue
            forms = [f for f in sampled(declaration, MOST) if target in f.targets and _tested(f)]
            if forms:
                yield _Kernel(f"{family}.{number}", declaration, forms).case()
            floating = [form for form in forms if any(map(_is_floating(form), form.operands))]
            if floating:
                yield _Kernel(f"{family}.{number}.random", declaration, floating, True).case()


def _is_floating(form: Form) -> Callable[[Operand], bool]:
    """Tell whether an operand is a number, or numbers, of a floating type."""

    def check(operand: Operand) -> bool:
        if operand.role == "out" or operand.kind != "register":
            return False
        kind = _halves(form, operand) or dtype(accepted_types(operand.type)[0])
        return kind.is_float

    return check


def _tested(form: Form) -> bool:
    text = form.text
    operands = form.operands
    generic = any(o.kind == "address" and o.space not in _SPACES for o in operands)
    halved = "arrive" in text or "cluster.wait" in text  # takes another instruction
    return not halved and not generic and not any(o.role == "inout" for o in operands)


_SPACES = (Space.GLOBAL, Space.SHARED)


@dataclass
class _Kernel:
    """The making of a kernel: values come out of `given`, results go to `out`, in slots."""

    name: str
    declaration: Declaration
    forms: list[Form]
    any_bits: bool = False
    values: list[Any] = field(default_factory=list[Any])
    body: list[Stmt] = field(default_factory=list[Stmt])
    cells: int = 0
    results: int = 0
    regions: list[tuple[int, int, int, str]] = field(default_factory=list[Any])

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(zlib.crc32(self.name.encode()))
        self.given = Var("given", PointerType(Space.GLOBAL, UINT8, VALUE))
        self.out = Var("out", PointerType(Space.GLOBAL, UINT8, VALUE))
        self.memory = Var("memory", PointerType(Space.GLOBAL, UINT8, SLOT))
        self.thread = Var("thread", ScalarType(dtype("int32")))

    def case(self) -> tuple[str, Program, tuple[Any, ...], Any]:
        for number, form in enumerate(self.forms):
            self.issue(number, form)
        one = int32(1)
        name = "form_" + "".join(c if c.isalnum() else "_" for c in self.name)
        ones, shared = (one, one, one), int32(SLOT * THREADS)
        launch = Launch(ones, (int32(THREADS), one, one), ones, shared)
        params = (self.given, self.out, self.memory)
        first = Declare(self.thread, SpecialRegister("tid.x"))
        kernel = Kernel(name, params, launch, (first, *self.body))
        program = Program(name, params, (LaunchKernel(name),), (kernel,))
        given = np.concatenate([*self.values, np.zeros((1, VALUE), np.uint8)]).reshape(-1)
        out = np.full(max(self.results, 1) * THREADS * VALUE, 0xA5, np.uint8)
        return self.name, program, (given, out, self.contents()), tuple(self.regions)

    def contents(self) -> Any:
        """Fill the memory that forms access: numbers that are small in every type."""
        size = len(self.forms) * THREADS * SLOT
        made = self.random.integers(0, 256, size, np.uint8)
        for number, form in enumerate(self.forms):
            kind = _data_type(form)
            if kind is not None and kind.is_float:
                start, end = number * THREADS * SLOT, (number + 1) * THREADS * SLOT
                count = (end - start) // kind.bytes
                numbers = self.random.integers(-8, 9, count).astype(kind.numpy)
                made[start:end] = numbers.view(np.uint8)
        return made

    # ---- one form

    def issue(self, number: int, form: Form) -> None:
        first = self.results
        uses_shared = any(o.space is Space.SHARED for o in form.operands)
        if uses_shared:
            self.copy_slots(number, into=Space.SHARED)
        operands: list[Expr] = []
        outputs: list[Var] = []
        for operand in form.operands:
            if operand.optional and operand.kind == "predicate":
                continue
            for _ in range(operand.count):
                if operand.role == "out":
                    cell = self.cell(operand)
                    outputs.append(cell)
                    operands.append(cell)
                else:
                    operands.append(self.operand(number, form, operand))
        self.body.append(Instruct(form, tuple(operands)))
        for cell in outputs:
            self.store(cell)
        if uses_shared:
            self.copy_slots(number, into=Space.GLOBAL)
        where = THREADS * VALUE
        self.regions.append((1, first * where, self.results * where, form.text))
        size = THREADS * SLOT
        self.regions.append((2, number * size, (number + 1) * size, form.text))

    def copy_slots(self, number: int, into: Space) -> None:
        """Copy each thread's slot between the form's part of the memory and shared memory."""
        sync = Instruct(named.CTA_SYNC, (constant(0, UINT32),))
        self.body.append(sync)
        for word in range(SLOT // 8):
            pair = (
                self.slot(Space.SHARED, number, UINT64, 8 * word),
                self.slot(Space.GLOBAL, number, UINT64, 8 * word),
            )
            target, source = pair if into is Space.SHARED else pair[::-1]
            self.body.append(Write(target, Read(source, ScalarType(UINT64))))
        self.body.append(sync)

    def slot(self, space: Space, number: int, kind: DType, byte: int = 0) -> Offset:
        """Point into this thread's slot."""
        pointer = PointerType(space, kind, 8 if byte % SLOT else SLOT)
        if space is Space.SHARED:
            base: Expr = SharedBase(PointerType(space, UINT8, 1024))
            return Offset(base, self.thread * SLOT + byte, pointer)
        return Offset(self.memory, self.thread * SLOT + (number * THREADS * SLOT + byte), pointer)

    def cell(self, operand: Operand) -> Var:
        kind = BOOL if operand.kind == "predicate" else dtype(accepted_types(operand.type)[0])
        self.cells += 1
        cell = Var(f"v{self.cells}", ScalarType(kind))
        self.body.append(Declare(cell, None))
        return cell

    def store(self, cell: Var) -> None:
        value: Expr = cell
        if cell.dtype.is_bool:
            value = select(cell, constant(1, UINT32), constant(0, UINT32))
        place = self.place(self.out, self.results, value.dtype)
        self.results += 1
        self.body.append(Write(place, value))

    def place(self, base: Var, slot: int, kind: DType) -> Offset:
        pointer = PointerType(Space.GLOBAL, kind, VALUE)
        return Offset(base, self.thread * VALUE + slot * THREADS * VALUE, pointer)

    # ---- operands

    def operand(self, number: int, form: Form, operand: Operand) -> Expr:
        if operand.kind == "immediate":
            values = list(operand.values) if operand.values else [0]
            return constant(values[0xE8 % len(values)], dtype("int32"))
        if operand.kind == "address":
            assert operand.space is not None
            return self.slot(operand.space, number, UINT8)
        if operand.name == "membermask":
            return constant(0xFFFFFFFF, UINT32)
        family = self.declaration.family
        if family in ("bar", "barrier") and operand.name in "ab":
            return constant(1 + number % 15 if operand.name == "a" else THREADS, UINT32)
        if family == "shfl.sync" and operand.name == "c":
            return constant(0 if ".up" in form.text else 31, UINT32)
        if operand.kind == "predicate":
            loaded = self.load(UINT32, self.integers(UINT32))
            return cast(binary("ne", binary("and", loaded, constant(1, UINT32)), 0), BOOL)
        kind = dtype(accepted_types(operand.type)[0])
        return self.load(kind, self.numbers(form, operand, kind))

    def numbers(self, form: Form, operand: Operand, kind: DType) -> Any:
        """Choose a value per thread, as an array of the element type or of its halves."""
        text, random = form.text, self.random
        halves = _halves(form, operand)
        if self.any_bits and _is_floating(form)(operand):
            return self.bits(halves or kind, 8 * kind.bytes)
        if halves is not None:
            return random.integers(-4, 5, (THREADS, 8 * kind.bytes // halves.bits)).astype(
                halves.numpy
            )
        if kind.is_float:
            numbers = random.integers(-8, 9, (THREADS, kind.lanes))
            if text.startswith("rcp") or (operand.name == "b" and text.startswith("div")):
                numbers[numbers == 0] = 4
            return (abs(numbers) if text.startswith("sqrt") else numbers).astype(kind.numpy)
        if self.declaration.family in ("div", "rem"):
            numbers = random.integers(0, 100, (THREADS, 1)) + (operand.name == "b")
            sign = np.where(random.integers(0, 2, (THREADS, 1)), 1, -1)
            signed = ".s" in text
            return (numbers * sign if signed else numbers).astype(f"i{kind.bytes}")
        if self.declaration.family in ("shl", "shr", "shf") and operand.type == "u32":
            return random.integers(0, 80, (THREADS, 1)).astype(np.uint32)
        if self.declaration.family == "shfl.sync" and operand.name == "b":
            return random.integers(0, 32, (THREADS, 1)).astype(np.uint32)
        return self.integers(kind)

    def bits(self, kind: DType, width: int) -> Any:
        """Choose bits at random; a NaN that is not a product's may come out with any bits."""
        made = self.random.integers(0, 256, (THREADS, width // 8), np.uint8)
        if self.declaration.family != "mma":
            numbers = made.view(kind.numpy)
            with np.errstate(invalid="ignore"):
                numbers[~np.isfinite(numbers.astype(np.float64))] = 0.75
        return made

    def integers(self, kind: DType) -> Any:
        size = kind.bytes
        made = self.random.integers(0, 256, (THREADS, size), np.uint8)
        small = self.random.integers(0, 3, THREADS) == 0
        made[small, 1:] = 0
        made[:4] = np.array([[0] * size, [255] * size, [1] + [0] * (size - 1), [128] * size])
        return made

    def load(self, kind: DType, numbers: Any) -> Read:
        data = np.zeros((THREADS, VALUE), np.uint8)
        raw = np.ascontiguousarray(numbers).view(np.uint8).reshape(THREADS, -1)
        data[:, : raw.shape[1]] = raw
        place = self.place(self.given, len(self.values), kind)
        self.values.append(data)
        return Read(place, ScalarType(kind))


def _halves(form: Form, operand: Operand) -> DType | None:
    """Tell the elements that are packed in a register of matrix instructions, or in `f16x2`."""
    if operand.type in ("f16x2", "bf16x2", "f32x2"):
        return dtype(operand.type[:-2])
    text = form.text
    if text.startswith("mma") and operand.name in "ab":
        return dtype("bfloat16" if "bf16" in text else "float32" if "tf32" in text else "float16")
    packed = next((each for each in ("f16x2", "bf16x2") if f".{each}" in text), None)
    if packed is not None and operand.type == "b32":
        return dtype("bfloat16" if packed == "bf16x2" else "float16")
    single = next((each for each in ("bf16", "f16") if text.endswith(f".{each}")), None)
    if single is not None and operand.type in ("b16", "f16", "bf16"):
        return dtype("bfloat16" if single == "bf16" else "float16")
    return None


def _data_type(form: Form) -> DType | None:
    """Tell the type of the elements in memory, where it is a floating one."""
    for name in ("f32", "f64"):
        if form.text.endswith(f".{name}"):
            return dtype(name)
    return None
