"""The C++ of the floats of at most 16 bits: kept as their bits, computed with in float.

May import `base` and `isa`. The formats and their rounding are those of `base.narrow`.
"""

from __future__ import annotations

from tilewright.base.narrow import FORMATS
from tilewright.codegen.snippet import Snippet
from tilewright.isa import conversion
from tilewright.isa.named import form

_WIDEN = """\
// Narrow floats are kept as bits and computed with in float, each result rounded once more: for
// + - * / and square roots that is the correctly rounded result of the narrow format itself.
// `sign` is the bit that negates; 0 in formats in which none does so for every number.
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
  if (T::sign == 0) return narrow<T>(-widen(a));
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


_SPECIALS = {"none": 0, "ieee": 1, "nan": 2, "minus zero": 3}


def _small_float(name: str) -> Snippet:
    format = FORMATS[name]
    fields = f"{format.exponent}, {format.fraction}, {format.bias}, {_SPECIALS[format.specials]}"
    return Snippet(
        f"""\
struct {name} {{
  uint8_t bits;
  typedef {name} narrow_float;
  enum {{ sign = {format.sign if format.negates else 0:#x} }};
}};
__device__ __forceinline__ float widen({name} value) {{
  return decode_small_float<{fields}>(value.bits);
}}
template <> __device__ __forceinline__ {name} narrow<{name}>(float value) {{
  return {name}{{encode_small_float<{fields}>(value)}};
}}
""",
        ("small_float",),
    )


_SCALE = """\
// A power of two, without sign or zero; a magnitude is rounded up, within 2^-127 and 2^127.
struct float8_e8m0fnu {
  uint8_t bits;
  typedef float8_e8m0fnu narrow_float;
  enum { sign = 0 };
};
__device__ __forceinline__ float widen(float8_e8m0fnu value) {
  unsigned bits = value.bits;
  return bit_cast<float>(bits == 255 ? 0x7fffffffu : bits ? bits << 23 : 0x00400000u);
}
template <> __device__ __forceinline__ float8_e8m0fnu narrow<float8_e8m0fnu>(float value) {
  unsigned bits = bit_cast<unsigned>(value) & 0x7fffffffu;
  if (bits > 0x7f800000u) return float8_e8m0fnu{255};
  unsigned power = bits > 0x00400000u ? (bits + 0x007fffffu) >> 23 : 0;
  return float8_e8m0fnu{uint8_t(power < 254 ? power : 254)};
}
"""

# Every piece, in the order in which they are emitted.
NARROW_FLOATS: dict[str, Snippet] = {
    "widen": Snippet(_WIDEN),
    "float16": Snippet(_FLOAT16, ("widen",)),
    "bfloat16": Snippet(_BFLOAT16_NEW, ("widen", "bit_cast"), 80, _BFLOAT16_OLD),
    "small_float": Snippet(_SMALL_FLOAT, ("widen", "bit_cast")),
    **{
        name: _small_float(name)
        for name, format in FORMATS.items()
        if format.saturates and not format.scale
    },
    "float8_e8m0fnu": Snippet(_SCALE, ("widen", "bit_cast")),
}
