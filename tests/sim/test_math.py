"""The functions of the dialect on the simulator: their stated errors, their special cases.

Exact values come from NumPy's long double, or for float32 from float64; integers and bits are
compared as such. What is tested is what `expand_math` makes of a call: the same operations on
the same numbers are what a GPU executes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from elementwise import as_bits, evaluate, scalar

from tilewright import driver
from tilewright.base.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT32, DType
from tilewright.base.dtypes import dtype as as_dtype
from tilewright.frontend import parse_function
from tilewright.ir.expressions import Binary, Expr, Intrinsic, Var
from tilewright.passes.math_functions import FUNCTIONS

Exact = Callable[..., Any]
LONG = np.longdouble
BOTH = pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)


def computed(name: str, *arguments: np.ndarray, dtype: DType = FLOAT32) -> np.ndarray:
    """Compute a function of arrays of a type; the second argument of `ldexp` is an int32."""
    variables = [
        scalar(label, INT32 if given.dtype == np.int32 else dtype)
        for label, given in zip("xy", arguments, strict=False)
    ]
    given: dict[Var, np.ndarray] = dict(zip(variables, arguments, strict=True))
    value: Expr
    if name in ("mod", "floordiv", "truncdiv", "truncmod"):
        value = Binary(name, variables[0], variables[1], variables[0].type)
    else:
        value = Intrinsic(name, tuple(variables), variables[0].type)
    return evaluate(given, {name: value})[name].view(dtype.numpy)


# ---------------------------------------------------------------------------- exact values


def error_function(x: np.ndarray) -> np.ndarray:
    """Sum erf x = 2/√π e ** -x² Σ 2ⁿ x²ⁿ⁺¹ / (2 n + 1)!!, of which all terms have one sign."""
    a = np.minimum(np.abs(x), LONG(7))
    term = total = a
    for n in range(1, 200):
        term = term * 2 * a * a / (2 * n + 1)
        total = total + term
    pi = LONG(math.pi) + LONG(1.2246467991473532e-16)
    found = 2 / np.sqrt(pi) * np.exp(-a * a) * total
    return np.copysign(np.where(a > 6.9, LONG(1), found), x)


EXACT: dict[str, Exact] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": error_function,
    "exp": np.exp,
    "exp10": lambda x: np.power(LONG(10), x),
    "exp2": np.exp2,
    "expm1": np.expm1,
    "hypot": np.hypot,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "pow": np.power,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sin": np.sin,
    "sinh": np.sinh,
    "tan": np.tan,
    "tanh": np.tanh,
}
# Units in the last place, as the functions' documentation states them.
BOUNDS = {
    **dict.fromkeys(("cbrt", "exp", "exp2", "log", "log10", "log1p"), 1.0),
    **dict.fromkeys(("acos", "atan", "cos", "cosh", "erf", "exp10", "hypot"), 2.0),
    **dict.fromkeys(("log2", "pow", "rsqrt", "sin", "sinh"), 2.0),
    **dict.fromkeys(("acosh", "asin", "asinh", "atan2", "atanh", "expm1"), 3.0),
    **dict.fromkeys(("sigmoid", "tanh"), 3.0),
    "tan": 4.0,
}
EXACTLY = {"fmod", "ldexp", "nextafter", "round"}
# float64s are reduced to an angle without error up to here.
LARGEST_ANGLE = 2.0**30


def error_in_ulp(found: np.ndarray, exact: np.ndarray, dtype: DType) -> float:
    """Measure the largest error in units in the last place of the exact value, rounded."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(dtype.numpy)
        finite = np.isfinite(rounded)
        same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
        # Just below the bound of the format a result may be infinite, and the other way round.
        largest = np.finfo(dtype.numpy).max
        same |= (
            np.isinf(rounded) & (np.abs(found) == largest) & (np.sign(found) == np.sign(rounded))
        )
        assert same[~finite].all()
        unit = np.spacing(np.abs(rounded[finite])).astype(LONG)
        error = np.abs(found[finite].astype(LONG) - exact[finite]) / unit
        return float(error.max(initial=0))


# ---------------------------------------------------------------------------- operands


