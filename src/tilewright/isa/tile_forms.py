"""Which instructions can be applied to tiles, and which of their operands are tiles.

May import `isa.declaration` and the chapters of `isa`. Most instructions state their contract in
their declaration; products and copies of boxes have one that depends on the call.

    >>> tile_operands(named.MMA_F16)
    ('d_tmem', 'a_desc', 'b_desc')
"""

from __future__ import annotations

from tilewright.isa.declaration import Form
from tilewright.isa.tensor_copy import tensor_load, tensor_store
from tilewright.isa.tensor_core import is_product, product_tiles

_COPIES = {tensor_load: ("dstMem", "tensorMap"), tensor_store: ("tensorMap", "srcMem")}


def tile_operands(form: Form) -> tuple[str, ...]:
    """Name the operands of an instruction that are tiles, in call order; () if it takes none."""
    if is_product(form):
        return product_tiles(form)
    if is_box_copy(form):
        return _COPIES[form.declaration]
    return () if form.tile is None else tuple(each.operand for each in form.tile.operands)


def is_box_copy(form: Form) -> bool:
    """Tell the copies of boxes between a tensor and shared memory."""
    return form.declaration in _COPIES


def loads_boxes(form: Form) -> bool:
    """Tell the copies of boxes into shared memory."""
    return form.declaration is tensor_load
