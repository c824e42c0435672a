"""Pictures: what a layout maps, in lanes and registers, bytes and banks, lanes and columns.

May import everything that stands above it in the order of folders.

    from tilewright.view import picture

    print(picture(layout, shape=(8, 64), dtype="float16"))
"""

from tilewright.view.expressions import Described, described, read_layout
from tilewright.view.layouts import Picture, picture

__all__ = ["Described", "Picture", "described", "picture", "read_layout"]