@cache
def operands(dtype: DType, seed: int = 0, count: int = 8_000) -> np.ndarray:
    """Draw numbers of every magnitude, some of them from where functions are interesting."""
    random = np.random.default_rng(seed)
    bits = random.integers(0, 1 << 64, count, dtype=np.uint64) >> np.uint64(64 - dtype.bits)
    any_bits = bits.astype(f"u{dtype.bytes}").view(dtype.numpy)
    sign = random.choice([-1.0, 1.0], count)
    reach = 750.0 if dtype == FLOAT64 else 110.0
    parts = [
        sign * np.exp2(random.uniform(-60, 3, count)),
        random.uniform(-1.0, 1.0, count),
        random.uniform(-10.0, 10.0, count),
        random.uniform(-reach, reach, count),
        random.uniform(0.5, 2.0, count),
        1 + sign * np.exp2(random.uniform(-24, -1, count)),
        sign * np.exp2(random.uniform(10, 127, count)),
        np.arange(-2000, 2000) * 0.5,
    ]
    return np.concatenate([any_bits, *(part.astype(dtype.numpy) for part in parts)])


SPECIAL = np.array(
    [0.0, 1.0, 2.0, 3.0, 0.5, 1.5, 2.0**-149, 2.0**-126, 3e38, 2.0**24, 89.0, np.inf, np.nan]
)
SPECIAL = np.concatenate([SPECIAL, -SPECIAL])


