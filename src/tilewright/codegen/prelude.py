"""The C++ that generated kernels stand on: types and helpers, each emitted only where it is used.

May import `narrow_floats`. What it uses of CUDA C++ are builtins that NVRTC has without headers,
and the functions of libdevice; a conversion that has neither is an instruction of `isa`.

    >>> required({"bfloat16"})
    ('bit_cast', 'widen', 'bfloat16')
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.codegen.narrow_floats import NARROW_FLOATS
from tilewright.codegen.snippet import Snippet

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
template <class T, int lanes> struct alignas(sizeof(T) * lanes & -(sizeof(T) * lanes)) vector {
  T at[lanes];
};
"""

# Every piece, in the order in which they are emitted.
SNIPPETS: dict[str, Snippet] = {
    "uint128": Snippet("typedef unsigned __int128 uint128_t;\n"),
    "bit_cast": Snippet(_BIT_CAST),
    **NARROW_FLOATS,
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
    bit_cast widen narrow odd odd_float narrow_fma vector tensor_map divide modulo
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
