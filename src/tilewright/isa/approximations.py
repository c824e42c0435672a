"""Approximate functions of float32 (PTX ISA 9.7.3, `.approx`).

May import `base`, `isa.arithmetic`, `isa.declaration` and `isa.machine`. The special function unit
(`Machine.approximate`) takes subnormal numbers for zeros, which is `.ftz`. Without that the
assembler brings what would be lost into the unit's range by powers of two, as stated here.

    ex2.approx.ftz.f32 %f0, %f1;
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base.dtypes import FLOAT32, UINT32
from tilewright.isa.arithmetic import declare_plain, function
from tilewright.isa.machine import Lanes, Machine

Step = Callable[[Machine, Lanes], Lanes]
_SIGN, _EXPONENT = 0x80000000, 0x7F800000


def _is_small(m: Machine, a: Lanes) -> Lanes:
    """Tell zeros and subnormal numbers."""
    return (m.bitcast(a, UINT32) & _EXPONENT) == 0


def _unit(name: str) -> Step:
    return lambda m, a: m.approximate(name, a)


def _scaled(name: str, back: Callable[[Lanes], Lanes]) -> Step:
    """Multiply a subnormal operand by 2^24, and bring the result back."""

    def step(m: Machine, a: Lanes) -> Lanes:
        small = _is_small(m, a)
        found = m.approximate(name, m.select(small, a * 2.0**24, a))
        return m.select(small, back(found), found)

    return step


def _exponential(m: Machine, a: Lanes) -> Lanes:
    low = a < -126.0
    found = m.approximate("exp2", m.select(low, a * 0.5, a))
    return m.select(low, found * found, found)


def _reciprocal(m: Machine, a: Lanes) -> Lanes:
    up, same, down = (m.constant(scale, FLOAT32) for scale in (2.0**24, 1.0, 0.25))
    large = (a > 2.0**126) | (a < -(2.0**126))
    scale = m.select(_is_small(m, a), up, m.select(large, down, same))
    return m.approximate("rcp", a * scale) * scale


def _flushed(step: Step) -> Step:
    """Flush subnormal inputs and results to zeros."""

    def flush(m: Machine, value: Lanes) -> Lanes:
        bits = m.bitcast(value, UINT32)
        return m.bitcast(m.select(_is_small(m, value), bits & _SIGN, bits), FLOAT32)

    return lambda m, a: flush(m, step(m, flush(m, a)))


# What each is without `.ftz` and with it; what the unit makes of the last two is not known.
_FUNCTIONS: dict[str, tuple[Step, Step]] = {
    "ex2": (_exponential, _unit("exp2")),
    "lg2": (_scaled("log2", lambda found: found - 24.0), _unit("log2")),
    "rcp": (_reciprocal, _unit("rcp")),
    "rsqrt": (_scaled("rsqrt", lambda found: found * 2.0**12), _unit("rsqrt")),
    "sqrt": (_scaled("sqrt", lambda found: found * 2.0**-12), _unit("sqrt")),
    "sin": (function("sin"), _flushed(function("sin"))),
    "cos": (function("cos"), _flushed(function("cos"))),
}
_UNKNOWN = ("sin", "cos")
for _name, _steps in _FUNCTIONS.items():
    for _tokens, _step in zip(("approx.{type}", "approx.ftz.{type}"), _steps, strict=True):
        declare_plain(
            _name,
            _tokens,
            ("f32",),
            _step,
            names="a",
            summary=f"Approximate {_name}"
            + (", which is rounded correctly here." if _name in _UNKNOWN else "."),
            section=f'9.7.3 "{_name}"',
            exact=_name not in _UNKNOWN,
        )