def long(values: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        return values.astype(LONG)


@BOTH
@pytest.mark.parametrize("name", [each for each in BOUNDS if each not in ("atan2", "hypot", "pow")])
def test_errors_are_as_stated(name: str, dtype: DType) -> None:
    x = operands(dtype)
    if name in ("sin", "cos", "tan") and dtype == FLOAT64:
        x = x[np.abs(x) <= LARGEST_ANGLE]
    with np.errstate(all="ignore"):
        exact = EXACT[name](long(x))
    assert error_in_ulp(computed(name, x, dtype=dtype), exact, dtype) <= BOUNDS[name]


def test_every_function_has_its_error_stated() -> None:
    assert set(FUNCTIONS) == set(BOUNDS) | EXACTLY
    for name, bound in BOUNDS.items():
        assert f"; {bound:.0f} ulp" in (FUNCTIONS[name].__doc__ or ""), name


@BOTH
@pytest.mark.parametrize("name", ["atan2", "hypot"])
def test_errors_of_two_numbers(name: str, dtype: DType) -> None:
    x, y = operands(dtype), np.roll(operands(dtype, 1), 12_345)
    near = operands(dtype)[-4000:]
    x, y = np.concatenate([x, near, x]), np.concatenate([y, near[::-1] + 1, operands(dtype, 1)])
    with np.errstate(all="ignore"):
        exact = EXACT[name](long(x), long(y))
    assert error_in_ulp(computed(name, x, y, dtype=dtype), exact, dtype) <= BOUNDS[name]


@BOTH
def test_errors_of_powers(dtype: DType) -> None:
    random = np.random.default_rng(3)
    reach, count = (1060.0 if dtype == FLOAT64 else 140.0), 50_000
    x = np.concatenate(
        [
            np.exp2(random.uniform(-30, 30, count)),
            np.exp2(random.uniform(-0.9 * reach, 0.9 * reach, count)),
            1 + random.uniform(-0.01, 0.01, count),
        ]
    ).astype(dtype.numpy)
    with np.errstate(all="ignore"):
        y = (random.uniform(-reach, reach, x.size) / np.log2(long(x))).astype(dtype.numpy)
        exact = np.power(long(x), long(y))
    assert error_in_ulp(computed("pow", x, y, dtype=dtype), exact, dtype) <= BOUNDS["pow"]


# ---------------------------------------------------------------------------- what is exact


@BOTH
def test_powers_that_are_exact(dtype: DType) -> None:
    x = np.arange(-60, 61).astype(dtype.numpy)
    for y in (1, 2, 3):
        np.testing.assert_array_equal(computed("pow", x, np.full_like(x, y), dtype=dtype), x**y)
    fields = np.finfo(dtype.numpy)
    n = np.arange(fields.minexp - fields.nmant, fields.maxexp).astype(dtype.numpy)
    powers = np.ldexp(dtype.numpy.type(1), n.astype(int))
    np.testing.assert_array_equal(computed("exp2", n, dtype=dtype), powers)
    np.testing.assert_array_equal(computed("log2", powers, dtype=dtype), n)
    np.testing.assert_array_equal(computed("cbrt", x**3, dtype=dtype), x)


def same_bits(found: np.ndarray, wanted: np.ndarray, dtype: DType) -> None:
    """Compare bits; a NaN is a NaN."""
    same = as_bits(found, dtype) == as_bits(wanted.astype(dtype.numpy), dtype)
    same |= np.isnan(found) & np.isnan(wanted)
    assert same.all(), np.flatnonzero(~same)[:10]


@BOTH
def test_remainders_and_neighbours(dtype: DType) -> None:
    x, y = operands(dtype), np.roll(operands(dtype, 1), 999)
    specials = [each.ravel().astype(dtype.numpy) for each in np.meshgrid(SPECIAL, SPECIAL)]
    x, y = np.concatenate([x, x, specials[0]]), np.concatenate([y, operands(dtype, 1), specials[1]])
    with np.errstate(all="ignore"):
        same_bits(computed("fmod", x, y, dtype=dtype), np.fmod(x, y), dtype)
        same_bits(computed("truncmod", x, y, dtype=dtype), np.fmod(x, y), dtype)
        same_bits(computed("nextafter", x, y, dtype=dtype), np.nextafter(x, y), dtype)


@BOTH
def test_division_means_what_it_means_in_python(dtype: DType) -> None:
    random = np.random.default_rng(1)
    x = np.concatenate([random.uniform(-1000, 1000, 4000), np.repeat(SPECIAL, SPECIAL.size)])
    y = np.concatenate([random.uniform(-10, 10, 4000), np.tile(SPECIAL, SPECIAL.size)])
    x, y = x.astype(dtype.numpy), y.astype(dtype.numpy)
    x, y = x[y != 0], y[y != 0]
    with np.errstate(all="ignore"):
        rest = np.array([a % b for a, b in zip(x.tolist(), y.tolist(), strict=True)])
        quotient = np.array([a // b for a, b in zip(x.tolist(), y.tolist(), strict=True)])
        same_bits(computed("mod", x, y, dtype=dtype), rest, dtype)
        same_bits(computed("floordiv", x, y, dtype=dtype), quotient, dtype)
        moderate = np.abs(x / y) < 2.0**20
        exact = np.trunc(long(x) / long(y)).astype(dtype.numpy)
        found = computed("truncdiv", x, y, dtype=dtype)
        same_bits(found[moderate], exact[moderate], dtype)


@BOTH
def test_scaling_rounds_once(dtype: DType) -> None:
    x = operands(dtype)
    random = np.random.default_rng(2)
    n = random.integers(-2300, 2300, x.size).astype(np.int32)
    n[: x.size // 2] = random.integers(-300, 300, x.size // 2)
    n[:6] = [2**31 - 1, -(2**31), 0, 1, -126, 127]
    with np.errstate(all="ignore"):
        same_bits(computed("ldexp", x, n, dtype=dtype), np.ldexp(x, n), dtype)


@BOTH
def test_rounding_takes_halves_away_from_zero(dtype: DType) -> None:
    x = np.array([0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 8388609.0, -0.2, np.inf, -0.0])
    wanted = np.array([1, -1, 2, 3, -3, 0, 8388609, -0.0, np.inf, -0.0])
    same_bits(computed("round", x.astype(dtype.numpy), dtype=dtype), wanted, dtype)


# ---------------------------------------------------------------------------- special cases


ODD = ("asin", "asinh", "atan", "atanh", "cbrt", "erf", "expm1", "log1p", "round", "sin", "sinh")
ODD = (*ODD, "tan", "tanh")


@BOTH
@pytest.mark.parametrize("name", ODD)
def test_odd_functions_keep_the_sign_of_zero(name: str, dtype: DType) -> None:
    zeros = np.array([0.0, -0.0], dtype.numpy)
    same_bits(computed(name, zeros, dtype=dtype), zeros, dtype)


@BOTH
@pytest.mark.parametrize("name", [each for each in BOUNDS if each not in ("atan2", "hypot", "pow")])
def test_special_values_are_those_of_c(name: str, dtype: DType) -> None:
    x = SPECIAL.astype(dtype.numpy)
    if name in ("sin", "cos", "tan") and dtype == FLOAT64:
        x = x[~(np.abs(x) > LARGEST_ANGLE) | np.isinf(x)]
    with np.errstate(all="ignore"):
        exact = EXACT[name](long(x)).astype(dtype.numpy)
    found = computed(name, x, dtype=dtype)
    special = ~np.isfinite(exact) | (exact == 0)
    same_bits(found[special], exact[special], dtype)
    assert error_in_ulp(found, long(exact), dtype) <= BOUNDS[name] + 0.5


@BOTH
@pytest.mark.parametrize("name", ["pow", "atan2", "hypot"])
def test_special_pairs_are_those_of_c(name: str, dtype: DType) -> None:
    x, y = (each.ravel().astype(dtype.numpy) for each in np.meshgrid(SPECIAL, SPECIAL))
    function = {"pow": math.pow, "atan2": math.atan2, "hypot": math.hypot}[name]
    wanted = np.array([c99(function, a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)])
    with np.errstate(over="ignore"):
        wanted = wanted.astype(dtype.numpy)
    found = computed(name, x, y, dtype=dtype)
    special = ~np.isfinite(wanted) | (wanted == 0) | (wanted == 1)
    same_bits(found[special], wanted[special], dtype)
    assert error_in_ulp(found, long(wanted), dtype) <= BOUNDS[name] + 0.5


def c99(function: Callable[[float, float], float], a: float, b: float) -> float:
    """Call a function of Python's, which raises where C gives an infinity or a NaN."""
    try:
        return function(a, b)
    except OverflowError:
        return -math.inf if a < 0 and b % 2 == 1 else math.inf
    except ValueError:
        if a == 0 and b < 0:  # a pole: C99 F.9.4.4
            return math.copysign(math.inf, a) if b % 2 == 1 else math.inf
        return math.nan


@BOTH
@pytest.mark.parametrize("name", ["sin", "cos", "tanh", "erf"])
def test_a_function_stays_within_one(name: str, dtype: DType) -> None:
    x = operands(dtype)
    found = computed(name, x[np.isfinite(x)], dtype=dtype)
    assert np.abs(found).max() <= 1


# ---------------------------------------------------------------------------- narrow floats


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("name", ["exp", "log", "sin", "erf", "cbrt", "atan"])
def test_halves_are_computed_in_float32_and_rounded(name: str, dtype: DType) -> None:
    x = np.arange(1 << 16).astype(np.uint16).view(dtype.numpy)
    with np.errstate(all="ignore"):
        single = computed(name, x.astype(np.float32))
        same_bits(computed(name, x, dtype=dtype), single.astype(dtype.numpy), dtype)


# Divisions of -7 (n), 2.5 (a) and -3.5 (b), with what Python makes of them.
DIVISIONS = {
    "a // 2.0": 2.5 // 2.0,
    "a % 2": 2.5 % 2,
    "7.5 % a": 7.5 % 2.5,
    "n // a": -7 // 2.5,
    "T.floordiv(n, 2.5)": -7 // 2.5,
    "T.floormod(b, a)": -3.5 % 2.5,
    "T.truncdiv(b, a)": -1.0,
    "T.truncmod(b, a)": math.fmod(-3.5, 2.5),
    "T.ceildiv(a, 2)": 2,
    "T.ceildiv(7, a)": 3,
    "T.ceildiv(b, n)": 1,
    "T.ceildiv(n, 2.5)": -2,
    "T.float32(7.5) // 2.0": 3,
}


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
def test_division_of_floats_in_a_kernel(kind: str) -> None:
    stores = "\n".join(f"    O[{j}] = {text}" for j, text in enumerate(DIVISIONS))
    made = parse_function(
        "from tilewright import simt as T\n"
        "@T.function\n"
        f'def k(A: T.Tensor((2,), "{kind}"), N: T.Tensor((1,), "int32"),\n'
        f'      O: T.Tensor(({len(DIVISIONS)},), "float32")):\n'
        "    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))\n"
        "    a, b, n = A[0], A[1], N[0]\n" + stores
    )
    a = np.array([2.5, -3.5], as_dtype(kind).numpy)
    out = np.zeros(len(DIVISIONS), np.float32)
    driver.compile(made, target="sm_90a", backend="sim")(a, np.array([-7], np.int32), out)
    assert dict(zip(DIVISIONS, out.tolist(), strict=True)) == DIVISIONS
