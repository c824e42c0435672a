"""Numbering the CTAs of a grid by panels: each runs once, and neighbours share a panel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import tile as T
from tilewright.passes.tile.rasterize import rasterize


def _kernel(columns: int, rows: int, panel: int, order: str):
    @T.prim_func
    def visit(Turn: T.Tensor((rows, columns), "int32")):
        with T.Kernel(columns, rows, threads=32) as (bx, by):
            T.use_swizzle(panel, order=order)
            if T.get_thread_binding() == 0:
                Turn[by, bx] = Turn[by, bx] + 1 + by * columns + bx

    return visit


@pytest.mark.parametrize("order", ["row", "column"])
@pytest.mark.parametrize("shape", [(4, 3, 2), (7, 5, 3), (1, 1, 10), (3, 8, 2), (5, 4, 4)])
def test_every_cta_runs_once_under_its_own_index(shape: tuple[int, int, int], order: str) -> None:
    columns, rows, panel = shape
    turn = np.zeros((rows, columns), np.int32)
    tilewright.compile(_kernel(columns, rows, panel, order))(turn)
    expected = 1 + np.arange(rows * columns).reshape(rows, columns)
    np.testing.assert_array_equal(turn, expected)


def _order(columns: int, rows: int, panel: int, order: str) -> list[tuple[int, int]]:
    """Say in which order the CTAs of a grid are numbered: panel by panel, to and fro."""
    long, across = (columns, rows) if order == "row" else (rows, columns)
    found: list[tuple[int, int]] = []
    for number, first in enumerate(range(0, across, panel)):
        along = range(long) if number % 2 == 0 else reversed(range(long))
        lines = range(first, min(first + panel, across))
        found += [(a, b) if order == "row" else (b, a) for a in along for b in lines]
    return found


@pytest.mark.parametrize("order", ["row", "column"])
def test_panels_are_gone_through_to_and_fro(order: str) -> None:
    columns, rows, panel = 5, 7, 3
    text = str(rasterize(_kernel(columns, rows, panel, order).program))
    names = {"T": _Plain, "range": range}
    numbered = [_evaluate(text, names, x, y) for y in range(rows) for x in range(columns)]
    assert numbered == _order(columns, rows, panel, order)


class _Plain:
    """The few names that the numbering uses, as functions of numbers."""

    min = staticmethod(min)

    @staticmethod
    def select(condition: bool, true: int, false: int) -> int:
        return true if condition else false


def _evaluate(text: str, names: dict[str, Any], x: int, y: int) -> tuple[int, int]:
    """Carry out the lines that compute a CTA's place, as Python."""
    values = dict(names)
    for line in text.splitlines():
        name, _, value = line.strip().partition(" = ")
        if name.startswith(("cta", "panel", "within")):
            value = value.replace('T.cuda.block_idx("x")', str(x))
            values[name] = eval(value.replace('T.cuda.block_idx("y")', str(y)), values)
    return values["cta_x"], values["cta_y"]
