"""Kernels that evaluate expressions of each element of arrays, as both backends take them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright import sim
from tilewright.base.dtypes import BOOL, UINT8, DType
from tilewright.base.spaces import Space
from tilewright.base.targets import target
from tilewright.ir.expressions import Expr, Offset, Read, SpecialRegister, Var, cast, int32
from tilewright.ir.statements import Bind, Kernel, Launch, Program, Stmt, Write
from tilewright.ir.types import PointerType, ScalarType
from tilewright.passes.expand_math import expand_math

BLOCK = 128
cpu: str | None = None  # the processor to make code for; the tests' option `--cpu` sets it

_ONE = int32(1)
INDEX = Var("index", ScalarType(_ONE.dtype))


def scalar(name: str, kind: DType) -> Var:
    """Make a variable."""
    return Var(name, ScalarType(kind))


def unsigned(kind: DType) -> np.dtype:
    """Give the NumPy type that holds the bits of an element."""
    return np.dtype(f"u{kind.bytes}")


def as_bits(values: np.ndarray, kind: DType) -> np.ndarray:
    """Take elements as their bits."""
    return np.ascontiguousarray(values).view(unsigned(kind))


def kept(value: Expr) -> Expr:
    """Give a value as it is kept in memory."""
    return cast(value, UINT8) if value.dtype == BOOL else value


def program(given: list[Var], values: list[Expr], count: int, uniform: bool = False) -> Program:
    """Build the kernel: with `uniform` a CTA of one thread for each element."""
    block = 1 if uniform else BLOCK
    cta, lane = SpecialRegister("ctaid.x"), SpecialRegister("tid.x")
    body: list[Stmt] = [Bind(INDEX, cta if uniform else cta * block + lane)]
    read = [_pointer(f"{var.name}_given", var.dtype) for var in given]
    made = [_pointer(f"out_{at}", value.dtype) for at, value in enumerate(values)]
    for var, place in zip(given, read, strict=True):
        body.append(Bind(var, Read(_element(place), ScalarType(var.dtype))))
    for value, place in zip(values, made, strict=True):
        body.append(Write(_element(place), value))
    grid, shape = (int32(count // block), _ONE, _ONE), (int32(block), _ONE, _ONE)
    launch = Launch(grid, shape, (_ONE, _ONE, _ONE), int32(0))
    kernel = Kernel("elementwise", (*read, *made), launch, tuple(body))
    return expand_math(Program("elementwise", (), (), (kernel,)))


def _pointer(name: str, kind: DType) -> Var:
    return Var(name, PointerType(Space.GLOBAL, kind, kind.bytes))


def _element(base: Var) -> Offset:
    assert isinstance(base.type, PointerType)
    return Offset(base, INDEX * base.dtype.bytes, base.type)


def evaluate(
    given: Mapping[Var, np.ndarray],
    values: Mapping[str, Expr],
    *,
    uniform: bool = False,
) -> dict[str, np.ndarray]:
    """Evaluate expressions of the elements of arrays on the simulator; all are bits."""
    size = next(iter(given.values())).size
    block = 1 if uniform else BLOCK
    count = -(-size // block) * block
    inputs = [np.resize(as_bits(bits, var.dtype), count) for var, bits in given.items()]
    results = [kept(value) for value in values.values()]
    arrays = [*inputs, *(np.zeros(count, unsigned(value.dtype)) for value in results)]
    regions = [
        sim.Region(str(at), array.ctypes.data, array.nbytes, True)
        for at, array in enumerate(arrays)
    ]
    (kernel,) = program(list(given), results, count, uniform).kernels
    built = sim.build(kernel, target("sm_100a"), sim.Options(workers=1, cpu=cpu))
    built.launch([array.ctypes.data for array in arrays], regions, (count // block, 1, 1), print)
    return {name: array[:size] for name, array in zip(values, arrays[len(inputs) :], strict=True)}
