"""The layouts of matrices in Tensor Memory that `tcgen05.mma` reads and writes.

Imports `base.dtypes` and `layout.tile` and below. Lanes are the axis `TLane`; `TCol` counts
columns in elements of the matrix's own width (PTX ISA, "tcgen05 data path layout organization").

    >>> tmem_datapath_layout("F", 64, 32)
    TileLayout(S[(4, 16, 32) : (32 @ TLane, 1 @ TLane, 1 @ TCol)])
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import DType, dtype
from tilewright.layout.axes import Axis, TCol, TLane
from tilewright.layout.refusal import bad_layout
from tilewright.layout.shapes import extents_of
from tilewright.layout.spec import Iter, Iters
from tilewright.layout.tile import TileLayout

# The rows of each data path, and into how many parts its columns are folded over the lanes;
# 0 means that they are not, but the rows are spread, 16 to each 32 lanes.
_DATAPATHS = {
    "A": (128, 1),
    "B": (64, 2),
    "C": (64, 0),
    "D": (128, 1),
    "E": (64, 2),
    "F": (64, 0),
    "G": (32, 4),
}
_SPREAD = 0
_COLUMNS = 512
_CELL = 32  # bits of a column in one lane


def tmem_datapath_layout(datapath: str, rows: int, cols: int, sub_slab: int = 0) -> TileLayout:
    """Lay a matrix of (rows, cols) out as a data path of the ISA's figures does.

    `datapath` is the letter of the figure, A to G. `sub_slab` 1 takes the upper 16 of each 32
    lanes, in C and F only. Raises `FrontendError` (bad-layout) if the shape is not the path's.
    """
    folds = _check_datapath(datapath, rows, cols, sub_slab)
    layout = TileLayout.from_iters((*_rows(folds, rows), *_folded(folds, cols)))
    return layout.shift({TLane: 16 * sub_slab})


def tmem_mma_operand_layout(
    operand: str,
    shape: Sequence[int],
    dtype: str | DType,
    *,
    M: int,
    cta_group: int,
    ws: bool = False,
    sparse: bool = False,
    group: Sequence[int] | None = None,
) -> TileLayout:
    """Lay out operand "A" or the accumulator "D" of a `tcgen05.mma`, one CTA's part of it.

    `M` is the instruction's; the rows of `shape` are `M // cta_group`. Where the columns are
    folded over the lanes, D is (m, N), (m, 2, N/2), (m, s, 2, n) or (2, m, N/2), and
    `group=(s, 2, n)` folds an (m, N) in parts; A is (2, m, K), one matrix for each half of the
    lanes, or, for a pair of CTAs, (m, K) with a replica. A 16-bit D takes one 32-bit cell for
    each value. With M = 64 and one CTA, A has its rows in lanes 0 to 63, as the public package
    lays it out; the core reads them in the lanes of the rows of D, `tmem_datapath_layout("F", …)`,
    and a product of tiles takes nothing else. Raises `FrontendError` (bad-layout) for what the
    instruction, or Tensor Memory, does not have.
    """
    letter = _letter(M, cta_group, ws, sparse)
    shape = extents_of(shape, f"operand {operand} in Tensor Memory")
    bits = _width(dtype)
    match operand:
        case "A":
            layout = _operand_a(letter, shape)
        case "D":
            layout = _operand_d(letter, _grouped(letter, shape, group))
        case _:
            raise bad_layout(
                "a product of the tensor core has no such operand in Tensor Memory",
                expected='"A" or "D"',
                found=repr(operand),
            )
    _check_rows(layout, shape, M // cta_group)
    scaled = layout.scaled({TCol: _spacing(dtype) if operand == "D" else 1}).canonicalize()
    _check_columns(scaled, shape, bits)
    return scaled


def _rows(folds: int, rows: int) -> Iters:
    if folds == _SPREAD:
        return Iter(4, 32, TLane), Iter(16, 1, TLane)
    return (Iter(rows, 1, TLane),)


def _folded(folds: int, cols: int) -> Iters:
    if folds <= 1:
        return (Iter(cols, 1, TCol),)
    return Iter(folds, 128 // folds, TLane), Iter(cols // folds, 1, TCol)


def _check_datapath(datapath: str, rows: int, cols: int, sub_slab: int) -> int:
    if datapath not in _DATAPATHS:
        raise _refuse(datapath, "one of the letters " + ", ".join(_DATAPATHS), datapath)
    expected, folds = _DATAPATHS[datapath]
    if rows != expected:
        raise _refuse(datapath, f"{expected} rows", f"{rows} rows")
    if folds > 1 and cols % folds:
        raise _refuse(datapath, f"columns in {folds} equal parts", f"{cols} columns")
    if sub_slab not in ((0, 1) if folds == _SPREAD else (0,)):
        raise _refuse(datapath, "sub_slab 0, or 1 where the rows are spread", f"{sub_slab}")
    return folds


def _refuse(datapath: str, expected: str, found: str) -> Exception:
    message = f"the data path {datapath!r} of Tensor Memory has no such layout"
    return bad_layout(message, expected=expected, found=found)


_LETTERS = {
    (128, 1, False): "D",
    (128, 1, True): "D",
    (64, 1, False): "F",
    (64, 1, True): "E",
    (256, 2, False): "A",
    (128, 2, False): "B",
}


def _letter(M: int, cta_group: int, ws: bool, sparse: bool) -> str:
    letter = _LETTERS.get((M, cta_group, bool(ws)))
    if letter is None or sparse:
        known = ", ".join(f"M={m} cta_group={g} ws={w}" for m, g, w in _LETTERS)
        raise bad_layout(
            "there is no layout for this form of a product of the tensor core",
            expected=f"dense, with {known}",
            found=f"M={M} cta_group={cta_group} ws={ws}" + (" sparse" if sparse else ""),
        )
    return letter


def _operand_a(letter: str, shape: Sequence[int]) -> TileLayout:
    """Place A by rows; where D is folded, each half of the lanes needs a matrix of its own."""
    match letter, tuple(shape):
        case ("A" | "D" | "F", (rows, cols)):
            return _plain((rows, 1, TLane), (cols, 1, TCol))
        case ("B", (rows, cols)):
            plain = _plain((rows, 1, TLane), (cols, 1, TCol))
            return TileLayout.from_iters(plain.shard, (Iter(2, 64, TLane),))
        case ("B" | "E", (2, rows, cols)):
            return _plain((2, 64, TLane), (rows, 1, TLane), (cols, 1, TCol))
        case _:
            raise _no_shape("A", letter, shape)


def _operand_d(letter: str, shape: tuple[int, ...]) -> TileLayout:
    match letter, shape:
        case (_, (rows, cols)):
            return tmem_datapath_layout(letter, rows, cols)
        case ("B" | "E", (2, rows, cols)):
            return _plain((2, 64, TLane), (rows, 1, TLane), (cols, 1, TCol))
        case ("B" | "E", (rows, 2, cols)):
            return _plain((rows, 1, TLane), (2, 64, TLane), (cols, 1, TCol))
        case ("B" | "E", (rows, parts, 2, cols)):
            return _plain((rows, 1, TLane), (parts, cols, TCol), (2, 64, TLane), (cols, 1, TCol))
        case _:
            raise _no_shape("D", letter, shape)


def _grouped(letter: str, shape: Sequence[int], group: Sequence[int] | None) -> tuple[int, ...]:
    """Split the columns of an (m, N) as `group` says."""
    if group is None:
        return tuple(shape)
    match letter, tuple(shape), tuple(group):
        case ("B" | "E", (rows, cols), (parts, 2, each)) if parts * 2 * each == cols:
            return rows, parts, 2, each
        case _:
            raise bad_layout(
                f"the columns of {tuple(shape)} cannot be folded by group={tuple(group)}",
                expected="(m, N) with group (s, 2, n), s * 2 * n == N, on a folded data path",
                found=f"data path {letter}",
            )


def _plain(*iters: tuple[int, int, Axis]) -> TileLayout:
    return TileLayout.from_iters(Iter(*each) for each in iters)


def _check_rows(layout: TileLayout, shape: Sequence[int], expected: int) -> None:
    matrix = shape[1:] if len(shape) == 3 and shape[0] == 2 else shape
    if matrix[0] != expected:
        raise bad_layout(
            f"the shape {tuple(shape)} has other rows than the instruction",
            expected=f"{expected} rows (M // cta_group)",
            found=f"{matrix[0]} rows",
        )


def _check_columns(layout: TileLayout, shape: Sequence[int], bits: int) -> None:
    columns = -(-layout.span(TCol) * bits // _CELL)
    if columns > _COLUMNS:
        raise bad_layout(
            f"the shape {tuple(shape)} does not fit Tensor Memory",
            expected=f"at most {_COLUMNS} columns of {_CELL} bits",
            found=f"{columns} columns",
        )


def _spacing(element: str | DType) -> int:
    """Give the distance of values of D, in their own width: each has a column of its own."""
    bits = _width(element)
    if bits not in (_CELL, _CELL // 2):
        raise bad_layout(
            f"a product of the tensor core gives no {dtype(element)}",
            expected="a D of float32, float16 or int32",
        )
    return _CELL // bits


def _no_shape(operand: str, letter: str, shape: Sequence[int]) -> Exception:
    folded = letter in ("B", "E")
    forms = {
        "A": "(2, m, K)" + (", or (m, K) as a replica" if letter == "B" else ""),
        "D": "(m, N), (m, 2, N/2), (m, s, 2, n) or (2, m, N/2)",
    }
    return bad_layout(
        f"operand {operand} on data path {letter} cannot have the shape {tuple(shape)}",
        expected=forms[operand] if folded else "(rows, columns)",
        found=str(tuple(shape)),
    )


def _width(element: str | DType) -> int:
    return dtype(element).bits
