"""The functions of the dialect: which are expanded, by what, and which are left to the backends.

May import `base`, `ir` and `passes.functions`. Expansions are arithmetic of float32, or of float64
for its operands: sums, products, quotients, square roots and `fma`, rounded to nearest even, and
operations on bits, which every backend does alike. The errors stated with the functions are in
units in the last place (ulp), the largest over all of the function's range; tests hold to them.
"""

from __future__ import annotations

from tilewright.passes.functions import (
    error_function,
    exponentials,
    logarithms,
    powers,
    remainders,
    trigonometry,
)
from tilewright.passes.functions.notation import Function

FUNCTIONS: dict[str, Function] = {
    "acos": trigonometry.acos,
    "acosh": logarithms.acosh,
    "asin": trigonometry.asin,
    "asinh": logarithms.asinh,
    "atan": trigonometry.atan,
    "atan2": trigonometry.atan2,
    "atanh": logarithms.atanh,
    "cbrt": powers.cbrt,
    "cos": trigonometry.cos,
    "cosh": exponentials.cosh,
    "erf": error_function.erf,
    "exp": exponentials.exp,
    "exp10": exponentials.exp10,
    "exp2": exponentials.exp2,
    "expm1": exponentials.expm1,
    "fmod": remainders.fmod,
    "hypot": powers.hypot,
    "ldexp": powers.ldexp,
    "log": logarithms.log,
    "log10": logarithms.log10,
    "log1p": logarithms.log1p,
    "log2": logarithms.log2,
    "nextafter": remainders.nextafter,
    "pow": powers.pow,
    "round": remainders.round_away,
    "rsqrt": powers.rsqrt,
    "sigmoid": exponentials.sigmoid,
    "sin": trigonometry.sin,
    "sinh": exponentials.sinh,
    "tan": trigonometry.tan,
    "tanh": exponentials.tanh,
}
# Operations of the IR that are functions where their operands are floats.
OPERATIONS: dict[str, Function] = {
    "floordiv": remainders.floordiv,
    "mod": remainders.mod,
    "truncdiv": remainders.truncdiv,
    "truncmod": remainders.truncmod,
}
# What both backends have, and round alike.
PRIMITIVES = frozenset(
    {
        *("abs", "ceil", "copysign", "floor", "fma", "max", "min", "nearbyint", "sqrt", "trunc"),
        *("isfinite", "isinf", "isnan"),
        *("brev", "clz", "popcount"),
    }
)
