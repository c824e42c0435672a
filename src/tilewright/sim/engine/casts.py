"""Conversions between element types as LLVM code, as the IR's `Cast` defines them.

May import `base`, `isa` and `engine.spelling`; `Values` calls it. Floats of at most 16 bits are
kept as their bits: widening to float32 is exact, and float32 is rounded to them once, with
integer arithmetic, so that no rounding mode or library has a say. What is wider than float32
goes there by rounding to odd, after which a second rounding is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.base.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
)
from tilewright.base.errors import CompilerBug
from tilewright.base.narrow import FORMATS, Format, is_narrow
from tilewright.isa.machine import Lanes
from tilewright.sim.engine.spelling import known_integer, llvm_type, overload

if TYPE_CHECKING:
    from tilewright.sim.engine.values import Values

_INFINITY = 0x7F800000  # in the bits of a float32
_NAN = 0x7FFFFFFF
_FRACTION = 23


def cast(m: Values, value: Lanes, dtype: DType) -> Lanes:
    """Convert values to an element type."""
    source = value.dtype
    if source == dtype:
        return value
    if source.lanes != 1 or dtype.lanes != 1:
        raise CompilerBug(f"no conversion from {source} to {dtype}", code="compiler-bug")
    if is_narrow(source):
        single = widen(m, value)
        return cast(m, m.canonical(single) if source == FLOAT16 else single, dtype)
    if dtype.is_bool:
        return value != 0
    if is_narrow(dtype):
        return narrow(m, _to_single_odd(m, value), dtype)
    if source.is_integer and dtype.is_integer and not value.width:
        known = known_integer(value)
        if known is not None:
            return m.constant(known, dtype)
    return _convert(m, value, dtype)


def _convert(m: Values, value: Lanes, dtype: DType) -> Lanes:
    """Convert where LLVM has an operation that is defined for every operand."""
    source, width = value.dtype, value.width
    kinds = llvm_type(source, width), llvm_type(dtype, width)
    if source.is_float and dtype.is_float:
        name = "fpext" if dtype.bits > source.bits else "fptrunc"
        # A NaN keeps its sign and what there is room for of its payload.
        text = f"{name} {kinds[0]} {value.value} to {kinds[1]}"
        return m.lanes(dtype, m.op(text), width)
    if source.is_float:
        return _saturate(m, value, dtype)
    if dtype.is_float:
        name = "sitofp" if source.kind == "int" else "uitofp"
    elif source.is_bool:
        name = "zext"
    elif kinds[0] == kinds[1]:
        return m.lanes(dtype, value.value, width)
    elif dtype.bits < source.bits:
        name = "trunc"
    else:
        name = "sext" if source.kind == "int" else "zext"
    return m.lanes(dtype, m.op(f"{name} {kinds[0]} {value.value} to {kinds[1]}"), width)


def _saturate(m: Values, value: Lanes, dtype: DType) -> Lanes:
    sign = "s" if dtype.kind == "int" else "u"
    result, kind = llvm_type(dtype, value.width), llvm_type(value.dtype, value.width)
    kinds = f"{overload(dtype, value.width)}.{overload(value.dtype, value.width)}"
    name = f"llvm.fpto{sign}i.sat.{kinds}"
    return m.lanes(dtype, m.call(result, name, (kind, value.value)), value.width)


# ---------------------------------------------------------------------------- to odd


def _to_single_odd(m: Values, value: Lanes) -> Lanes:
    """Bring a number to float32 rounding to odd, so that a second rounding is right."""
    source = value.dtype
    if source == FLOAT32:
        return value
    if not source.is_float and source.bits <= 16:
        return _convert(m, value, FLOAT32)
    if source.is_integer and source.bits > 32:
        value = _few_bits(m, value)
    return _double_to_odd(m, value if source == FLOAT64 else _convert(m, value, FLOAT64))


def _double_to_odd(m: Values, exact: Lanes) -> Lanes:
    nearest = _convert(m, exact, FLOAT32)
    back = _convert(m, nearest, FLOAT64)
    bits = m.bitcast(nearest, UINT32)
    away = (_magnitude(m, back) > _magnitude(m, exact)) & (bits << 1 != 0)
    toward_zero = m.select(away, bits - 1, bits)
    odd = m.select(back == exact, bits, toward_zero | 1)
    return m.bitcast(m.select(exact != exact, bits, odd), FLOAT32)


def _few_bits(m: Values, value: Lanes) -> Lanes:
    """Round an integer that a double may not hold to odd, to what it holds."""
    lost = 12
    shifted = value >> lost
    odd = (shifted | m.cast((value & ((1 << lost) - 1)) != 0, value.dtype)) << lost
    # Within ± 2 ** 52 nothing has to go.
    small = (value + (1 << 52) if value.dtype.kind == "int" else value) >> 53 == 0
    return m.select(small, value, odd)


def _magnitude(m: Values, value: Lanes) -> Lanes:
    bits = m.bitcast(value, UINT64)
    return m.bitcast(bits & m.constant((1 << 63) - 1, UINT64), FLOAT64)


# ---------------------------------------------------------------------------- narrow floats


def _storage(format: Format) -> DType:
    return UINT8 if format.saturates else UINT16


def widen(m: Values, value: Lanes) -> Lanes:
    """Bring a float of at most 16 bits to float32, exactly; a NaN of 16 bits keeps its payload."""
    format = FORMATS[value.dtype.name]
    bits = m.cast(m.bitcast(value, _storage(format)), UINT32)
    if value.dtype == BFLOAT16:
        return m.bitcast(bits << 16, FLOAT32)
    if format.scale:
        return _widen_scale(m, bits)
    if value.dtype == FLOAT16 and "f16c" in m.function.module.cpu_features:
        half = f"<{value.width} x half>" if value.width else "half"
        given = m.op(f"bitcast {llvm_type(FLOAT16, value.width)} {value.value} to {half}")
        single = llvm_type(FLOAT32, value.width)
        return m.lanes(FLOAT32, m.op(f"fpext {half} {given} to {single}"), value.width)
    # Place the fields, and bring the exponent to float32's bias by a product, which is exact.
    magnitude = bits & format.ones
    field = m.bitcast(magnitude << (_FRACTION - format.fraction), FLOAT32)
    scale = m.constant(2.0 ** (127 - format.bias), FLOAT32)
    scaled = m.bitcast(m.float_operation("mul", field, scale), UINT32)
    if format.specials == "ieee":
        scaled = m.select(magnitude >= format.infinity, scaled | _INFINITY, scaled)
    signed = scaled | ((bits & format.sign) << (32 - format.sign.bit_length()))
    if value.dtype == FLOAT16 or format.specials == "none":
        return m.bitcast(signed, FLOAT32)
    if format.specials == "minus zero":
        no_number = (bits & (format.sign | format.ones)) == format.nan
    else:
        no_number = magnitude > (format.infinity - (format.specials == "nan"))
    return m.bitcast(m.select(no_number, m.constant(_NAN, UINT32), signed), FLOAT32)


def _widen_scale(m: Values, bits: Lanes) -> Lanes:
    power = m.select(bits == 0, m.constant(1 << (_FRACTION - 1), UINT32), bits << _FRACTION)
    return m.bitcast(m.select(bits == 255, m.constant(_NAN, UINT32), power), FLOAT32)


def narrow(m: Values, value: Lanes, dtype: DType) -> Lanes:
    """Round float32 to a float of at most 16 bits, as `base.narrow` says."""
    format = FORMATS[dtype.name]
    bits = m.bitcast(value, UINT32)
    magnitude = bits & 0x7FFFFFFF
    if format.scale:
        rounded = _round_to_power(m, magnitude)
    elif dtype == BFLOAT16:
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    else:
        rounded = _round(m, bits, magnitude, format)
    rounded = m.select(magnitude > _INFINITY, m.constant(format.nan, UINT32), rounded)
    return m.bitcast(m.cast(rounded, _storage(format)), dtype)


def _round(m: Values, bits: Lanes, magnitude: Lanes, format: Format) -> Lanes:
    lost = _FRACTION - format.fraction
    # Normal: re-bias and round the field.
    rebased = magnitude - ((127 - format.bias) << _FRACTION)
    normal = (rebased + ((1 << (lost - 1)) - 1) + ((rebased >> lost) & 1)) >> lost
    # Below: the sum with a power of two has the unit of the format's subnormals.
    power = (127 - format.bias + 1 + lost) << _FRACTION
    unit = m.bitcast(m.constant(power, UINT32), FLOAT32)
    shifted = m.float_operation("add", m.bitcast(magnitude, FLOAT32), unit)
    small = m.bitcast(shifted, UINT32) - power
    field = m.select(magnitude < ((128 - format.bias) << _FRACTION), small, normal)
    most = format.largest if format.saturates else format.infinity
    field = m.binary("min", field, m.constant(most, UINT32))
    signed = field | ((bits >> (32 - format.sign.bit_length())) & format.sign)
    if format.specials != "minus zero":
        return signed
    return m.select(field == 0, field, signed)


def _round_to_power(m: Values, magnitude: Lanes) -> Lanes:
    """Round a magnitude up to a power of two; 2 ** -127 is the smallest, 2 ** 127 the largest."""
    power = (magnitude + ((1 << _FRACTION) - 1)) >> _FRACTION
    power = m.select(magnitude <= 1 << (_FRACTION - 1), m.constant(0, UINT32), power)
    return m.binary("min", power, m.constant(FORMATS["float8_e8m0fnu"].largest, UINT32))
