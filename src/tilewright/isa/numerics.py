"""How the tensor cores of each generation round: what `exact` numerics model.

May import `base`. Tensor cores do not add in any IEEE precision: they line a group of products up
and drop what sticks out below (Xie et al., "MMA-Sim", arXiv 2511.10909; Khattak and Mikaitis,
arXiv 2512.07004). The model was read off chips bit by bit. It is not published for
`cta_group::2` and for D that is scaled: there it is assumed to hold alike.

    >>> fdpa(dtype("float16"), dtype("float32"), target("sm_80"))
    Fdpa(length=8, fraction=24, zero_exponent=-132)
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.dtypes import FLOAT16, FLOAT32, DType
from tilewright.base.narrow import format_of
from tilewright.base.targets import Target


@dataclass(frozen=True, slots=True)
class Fdpa:
    """A truncated fused dot-product-add: how an element of D comes about.

    The products of an element are taken in groups of at most `length`, in ascending k; each group
    is added to the rounded result of the one before, the first to C. The terms of a group, its
    products and what they are added to, are shifted to the greatest exponent among them and
    truncated towards zero to `fraction` bits below it; the sum of that is exact. The exponent of a
    product is the sum of its factors' (it is not normalised), that of a subnormal factor is the
    format's least, and a term that is zero counts with `zero_exponent`. The sum is rounded once:
    to float32 towards zero, to float16 to nearest even. A result of zero is +0, and a NaN,
    0 · infinity or infinities that cancel make the canonical NaN.
    """

    length: int
    fraction: int
    zero_exponent: int


@dataclass(frozen=True, slots=True)
class _Generation:
    """The tensor cores of some generation: the bytes of a group's row, and the fraction bits."""

    since: int
    bytes: int
    fraction: int
    zero_exponent: dict[DType, int]


# From Turing on, from Hopper on.
_GENERATIONS = (
    _Generation(75, 16, 24, {FLOAT32: -132, FLOAT16: -20}),
    _Generation(90, 32, 25, {FLOAT32: -133, FLOAT16: -21}),
)


def fdpa(inputs: DType, result: DType, where: Target) -> Fdpa:
    """Describe the arithmetic of dense products on a target, by the types of A and B, and of D.

    `inputs` is float16, bfloat16, or float32 for tf32, of which the low 13 bits do not count.
    """
    held = [each for each in _GENERATIONS if each.since <= where.capability]
    assert held, f"{where} has no tensor cores that are modelled"
    latest = held[-1]
    length = latest.bytes // inputs.bytes
    return Fdpa(length, latest.fraction, latest.zero_exponent[result])


def least_exponent(kind: DType) -> int:
    """Give the exponent of a format's subnormals."""
    format = format_of(kind)
    return -126 if format is None else 1 - format.bias
