"""What `tilewright view` shows: a layout by its notation, or one of a program's; a timeline.

May import `base` and the modules of this folder below it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tilewright.base.errors import LaunchError
from tilewright.view.expressions import described, layout_among
from tilewright.view.layouts import Picture, picture
from tilewright.view.timeline import timeline_page

_SHAPE = re.compile(r"\(?\s*(\d+(?:\s*[,x×]\s*\d+)*)\s*,?\s*\)?")


def pictured(
    layout: str,
    shape: str | None,
    dtype: str | None,
    names_of: Callable[[str], Mapping[str, Any]],
) -> Picture:
    """Picture a layout that is given by its notation, or as `file.py::name`.

    `names_of` gives the global names of a file. `shape`, such as "8,64", and `dtype` go before
    what the layout's own arguments say. Raises `TilewrightError` for what is no layout or no
    shape of it.
    """
    path, separator, name = layout.partition("::")
    found = layout_among(names_of(path), name, path) if separator else described(layout)
    extents = found.shape if shape is None else _extents(shape)
    return picture(found.layout, extents, dtype or found.dtype, title=layout)


def file_of(picture: Picture, name: str) -> bytes:
    """Give what a file of that name holds: SVG, or text for a name that ends in `.txt`.

    Raises `LaunchError` (bad-option) for any other ending.
    """
    if name.endswith(".svg"):
        return picture.svg().encode()
    if name.endswith(".txt"):
        return picture.text().encode()
    raise LaunchError(
        f"it is not known what kind of file {name!r} is",
        code="bad-option",
        expected="a name that ends in .svg or .txt",
    )


def timeline_of(name: str) -> str:
    """Draw the trace in a file of that name as an HTML page.

    Raises `LaunchError` (bad-option) for a file that cannot be read, or is no trace.
    """
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(
            f"the trace {name!r} cannot be read", code="bad-option", found=str(error)
        ) from error
    return timeline_page(text, Path(name).name)


def _extents(text: str) -> tuple[int, ...]:
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        raise LaunchError(
            f"{text!r} is not a shape", code="bad-option", expected="numbers, such as 128,64"
        )
    return tuple(map(int, re.findall(r"\d+", match[1])))
