"""Arithmetic on NumPy arrays as the IR and PTX define it: the readable reference.

May import `base`. Integers wrap, shifts clamp, conversions saturate, division by zero gives all
ones and leaves the dividend, and a floating result that is no number is the canonical NaN.

    >>> binary("shl", np.array(1, np.uint32), np.array(32, np.uint32), UINT32)
    array(0, dtype=uint32)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from tilewright.base.dtypes import BOOL, FLOAT32, FLOAT64, INT32, SCALARS, DType
from tilewright.base.narrow import encode, format_of, is_narrow

Array = np.ndarray[Any, Any]

# The bits of the one NaN that arithmetic gives (PTX ISA, "Floating Point Instructions").
_NAN = {32: 0x7FFFFFFF, 64: 0x7FF8000000000000}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def constant(value: float | bool, dtype: DType) -> Array:
    """Make a zero-dimensional array of a Python number; integers wrap."""
    if is_narrow(dtype):
        return np.array(encode(float(value), dtype), _bits(dtype)).view(dtype.numpy)
    if not dtype.is_integer:
        return np.array(value, dtype.numpy)
    return np.array(int(value) & ((1 << dtype.bits) - 1), _bits(dtype)).view(dtype.numpy)


def _bits(dtype: DType) -> np.dtype[Any]:
    """Give the unsigned NumPy type of the same width."""
    return np.dtype(f"u{dtype.numpy.itemsize}")


def canonical(values: Array, dtype: DType) -> Array:
    """Make every NaN the canonical one of its format."""
    format = format_of(dtype)
    bits = _NAN[dtype.bits] if format is None else format.nan
    nan = np.array(bits, _bits(dtype)).view(dtype.numpy)
    return np.where(_is_nan(values), nan, values)


def _is_nan(values: Array) -> Array:
    with np.errstate(invalid="ignore"):  # ml_dtypes reports signalling ones
        return np.isnan(values)


def common(left: DType, right: DType) -> DType:
    """Find the type in which two operands meet: the wider, of two alike the unsigned."""
    if left == right:
        return left
    assert left.is_integer and right.is_integer, f"{left} and {right} do not mix"
    if left.bits != right.bits:
        return left if left.bits > right.bits else right
    return left if left.kind == "uint" else right


# ---------------------------------------------------------------------------- rounding once


def _to_odd(nearest: Array, rest: Array) -> Array:
    """Turn a sum rounded to nearest, and what that lost, into one rounded to odd.

    A number rounded to odd can be rounded again, to two bits fewer or less, as if for the first
    time (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    bits = np.ascontiguousarray(nearest).view(_bits_of(nearest)).reshape(nearest.shape)
    change = np.isfinite(nearest) & (rest != 0) & (bits & 1 == 0)
    toward = np.where(rest > 0, np.inf, -np.inf).astype(nearest.dtype)
    return np.where(change, np.nextafter(nearest, toward), nearest)


def _bits_of(values: Array) -> np.dtype[Any]:
    return np.dtype(f"u{values.dtype.itemsize}")


def _sum_to_odd(a: Array, b: Array) -> Array:
    """Add in double precision, rounding to odd; what is lost is exact (Knuth's two-sum)."""
    total = a + b
    back = total - a
    return _to_odd(total, (a - (total - back)) + (b - back))


def _from_double(values: Array, dtype: DType) -> Array:
    """Round float64 to a narrower format, once, as `base.narrow` says."""
    format = format_of(dtype)
    if format is None:
        return values.astype(dtype.numpy)
    nearest = values.astype(np.float32)
    single = _to_odd(nearest, values - nearest.astype(np.float64))
    if format.scale:
        return _to_scale(single)
    if format.saturates:  # ml_dtypes gives infinities and NaNs
        most = np.array(format.largest, np.uint8).view(dtype.numpy).astype(np.float32)
        single = np.clip(single, -most, most)
    known = np.where(np.isnan(single), np.float32(0), single).astype(dtype.numpy)
    return np.where(np.isnan(single), constant(np.nan, dtype), known)


def _to_scale(single: Array) -> Array:
    """Round magnitudes up to powers of two, kept as their exponents."""
    fraction, exponent = np.frexp(np.abs(single))
    power = np.where(fraction == 0.5, exponent - 1, exponent)
    power = np.where(np.isinf(single), 127, np.where(single == 0, -127, power))
    bits = np.where(np.isnan(single), 255, np.clip(power, -127, 127) + 127)
    return bits.astype(np.uint8).view(SCALARS["float8_e8m0fnu"].numpy)


def fma(a: Array, b: Array, c: Array, dtype: DType) -> Array:
    """Compute a·b + c with one rounding."""
    with np.errstate(all="ignore"):
        if dtype == FLOAT64:
            return canonical(_fma_double(a, b, c), dtype)
        x, y, z = (np.asarray(value).astype(np.float64) for value in (a, b, c))
        return canonical(_from_double(_sum_to_odd(x * y, z), dtype), dtype)


def _fma_double(a: Array, b: Array, c: Array) -> Array:
    def one(x: float, y: float, z: float) -> float:
        plain = float(np.float64(x) * np.float64(y) + np.float64(z))
        if not all(map(np.isfinite, (x, y, z))):
            return plain
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        try:
            return float(exact) if exact else plain
        except OverflowError:
            return np.inf if exact > 0 else -np.inf

    return np.asarray(np.vectorize(one, otypes=[np.float64])(a, b, c))


# ---------------------------------------------------------------------------- two operands


def _shift(op: str, left: Array, right: Array, dtype: DType) -> Array:
    wide = np.asarray(right).dtype.itemsize == 8
    count = np.asarray(right).astype(np.uint64 if wide else np.uint32)
    inside = np.minimum(count, dtype.bits - 1).astype(dtype.numpy)
    if op == "shr" and dtype.kind == "int":
        return np.right_shift(left, inside)
    shifted = np.left_shift(left, inside) if op == "shl" else np.right_shift(left, inside)
    return np.where(count < dtype.bits, shifted, np.zeros((), dtype.numpy))


def _divide(op: str, left: Array, right: Array, dtype: DType) -> Array:
    zero = right == 0
    divisor = np.where(zero, np.ones((), dtype.numpy), right)
    floor, remainder = np.floor_divide(left, divisor), np.remainder(left, divisor)
    if op.startswith("trunc"):
        opposed = (remainder != 0) & ((left < 0) != (divisor < 0))
        floor = np.where(opposed, floor + 1, floor)
        remainder = np.where(opposed, remainder - divisor, remainder)
    if op in ("floordiv", "truncdiv"):
        return np.where(zero, constant(-1, dtype), floor)
    return np.where(zero, left, remainder)


def _extreme(op: str, left: Array, right: Array, dtype: DType) -> Array:
    """Choose the lesser or greater; a NaN loses, and -0 is less than +0 (PTX ISA, `min`)."""
    if not dtype.is_float:
        return (np.minimum if op == "min" else np.maximum)(left, right)
    # NumPy's fmin and fmax differ in what they make of a signalling NaN.
    chosen = (np.minimum if op == "min" else np.maximum)(left, right)
    chosen = np.where(np.isnan(left), right, np.where(np.isnan(right), left, chosen))
    negative = np.signbit(left) | np.signbit(right)
    if op == "max":
        negative = np.signbit(left) & np.signbit(right)
    tied = np.copysign(left, np.where(negative, -1, 1).astype(dtype.numpy))
    return canonical(np.where(left == right, tied, chosen), dtype)


_FLOAT: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
}
_PLAIN: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def binary(op: str, left: Array, right: Array, dtype: DType) -> Array:
    """Apply an operation of the IR to operands of one type (a shift's count may have its own)."""
    with np.errstate(all="ignore"):
        if is_narrow(dtype) and dtype.bits <= 8:  # ml_dtypes does not saturate
            return _by_way_of_single(op, left, right, dtype)
        if op in ("shl", "shr"):
            return _shift(op, left, right, dtype)
        if op in ("min", "max"):
            return _extreme(op, left, right, dtype)
        if op in ("floordiv", "mod", "truncdiv", "truncmod"):
            return _divide(op, left, right, dtype)
        if dtype.is_float and op in _FLOAT:
            return canonical(np.asarray(_FLOAT[op](left, right)), dtype)
        return np.asarray(_PLAIN[op](left, right))


