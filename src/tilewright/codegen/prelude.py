"""The C++ that generated kernels stand on: types and helpers, each emitted only where it is used.

May import `isa`. What it uses of CUDA C++ are builtins that NVRTC has without headers and the
functions of libdevice; a conversion that has neither is an instruction of `isa`.

    >>> required({"bfloat16"})
    ('bit_cast', 'widen', 'bfloat16')
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.isa import conversion
from tilewright.isa.named import form


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of the prelude, and the pieces that it needs before it.

    `older` replaces `text` on targets below the capability `since`.
    """

    text: str
    needs: tuple[str, ...] = ()
    since: int = 0
    older: str = ""

    def for_capability(self, capability: int) -> str:
        """Give the text for a target."""
        return self.text if capability >= self.since else self.older


INTEGERS = """\
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
"""

_BIT_CAST = """\
template <class To, class From>
__device__ __forceinline__ To bit_cast(From value) { return __builtin_bit_cast(To, value); }
"""

_WIDEN = """\
// Narrow floats are kept as bits and computed with in float, each result rounded once more: for
// + - * / and square roots that is the correctly rounded result of the narrow format itself.
template <class T> __device__ T narrow(float value);
#define NARROW_ARITHMETIC(op)                             \\
  template <class T, class = typename T::narrow_float>    \\
  __device__ __forceinline__ T operator op(T a, T b) {    \\
    return narrow<T>(widen(a) op widen(b));               \\
  }
#define NARROW_COMPARISON(op)                             \\
  template <class T, class = typename T::narrow_float>    \\
  __device__ __forceinline__ bool operator op(T a, T b) { \\
    return widen(a) op widen(b);                          \\
  }
NARROW_ARITHMETIC(+) NARROW_ARITHMETIC(-) NARROW_ARITHMETIC(*) NARROW_ARITHMETIC(/)
NARROW_COMPARISON(==) NARROW_COMPARISON(!=) NARROW_COMPARISON(<)
NARROW_COMPARISON(<=) NARROW_COMPARISON(>) NARROW_COMPARISON(>=)
#undef NARROW_ARITHMETIC
#undef NARROW_COMPARISON
template <class T, class = typename T::narrow_float>
__device__ __forceinline__ T operator-(T a) {
  a.bits ^= T::sign;
  return a;
}
"""

_FLOAT16 = """\
struct float16 {
  uint16_t bits;
  typedef float16 narrow_float;
  enum { sign = 0x8000 };
};
extern "C" __device__ float __nv_half2float(uint16_t bits);
extern "C" __device__ uint16_t __nv_float2half_rn(float value);
__device__ __forceinline__ float widen(float16 value) { return __nv_half2float(value.bits); }
template <> __device__ __forceinline__ float16 narrow<float16>(float value) {
  return float16{__nv_float2half_rn(value)};
}
"""

_BFLOAT16 = """\
struct bfloat16 {
  uint16_t bits;
  typedef bfloat16 narrow_float;
  enum { sign = 0x8000 };
};
__device__ __forceinline__ float widen(bfloat16 value) {
  return bit_cast<float>(unsigned(value.bits) << 16);
}
"""

_ROUND_BFLOAT16 = form(conversion.cvt, rnd="rn", type="bf16", atype="f32").text

_BFLOAT16_NEW = (
    _BFLOAT16
    + f"""\
template <> __device__ __forceinline__ bfloat16 narrow<bfloat16>(float value) {{
  uint16_t bits;
  asm("{_ROUND_BFLOAT16} %0, %1;" : "=h"(bits) : "f"(value));
  return bfloat16{{bits}};
}}
"""
)

_BFLOAT16_OLD = (
    _BFLOAT16
    + """\
template <> __device__ __forceinline__ bfloat16 narrow<bfloat16>(float value) {
  unsigned bits = bit_cast<unsigned>(value);
  return bfloat16{uint16_t(value != value ? 0x7fff : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
"""
)

