"""Pictures of layouts: what they say of each element, and that they can be read."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base.errors import FrontendError, TilewrightError
from tilewright.layout import (
    AXES,
    ComposeLayout,
    Iter,
    R,
    S,
    TileLayout,
    laneid,
    m,
    mma_shared_layout,
    tid_in_wg,
    tmem_datapath_layout,
    tmem_mma_operand_layout,
    warpid,
)
from tilewright.view import Picture, described, picture, read_layout
from tilewright.view.page import Cell, Panel

ACCUMULATOR = TileLayout(S[(2, 8, 4, 2) : (2, 4 @ laneid, 1 @ laneid, 1)])
SVG = "{http://www.w3.org/2000/svg}"


def first(shown: Picture) -> Panel:
    return shown.page.panels[0]


def lines(panel: Panel, row: int, column: int) -> tuple[str, ...]:
    cell = panel.cells[row][column]
    assert isinstance(cell, Cell)
    return cell.lines


def remarks(shown: Picture) -> dict[str, str]:
    """Give what is said of each access, by its name."""
    strip = shown.page.panels[1]
    return dict(zip(strip.rows, strip.remarks, strict=True))


# ---------------------------------------------------------------------------- memory


def test_a_swizzled_tile_shows_the_byte_and_the_banks_of_each_unit() -> None:
    panel = first(picture(mma_shared_layout("float16", 3, (8, 64)), (8, 64), "float16"))
    # PTX ISA, "Swizzling modes": 16-byte units of a 128-byte row are XORed with the row mod 8.
    for row, unit in product(range(8), range(8)):
        byte = 128 * row + 16 * (unit ^ row)
        bank = byte // 4 % 32
        assert lines(panel, row, unit) == (str(byte), f"b{bank}–{bank + 3}")
    assert panel.columns[1] == "8–15"


def test_cells_of_one_bank_have_one_colour_and_others_another() -> None:
    cells = first(picture(mma_shared_layout("float16", 3, (8, 64)), (8, 64), "float16")).cells
    tints: dict[str, set[int | None]] = {}
    for cell in (cell for row in cells for cell in row):
        assert cell
        tints.setdefault(cell.lines[1], set()).add(cell.tint)
    assert all(len(each) == 1 for each in tints.values())
    assert len(set.union(*tints.values())) == len(tints) == 8


@pytest.mark.parametrize(
    ("layout", "shape", "dtype", "access", "verdict"),
    [
        ("S[(8, 64) : (64, 1)]", (8, 64), "float16", "down column 0: 8 × 16 B", "8-way bank"),
        (
            'mma_shared_layout("float16", 3, (8, 64))',
            None,
            None,
            "down column 0: 8 × 16 B",
            "no bank",
        ),
        ("S[(8, 64) : (64, 1)]", (8, 64), "float16", "along row 0: 8 × 16 B", "no bank"),
        ("S[(32, 32) : (32, 1)]", None, "float32", "down column 0: 32 × 4 B", "32-way bank"),
        ("S[(32, 32) : (33, 1)]", None, "float32", "down column 0: 32 × 4 B", "no bank"),
        ("S[(32, 32) : (32, 1)]", None, "float32", "along row 0: 32 × 4 B", "no bank"),
        # Two lanes that take halves of one word are given it together.
        ("S[(32, 32) : (32, 1)]", None, "float16", "along row 0: 32 × 2 B", "no bank"),
        # Rows of 64 bytes: every second one begins at the same bank.
        ("S[(32, 32) : (32, 1)]", None, "float16", "down column 0: 32 × 2 B", "16-way bank"),
        ("S[(16, 16) : (16, 1)]", None, "float64", "down column 0: 16 × 8 B", "16-way bank"),
        ("S[(16, 16) : (17, 1)]", None, "float64", "down column 0: 16 × 8 B", "no bank"),
    ],
)
def test_bank_conflicts_are_told(
    layout: str, shape: tuple[int, ...] | None, dtype: str | None, access: str, verdict: str
) -> None:
    of = described(layout)
    shown = picture(of.layout, shape or of.shape, dtype or of.dtype)
    assert remarks(shown)[access].startswith(f"{verdict} conflict")


def test_without_a_type_addresses_count_elements() -> None:
    panel = first(picture(TileLayout(S[(4, 8) : (1, 4)])))
    assert [lines(panel, 2, column) for column in range(3)] == [("2",), ("6",), ("10",)]


def test_packed_elements_lie_at_parts_of_bytes() -> None:
    panel = first(picture(TileLayout(S[(2, 8) : (1, 2)]), dtype="float4_e2m1fn"))
    assert lines(panel, 1, 0)[0] == "0.4" and lines(panel, 0, 1)[0] == "1"


# ---------------------------------------------------------------------------- registers


def test_a_fragment_shows_the_lane_and_the_register_of_each_element() -> None:
    panel = first(picture(ACCUMULATOR, (16, 8), "float32"))
    # PTX ISA, "Matrix Fragments for mma.m16n8k16": C and D.
    for row, column in product(range(16), range(8)):
        lane, register = 4 * (row % 8) + column // 2, 2 * (row // 8) + column % 2
        assert lines(panel, row, column) == (f"t{lane}", f"r{register}")


def test_without_a_shape_a_fragment_is_shown_as_square_as_its_digits_allow() -> None:
    panel = first(picture(ACCUMULATOR))
    assert (len(panel.rows), len(panel.columns)) == (16, 8)
    assert lines(panel, 8, 1) == ("t0", "v3")


def test_registers_that_hold_two_elements_are_shown_in_halves() -> None:
    panel = first(picture(TileLayout(S[(8, 4, 2) : (4 @ laneid, 1 @ laneid, 1)]), None, "float16"))
    assert lines(panel, 1, 3) == ("t5", "r0.1")
    doubles = picture(TileLayout(S[(32, 2) : (1 @ laneid, 1)]), None, "float64")
    assert lines(first(doubles), 3, 1) == ("t3", "r2–3")


def test_threads_are_numbered_in_the_group_that_the_axes_number() -> None:
    layout = TileLayout(S[(4, 32, 2) : (1 @ warpid, 1 @ laneid, 1)])
    shown = picture(layout, (128, 2))
    assert lines(first(shown), 37, 0) == ("t37", "v0")
    assert shown.page.subtitle.endswith("the threads of a cta")


def test_long_rows_of_a_thread_are_one_cell() -> None:
    shown = picture(TileLayout(S[(128, 128) : (1 @ tid_in_wg, 1)]), None, "float32")
    assert lines(first(shown), 5, 0) == ("t5", "r0–127")
    assert "Only rows 0–63 of 128 are shown." in shown.page.notes


def test_axes_that_do_not_number_threads_together_are_shown_apart() -> None:
    panel = first(picture(read_layout("S[(2, 4) : (1@cbx, 1@warpid)]"), (2, 4)))
    assert lines(panel, 1, 2) == ("cbx 1", "warpid 2")


def test_replicas_are_told() -> None:
    notes = picture(TileLayout(S[(8, 1) : (4 @ laneid, 1)] + R[4 : 1 @ laneid])).page.notes
    assert "Each element is there 4 times, 1 @ laneid apart." in notes


# ---------------------------------------------------------------------------- tensor memory


def test_a_spread_data_path_shows_the_lanes_of_each_sixteen_rows() -> None:
    matrix, memory = picture(tmem_datapath_layout("F", 64, 32)).page.panels
    # PTX ISA, "tcgen05 data path layout organization", Layout F.
    assert matrix.rows == ("0–15", "16–31", "32–47", "48–63")
    assert [lines(matrix, row, 0)[0] for row in range(4)] == [
        *("L 0–15", "L 32–47", "L 64–79", "L 96–111"),
    ]
    assert [row[0] is None for row in memory.cells] == [False, True] * 4
    assert memory.remarks[2] == "reached by warp 1 of a warpgroup"


def test_a_folded_data_path_is_shown_in_two_halves() -> None:
    layout = tmem_mma_operand_layout("D", (64, 2, 8), "float32", M=128, cta_group=2)
    matrix, memory = picture(layout, (64, 2, 8), "float32").page.panels
    assert matrix.rows == ("0–63",) and matrix.columns == ("0–7", "8–15")
    assert lines(matrix, 0, 1) == ("L 64–127", "C 0–7")
    assert lines(memory, 1, 0) == ("rows 0–63", "of columns 8–15")


def test_columns_of_tensor_memory_have_32_bits() -> None:
    layout = tmem_mma_operand_layout("A", (64, 16), "float16", M=128, cta_group=2)
    matrix, memory = picture(layout, (64, 16), "float16").page.panels
    assert lines(matrix, 0, 0) == ("L 0–63", "C 0–7")
    # The replica of a pair of CTAs: both halves of the lanes hold A.
    assert [lines(memory, row, 0)[0] for row in (0, 1)] == ["rows 0–63"] * 2


# ---------------------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("text", "layout", "shape", "dtype"),
    [
        ("S[(16, 8) : (8, 1)]", TileLayout(S[(16, 8) : (8, 1)]), None, None),
        ("S[64]", TileLayout(S[64]), None, None),
        (
            "TileLayout(S[(8, 4) : (4@laneid, 1)] + R[2 : 16@laneid] + 2*5)",
            TileLayout(S[(8, 4) : (4 @ laneid, 1)] + R[2 : 16 @ laneid] + 10),
            None,
            None,
        ),
        ("S[8 : 1] + 1@warpid", TileLayout(S[8:1] + 1 @ warpid), None, None),
        (
            "ComposeLayout(3, 3, 3, TileLayout(S[512 : 1]))",
            ComposeLayout(3, 3, 3, TileLayout(S[512:1])),
            None,
            None,
        ),
        (
            'mma_shared_layout("float16", SwizzleMode.SWIZZLE_64B_ATOM, shape=(2, 8, 32))',
            mma_shared_layout("float16", 2, (2, 8, 32)),
            (2, 8, 32),
            "float16",
        ),
        (
            'mma_shared_layout("float16", 3, (8, 128)).slice((8, 128), [(0, 8), (64, 128)])',
            mma_shared_layout("float16", 3, (8, 128)).slice((8, 128), [(0, 8), (64, 128)]),
            (8, 64),
            "float16",
        ),
        (
            'mma_atom_layout("bfloat16", 3)',
            mma_shared_layout("bfloat16", 3, (8, 64)),
            (8, 64),
            "bfloat16",
        ),
        ('tmem_datapath_layout("D", 128, 16)', tmem_datapath_layout("D", 128, 16), (128, 16), None),
        ("TileLayout(S[(8, 4) : (4, 1)]).pack(2)", TileLayout(S[(8, 2) : (2, 1)]), None, None),
        (
            "TileLayout(S[(8, 4) : (4, 1)]).unpack(count=2)",
            TileLayout(S[(8, 4, 2) : (8, 2, 1)]),
            None,
            None,
        ),
        (
            'mma_shared_layout("float16", 3, (8, 64)).pack(2)',
            mma_shared_layout("float16", 3, (8, 64)).pack(2),
            (8, 32),
            None,
        ),
        (
            'mma_shared_layout("float16", 3, (8, 64)).unpack(2)',
            mma_shared_layout("float16", 3, (8, 64)).unpack(2),
            (8, 128),
            None,
        ),
        (
            "TileLayout(S[(8, 4) : (4, 1)]).group((2, 16))",
            TileLayout(S[(2, 4, 4) : (16, 4, 1)]),
            (2, 16),
            None,
        ),
        (
            "TileLayout(S[(8, 4) : (4, 1)]).permute_dims((1, 0))",
            TileLayout(S[(4, 8) : (1, 4)]),
            None,
            None,
        ),
        (
            "TileLayout(S[(8, 4) : (4, 1)]).tile(TileLayout(S[(2, 3) : (3, 1)]), (2, 3), (8, 4))",
            TileLayout(S[(2, 8, 3, 4) : (96, 4, 32, 1)]),
            (16, 12),
            None,
        ),
        (
            "TileLayout(S[8 : 1]).direct_sum(TileLayout(S[2 : 8]), (2,), (8,))",
            TileLayout(S[(2, 8) : (8, 1)]),
            (16,),
            None,
        ),
    ],
)
def test_the_notation_is_that_of_programs(
    text: str, layout: object, shape: tuple[int, ...] | None, dtype: str | None
) -> None:
    of = described(text)
    assert (of.layout, of.shape, of.dtype) == (layout, shape, dtype)


@pytest.mark.parametrize(
    ("text", "code", "caret"),
    [
        ('__import__("os").system("ls")', "unsupported-expression", '__import__("os").system'),
        ("S.__class__", "unsupported-expression", "S.__class__"),
        ("[x for x in S]", "unsupported-expression", "[x for x in S]"),
        ("S[8].shard", "unsupported-expression", "S[8].shard"),
        ("(1, 2) * 1000000", "unsupported-expression", "(1, 2)"),
        ("S[2 ** 9]", "unsupported-expression", "2 ** 9"),
        ("S[(8,) : ]", "unsupported-expression", "(8,) :"),
        ("TileLayout(*S)", "unsupported-expression", "*S"),
        ("open", "unknown-name", "open"),
        ("S[(8, 4) : (lane, 1)]", "unknown-name", "lane"),
        ("S[(8, 4) : (1,)]", "bad-layout", "S[(8, 4) : (1,)]"),
        ("S[8 : 'nowhere']", "bad-layout", "S[8 : 'nowhere']"),
        ("S[4 : 1] @ 3", "unsupported-expression", "S[4 : 1] @ 3"),
        ("S[8 // 0]", "unsupported-expression", "8 // 0"),
        ('mma_shared_layout("float16", 3)', "bad-call", 'mma_shared_layout("float16", 3)'),
        ('mma_shared_layout("float16", 3, (8, 8))', "bad-layout", None),
        ('mma_shared_layout("half16", 3, (8, 64))', "unknown-name", None),
        ("4 @ laneid", "bad-layout", "4 @ laneid"),
        ("S[8 :", "unsupported-expression", None),
        ("", "unsupported-expression", None),
    ],
)
def test_what_is_no_layout_is_refused_at_its_place(text: str, code: str, caret: str | None) -> None:
    with pytest.raises(TilewrightError) as raised:
        described(text)
    assert raised.value.code == code
    location = raised.value.location
    assert location
    if caret is not None:
        assert text[location.column : location.end_column] == caret


def test_the_notation_has_what_the_documentation_says() -> None:
    """Every method in the table of docs/layouts.md, and every function that makes a layout."""
    page = (Path(__file__).parent.parent / "docs" / "layouts.md").read_text()
    named = set(re.findall(r"`?layout\.(\w+)\(", page)) | set(re.findall(r"`(\w+_layout)`", page))
    assert {"tile", "group", "permute_dims", "pack", "unpack", "mma_shared_layout"} <= named
    for name in named:
        with pytest.raises(TilewrightError) as raised:
            of = "TileLayout(S[4:1])." if hasattr(TileLayout, name) else ""
            described(f"{of}{name}(nothing=0)")
        assert raised.value.code in ("bad-call", "bad-layout")


def test_what_is_not_called_is_named() -> None:
    with pytest.raises(TilewrightError, match=r"no call of TileLayout\(S\[4:1\]\)\.apply"):
        described("TileLayout(S[4:1]).apply(2)")


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        ("S[(8, 4) : (4, 1)]", []),
        ("S[(8, 4) : (-4, 1)] + 28", []),
        ("S[(8, 4) : (-4, 1)]", ["m reaches down to -28, below the start."]),
        ("S[(4, 8) : (8@laneid, 1@laneid)]", []),
        (
            "S[(4, 8) : (64@laneid, 1@laneid)]",
            ["laneid reaches up to 199; a warp has 0–31."],
        ),
        (
            "S[(4, 32) : (2@wid_in_wg, 1@laneid)]",
            ["wid_in_wg reaches up to 6; a warpgroup has 0–3."],
        ),
        ("S[(8, 4) : (1, 1)]", ["elements overlap: 32 elements lie in 11 places."]),
        ("S[(8, 4) : (0, 0)]", ["elements overlap: 32 elements lie in 1 place."]),
        ("S[8 : 1] + R[2 : 8]", []),
        (
            "S[8 : 1] + R[2 : 4]",
            ["elements overlap: 16 elements and copies lie in 12 places."],
        ),
        ("S[(2, 4) : (1@laneid, 1@TCol)] + R[2 : 2@laneid]", []),
        ('mma_shared_layout("float16", 3, (8, 64))', []),
    ],
)
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_what_is_wrong_with_a_layout_is_told(
    text: str, notes: list[str], dtype: str | None
) -> None:
    of = described(text)
    told = [each for each in picture(of.layout, of.shape, dtype).page.notes if "Warning" in each]
    assert told == [f"Warning: {each}" for each in notes]


def test_the_bytes_of_a_layout_with_negative_strides_are_counted() -> None:
    text = picture(read_layout("S[(8, 4) : (-4, 1)]"), None, "float32").text()
    assert "8 × 4 float32 in 128 bytes of memory" in text


def test_a_shape_that_does_not_fit_is_refused() -> None:
    with pytest.raises(FrontendError) as raised:
        picture(TileLayout(S[64]), (8, 9))
    assert raised.value.code == "bad-layout"


# ---------------------------------------------------------------------------- drawing

SHOWN = {
    "swizzle": ('mma_shared_layout("float16", 3, (16, 128))', None),
    "rows": ("S[(32, 32) : (33, 1)]", "float32"),
    "elements": ("S[(16, 8) : (8, 1)]", None),
    "fragment": ("S[(2, 8, 4, 2) : (2, 4@laneid, 1@laneid, 1)]", "float16"),
    "apart": ("S[(2, 4) : (1@cbx, 1@warpid)]", None),
    "lanes": ('tmem_datapath_layout("F", 64, 32)', None),
    "folded": ('tmem_datapath_layout("B", 64, 32)', "float32"),
}


@pytest.fixture(params=SHOWN.values(), ids=list(SHOWN))
def shown(request: pytest.FixtureRequest) -> Picture:
    text, dtype = request.param
    of = described(text)
    return picture(of.layout, of.shape, dtype or of.dtype, title=text)


def box(element: ElementTree.Element) -> tuple[float, float, float, float]:
    x, y = float(element.get("x", 0)), float(element.get("y", 0))
    if element.tag == f"{SVG}rect":
        return x, y, x + float(element.get("width", 0)), y + float(element.get("height", 0))
    # A letter of a monospaced font of 11 pixels is at most 0.61 of them wide, 9 of them high.
    width = 11 * 0.605 * len(element.text or "")
    kinds = str(element.get("class")).split()
    left = x - (width / 2 if "m" in kinds else width if "e" in kinds else 0)
    return left, y - 9, left + width, y + 2


def test_no_label_runs_into_another_or_out_of_the_picture(shown: Picture) -> None:
    root = ElementTree.fromstring(shown.svg())
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    boxes = [box(each) for each in root.iter(f"{SVG}text")]
    assert all(x >= 0 and y >= 0 and r <= width and b <= height for x, y, r, b in boxes)
    by_line: dict[float, list[tuple[float, float, float, float]]] = {}
    for each in boxes:
        by_line.setdefault(each[1], []).append(each)
    for line in by_line.values():
        assert all(left[2] <= right[0] for left, right in pairwise(sorted(line)))
    tops = sorted(by_line)
    for top, below in pairwise(tops):
        if below - top < 11:  # lines of different panels or legends that stand close
            apart = product(by_line[top], by_line[below])
            assert all(a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] for a, b in apart)


def test_labels_stay_in_their_cells(shown: Picture) -> None:
    root = ElementTree.fromstring(shown.svg())
    cells = [box(each) for each in root.iter(f"{SVG}rect") if " " in str(each.get("class"))]
    labels = [box(each) for each in root.iter(f"{SVG}text") if each.get("class") == "m"]
    assert labels
    for x, y, r, b in labels:
        assert any(a <= x and c <= y and r <= d and b <= e for a, c, d, e in cells)


def test_a_picture_needs_nothing_else(shown: Picture) -> None:
    text = shown.svg()
    ElementTree.fromstring(text)
    for word in ("href", "url(", "@import", "<script", "<image"):
        assert word not in text


def styles(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Give the fills of the classes on a light and on a dark page."""
    found = re.search(r"<style>(.*)@media \(prefers-color-scheme:dark\)\{(.*)\}", text, re.DOTALL)
    assert found
    both = [
        {
            name: fill
            for names, fill in re.findall(r"([^{}]+)\{[^}]*fill:(#\w+)", part)
            for name in re.findall(r"\.tilewright \.?(\w+)", names)
        }
        for part in found.groups()
    ]
    return both[0], both[0] | both[1]


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_letters_stand_out_on_light_and_on_dark_pages(shown: Picture) -> None:
    for fills in styles(shown.svg()):
        tints = [fill for name, fill in fills.items() if re.match(r"t\d", name)]
        pairs = [*product(("text",), tints), *product(("text", "s", "l", "p"), (fills["g"],))]
        for kind, ground in pairs:
            one, other = sorted((luminance(fills[kind]), luminance(ground)))
            assert (other + 0.05) / (one + 0.05) >= 4.5, (kind, ground)  # WCAG 2, AA