def _by_way_of_single(op: str, left: Array, right: Array, dtype: DType) -> Array:
    found = binary(op, left.astype(np.float32), right.astype(np.float32), FLOAT32)
    return found if compares(op) else _from_double(found.astype(np.float64), dtype)


def compares(op: str) -> bool:
    """Tell operations that give a boolean."""
    return op in _COMPARISONS or op.startswith("logical")


# ---------------------------------------------------------------------------- one operand


def convert(values: Array, source: DType, target: DType) -> Array:
    """Convert as the IR's `Cast` does: integers wrap, floats round once and saturate."""
    with np.errstate(all="ignore"):
        if target.is_bool:
            return (values.astype(np.float64) if source.is_float else values) != 0
        if source.is_float and target.is_integer:
            return _saturate(values, target)
        if target.is_float:
            return _to_float(values, source, target)
        return values.astype(target.numpy)


def _saturate(values: Array, target: DType) -> Array:
    limits = np.iinfo(target.numpy)
    whole = np.trunc(
        np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
    )
    low, high = whole <= float(limits.min), whole >= float(limits.max)
    inside = np.where(low | high, 0, whole).astype(target.numpy)
    inside = np.where(low, np.array(limits.min, target.numpy), inside)
    return np.where(high, np.array(limits.max, target.numpy), inside)


