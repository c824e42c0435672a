"""Layouts: where each element of a tensor lies, in memory, in registers and over threads.

Imports `base` and NumPy.

    >>> TileLayout(S[(8, 4, 2) : (4 @ laneid, 1 @ laneid, 1)]).size()
    64
"""

from tilewright.layout.axes import (
    AXES,
    SCOPES,
    Axis,
    TCol,
    Term,
    TLane,
    axis_named,
    bx,
    by,
    bz,
    cbx,
    cby,
    cbz,
    laneid,
    m,
    thread_index,
    tid_in_wg,
    tx,
    warpid,
    wgid,
    wid_in_wg,
)
from tilewright.layout.factories import (
    SwizzleMode,
    mma_atom_layout,
    mma_atom_shape,
    mma_shared_layout,
)
from tilewright.layout.image import default_layout, image, images, is_injective, same_map
from tilewright.layout.spec import Iter, LayoutSpec, R, S
from tilewright.layout.swizzle import ComposeLayout, Layout
from tilewright.layout.tile import TileLayout
from tilewright.layout.tmem import tmem_datapath_layout, tmem_mma_operand_layout

__all__ = [
    "AXES",
    "SCOPES",
    "Axis",
    "ComposeLayout",
    "Iter",
    "Layout",
    "LayoutSpec",
    "R",
    "S",
    "SwizzleMode",
    "TCol",
    "TLane",
    "Term",
    "TileLayout",
    "axis_named",
    "bx",
    "by",
    "bz",
    "cbx",
    "cby",
    "cbz",
    "default_layout",
    "image",
    "images",
    "is_injective",
    "laneid",
    "m",
    "mma_atom_layout",
    "mma_atom_shape",
    "mma_shared_layout",
    "same_map",
    "thread_index",
    "tid_in_wg",
    "tmem_datapath_layout",
    "tmem_mma_operand_layout",
    "tx",
    "warpid",
    "wgid",
    "wid_in_wg",
]
