"""The C++ of the IR's pure functions.

May import `base` and `ir`. Everything here is a builtin of NVRTC that needs no header; a template
names its operands `{0}`, `{1}`, … and is an expression of the result's type. Approximate
functions are the hardware's: `expand_math` makes the exact ones of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.dtypes import DType
from tilewright.base.narrow import is_narrow
from tilewright.codegen.spelling import scalar_type


@dataclass(frozen=True, slots=True)
class Template:
    """An expression with holes, and the piece of the prelude that it needs.

    With `through_float` narrow operands are widened first, and the result is rounded.
    """

    text: str
    needs: tuple[str, ...] = ()
    through_float: bool = False


# name: template by element type.
_FLOATS: dict[str, dict[str, str]] = {
    "fma": {"float32": "__fmaf_rn({0}, {1}, {2})", "float64": "__fma_rn({0}, {1}, {2})"},
    "sqrt": {"float32": "__fsqrt_rn({0})", "float64": "__dsqrt_rn({0})"},
    "rsqrt": {"float32": "__frcp_rn(__fsqrt_rn({0}))", "float64": "__drcp_rn(__dsqrt_rn({0}))"},
    "rcp": {"float32": "__frcp_rn({0})", "float64": "__drcp_rn({0})"},
    "abs": {"float32": "fabsf({0})", "float64": "fabs({0})"},
    "floor": {"float32": "floorf({0})", "float64": "floor({0})"},
    "ceil": {"float32": "ceilf({0})", "float64": "ceil({0})"},
    "trunc": {"float32": "truncf({0})", "float64": "trunc({0})"},
    "nearbyint": {"float32": "rintf({0})", "float64": "rint({0})"},
    "round": {"float32": "roundf({0})", "float64": "round({0})"},
    "copysign": {"float32": "copysignf({0}, {1})", "float64": "copysign({0}, {1})"},
    "min": {"float32": "fminf({0}, {1})", "float64": "fmin({0}, {1})"},
    "max": {"float32": "fmaxf({0}, {1})", "float64": "fmax({0}, {1})"},
    "saturate": {"float32": "__saturatef({0})"},
    # The hardware's approximations.
    "exp2": {"float32": "exp2f({0})"},
    "log2": {"float32": "__log2f({0})"},
    "sin": {"float32": "__sinf({0})"},
    "cos": {"float32": "__cosf({0})"},
    "tanh_approx": {"float32": "__tanhf({0})"},
    "rsqrt_approx": {"float32": "rsqrtf({0})"},
    "div_approx": {"float32": "__fdividef({0}, {1})"},
}

# name: template by width; operands are passed as the unsigned type, results come as int.
_BITS: dict[str, dict[int, str]] = {
    "popcount": {32: "__popc({0})", 64: "__popcll({0})"},
    "clz": {32: "__clz({0})", 64: "__clzll({0})"},
    "ctz": {32: "__clz(__brev({0}))", 64: "__clzll(__brevll({0}))"},
    "ffs": {32: "__ffs({0})", 64: "__ffsll({0})"},
    "brev": {32: "__brev({0})", 64: "__brevll({0})"},
}
_HIGH_PRODUCTS = {
    "int32": "__mulhi({0}, {1})",
    "uint32": "__umulhi({0}, {1})",
    "int64": "__mul64hi({0}, {1})",
    "uint64": "__umul64hi({0}, {1})",
}
_TESTS = {
    "isnan": "!({1}({0}) <= {2})",
    "isinf": "({1}({0}) == {2})",
    "isfinite": "({1}({0}) < {2})",
}


def template(name: str, operand: DType, result: DType) -> Template | None:
    """Find the expression for a function of operands of a type; `None` if there is none."""
    if operand.lanes != 1:
        return None
    if operand.is_float:
        return _float_template(name, operand)
    return _integer_template(name, operand, result)


def _float_template(name: str, operand: DType) -> Template | None:
    if name in _TESTS:
        return _test(name, operand)
    if is_narrow(operand):
        if name == "fma":
            return Template("narrow_fma({0}, {1}, {2})", ("narrow_fma",))
        inner = _FLOATS.get(name, {}).get("float32")
        return None if inner is None else Template(inner, through_float=True)
    text = _FLOATS.get(name, {}).get(operand.base)
    return None if text is None else Template(text)


def _test(name: str, operand: DType) -> Template:
    single = operand.base != "float64"
    infinity = (
        "__int_as_float(0x7f800000)" if single else "__longlong_as_double(0x7ff0000000000000)"
    )
    text = _TESTS[name].replace("{1}", "fabsf" if single else "fabs").replace("{2}", infinity)
    return Template(text, through_float=is_narrow(operand))


def _integer_template(name: str, operand: DType, result: DType) -> Template | None:
    if name == "mulhi":
        text = _HIGH_PRODUCTS.get(operand.name)
        return None if text is None else Template(text)
    if name in ("min", "max"):
        return Template(f"{scalar_type(result)}({name}({{0}}, {{1}}))")
    if name == "abs":
        return (
            Template("absolute({0})", ("absolute",)) if operand.kind == "int" else Template("{0}")
        )
    if name not in _BITS or operand.bits > 64:
        return None
    return _bits(name, operand, result)


def _bits(name: str, operand: DType, result: DType) -> Template:
    spelled = scalar_type(result)
    same_width = {8: "uint8_t", 16: "uint16_t", 32: "unsigned", 64: "uint64_t"}[operand.bits]
    text = _BITS[name][64 if operand.bits == 64 else 32].replace("{0}", f"{same_width}({{0}})")
    # A narrow operand stands in the low bits of 32.
    missing = 32 - operand.bits if operand.bits < 32 else 0
    if missing and name == "clz":
        text = f"{text} - {missing}"
    if missing and name == "brev":
        text = f"{text} >> {missing}"
    if missing and name == "ctz":
        text = f"min({text}, {operand.bits})"
    return Template(f"{spelled}({text})")
