"""Layouts show themselves in notebooks.

Imports `layout` and `view.layouts`. Notebooks ask an object for `_repr_svg_`. `layout/` stands
below this folder and cannot answer, so the method is given to its classes here, once, when the
package is imported.
"""

from __future__ import annotations

from tilewright.layout import ComposeLayout, Layout, TileLayout
from tilewright.view.layouts import picture


def show_layouts() -> None:
    """Give layouts the method by which notebooks show them as pictures."""
    for kind in (TileLayout, ComposeLayout):
        setattr(kind, "_repr_svg_", _svg)  # noqa: B010 (the classes do not declare it)


def _svg(layout: Layout) -> str:
    return picture(layout).svg()