_SMALL_FLOAT = """\
// A float of at most eight bits. `specials` says what stands for infinity and NaN: 0 nothing,
// 1 as in IEEE 754, 2 only NaN, all ones, 3 only NaN, in the place of -0.
template <int exponent_bits, int fraction_bits, int bias, int specials>
__device__ __forceinline__ float decode_small_float(unsigned bits) {
  unsigned sign = (bits >> (exponent_bits + fraction_bits)) << 31;
  unsigned magnitude = bits & ((1u << (exponent_bits + fraction_bits)) - 1);
  unsigned fraction = magnitude & ((1u << fraction_bits) - 1);
  unsigned exponent = magnitude >> fraction_bits;
  bool last = exponent == (1u << exponent_bits) - 1;
  bool nan = specials == 1 ? last && fraction != 0
           : specials == 2 ? magnitude == (1u << (exponent_bits + fraction_bits)) - 1
           : specials == 3 && sign != 0 && magnitude == 0;
  if (nan) return bit_cast<float>(0x7fffffffu);
  if (specials == 1 && last) return bit_cast<float>(sign | 0x7f800000u);
  float unit = bit_cast<float>((127u - bias - fraction_bits + (exponent ? exponent : 1)) << 23);
  float value = float(exponent ? fraction + (1u << fraction_bits) : fraction) * unit;
  return bit_cast<float>(bit_cast<unsigned>(value) | sign);
}

// To nearest even; beyond the largest finite value the result is that value.
template <int exponent_bits, int fraction_bits, int bias, int specials>
__device__ __forceinline__ uint8_t encode_small_float(float value) {
  const unsigned sign_bit = 1u << (exponent_bits + fraction_bits);
  const unsigned last = sign_bit - 1;
  const unsigned nan = specials == 1 || specials == 2 ? last
                     : specials == 3 ? sign_bit : last;
  const unsigned largest = specials == 1 ? last - (1u << fraction_bits)
                         : specials == 2 ? last - 1 : last;
  if (value != value) return uint8_t(nan);
  unsigned bits = bit_cast<unsigned>(value) & 0x7fffffffu;
  unsigned sign = bit_cast<unsigned>(value) >> 31 ? sign_bit : 0;
  unsigned magnitude;
  if (bits < (128u - bias) << 23) {
    // Below the normal range: adding a power of two leaves the fraction, rounded, in its low bits.
    float power = bit_cast<float>((128u - bias + 23 - fraction_bits) << 23);
    magnitude = bit_cast<unsigned>(bit_cast<float>(bits) + power) - bit_cast<unsigned>(power);
  } else {
    const int dropped = 23 - fraction_bits;
    unsigned rebased = bits - ((127u - bias) << 23);
    magnitude = (rebased + (1u << (dropped - 1)) - 1 + ((rebased >> dropped) & 1)) >> dropped;
  }
  magnitude = magnitude < largest ? magnitude : largest;
  return uint8_t(specials == 3 && magnitude == 0 ? 0 : sign | magnitude);
}
"""


def _small_float(name: str, exponent: int, fraction: int, bias: int, specials: int) -> Snippet:
    format = f"<{exponent}, {fraction}, {bias}, {specials}>"
    return Snippet(
        f"""\
struct {name} {{
  uint8_t bits;
  typedef {name} narrow_float;
  enum {{ sign = {1 << (exponent + fraction):#x} }};
}};
__device__ __forceinline__ float widen({name} value) {{
  return decode_small_float{format}(value.bits);
}}
template <> __device__ __forceinline__ {name} narrow<{name}>(float value) {{
  return {name}{{encode_small_float{format}(value)}};
}}
""",
        ("small_float",),
    )


_E8M0 = """\
struct float8_e8m0fnu { uint8_t bits; };
__device__ __forceinline__ float widen(float8_e8m0fnu value) {
  unsigned bits = value.bits;
  return bit_cast<float>(bits == 255 ? 0x7fffffffu : bits ? bits << 23 : 0x00400000u);
}
"""

_ODD = """\
// To the float whose last bit tells that something was lost: rounding it once more gives what
// rounding `value` at once would have given.
__device__ __forceinline__ float odd(float down, float up) {
  return bit_cast<unsigned>(down) & 1 ? down : up;
}
__device__ __forceinline__ float odd_float(double value) {
  return odd(__double2float_rd(value), __double2float_ru(value));
}
__device__ __forceinline__ float odd_float(int64_t value) {
  return odd(__ll2float_rd(value), __ll2float_ru(value));
}
__device__ __forceinline__ float odd_float(uint64_t value) {
  return odd(__ull2float_rd(value), __ull2float_ru(value));
}
"""

_NARROW_FMA = """\
// A fused multiply-add rounded once: the product is exact in double, the sum is rounded to odd.
template <class T> __device__ __forceinline__ T narrow_fma(T a, T b, T c) {
  double product = double(widen(a)) * double(widen(b)), addend = widen(c);
  double down = __dadd_rd(product, addend), up = __dadd_ru(product, addend);
  if (down == up) return narrow<T>(odd_float(__dadd_rn(product, addend)));
  return narrow<T>(odd_float(bit_cast<uint64_t>(down) & 1 ? down : up));
}
"""

