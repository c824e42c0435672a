"""The proof that the boxes of a tile lie in shared memory as tensor copies put them there.

May import `base`, `isa`, `ir`, `layout`, NumPy and the modules of this folder above. A box lies
row by row; a swizzle then moves chunks of 16 bytes within each 128, by bits of their address.
"""

from __future__ import annotations

from math import prod

import numpy as np

from tilewright.base.errors import FrontendError
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Apply
from tilewright.isa.tensor_copy import BOX_ALIGN
from tilewright.isa.tensor_map import SPANS
from tilewright.layout import SwizzleMode, mma_shared_layout
from tilewright.passes.analysis.evaluation import Values
from tilewright.passes.extract_descriptors import swizzled
from tilewright.passes.places import root_of
from tilewright.passes.tiles.images import Image, image_of
from tilewright.passes.tiles.memory import known_alignment
from tilewright.passes.tiles.scene import Scene
from tilewright.passes.tiles.shapes import Tile, refuse
from tilewright.passes.tiles.tensor_maps import Box


def check_image(apply: Apply, tile: Tile, scene: Scene, box: Box) -> bool:
    """Prove that the elements of each box lie where the chip puts them in shared memory.

    The swizzle acts on addresses, so it is known only from where it repeats. Tells whether a box
    begins elsewhere than its first element. Raises `TileContractError` (tile-alignment,
    tile-layout).
    """
    image = image_of(tile, scene)
    if image is None:
        raise refuse(
            apply,
            "tile-alignment",
            f"the addresses of {tile.name} cannot be told",
            "starts with a constant range, or multiples of what the swizzle repeats after",
            "a start of which neither is known",
        )
    _check_base(apply, tile, image, box)
    boxes = image.bytes.reshape(-1, prod(box.image))
    first = boxes[:, 0]
    if not box.swizzle and (first % BOX_ALIGN).any():
        at = int(np.flatnonzero(first % BOX_ALIGN)[0])
        found = f"a box that begins at {_place(tile, image, int(first[at]))}"
        raise _refuse_alignment(apply, tile, box, found, None)
    starts = first - first % BOX_ALIGN
    expected = swizzled(starts[:, None] + _offsets(box), SwizzleMode(box.swizzle))
    wrong = boxes != expected
    if wrong.any():
        at = int(np.flatnonzero(wrong.ravel())[0])
        element = np.unravel_index(at % prod(tile.shape), tile.shape)
        raise refuse(
            apply,
            "tile-layout",
            f"{tile.name} does not lie in shared memory as {apply.form.text} finds it",
            f"element {[int(each) for each in element]} at "
            f"{_place(tile, image, int(expected.flat[at]))}, where its box has it",
            f"it at {_place(tile, image, int(boxes.flat[at]))}",
            _fitting(tile, box),
        )
    return bool((starts != first).any())


def _offsets(box: Box) -> Values:
    """Count the bytes from the start of a box to each of its elements, before the swizzle."""
    *rows, columns = box.image
    size = box.element_bytes
    return np.add.outer(
        box.pitch * np.arange(prod(rows), dtype=np.int64),
        size * np.arange(columns, dtype=np.int64),
    ).ravel()


def _check_base(apply: Apply, tile: Tile, image: Image, box: Box) -> None:
    period = BOX_ALIGN << box.swizzle
    known = known_alignment(tile, image.divisor)
    if known % period == 0:
        return
    root = root_of(tile.view)
    if known_alignment(tile, 0) % period:
        found = f"{root.name}, which is aligned to {known_alignment(tile, 0)} bytes"
        raise _refuse_alignment(apply, tile, box, found, f"declare it with align={period}")
    found = f"it begins at a multiple of {known} bytes in {root.name}, as far as is known"
    hint = "let the start be a multiple of a constant, as in `16 * i`"
    raise _refuse_alignment(apply, tile, box, found, hint)


def _refuse_alignment(
    apply: Apply, tile: Tile, box: Box, found: str, hint: str | None
) -> Exception:
    message = f"{tile.name} is not aligned as {apply.form.text} needs it"
    expected = f"a start that is a multiple of {BOX_ALIGN} bytes"
    if box.swizzle:
        expected = f"a multiple of {BOX_ALIGN << box.swizzle} bytes, what swizzle {box.swizzle} "
        expected += "repeats after"
    return refuse(apply, "tile-alignment", message, expected, found, hint)


def _place(tile: Tile, image: Image, byte: int) -> str:
    where = root_of(tile.view).name
    return (
        f"byte {byte} of {where}"
        if image.start is None
        else f"byte {image.start} + {byte} of {where}"
    )


def _fitting(tile: Tile, box: Box) -> str | None:
    """Say which layout would do."""
    rows, size = tile.shape[:-1], box.element_bytes
    if not box.swizzle:
        return 'without a swizzle boxes are compact, as layout="default" lays out the tile'
    span = SPANS[box.swizzle] // size
    kind = tensor_type(tile.view).dtype.name
    for shape in ((*rows, span), (prod(rows), span)):
        try:
            mma_shared_layout(kind, box.swizzle, shape)
        except FrontendError:
            continue
        layout = f'mma_shared_layout("{kind}", {box.swizzle}, {shape})'
        if tile.shape[-1] == span:
            return f"{layout} is such a layout"
        return (
            f"under swizzle {box.swizzle} a row of a box takes up {SPANS[box.swizzle]} bytes, "
            f"however few it has: allocate {shape} with {layout}, and copy the first "
            f"{tile.shape[-1]} columns"
        )
    return None
