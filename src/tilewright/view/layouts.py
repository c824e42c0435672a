"""A picture of a layout, as SVG and as text.

May import `base`, `layout` and the modules of this folder below it.

    print(picture(mma_shared_layout("float16", 3, (8, 64)), (8, 64), "float16"))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.base.dtypes import DType
from tilewright.base.dtypes import dtype as dtype_named
from tilewright.layout import Layout, TCol, TLane, m
from tilewright.view import svg, text
from tilewright.view.matrix import matrix
from tilewright.view.memory import memory_page
from tilewright.view.page import Page
from tilewright.view.registers import registers_page
from tilewright.view.tensor_memory import tensor_memory_page


@dataclass(frozen=True)
class Picture:
    """A picture: `str()` is its text; a notebook shows its SVG."""

    page: Page

    def svg(self) -> str:
        """Draw it as an SVG document, which needs no other file."""
        return svg.draw(self.page)

    def text(self, width: int = 100) -> str:
        """Write it in lines of at most `width` characters, where that can be done."""
        return text.write(self.page, width)

    def __str__(self) -> str:
        return self.text()

    def _repr_svg_(self) -> str:
        return self.svg()


def picture(
    layout: Layout,
    shape: Sequence[int] | None = None,
    dtype: str | DType | None = None,
    *,
    title: str | None = None,
) -> Picture:
    """Picture a layout: lanes and registers, bytes and banks, or lanes and columns.

    `shape` is that of the tensor, its last axis across; without one the shards of the layout
    give it. `dtype` is the type of the elements; without one, what is counted is elements. A
    large layout is shown in part. Raises `FrontendError` for a shape that does not fit
    (bad-layout), or a type that there is not (unknown-name).
    """
    element = None if dtype is None else dtype_named(dtype)
    elements = matrix(layout, shape)
    name = title or repr(layout)
    axes = set(elements.axes)
    if axes <= {TLane, TCol}:
        return Picture(tensor_memory_page(name, elements, element))
    if axes <= {m}:
        return Picture(memory_page(name, elements, element))
    return Picture(registers_page(name, elements, element))