def test_text_keeps_to_the_width_of_the_terminal(shown: Picture) -> None:
    for width in (60, 80, 120):
        assert max(map(len, shown.text(width).splitlines()[2:])) <= max(width, 90)


def test_text_says_the_same(shown: Picture) -> None:
    words = shown.text(1000)
    for panel in shown.page.panels:
        for cell in (cell for row in panel.cells for cell in row if cell):
            assert " ".join(cell.lines) in words


iters = st.builds(
    Iter,
    st.sampled_from([1, 2, 3, 4, 8, 40]),
    st.integers(-3, 70),
    st.sampled_from([m, m, laneid, *AXES.values()]),
)
layouts = st.builds(
    TileLayout.from_iters,
    st.lists(iters, max_size=4),
    st.lists(iters, max_size=1),
    st.dictionaries(st.sampled_from(list(AXES.values())), st.integers(-4, 40), max_size=2),
)
types = st.sampled_from([None, "float16", "float32", "float4_e2m1fn", "float6_e2m3fn", "int8x2"])


@settings(deadline=None, max_examples=60)
@given(layouts, types, st.sampled_from([None, (2, 3, 2)]))
def test_every_layout_has_a_picture(
    layout: TileLayout, dtype: str | None, swizzle: tuple[int, int, int] | None
) -> None:
    shown = picture(ComposeLayout(*swizzle, layout) if swizzle else layout, None, dtype)
    ElementTree.fromstring(shown.svg())
    assert str(shown)


