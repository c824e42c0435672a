"""Number the CTAs of a grid by panels, so that those that run together share what they read.

May import `base`, `ir` and the modules of this folder above. A panel is some rows of the grid
("row") or columns; CTAs go through it column by column, and through every other panel backwards.

    T.use_swizzle(2); … bx, by …   # a grid of (3, 4)
    # -> CTA 0, 1, 2, 3, …: (0, 0), (0, 1), (1, 0), (1, 1), …
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.dtypes import INT32
from tilewright.ir.expressions import Expr, Select, SpecialRegister, Var, as_constant, binary
from tilewright.ir.rewrite import map_statements, rewrite
from tilewright.ir.statements import Bind, Kernel, Program
from tilewright.ir.tile import RasterizeTile
from tilewright.ir.types import ScalarType
from tilewright.ir.visit import walk_kinds
from tilewright.passes.tile.scene import Names

_INDEX = ScalarType(INT32)


def rasterize(program: Program) -> Program:
    """Replace the indices of CTAs in kernels that ask for panels."""
    return replace(program, kernels=tuple(map(_rasterize, program.kernels)))


def _rasterize(kernel: Kernel) -> Kernel:
    asked = list(walk_kinds(kernel.body, RasterizeTile))
    if not asked:
        return kernel
    last = asked[-1]
    body = map_statements(kernel.body, lambda stmt: () if isinstance(stmt, RasterizeTile) else None)
    along, across = ("x", "y") if last.order == "row" else ("y", "x")
    values: dict[str, Expr] = {}
    statements = _renumbered(kernel, last.panel, along, across, values)
    body = rewrite(
        body, ((SpecialRegister, lambda register: values.get(register.name)),), top_down=True
    )
    located = tuple(replace(each, location=last.location) for each in statements)
    return replace(kernel, body=(*located, *body))


def _renumbered(
    kernel: Kernel, panel: int, along: str, across: str, values: dict[str, Expr]
) -> list[Bind]:
    """Compute a CTA's place; `along` is the axis that a panel runs along."""
    names = Names(kernel)
    statements: list[Bind] = []

    def bound(name: str, value: Expr) -> Var:
        var = names.variable(name, _INDEX)
        statements.append(Bind(var, value))
        return var

    length, rows = (_extent(kernel, axis) for axis in (along, across))
    number = bound(
        "cta", SpecialRegister("ctaid.x") + _extent(kernel, "x") * SpecialRegister("ctaid.y")
    )
    index = bound("panel", number // (length * panel))
    first = bound("panel_first", index * panel)
    # The last panel may have fewer rows.
    height = bound("panel_height", binary("min", rows - first, panel))
    within = bound("within_panel", number - first * length)
    column = bound("panel_column", within // height)
    backwards = binary("eq", index % 2, 1)
    values[f"ctaid.{along}"] = bound(
        f"cta_{along}", Select(backwards, length - 1 - column, column, _INDEX)
    )
    values[f"ctaid.{across}"] = bound(f"cta_{across}", first + within % height)
    return statements


def _extent(kernel: Kernel, axis: str) -> Expr:
    extent = kernel.launch.grid["xyz".index(axis)]
    return SpecialRegister(f"nctaid.{axis}") if as_constant(extent) is None else extent
