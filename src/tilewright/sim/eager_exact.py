"""The arithmetic of tensor cores in NumPy: the readable reference of `exact` numerics.

May import `base`, `isa.numerics` and `sim.eager_arithmetic`. Everything is computed in float64, in
which the products and the sums of the model are exact.
"""

from __future__ import annotations

import numpy as np

from tilewright.base.dtypes import FLOAT16, FLOAT32, FLOAT64, DType
from tilewright.base.targets import Target
from tilewright.isa.numerics import Fdpa, fdpa, least_exponent
from tilewright.sim import eager_arithmetic as arithmetic
from tilewright.sim.eager_arithmetic import Array


def product(
    left: Array, right: Array, start: Array, types: tuple[DType, DType], where: Target
) -> Array:
    """Multiply left (m × k) by right (n × k), and add start (m × n), as a target does.

    `types` are those of the inputs and of the result; all numbers are given as float32.
    """
    inputs, result = types
    how = fdpa(inputs, result, where)
    total = start
    for first in range(0, left.shape[1], how.length):
        group = slice(first, first + how.length)
        total = _added(left[:, group], right[:, group], total, types, how)
    return total


def _added(left: Array, right: Array, start: Array, types: tuple[DType, DType], how: Fdpa) -> Array:
    """Add the products of a group to what there is; see `Fdpa`."""
    inputs, result = types
    a, b, c = (each.astype(np.float64) for each in (left[:, None], right[None], start[..., None]))
    exponents_a, exponents_b = (_exponents(each, inputs) for each in (a, b))
    with np.errstate(all="ignore"):
        terms = np.concatenate([a * b, c], axis=-1)
        exponents = np.concatenate([exponents_a + exponents_b, _exponents(c, result)], axis=-1)
        exponents = np.where(terms == 0, how.zero_exponent, exponents)
        unit = exponents.max(axis=-1) - how.fraction
        whole: Array = np.trunc(np.ldexp(terms, -unit[..., None])).sum(axis=-1)
        # Of infinities and NaNs the terms alone decide.
        plain: Array = terms.sum(axis=-1)
        shifted: Array = np.ldexp(whole, unit)
        total = np.where(np.isfinite(plain), shifted, plain)
        return arithmetic.canonical(_rounded(total, result) + np.float32(0), FLOAT32)


def _exponents(values: Array, kind: DType) -> Array:
    """Give the exponents of numbers, those of subnormals being the format's least."""
    return np.maximum(np.frexp(values)[1] - 1, least_exponent(kind))


def _rounded(total: Array, result: DType) -> Array:
    """Round to float16 (nearest even) or float32 (towards zero), and give that as float32."""
    if result == FLOAT16:
        return arithmetic.convert(total, FLOAT64, FLOAT16).astype(np.float32)
    nearest = total.astype(np.float32)
    inward = np.nextafter(nearest, np.float32(0))
    # What is below 2^128 stays finite.
    beyond = (np.abs(nearest) > np.abs(total)) & (np.abs(total) < 2.0**128)
    return np.where(beyond, inward, nearest)
