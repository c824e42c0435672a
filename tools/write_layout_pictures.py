"""Draw the pictures of layouts that `docs/layouts.md` shows.

Run it by `python tools/write_layout_pictures.py`.
"""

from __future__ import annotations

from pathlib import Path

from tilewright.view import described, picture

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
# The name of a picture, its layout, and the type of its elements where the layout has none.
LAYOUTS: dict[str, tuple[str, str | None]] = {
    "rows": ("S[(8, 64) : (64, 1)]", "float16"),
    "swizzled": ('mma_shared_layout("float16", 3, (8, 64))', None),
    "padded": ("S[(32, 8) : (9, 1)]", "float32"),
    "accumulator": ("S[(2, 8, 4, 2) : (2, 4@laneid, 1@laneid, 1)]", "float32"),
    "operand": ("S[(2, 8, 2, 4, 2) : (2, 4@laneid, 4, 1@laneid, 1)]", "float16"),
    "lanes": ('tmem_datapath_layout("F", 64, 32)', "float32"),
    "folded": ('tmem_datapath_layout("E", 64, 32)', "float32"),
}


def drawings() -> dict[str, str]:
    """Draw every picture; give the text of each by the name of its file."""
    return {f"{name}.svg": _drawing(*layout) for name, layout in LAYOUTS.items()}


def _drawing(text: str, dtype: str | None) -> str:
    of = described(text)
    return picture(of.layout, of.shape, dtype or of.dtype, title=text).svg()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, drawing in drawings().items():
        (FOLDER / name).write_text(drawing)
