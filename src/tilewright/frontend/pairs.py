"""`T.cuda` on pairs of numbers in one register, and conversions of several numbers at once.

May import `base`, `ir`, `isa.named` and the modules of this folder below it. A `float2` is a uint64
and a `bfloat162` a uint32, the first number in the low half.

    T.cuda.float2_x(T.cuda.fadd2_rn(a, T.cuda.make_float2(x, y)))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.dtypes import BFLOAT16, FLOAT16, FLOAT32, SCALARS, UINT32, UINT64, DType
from tilewright.frontend.builder import here
from tilewright.frontend.issuing import result, uint32
from tilewright.frontend.runs import Run, run_at
from tilewright.frontend.values import as_vector, lift, wrap
from tilewright.ir.expressions import Bitcast, Expr, Intrinsic, binary, cast, shuffle
from tilewright.ir.types import ScalarType
from tilewright.isa import named
from tilewright.isa.declaration import Form

_E4M3 = SCALARS["float8_e4m3fn"]


def make_float2(x: Any, y: Any) -> Any:
    """Put two float32 numbers into a uint64, `x` in the low half."""
    return wrap(_float2([_single(x), _single(y)]))


def float2_x(packed: Any) -> Any:
    """Give the low half of a pair of float32 numbers."""
    return wrap(_halves(packed, FLOAT32)[0])


def float2_y(packed: Any) -> Any:
    """Give the high half of a pair of float32 numbers."""
    return wrap(_halves(packed, FLOAT32)[1])


def _elementwise(name: str, op: str, summary: str) -> Callable[[Any, Any], Any]:
    def compute(a: Any, b: Any) -> Any:
        sides = zip(_halves(a, FLOAT32), _halves(b, FLOAT32), strict=True)
        # Each result is rounded: none is contracted with what stands around it.
        rounded = [_rounded(binary(op, _rounded(x), _rounded(y), here())) for x, y in sides]
        return wrap(_float2(rounded))

    compute.__name__, compute.__doc__ = name, summary
    return compute


def _extremum(name: str, form: Form, summary: str) -> Callable[[Any, Any], Any]:
    def compute(a: Any, b: Any) -> Any:
        return result(name, UINT32, form, uint32(a), uint32(b))

    compute.__name__, compute.__doc__ = name, summary
    return compute


def float22bfloat162_rn(x: Any, y: Any) -> Any:
    """Round two float32 numbers to bfloat16, into a uint32, `x` in the low half."""
    return result("pair", UINT32, named.PACK_BF16X2, _single(y), _single(x))


def float22bfloat162_rn_from_float2(packed: Any) -> Any:
    """Round a pair of float32 numbers to bfloat16, into a uint32."""
    low, high = _halves(packed, FLOAT32)
    return result("pair", UINT32, named.PACK_BF16X2, high, low)


def bfloat1622float2(packed: Any) -> Any:
    """Widen a pair of bfloat16 numbers to float32, into a uint64."""
    return wrap(_float2([cast(each, FLOAT32, here()) for each in _halves(packed, BFLOAT16)]))


def fp8x4_e4m3_from_float4(x: Any, y: Any, z: Any, w: Any) -> Any:
    """Round four float32 numbers to float8_e4m3fn, into a uint32, `x` in the lowest byte.

    What is beyond the largest number becomes that.
    """
    rounded = [cast(_single(each), _E4M3, here()) for each in (x, y, z, w)]
    return wrap(Bitcast(shuffle(rounded, range(4)), ScalarType(UINT32), location=here()))


# ---------------------------------------------------------------------------- in memory


def float22half2(dst: Any, src: Any) -> None:
    """Round the two float32 numbers at `src` to float16, at `dst`; both are pointers."""
    _convert(run_at(src, FLOAT32, 2, 1), run_at(dst, FLOAT16, 2, 0), 2)


def float8tohalf8(src_addr: Any, dst_addr: Any) -> None:
    """Round eight float32 numbers at a pointer to float16, at another."""
    _convert(run_at(src_addr, FLOAT32, 8, 0), run_at(dst_addr, FLOAT16, 8, 1), 8)


def half8tofloat8(src_addr: Any, dst_addr: Any) -> None:
    """Widen eight float16 numbers at a pointer to float32, at another."""
    _convert(run_at(src_addr, FLOAT16, 8, 0), run_at(dst_addr, FLOAT32, 8, 1), 8)


def _convert(source: Run, target: Run, count: int) -> None:
    # All are read before the first is written: the two runs may be one.
    found = [source.read(index) for index in range(count)]
    for index, value in enumerate(found):
        target.write(index, cast(value, target.dtype, here()))


# ---------------------------------------------------------------------------- halves


def _single(value: Any) -> Expr:
    return cast(lift(value, FLOAT32), FLOAT32, here())


def _rounded(value: Expr) -> Expr:
    return Intrinsic("no_contract", (value,), value.type, location=here())


def _halves(packed: Any, kind: DType) -> list[Expr]:
    """Take the two numbers of a type out of a register of twice its width."""
    word = UINT64 if kind == FLOAT32 else UINT32
    whole = cast(lift(packed, word), word, here())
    pair = as_vector(Bitcast(whole, ScalarType(kind.vector(2)), location=here()))
    return [shuffle((pair,), (half,), here()) for half in range(2)]


def _float2(numbers: Sequence[Expr]) -> Expr:
    return Bitcast(shuffle(numbers, range(2)), ScalarType(UINT64), location=here())


FUNCTIONS: dict[str, Any] = {
    each.__name__: each
    for each in (
        *(make_float2, float2_x, float2_y, float22half2, float8tohalf8, half8tofloat8),
        *(float22bfloat162_rn, float22bfloat162_rn_from_float2, bfloat1622float2),
        fp8x4_e4m3_from_float4,
        _elementwise("fadd2_rn", "add", "Add two pairs of float32 numbers, each sum rounded."),
        _elementwise("fmul2_rn", "mul", "Multiply two pairs of float32 numbers, each rounded."),
        _extremum("hmin2", named.MIN_BF16X2, "Give the lesser of two pairs of bfloat16 numbers."),
        _extremum("hmax2", named.MAX_BF16X2, "Give the greater of two pairs of bfloat16 numbers."),
    )
}