# ---------------------------------------------------------------------------- where it is used


def test_layouts_show_themselves_in_notebooks() -> None:
    for layout in (ACCUMULATOR, mma_shared_layout("float16", 3, (8, 64))):
        text = getattr(layout, "_repr_svg_")()  # noqa: B009 (given to the class by view/)
        assert repr(layout) in ElementTree.fromstring(text).itertext()


def view(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tilewright", "view", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120)


def test_view_prints_a_layout() -> None:
    done = view('mma_shared_layout("float16", 3, (8, 64))')
    assert done.returncode == 0, done.stderr
    assert "144 b4–7" in done.stdout


def test_view_writes_a_file(tmp_path: Path) -> None:
    done = view("S[(8, 4) : (4, 1)]", "--dtype", "float32", "-o", "out.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not done.stdout
    assert ElementTree.parse(tmp_path / "out.svg").getroot().tag == f"{SVG}svg"


def test_view_shows_a_layout_of_a_program(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("WIDTH = 8\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import own\nfrom tilewright.layout import S, TileLayout\n"
        "tile = TileLayout(S[(4, own.WIDTH) : (own.WIDTH, 1)])\n"
        "if __name__ == '__main__':\n    raise SystemExit('the program itself was run')\n"
    )
    done = view(f"{program}::tile", "--shape", "2,16", "--dtype", "int8")
    assert done.returncode == 0, done.stderr
    assert "2 × 16 int8 in 32 bytes" in done.stdout
    refused = view(f"{program}::tiles")
    assert refused.returncode == 1
    assert "expected: one of tile" in refused.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("S[8", ""),
        ("S[8]", "--shape=8,x"),
        ("S[8]", "--shape=9"),
        ("S[8]", "--dtype=real"),
        ("S[8]", "-oout.png"),
        ("S[8]", "-onowhere/out.svg"),
        ("nowhere.py::tile", ""),
    ],
)
def test_view_refuses_with_a_typed_error(arguments: tuple[str, str], tmp_path: Path) -> None:
    done = view(*filter(None, arguments), cwd=tmp_path)
    assert done.returncode == (2 if "[bad-option]" in done.stderr else 1)
    assert re.search(r"\[[a-z-]+\]", done.stderr) and "Traceback" not in done.stderr