def _to_float(values: Array, source: DType, target: DType) -> Array:
    if source.is_integer and source.bits > 32 and target != FLOAT64:
        whole = [int(value) for value in np.ravel(values)]
        nearest = np.array([float(each) for each in whole])
        rest = np.array([float(each - int(float(each))) for each in whole])
        values = _to_odd(nearest, rest).reshape(values.shape)
    values = values.astype(np.float64)
    if target != FLOAT64:
        values = _from_double(values, target)
    return canonical(values, target) if source.is_float and source != target else values


def unary(op: str, values: Array, dtype: DType) -> Array:
    """Apply "neg", "invert" or "not"."""
    if op == "not":
        return np.logical_not(values)
    if op == "invert":
        return np.logical_not(values) if dtype.is_bool else np.invert(values)
    with np.errstate(all="ignore"):
        if not dtype.is_float:
            return np.zeros((), dtype.numpy) - values
        format = format_of(dtype)
        if format is not None and not format.negates:
            return _from_double(-values.astype(np.float64), dtype)
        sign = np.array(1 << (dtype.bits - 1), _bits(dtype))
        bits = np.ascontiguousarray(values).view(_bits(dtype)).reshape(values.shape)
        flipped = (bits ^ sign).view(dtype.numpy)
        # On the chip it is an addition of zero, which leaves the payload to float64s alone.
        if dtype == FLOAT64:
            return np.where(np.isnan(values), values + values, flipped)
        return canonical(flipped, dtype) if dtype == FLOAT32 else flipped


def _half_away(x: Array) -> Array:
    return np.trunc(x) + np.copysign(np.abs(x - np.trunc(x)) >= 0.5, x)


def _inverse_root(x: Array) -> Array:
    return 1 / np.sqrt(x)


# Float functions, computed in double precision and rounded once more.
_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "abs": np.abs,
    "sqrt": np.sqrt,
    "rsqrt": _inverse_root,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "nearbyint": np.rint,
    "round": _half_away,
    "exp2": np.exp2,
    "log2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "copysign": np.copysign,
}
_TESTS: dict[str, Callable[[Array], Array]] = {
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
}


def _digits(values: Array, bits: int) -> list[str]:
    mask = (1 << bits) - 1
    return [f"{int(value) & mask:0{bits}b}" for value in np.ravel(values)]


# Bit functions, over the binary digits of a number.
_BITWISE: dict[str, Callable[[str], int]] = {
    "popcount": lambda digits: digits.count("1"),
    "clz": lambda digits: len(digits) - len(digits.lstrip("0")),
    "ctz": lambda digits: len(digits) - len(digits.rstrip("0")),
    "brev": lambda digits: int(digits[::-1], 2),
}


def function(name: str, operands: Sequence[Array], dtype: DType) -> tuple[Array, DType]:
    """Apply a pure function of the IR by its name; give the result and its type.

    The correctly rounded ones (`fma`, `sqrt`, the roundings) are exact; the others have an
    error of about half a unit in the last place.
    """
    if name == "fma":
        return fma(operands[0], operands[1], operands[2], dtype), dtype
    if name in ("min", "max"):
        return binary(name, operands[0], operands[1], dtype), dtype
    if name in _TESTS:
        with np.errstate(invalid="ignore"):
            return _TESTS[name](operands[0].astype(np.float64)), BOOL
    if name in _BITWISE:
        found = [_BITWISE[name](digits) for digits in _digits(operands[0], dtype.bits)]
        result = dtype if name == "brev" else INT32
        unsigned = np.array(found, _bits(result)).reshape(operands[0].shape)
        return unsigned.view(result.numpy), result
    if not dtype.is_float:
        assert name == "abs", f"no function {name!r} of {dtype}"
        return np.abs(operands[0]), dtype
    with np.errstate(all="ignore"):
        wide = _FUNCTIONS[name](*(each.astype(np.float64) for each in operands))
        return canonical(_from_double(np.asarray(wide), dtype), dtype), dtype
