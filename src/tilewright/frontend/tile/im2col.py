"""The patches of images as rows of a matrix, so that a product is a convolution.

May import `base`, `ir` and the modules of `frontend`.
"""

from __future__ import annotations

from typing import Any

from tilewright.base.dtypes import INT32
from tilewright.base.errors import FrontendError
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.tensors import Tensor
from tilewright.frontend.tile.regions import tile
from tilewright.frontend.values import constant_int, lift_index, wrap
from tilewright.ir.expressions import Expr, Load, as_expr, binary, cast, constant, select
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Store
from tilewright.ir.tile import ParallelTile
from tilewright.ir.types import ScalarType

_INDEX = ScalarType(INT32)


def im2col(
    img: Any,
    col: Any,
    nhw_step: Any,
    c_step: Any,
    kernel: int,
    stride: int,
    dilation: int,
    pad: int,
    eviction_policy: str | None = None,
) -> None:
    """Copy a tile of the matrix whose rows are patches of images, and whose columns their elements.

    `img` is (n, height, width, channels), `col` the tile at row `nhw_step` and column `c_step`,
    counted in tiles. Rows go through n, then the places of the square kernel in the image; columns
    through the kernel's rows, its columns, and the channels. Beyond an image's edge all is 0.
    Raises `FrontendError` (`tile-operand`, `not-constant`).
    """
    target = tile(col, "col", 1)
    kind = tensor_type(target)
    if not isinstance(img, Tensor) or img.ndim != 4 or len(kind.shape) != 2:
        raise FrontendError(
            "patches of images go into a matrix",
            code="tile-operand",
            location=argument_place("img", 0),
            expected="images (n, height, width, channels), and a tile of two axes",
            found=f"{getattr(img, 'ndim', 'no')} and {len(kind.shape)} axes",
        )
    size, step, spread, edge = (
        constant_int(each, name)
        for each, name in zip(
            (kernel, stride, dilation, pad), ("kernel", "stride", "dilation", "pad"), strict=True
        )
    )
    _, height, width, channels = (wrap(each) for each in img.type.shape)
    builder = current()
    i, j = (builder.variable(name, _INDEX) for name in "ij")
    row = wrap(lift_index(nhw_step)) * wrap(kind.shape[0]) + wrap(i)
    column = wrap(lift_index(c_step)) * wrap(kind.shape[1]) + wrap(j)
    reach = spread * (size - 1) + 1
    rows, columns = ((extent + (2 * edge - reach)) // step + 1 for extent in (height, width))
    y = row // columns % rows * step + column // (channels * size) * spread - edge
    x = row % columns * step + column // channels % size * spread - edge
    place = (row // (rows * columns), y, x, column % channels)
    inside = [
        *(binary("le", 0, _expr(each)) for each in (y, x)),
        *(binary("lt", _expr(each), _expr(end)) for each, end in ((y, height), (x, width))),
        binary("lt", _expr(column), _expr(channels * (size * size))),
    ]
    test = inside[0]
    for each in inside[1:]:
        test = binary("logical_and", test, each)
    own = img.type.dtype
    read = Load(img.expr, tuple(map(_expr, place)), ScalarType(own), location=here())
    value = select(test, read, constant(0, own))
    store = Store(target, (i, j), cast(value, kind.dtype), location=here())
    builder.emit(ParallelTile((i, j), kind.shape, (store,), location=here()))


def _expr(value: Any) -> Expr:
    return as_expr(getattr(value, "expr", value))


FUNCTIONS: dict[str, Any] = {"im2col": im2col, "c2d_im2col": im2col}
