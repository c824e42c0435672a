"""Values of a warp as LLVM values: constants, arithmetic, functions.

May import `base`, `isa` and the modules of `engine` below it. Nothing emitted here is undefined
or poison for any operand: shifts clamp, conversions saturate, division is guarded, as PTX defines.

Floats of at most 16 bits are kept as their bits: widening is exact, arithmetic is done in
float32 and rounded once, which for + - * / and sqrt gives the correctly rounded result. Of at
most 32 bits, arithmetic gives one NaN, the canonical one (PTX ISA, "Floating Point Instructions").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.base.dtypes import (
    BOOL,
    FLOAT32,
    FLOAT64,
    INT32,
    SCALARS,
    UINT32,
    UINT64,
    DType,
)
from tilewright.base.errors import CompilerBug
from tilewright.base.narrow import encode, format_of, is_narrow
from tilewright.isa.machine import WARP, Lanes
from tilewright.sim.engine import casts
from tilewright.sim.engine.module import Function, literal
from tilewright.sim.engine.spelling import known_integer, llvm_type, overload, scalar_type

_COMPARE_INT = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_NAN = "0x7FFFFFFFE0000000"  # 0x7fffffff, spelled as LLVM spells a float
_PLAIN = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_EXACT: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "or": 0, "xor": 0}
_LANE_LIST = ", ".join(f"i32 {lane}" for lane in range(WARP))


class Values:
    """Arithmetic on lanes, emitted into a function."""

    def __init__(self, function: Function) -> None:
        self.function = function

    # ---- making values

    def lanes(self, dtype: DType, value: str, width: int) -> Lanes:
        """Wrap an LLVM value."""
        machine: Any = self
        return Lanes(machine, dtype, value, width)

    def constant(self, value: int | float | bool, dtype: DType) -> Lanes:
        """Give a uniform constant."""
        if is_narrow(dtype):
            return self.lanes(dtype, str(encode(float(value), dtype)), 0)
        if not (dtype.is_bool or dtype.is_integer or dtype in (FLOAT32, FLOAT64)):
            raise CompilerBug(f"no constant of type {dtype}", code="compiler-bug")
        number = value
        if dtype.is_integer:
            number = int(value) & ((1 << dtype.bits) - 1)
        return self.lanes(dtype, literal(number, scalar_type(dtype)), 0)

    def lift(self, value: Lanes | int | float, dtype: DType) -> Lanes:
        """Make a constant of a Python number; lanes pass unchanged."""
        return value if isinstance(value, Lanes) else self.constant(value, dtype)

    def lane_id(self) -> Lanes:
        """Give each lane its number, uint32."""
        return self.lanes(UINT32, f"<{_LANE_LIST}>", WARP)

    def spread(self, value: Lanes, width: int = WARP) -> str:
        """Give a value as a vector, repeating a uniform one."""
        if value.width:
            return str(value.value)
        kind = scalar_type(value.dtype)
        if not value.value.startswith("%"):
            return f"splat ({kind} {value.value})"
        vector = f"<{width} x {kind}>"
        first = self.op(f"insertelement {vector} zeroinitializer, {kind} {value.value}, i32 0")
        return self.op(
            f"shufflevector {vector} {first}, {vector} zeroinitializer, "
            f"<{width} x i32> zeroinitializer"
        )

    def op(self, text: str) -> str:
        """Emit an instruction that yields a value."""
        return self.function.value(text)

    def call(self, result: str, name: str, *arguments: tuple[str, str]) -> str:
        """Call an LLVM intrinsic or external function, declaring it."""
        kinds = ", ".join(kind for kind, _ in arguments)
        self.function.module.declare(name, f"declare {result} @{name}({kinds})")
        listed = ", ".join(f"{kind} {value}" for kind, value in arguments)
        return self.op(f"call {result} @{name}({listed})")

    def _together(self, *values: Lanes) -> tuple[int, list[str]]:
        width = max(value.width for value in values)
        if not width:
            return 0, [str(value.value) for value in values]
        return width, [self.spread(value, width) for value in values]

    # ---- arithmetic

    def _common(self, left: Lanes, right: Lanes) -> tuple[Lanes, Lanes]:
        if left.dtype == right.dtype:
            return left, right
        if left.dtype.is_integer and right.dtype.is_integer:
            wide = left.dtype if left.dtype.bits >= right.dtype.bits else right.dtype
            if left.dtype.bits == right.dtype.bits and right.dtype.kind == "uint":
                wide = right.dtype
            return self.cast(left, wide), self.cast(right, wide)
        raise CompilerBug(f"operands of {left.dtype} and {right.dtype}", code="compiler-bug")

    def binary(self, op: str, left: Lanes, right: Lanes) -> Lanes:
        """Apply an operation of the IR, by its name there."""
        if op in ("shl", "shr"):
            return self._shift(op, left, right)
        left, right = self._common(left, right)
        dtype = left.dtype
        if dtype.is_integer and op in _PLAIN:
            folded = self._folded(op, left, right)
            if folded is not None:
                return folded
        if is_narrow(dtype):
            left, right = casts.widen(self, left), casts.widen(self, right)
            if op in _FLOAT:
                return self.cast(self.float_operation(op, left, right), dtype)
            wide = self.binary(op, left, right)
            return wide if wide.dtype.is_bool else self.cast(wide, dtype)
        if op in ("logical_and", "logical_or"):
            op = op.removeprefix("logical_")
        if op in _COMPARE_INT:
            return self._compare(op, left, right)
        if op in ("min", "max"):
            return self._extreme(op, left, right)
        if op in ("floordiv", "mod", "truncdiv", "truncmod") and dtype.is_integer:
            return self._divide(op, left, right)
        if dtype.is_float and op in _FLOAT:
            return self.canonical(self.float_operation(op, left, right))
        width, (a, b) = self._together(left, right)
        kind = llvm_type(dtype, width)
        if dtype.is_float or op not in _PLAIN:
            raise CompilerBug(f"no operation {op} on {dtype}", code="compiler-bug")
        return self.lanes(dtype, self.op(f"{_PLAIN[op]} {kind} {a}, {b}"), width)

    def _folded(self, op: str, left: Lanes, right: Lanes) -> Lanes | None:
        """Compute with constants, as far as no code is needed for it."""
        a, b = known_integer(left), known_integer(right)
        if a is not None and b is not None:
            return self.constant(_EXACT[op](a, b), left.dtype)
        neutral = _NEUTRAL.get(op)
        if b is not None and b == neutral:
            return left
        return right if a is not None and a == neutral and op != "sub" else None

    def float_operation(self, op: str, left: Lanes, right: Lanes) -> Lanes:
        """Apply LLVM's operation; a NaN may have any payload."""
        width, (a, b) = self._together(left, right)
        text = f"{_FLOAT[op]} {llvm_type(left.dtype, width)} {a}, {b}"
        return self.lanes(left.dtype, self.op(text), width)

    def canonical(self, value: Lanes) -> Lanes:
        """Make a NaN of float32 the canonical one; float64 keeps payloads."""
        if value.dtype != FLOAT32:
            return value
        return self.select(value != value, self.lanes(FLOAT32, _NAN, 0), value)

    def _compare(self, op: str, left: Lanes, right: Lanes) -> Lanes:
        width, (a, b) = self._together(left, right)
        kind = llvm_type(left.dtype, width)
        if left.dtype.is_float:
            text = f"fcmp {'une' if op == 'ne' else 'o' + op} {kind} {a}, {b}"
        elif op in ("eq", "ne"):
            text = f"icmp {op} {kind} {a}, {b}"
        else:
            sign = "s" if left.dtype.kind == "int" else "u"
            text = f"icmp {sign}{op} {kind} {a}, {b}"
        return self.lanes(BOOL, self.op(text), width)

    def _extreme(self, op: str, left: Lanes, right: Lanes) -> Lanes:
        """Choose the lesser or greater; a NaN loses, and -0 is less than +0 (PTX min, max)."""
        closer = self._compare("lt" if op == "min" else "gt", left, right)
        chosen = self.select(closer, left, right)
        if not left.dtype.is_float:
            return chosen
        bits = UINT32 if left.dtype == FLOAT32 else UINT64
        a, b = self.bitcast(left, bits), self.bitcast(right, bits)
        tied = self.bitcast(a | b if op == "min" else a & b, left.dtype)
        chosen = self.select(left == right, tied, chosen)
        return self.canonical(self.select(right != right, left, chosen))

    def _shift(self, op: str, left: Lanes, right: Lanes) -> Lanes:
        dtype = left.dtype
        if known_integer(right) == 0:
            return left
        count = self.cast(right, UINT64 if right.dtype.bits == 64 else UINT32)
        width = dtype.bits
        signed = op == "shr" and dtype.kind == "int"
        limit = count
        if not _below(right, width):
            limit = self._extreme("min", count, self.constant(width - 1, count.dtype))
        lanes, (a, b) = self._together(left, self.cast(limit, dtype))
        name = "shl" if op == "shl" else "ashr" if signed else "lshr"
        shifted = self.lanes(dtype, self.op(f"{name} {llvm_type(dtype, lanes)} {a}, {b}"), lanes)
        if signed or _below(right, width):
            return shifted
        return self.select(count < width, shifted, self.constant(0, dtype))

    def _divide(self, op: str, left: Lanes, right: Lanes) -> Lanes:
        """Divide integers; by zero the quotient is all ones and the remainder the dividend."""
        shift = _power_of_two(right)
        if shift is not None:
            return self._divide_by_power(op, left, shift)
        zero = right == 0
        divisor = self.select(zero, self.constant(1, right.dtype), right)
        quotient, remainder = self._quotient(left, divisor)
        if left.dtype.kind == "int" and op in ("floordiv", "mod"):
            opposed = ((remainder ^ divisor) < 0) & (remainder != 0)
            quotient = self.select(opposed, quotient - 1, quotient)
            remainder = self.select(opposed, remainder + divisor, remainder)
        if op in ("floordiv", "truncdiv"):
            return self.select(zero, self.constant(-1, left.dtype), quotient)
        return self.select(zero, left, remainder)

    def _quotient(self, left: Lanes, divisor: Lanes) -> tuple[Lanes, Lanes]:
        signed = left.dtype.kind == "int"
        safe = divisor
        if signed:
            # The most negative number over -1 has no quotient in LLVM; PTX wraps.
            safe = self.select(divisor == -1, self.constant(1, divisor.dtype), divisor)
        width, (a, b) = self._together(left, safe)
        kind = llvm_type(left.dtype, width)
        name = "sdiv" if signed else "udiv"
        quotient = self.lanes(left.dtype, self.op(f"{name} {kind} {a}, {b}"), width)
        if signed:
            quotient = self.select(divisor == -1, -left, quotient)
        return quotient, left - quotient * divisor

    def _divide_by_power(self, op: str, left: Lanes, shift: int) -> Lanes:
        if shift == 0:
            return left if op in ("floordiv", "truncdiv") else left & 0
        mask = (1 << shift) - 1
        if left.dtype.kind == "uint" or op in ("floordiv", "mod"):
            return left & mask if op in ("mod", "truncmod") else left >> shift
        bias = (left >> (left.dtype.bits - 1)) & mask
        if op == "truncdiv":
            return (left + bias) >> shift
        return ((left + bias) & mask) - bias

    def unary(self, op: str, operand: Lanes) -> Lanes:
        """Apply "neg", "invert" or "not"."""
        if op == "not" or (op == "invert" and operand.dtype.is_bool):
            return self.binary("xor", operand, self.constant(True, BOOL))
        if op == "invert":
            return operand ^ self.constant(-1, operand.dtype)
        if operand.dtype.is_float:
            return self._negate(operand)
        return self.constant(0, operand.dtype) - operand

    def _negate(self, operand: Lanes) -> Lanes:
        dtype = operand.dtype
        format = format_of(dtype)
        if format is not None and not format.negates:
            return self.cast(-self.cast(operand, FLOAT32), dtype)
        bits = SCALARS[f"uint{max(dtype.bits, 8)}"]
        sign = format.sign if format is not None else 1 << (dtype.bits - 1)
        flipped = self.bitcast(operand, bits) ^ self.constant(sign, bits)
        return self._of_a_number(operand, self.bitcast(flipped, dtype))

    def _of_a_number(self, operand: Lanes, value: Lanes) -> Lanes:
        """Give a value made of an operand's bits, but for a NaN what arithmetic makes of it.

        To negate and to take the absolute value is to add zero, on the chip.
        """
        if operand.dtype == FLOAT32:
            return self.canonical(value)
        if operand.dtype != FLOAT64:
            return value
        quiet = self.bitcast(operand, UINT64) | self.constant(1 << 51, UINT64)
        return self.select(operand == operand, value, self.bitcast(quiet, FLOAT64))

    def select(self, condition: Lanes, true: Lanes, false: Lanes) -> Lanes:
        """Choose lane by lane; both sides have one type."""
        true, false = self._common(true, false)
        if condition.value in ("true", "false"):
            return true if condition.value == "true" else false
        dtype = true.dtype
        if not condition.width and not true.width and not false.width:
            kind = scalar_type(dtype)
            text = f"select i1 {condition.value}, {kind} {true.value}, {kind} {false.value}"
            return self.lanes(dtype, self.op(text), 0)
        width = max(condition.width, true.width, false.width)
        kind = llvm_type(dtype, width)
        chosen = (
            f"<{width} x i1> {self.spread(condition, width)}"
            if condition.width
            else (f"i1 {condition.value}")
        )
        a, b = self.spread(true, width), self.spread(false, width)
        return self.lanes(dtype, self.op(f"select {chosen}, {kind} {a}, {kind} {b}"), width)

    def bitcast(self, value: Lanes, dtype: DType) -> Lanes:
        """Take the same bits as another type of the same width."""
        source, target = (llvm_type(kind, value.width) for kind in (value.dtype, dtype))
        if source == target:
            return self.lanes(dtype, value.value, value.width)
        return self.lanes(
            dtype, self.op(f"bitcast {source} {value.value} to {target}"), value.width
        )

    # ---- conversions

    def cast(self, value: Lanes, dtype: DType) -> Lanes:
        """Convert values as the IR's `Cast` does."""
        return casts.cast(self, value, dtype)

    # ---- pure functions

    def intrinsic(self, name: str, *operands: Lanes) -> Lanes:
        """Apply a pure function by its name in the IR."""
        dtype = operands[0].dtype
        if name in ("min", "max"):
            return self.binary(name, *operands)
        if is_narrow(dtype) and name != "fma":
            wide = self.intrinsic(name, *(casts.widen(self, each) for each in operands))
            return wide if wide.dtype.is_bool else self.cast(wide, dtype)
        handler = getattr(self, f"_function_{name}", None)
        if handler is not None:
            return handler(*operands)
        if name in _LLVM_FLOAT and dtype.is_float:
            return self.canonical(self._llvm(_LLVM_FLOAT[name], *operands))
        raise CompilerBug(f"the simulator has no function {name!r}", code="compiler-bug")

    def _llvm(self, name: str, *operands: Lanes, extra: tuple[tuple[str, str], ...] = ()) -> Lanes:
        dtype = operands[0].dtype
        width, values = self._together(*operands)
        kind = llvm_type(dtype, width)
        full = f"llvm.{name}.{overload(dtype, width)}"
        arguments = [(kind, value) for value in values] + list(extra)
        return self.lanes(dtype, self.call(kind, full, *arguments), width)

    def _function_fma(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        if is_narrow(a.dtype):
            # The product is exact in float64, and the sum is rounded to odd on the way down.
            x, y, z = (self.cast(self.cast(each, FLOAT32), FLOAT64) for each in (a, b, c))
            return self.cast(self._sum_to_odd(x * y, z), a.dtype)
        return self.canonical(self.chained_fma(a, b, c))

    def _sum_to_odd(self, a: Lanes, b: Lanes) -> Lanes:
        """Add float64 rounding to odd; what a sum loses is exact (Knuth's two-sum)."""
        total = a + b
        back = total - a
        lost = (a - (total - back)) + (b - back)
        bits = self.bitcast(total, UINT64)
        grows = ((lost > 0) & (total > 0)) | ((lost < 0) & (total < 0))
        odd = self.select(grows, bits + 1, bits - 1)
        inexact = ((lost > 0) | (lost < 0)) & ((bits & 1) == 0)
        return self.bitcast(self.select(inexact, odd, bits), FLOAT64)

    def chained_fma(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        """Multiply and add in a chain whose last result is to be made `canonical`."""
        return self._llvm("fma", a, b, c)

    def _function_abs(self, a: Lanes) -> Lanes:
        if a.dtype.is_float:
            return self._of_a_number(a, self._llvm("fabs", a))
        return self.select(a < 0, -a, a) if a.dtype.kind == "int" else a

    def _function_copysign(self, a: Lanes, b: Lanes) -> Lanes:
        return self._llvm("copysign", a, b)

    def _function_popcount(self, a: Lanes) -> Lanes:
        return self.cast(self._llvm("ctpop", a), INT32)

    def _function_clz(self, a: Lanes) -> Lanes:
        return self.cast(self._llvm("ctlz", a, extra=(("i1", "false"),)), INT32)

    def _function_ctz(self, a: Lanes) -> Lanes:
        return self.cast(self._llvm("cttz", a, extra=(("i1", "false"),)), INT32)

    def _function_brev(self, a: Lanes) -> Lanes:
        return self._llvm("bitreverse", a)

    def _function_rsqrt(self, a: Lanes) -> Lanes:
        return self.constant(1.0, a.dtype) / self._llvm("sqrt", a)

    def _function_isnan(self, a: Lanes) -> Lanes:
        return a != a

    def _function_isinf(self, a: Lanes) -> Lanes:
        return self._llvm("fabs", a) == self.constant(float("inf"), a.dtype)

    def _function_isfinite(self, a: Lanes) -> Lanes:
        return self._llvm("fabs", a) < self.constant(float("inf"), a.dtype)


_LLVM_FLOAT = {
    "sqrt": "sqrt",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "nearbyint": "roundeven",
    "round": "round",
    "exp2": "exp2",
    "log2": "log2",
    "sin": "sin",
    "cos": "cos",
}


def _below(value: Lanes, limit: int) -> bool:
    known = known_integer(value) if value.dtype.is_integer else None
    return known is not None and 0 <= known < limit


def _power_of_two(value: Lanes) -> int | None:
    known = known_integer(value)
    if known is None or known <= 0 or known & (known - 1):
        return None
    return known.bit_length() - 1
