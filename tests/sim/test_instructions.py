"""The two executors of an instruction give the same bytes: eager, which is read, and native.

Every declared form that executes at once is run on random and on special operands, of each lane
and uniform. Forms that differ in caching, ordering or scope only are run once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

import tilewright  # noqa: F401  (declares the instructions)
from tilewright import sim
from tilewright.base.dtypes import BOOL, UINT8, UINT32, UINT64, DType, dtype
from tilewright.base.spaces import Space
from tilewright.base.targets import target
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
)
from tilewright.ir.statements import (
    Bind,
    Block,
    Declare,
    For,
    If,
    Instruct,
    Kernel,
    Launch,
    Stmt,
    Write,
)
from tilewright.ir.types import PointerType, ScalarType
from tilewright.isa.arithmetic import PACKED
from tilewright.isa.declaration import Form, Operand, families
from tilewright.sim.eager import EagerMachine, execute
from tilewright.sim.engine import context

_ALIKE = ("cop", "evict", "sem", "scope", "rnd")
ROUNDS = 4  # CTAs, each with other operands
ROW = 32 * 8
REGION = 32 * 32  # bytes of memory for one instruction
LANE, CTA = SpecialRegister("laneid"), SpecialRegister("ctaid.x")
TARGET = target("sm_100a")
_ONE = int32(1)


# ---------------------------------------------------------------------------- forms


@cache
def _forms() -> list[Form]:
    """List the forms that differ in their meaning, of those that execute at once."""
    found: dict[object, Form] = {}
    for declaration in itertools.chain(*families().values()):
        if declaration.wait is not None or not declaration.exact:
            continue
        for form in declaration.forms():
            kept = [each for each in form.modifiers if each[0] not in _ALIKE]
            if ("space", "shared::cta") not in kept and not form.time.agent:
                found.setdefault((id(declaration), *kept), form)
    return list(found.values())


def _of_registers(form: Form) -> bool:
    """Tell instructions that touch nothing but registers."""
    across = ("shfl.sync", "vote.sync", "redux.sync", "movmatrix", "mma", "activemask")
    family = form.declaration.family
    return family in across or (not form.declaration.volatile and family != "mbarrier")


def _of_memory(form: Form) -> bool:
    return form.declaration.family in ("ld", "st", "atom", "red", "ldmatrix", "stmatrix")


# ---------------------------------------------------------------------------- operands

_SMALL = (0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 255)


def _special_integers(bits: int) -> list[int]:
    top = 1 << (bits - 1)
    wide = [top, top - 1, top + 1, 2 * top - 1, 2 * top - 2, 2 * top - 7]
    return [each & (2 * top - 1) for each in (*_SMALL, *wide)]


def _special_floats(kind: DType) -> list[int]:
    numbers = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 127.5, 255.5]
    numbers += [2.0**31, -(2.0**31), 2.0**63]
    with np.errstate(over="ignore"):
        found = np.array([*numbers, np.inf, -np.inf], np.float64).astype(kind.numpy)
    bits = [int(each) for each in found.view(f"u{kind.bytes}")]
    mantissa = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}[kind.name]
    infinity, sign = int(np.array(np.inf, kind.numpy).view(f"u{kind.bytes}")), 1 << (kind.bits - 1)
    subnormals = [1, 2, (1 << mantissa) - 1, 1 << mantissa, sign | 1]
    nans = [infinity | 1, infinity | 1 << (mantissa - 1), sign | infinity | 5, sign - 1]
    return [*bits, *subnormals, *nans, infinity - 1]


def _values(random: np.random.Generator, kind: DType, count: int) -> np.ndarray:
    """Draw the bits of numbers: special ones, any bits, and moderate ones."""
    special = _special_floats(kind) if kind.is_float else _special_integers(kind.bits)
    bits = random.integers(0, 1 << 64, count, dtype=np.uint64)
    bits &= np.uint64((1 << kind.bits) - 1)
    if kind.is_float:
        moderate = (random.standard_normal(count) * 4).astype(kind.numpy).view(f"u{kind.bytes}")
    else:
        moderate = random.integers(0, 40, count)
    choice = random.integers(0, 4, count)
    bits = np.where(choice == 0, moderate.astype(np.uint64), bits)
    return np.where(choice > 1, random.choice(np.array(special, np.uint64), count), bits)


def _drawn(random: np.random.Generator, form: Form, operand: Operand) -> np.ndarray:
    """Draw an operand of every lane, as its bits."""
    if operand.kind == "predicate":
        return random.integers(0, 2, 32).astype(np.uint64)
    if form.declaration.family == "mma":
        halves = random.standard_normal(64).astype(np.float16).view(np.uint32)
        singles = random.standard_normal(32).astype(np.float32).view(np.uint32)
        return (halves if operand.name in "ab" else singles).astype(np.uint64)
    type = dict(form.modifiers).get("type", "")
    if type in PACKED and operand.kind == "register":
        low, high = (_values(random, dtype(PACKED[type][0]), 32) for _ in range(2))
        return low | high << np.uint64(operand.dtype.bits // 2)
    return _values(random, operand.dtype, 32)


def _inputs(form: Form) -> list[Operand]:
    return [each for each in form.operands if each.role != "out" for _ in range(each.count)]


def _outputs(form: Form) -> list[Operand]:
    return [each for each in form.operands if each.role == "out" for _ in range(each.count)]


# ---------------------------------------------------------------------------- a kernel


@dataclass
class Case:
    """An instruction with its operands, one row of 32 per round; `constants` are literals."""

    form: Form
    uniform: bool
    rows: list[list[np.ndarray]]
    constants: dict[int, int]
    addresses: frozenset[int] = frozenset()

    def operand(self, turn: int, index: int) -> np.ndarray:
        """Give the bits of an operand in the lanes."""
        row = self.rows[turn][index]
        return np.full(32, row[0]) if self.uniform else row


def _aligned(shape: tuple[int, ...]) -> np.ndarray:
    """Make bytes that begin at a multiple of 32."""
    size = int(np.prod(shape))
    raw = np.zeros(size + 32, np.uint8)
    return raw[-raw.ctypes.data % 32 :][:size].reshape(shape)


def _pointer(kind: DType, space: Space = Space.GLOBAL) -> PointerType:
    return PointerType(space, kind, kind.bytes)


def _at(base: Var, offset: Expr, kind: DType) -> Offset:
    return Offset(base, offset, _pointer(kind))


class Program:
    """A kernel that runs cases on rows of operands and keeps rows of results."""

    def __init__(self, cases: Sequence[Case], memory: Space | None = None) -> None:
        self.cases = cases
        self.memory = memory
        self.rows = sum(len(case.rows[0]) for case in cases)
        self.results = sum(len(_outputs(case.form)) for case in cases)
        # One row more, as nothing is no tensor.
        self.operands = np.zeros((ROUNDS, self.rows + 1, 32), np.uint64)
        self.found = np.zeros((ROUNDS, self.results + 1, 32), np.uint64)
        self.bytes = _aligned((ROUNDS, len(cases), REGION))
        self.names = ("operands", "found", "bytes")
        self.parameters = [Var(name, _pointer(UINT8)) for name in self.names]

    def _row(
        self, base: Var, count: int, row: int, kind: DType, *, uniform: bool = False
    ) -> Offset:
        offset = binary("mul", CTA, int32(count * ROW)) + row * ROW
        if not uniform:
            offset = binary("add", offset, binary("mul", LANE, int32(8)))
        return _at(base, offset, kind)

    def _statements(self, number: int, case: Case, row: int, result: int) -> list[Stmt]:
        operands, found, _ = self.parameters
        before: list[Stmt] = []
        given: list[Expr] = []
        for index, each in enumerate(_inputs(case.form)):
            kind = UINT8 if each.dtype == BOOL else each.dtype
            if index in case.constants:
                given.append(constant(case.constants[index], kind))
                continue
            place = self._row(operands, self.rows + 1, row + index, kind, uniform=case.uniform)
            value: Expr = Read(place, ScalarType(kind))
            if each.dtype == BOOL:
                value = binary("ne", value, constant(0, UINT8))
            if index in case.addresses:
                value = self._address(number, value)
            var = Var(f"x{number}_{index}", value.type)
            before.append(Bind(var, value))
            given.append(var)
        cells = [
            Var(f"y{number}_{index}", ScalarType(each.dtype))
            for index, each in enumerate(_outputs(case.form))
        ]
        before += [Declare(cell, None) for cell in cells]
        outs, ins = iter(cells), iter(given)
        listed: list[Expr] = [
            next(outs) if each.role == "out" else next(ins)
            for each in case.form.operands
            for _ in range(each.count)
        ]
        issue: Stmt = Instruct(case.form, tuple(listed))
        if self.memory is not None and case.form.declaration.lanes == "any":
            issue = If(self._active(number, case), (issue,))
        after: list[Stmt] = []
        for index, cell in enumerate(cells):
            kind = UINT8 if cell.dtype == BOOL else cell.dtype
            place = self._row(found, self.results + 1, result + index, kind)
            after.append(Write(place, cast(cell, kind)))
        return [*before, issue, *after]

    @staticmethod
    def _active(number: int, case: Case) -> Expr:
        """Say which lanes execute a case, as `active` does."""
        bit = binary("and", binary("shr", constant(active(number), UINT32), cast(LANE, UINT32)), 1)
        return binary("ne", bit, constant(0, UINT32))

    def _address(self, number: int, offset: Expr) -> Expr:
        if self.memory is Space.SHARED and offset.dtype == UINT64:
            start = context.SHARED_WINDOW + context.SHARED_START + number * REGION
            return binary("add", offset, constant(start, UINT64))
        if self.memory is Space.SHARED:
            base = SharedBase(_pointer(UINT8, Space.SHARED))
            where = binary("add", offset, constant(number * REGION, offset.dtype))
            return Offset(base, where, _pointer(UINT8, Space.SHARED))
        start = binary("add", binary("mul", CTA, int32(len(self.cases))), int32(number))
        where = binary("add", offset, cast(binary("mul", start, int32(REGION)), UINT64))
        return _at(self.parameters[2], where, UINT8)

    def _moved(self, *, back: bool) -> Block:
        """Copy this CTA's bytes to shared memory, or back."""
        turn = Var("back" if back else "forth", ScalarType(dtype("int32")))
        within = binary("add", binary("mul", turn, int32(128)), binary("mul", LANE, int32(4)))
        start = binary("mul", CTA, int32(self.bytes[0].size))
        outside = _at(self.parameters[2], binary("add", start, within), UINT32)
        base = SharedBase(_pointer(UINT8, Space.SHARED))
        inside = Offset(base, within, _pointer(UINT32, Space.SHARED))
        source, place = (inside, outside) if back else (outside, inside)
        body = (Write(place, Read(source, ScalarType(UINT32))),)
        return (For(turn, int32(0), int32(self.bytes[0].size // 128), _ONE, body),)

    def kernel(self) -> Kernel:
        """Build the lowered kernel."""
        body: list[Stmt] = []
        row = result = 0
        for number, case in enumerate(self.cases):
            body += self._statements(number, case, row, result)
            row += len(case.rows[0])
            result += len(_outputs(case.form))
        shared = self.memory is Space.SHARED
        if shared:
            body = [*self._moved(back=False), *body, *self._moved(back=True)]
        grid, block = (int32(ROUNDS), _ONE, _ONE), (int32(32), _ONE, _ONE)
        launch = Launch(grid, block, (_ONE, _ONE, _ONE), int32(0))
        size = self.bytes[0].size if shared else 0
        return Kernel("k", tuple(self.parameters), launch, tuple(body), shared_bytes=size)

    def run(self, cpu: str | None) -> None:
        """Run natively."""
        row = 0
        for case in self.cases:
            for turn in range(ROUNDS):
                for index in range(len(case.rows[turn])):
                    self.operands[turn, row + index] = case.rows[turn][index]
            row += len(case.rows[0])
        options = sim.Options(workers=1, cpu=cpu)
        arrays = (self.operands, self.found, self.bytes)
        regions = [
            sim.Region(name, array.ctypes.data, array.nbytes, True)
            for name, array in zip(self.names, arrays, strict=True)
        ]
        addresses = [array.ctypes.data for array in arrays]
        sim.build(self.kernel(), TARGET, options).launch(addresses, regions, (ROUNDS, 1, 1), print)


def active(number: int) -> int:
    """Choose the lanes that execute the memory instruction of that number."""
    return (0xFFFFFFFF, 0x0F0F00F3, 0x80000001)[number % 3]


# ---------------------------------------------------------------------------- comparing


def _eager(case: Case, turn: int, machine: EagerMachine) -> list[np.ndarray]:
    operands = []
    for index, each in enumerate(_inputs(case.form)):
        if index in case.constants:
            operands.append(case.constants[index])  # integers wrap
            continue
        bits = case.operand(turn, index)
        if each.dtype == BOOL:
            operands.append(bits != 0)
        else:
            operands.append(bits.astype(f"u{each.dtype.bytes}").view(each.dtype.numpy))
        if case.uniform:
            operands[-1] = np.asarray(operands[-1][0])
    found = []
    for value in execute(case.form, operands, machine):
        array = np.ascontiguousarray(np.broadcast_to(value.value, 32))
        size = array.dtype.itemsize
        found.append(array.view(f"u{size}").astype(np.uint64))
    return found


def _is_nan(bits: np.ndarray, kind: DType) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.isnan(bits.astype(f"u{kind.bytes}").view(kind.numpy).astype(np.float64))


def _same(form: Form, native: np.ndarray, eager: np.ndarray, kind: DType) -> np.ndarray:
    """Compare results.

    What the chip makes of a NaN is known for arithmetic of at most 32 bits. Of signs (`neg`,
    `abs`), of widening and of 64 bits it is not: there a NaN is a NaN.
    """
    same = native == eager
    unknown = kind.bits == 64 or form.declaration.family in ("neg", "abs", "cvt")
    if kind.is_float and unknown:
        same |= _is_nan(native, kind) & _is_nan(eager, kind)
    return same


def _difference(case: Case, turn: int, index: int, native: np.ndarray, eager: np.ndarray) -> str:
    lane = int(np.flatnonzero(native != eager)[0])
    given = [
        hex(case.constants.get(each, int(case.operand(turn, each)[lane])))
        for each in range(len(case.rows[turn]))
    ]
    kind = "uniform " if case.uniform else ""
    return (
        f"{kind}{case.form.text} result {index} lane {lane} of {', '.join(given)}: "
        f"native {int(native[lane]):#x}, eager {int(eager[lane]):#x}"
    )


def _batches(cases: list[Case], size: int) -> list[list[Case]]:
    return [cases[at : at + size] for at in range(0, len(cases), size)]


def _register_case(random: np.random.Generator, form: Form, kind: str) -> Case:
    constants: dict[int, int] = {}
    for index, each in enumerate(_inputs(form)):
        if kind == "literal" and index and each.dtype.is_integer:
            constants[index] = int(random.choice(_special_integers(each.dtype.bits)))
        if each.name == "membermask":
            constants[index] = 0xFFFFFFFF
        if each.kind == "immediate":
            constants[index] = int(random.integers(0, 256))
    rows = [[_drawn(random, form, each) for each in _inputs(form)] for _ in range(ROUNDS)]
    return Case(form, kind == "uniform", rows, constants)


@pytest.mark.parametrize("part", range(8))
def test_register_instructions(part: int, request: pytest.FixtureRequest) -> None:
    random = np.random.default_rng(part)
    cases = [
        _register_case(random, form, kind)
        for form in list(filter(_of_registers, _forms()))[part::8]
        for kind in ("lanes", "uniform", "literal")
    ]
    differences: list[str] = []
    for batch in _batches(cases, 30):
        program = Program(batch)
        program.run(request.config.getoption("--cpu"))
        result = 0
        for case in batch:
            kinds = [each.dtype for each in _outputs(case.form)]
            for turn in range(ROUNDS):
                eager = _eager(case, turn, EagerMachine())
                for index, (kind, wanted) in enumerate(zip(kinds, eager, strict=True)):
                    native = program.found[turn, result + index]
                    if not _same(case.form, native, wanted, kind).all():
                        differences.append(_difference(case, turn, index, native, wanted))
            result += len(kinds)
    assert not differences, "\n".join(dict.fromkeys(differences))


# ---------------------------------------------------------------------------- memory


def _memory_case(random: np.random.Generator, form: Form, number: int) -> Case:
    place = next(each for each in form.operands if each.kind == "address")
    size = max(place.bytes, 1)
    lanes = np.arange(32)
    patterns = (lanes, random.permutation(32), lanes // 2, lanes * 0, 31 - lanes, lanes * 3 % 32)
    pattern = patterns[number % len(patterns)]
    uniform = number % 7 == 6 and form.declaration.lanes == "any"
    rows: list[list[np.ndarray]] = []
    addresses: set[int] = set()
    for turn in range(ROUNDS):
        row: list[np.ndarray] = []
        for index, each in enumerate(_inputs(form)):
            if each.kind == "address":
                addresses.add(index)
                row.append(np.roll(pattern, turn).astype(np.uint64) * np.uint64(size))
            else:
                row.append(_drawn(random, form, each))
        rows.append(row)
    return Case(form, uniform, rows, {}, frozenset(addresses))


def _same_memory(form: Form, native: np.ndarray, eager: np.ndarray) -> bool:
    kind = dtype("float64") if dict(form.modifiers).get("type") == "f64" else UINT64
    found, expected = (memory.view(np.uint64) for memory in (native, eager))
    return bool(_same(form, found, expected, kind).all())


def _goes_to(form: Form, space: Space) -> bool:
    spaces = {each.space for each in form.operands if each.kind == "address"}
    return spaces <= {space, Space.GENERIC}


@pytest.mark.parametrize("space", [Space.SHARED, Space.GLOBAL])
@pytest.mark.parametrize("part", range(6))
def test_memory_instructions(space: Space, part: int, request: pytest.FixtureRequest) -> None:
    random = np.random.default_rng(part)
    forms = [each for each in _forms() if _of_memory(each) and _goes_to(each, space)][part::6]
    cases = [_memory_case(random, form, part + number) for number, form in enumerate(forms)]
    differences: list[str] = []
    for batch in _batches(cases, 24):
        program = Program(batch, space)
        shape = program.bytes.shape
        program.bytes[:] = (
            _values(random, UINT32, program.bytes.size // 4)
            .astype(np.uint32)
            .view(np.uint8)
            .reshape(shape)
        )
        before = program.bytes.copy()
        program.run(request.config.getoption("--cpu"))
        result = 0
        for number, case in enumerate(batch):
            kinds = [each.dtype for each in _outputs(case.form)]
            mask = active(number) if case.form.declaration.lanes == "any" else 0xFFFFFFFF
            for turn in range(ROUNDS):
                memory = before[turn, number].copy()
                machine = EagerMachine(shared=memory, memories={0: memory}, active=mask)
                eager = _eager(case, turn, machine)
                on = np.array([mask >> lane & 1 for lane in range(32)], np.bool_)
                for index, (kind, wanted) in enumerate(zip(kinds, eager, strict=True)):
                    native = np.where(on, program.found[turn, result + index], wanted)
                    if not _same(case.form, native, wanted, kind).all():
                        differences.append(_difference(case, turn, index, native, wanted))
                if not _same_memory(case.form, program.bytes[turn, number], memory):
                    differences.append(f"{case.form.text} leaves other memory")
            result += len(kinds)
    assert not differences, "\n".join(dict.fromkeys(differences))