_DIVIDE = """\
// Where C leaves it open: x / 0 has all bits set, x % 0 is x, and the smallest number / -1 wraps.
template <class T> __device__ __forceinline__ T divide(T a, T b) {
  if (b == 0) return T(-1);
  if (T(-1) < T(0) && b == T(-1)) return T(uint64_t(0) - uint64_t(a));
  return a / b;
}
template <class T> __device__ __forceinline__ T modulo(T a, T b) {
  if (b == 0) return a;
  if (T(-1) < T(0) && b == T(-1)) return 0;
  return a % b;
}
"""

_FLOOR_DIVIDE = """\
// Division and remainder that round down, as Python's.
template <class T> __device__ __forceinline__ T floor_divide(T a, T b) {
  T quotient = divide(a, b);
  T remainder = modulo(a, b);
  return b != 0 && remainder != 0 && (remainder < 0) != (b < 0) ? quotient - 1 : quotient;
}
template <class T> __device__ __forceinline__ T floor_modulo(T a, T b) {
  T remainder = modulo(a, b);
  return b != 0 && remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}
"""

_SHIFT = """\
// Shifts by any count: at or beyond the width nothing but the sign is left.
template <class T> __device__ __forceinline__ T shift_left(T value, T count) {
  return uint64_t(count) < 8 * sizeof(T) ? T(uint64_t(value) << int(count)) : T(0);
}
template <class T> __device__ __forceinline__ T shift_right(T value, T count) {
  if (uint64_t(count) < 8 * sizeof(T)) return value >> int(count);
  return value < 0 ? T(-1) : T(0);
}
"""

_ADVANCE = """\
// The next turn of a loop; a step beyond the range of the type ends it.
template <class T> __device__ __forceinline__ T advance(T index, T step, T stop) {
  T next = T(uint64_t(index) + uint64_t(step));
  return (next > index) == (step > 0) ? next : stop;
}
"""

_TO_INTEGER = """\
// Towards zero, saturating; a NaN gives 0, where the hardware's conversion gives the top bit.
#define TO_INTEGER(to, type, from, convert)                       \\
  __device__ __forceinline__ type to(from value) {                \\
    return value == value ? convert(value) : type(0);             \\
  }
TO_INTEGER(to_int64, int64_t, float, __float2ll_rz)
TO_INTEGER(to_uint64, uint64_t, float, __float2ull_rz)
TO_INTEGER(to_int32, int, double, __double2int_rz)
TO_INTEGER(to_uint32, unsigned, double, __double2uint_rz)
TO_INTEGER(to_int64, int64_t, double, __double2ll_rz)
TO_INTEGER(to_uint64, uint64_t, double, __double2ull_rz)
#undef TO_INTEGER
"""

_ABSOLUTE = """\
// The smallest number has no opposite, and stays.
template <class T> __device__ __forceinline__ T absolute(T value) {
  return value < 0 ? T(uint64_t(0) - uint64_t(value)) : value;
}
"""

_CLAMP = """\
__device__ __forceinline__ int clamp(int value, int low, int high) {
  return min(max(value, low), high);
}
"""

_ADDRESS = """\
__device__ __forceinline__ unsigned shared_address(const void *pointer) {
  return unsigned(__cvta_generic_to_shared(pointer));
}
"""

_GLOBAL_ADDRESS = """\
__device__ __forceinline__ uint64_t global_address(const void *pointer) {
  return __cvta_generic_to_global(pointer);
}
"""

_GENERIC_ADDRESS = """\
__device__ __forceinline__ uint64_t generic_address(const void *pointer) {
  return uint64_t(pointer);
}
"""

_TENSOR_MAP = """\
struct alignas(64) tensor_map { uint64_t opaque[16]; };
"""

_VECTOR = """\
template <class T, int lanes> struct alignas(sizeof(T) * lanes) vector { T at[lanes]; };
template <class T, int lanes> __device__ __forceinline__ vector<T, lanes> broadcast(T value) {
  vector<T, lanes> result;
#pragma unroll
  for (int lane = 0; lane < lanes; ++lane) result.at[lane] = value;
  return result;
}
#define VECTOR_ARITHMETIC(op)                                                   \\
  template <class T, int lanes>                                                 \\
  __device__ __forceinline__ vector<T, lanes> operator op(vector<T, lanes> a,   \\
                                                          vector<T, lanes> b) { \\
    _Pragma("unroll") for (int lane = 0; lane < lanes; ++lane)                  \\
      a.at[lane] = a.at[lane] op b.at[lane];                                    \\
    return a;                                                                   \\
  }
VECTOR_ARITHMETIC(+) VECTOR_ARITHMETIC(-) VECTOR_ARITHMETIC(*) VECTOR_ARITHMETIC(/)
#undef VECTOR_ARITHMETIC
"""

# Every piece, in the order in which they are emitted.
SNIPPETS: dict[str, Snippet] = {
    "uint128": Snippet("typedef unsigned __int128 uint128_t;\n"),
    "bit_cast": Snippet(_BIT_CAST),
    "widen": Snippet(_WIDEN),
    "float16": Snippet(_FLOAT16, ("widen",)),
    "bfloat16": Snippet(_BFLOAT16_NEW, ("widen", "bit_cast"), 80, _BFLOAT16_OLD),
    "small_float": Snippet(_SMALL_FLOAT, ("widen", "bit_cast")),
    "float8_e3m4": _small_float("float8_e3m4", 3, 4, 3, 1),
    "float8_e4m3": _small_float("float8_e4m3", 4, 3, 7, 1),
    "float8_e4m3fn": _small_float("float8_e4m3fn", 4, 3, 7, 2),
    "float8_e4m3b11fnuz": _small_float("float8_e4m3b11fnuz", 4, 3, 11, 3),
    "float8_e4m3fnuz": _small_float("float8_e4m3fnuz", 4, 3, 8, 3),
    "float8_e5m2": _small_float("float8_e5m2", 5, 2, 15, 1),
    "float8_e5m2fnuz": _small_float("float8_e5m2fnuz", 5, 2, 16, 3),
    "float6_e2m3fn": _small_float("float6_e2m3fn", 2, 3, 1, 0),
    "float6_e3m2fn": _small_float("float6_e3m2fn", 3, 2, 3, 0),
    "float4_e2m1fn": _small_float("float4_e2m1fn", 2, 1, 1, 0),
    "float8_e8m0fnu": Snippet(_E8M0, ("bit_cast",)),
    "odd": Snippet(_ODD, ("bit_cast",)),
    "narrow_fma": Snippet(_NARROW_FMA, ("odd", "widen")),
    "vector": Snippet(_VECTOR),
    "tensor_map": Snippet(_TENSOR_MAP),
    "divide": Snippet(_DIVIDE),
    "floor_divide": Snippet(_FLOOR_DIVIDE, ("divide",)),
    "shift": Snippet(_SHIFT),
    "advance": Snippet(_ADVANCE),
    "to_integer": Snippet(_TO_INTEGER),
    "absolute": Snippet(_ABSOLUTE),
    "clamp": Snippet(_CLAMP),
    "shared_address": Snippet(_ADDRESS),
    "global_address": Snippet(_GLOBAL_ADDRESS),
    "generic_address": Snippet(_GENERIC_ADDRESS),
}

# Names of the prelude and of CUDA C++ that generated code uses: no variable may hide them.
_TAKEN = """
    bit_cast widen narrow odd odd_float narrow_fma vector broadcast tensor_map divide modulo
    floor_divide floor_modulo shift_left shift_right advance clamp absolute to_int32
    to_uint32 to_int64 to_uint64 shared_address global_address
    generic_address shared_memory decode_small_float encode_small_float uint128_t
    int8_t uint8_t int16_t uint16_t int32_t uint32_t int64_t uint64_t size_t
    threadIdx blockIdx blockDim gridDim warpSize printf min max abs llabs fabs fabsf fmin fminf
    fmax fmaxf floor floorf ceil ceilf trunc truncf rint rintf round roundf sqrt sqrtf rsqrt
    rsqrtf copysign copysignf fmod fmodf clock64 isnan isinf NULL
"""
RESERVED = frozenset(_TAKEN.split()) | frozenset(
    name for name in SNIPPETS if name.startswith(("float", "bfloat"))
)


def required(used: Iterable[str]) -> tuple[str, ...]:
    """List the pieces that are needed for those used, in the order of emission."""
    found: set[str] = set()
    pending = list(used)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending.extend(SNIPPETS[name].needs)
    return tuple(name for name in SNIPPETS if name in found)


def prelude(used: Iterable[str], capability: int) -> str:
    """Write the prelude for a target of that capability, with the pieces used."""
    pieces = [SNIPPETS[name].for_capability(capability) for name in required(used)]
    return "\n".join([INTEGERS, *pieces])
