"""Products of the tensor core: operands laid out by `layout`, results against plain arithmetic.

Where an element lies in shared memory is taken from `mma_shared_layout` (itself tested against
recorded addresses); strides of the descriptors are stated here, mode by mode.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.base.dtypes import UINT32
from tilewright.base.errors import TilewrightError
from tilewright.base.spaces import Space
from tilewright.base.targets import target
from tilewright.isa import named
from tilewright.isa.declaration import Form, spell
from tilewright.isa.descriptors import encode_instruction, encode_shared
from tilewright.isa.machine import SharedTile
from tilewright.isa.mbarrier import contents
from tilewright.isa.tensor_core import contract, is_product, shapes
from tilewright.layout import mma_shared_layout
from tilewright.sim.eager import EagerMachine, execute
from tilewright.sim.eager_tensor import element_addresses

Array = np.ndarray[Any, Any]
TYPES: dict[str, Any] = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "tf32": np.float32,
}
DEPTH = {"float16": 16, "bfloat16": 16, "tf32": 8}
SPANS = (16, 32, 64, 128, 128)  # bytes, by swizzle mode
A_START, B_START = 4096, 32768


def element_name(format: str) -> str:
    return "float32" if format == "tf32" else format


@dataclass
class Stored:
    """A matrix (rows, k) in shared memory: the bytes, and the descriptor of each K step."""

    data: Array
    steps: list[int]


def stored(values: Array, format: str, mode: int, transposed: bool, start: int) -> Stored:
    """Lay a matrix out from `start` on, which is a multiple of the swizzle's period."""
    name, depth = element_name(format), DEPTH[format]
    size = values.dtype.itemsize
    rows, total = values.shape
    shape = (total, rows) if transposed else (rows, total)
    layout = mma_shared_layout(name, mode, shape)
    row, k = np.indices(values.shape)
    coordinates = (k, row) if transposed else (row, k)
    where = layout.apply(*coordinates, shape=shape)["m"]
    data = np.zeros(rows * total, values.dtype)
    data[where] = values
    span = SPANS[mode]
    if transposed:
        deep = 4 if mode == 4 else 8
        across, down = total * span, deep * span
        leading, stride = (down, across) if mode == 0 else (across, down)
        starts = [k0 * span for k0 in range(0, total, depth)]
    else:
        leading, stride = (rows * 16, 128) if mode == 0 else (16, 8 * span)
        width = span // size
        starts = [k0 // width * rows * span + k0 % width * size for k0 in range(0, total, depth)]
    steps = [encode_shared(start + each, leading, stride, mode) for each in starts]
    return Stored(data.view(np.uint8), steps)


def products(kind: str, *options: str) -> tuple[Form, Form]:
    """Give the products of a kind that have these of the operands which may be left out."""
    every = spell(f"tcgen05.mma.cta_group::1.kind::{kind}").forms()
    assert len(every) == 8
    optional = {"disable_output_lane", "scale_input_d"}
    shared, tensor = (
        form
        for form in every
        if optional.intersection(each.name for each in form.operands) == set(options)
    )
    assert shared.operands[1].name == "a_desc" and tensor.operands[1].name == "a_tmem"
    return shared, tensor


def machine() -> EagerMachine:
    m = EagerMachine(shared=1 << 16, active=1, special={"warpid": 0})
    m.state["tmem_columns"] = 0xFFFF
    return m


def lanes_of(rows: int) -> Array:
    """Give the lane of each row of D, from the figures of data paths D and F."""
    if rows == 128:
        return np.arange(128)
    return np.concatenate([np.arange(16) + 32 * quarter for quarter in range(4)])


def whole_numbers(shape: tuple[int, int], format: str, seed: int) -> Array:
    """Make numbers whose products and sums are exact in every format."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(TYPES[format])


# PTX ISA, "Valid combinations of type-size, major-ness and swizzling".
CASES = [
    (format, mode, transposed)
    for format in TYPES
    for mode in range(5)
    for transposed in (False, True)
    if (mode == 4) == (transposed and format == "tf32")
]
ILLEGAL = [
    (format, mode, transposed)
    for format in TYPES
    for mode in range(5)
    for transposed in (False, True)
    if (format, mode, transposed) not in CASES
]


@pytest.mark.parametrize(("format", "mode", "transposed"), CASES)
@pytest.mark.parametrize(("M", "N"), [(64, 8), (64, 64), (128, 64)])
def test_layouts(format: str, mode: int, transposed: bool, M: int, N: int) -> None:
    """Every layout of A and of B, over a K of several steps, with the other plain K-major."""
    total = 64 if format != "tf32" else 32
    kind = "tf32" if format == "tf32" else "f16"
    a, b = whole_numbers((M, total), format, 1), whole_numbers((N, total), format, 2)
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    for which in "ab":
        rows = M if which == "a" else N
        if transposed and rows % (SPANS[mode] // a.dtype.itemsize):
            continue  # the spans run along M or N, whole ones only
        left = stored(a, format, *((mode, transposed) if which == "a" else (0, False)), A_START)
        right = stored(b, format, *((mode, transposed) if which == "b" else (0, False)), B_START)
        m = machine()
        m.shared[A_START : A_START + len(left.data)] = left.data
        m.shared[B_START : B_START + len(right.data)] = right.data
        idesc = encode_instruction(
            "float32",
            format,
            format,
            M,
            N,
            transpose_a=transposed and which == "a",
            transpose_b=transposed and which == "b",
        )
        for step, (x, y) in enumerate(zip(left.steps, right.steps, strict=True)):
            execute(products(kind)[0], [32, x, y, idesc, step > 0], m)
        found = m.cells[lanes_of(M), 32 : 32 + N].view(np.float32)
        assert np.array_equal(found, expected)
        untouched = np.ones_like(m.cells, np.bool_)
        untouched[lanes_of(M), 32 : 32 + N] = False
        assert (m.cells[untouched] == 0xFFFFFFFF).all()


@pytest.mark.parametrize(("format", "mode", "transposed"), ILLEGAL)
def test_swizzles_that_such_a_matrix_cannot_have(format: str, mode: int, transposed: bool) -> None:
    m = machine()
    kind = "tf32" if format == "tf32" else "f16"
    good, bad = encode_shared(A_START, 256, 128, 0), encode_shared(B_START, 256, 1024, mode)
    for which, pair in enumerate(((bad, good), (good, bad))):
        bits = (transposed << 15, transposed << 16)[which]
        idesc = encode_instruction("float32", format, format, 64, 64) | bits
        with pytest.raises(TilewrightError, match="units of 32 bytes") as caught:
            execute(products(kind)[0], [0, *pair, idesc, False], m)
        assert caught.value.code == "undefined-operation"


@pytest.mark.parametrize("format", TYPES)
@pytest.mark.parametrize(("M", "first"), [(64, 0), (64, 16), (128, 0)])
def test_a_in_tensor_memory(format: str, M: int, first: int) -> None:
    """Its rows lie in the lanes of the rows of D."""
    depth, N = DEPTH[format], 32
    a, b = whole_numbers((M, depth), format, 3), whole_numbers((N, depth), format, 4)
    m = machine()
    cells = np.ascontiguousarray(a).view(np.uint32)
    m.cells[lanes_of(M) + first, 100 : 100 + cells.shape[1]] = cells
    right = stored(b, format, 0, False, B_START)
    m.shared[B_START : B_START + len(right.data)] = right.data
    idesc = encode_instruction("float32", format, format, M, N)
    kind = "tf32" if format == "tf32" else "f16"
    d, start = first << 16, first << 16 | 100
    execute(products(kind)[1], [d, start, right.steps[0], idesc, False], m)
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    assert np.array_equal(m.cells[lanes_of(M) + first, :N].view(np.float32), expected)


@pytest.mark.parametrize(
    ("M", "d", "a", "says"),
    [
        (128, 16, 16, "begins in lane 0"),
        (128, 64, 64, "begins in lane 0"),
        (64, 32, 32, "or if M is 64 in lane 0 or 16"),
        (64, 8, 8, "or if M is 64 in lane 0 or 16"),
        (64, 0, 16, "in the same lane"),
        (64, 16, 0, "in the same lane"),
        (128, 0, 32, "in the same lane"),
    ],
)
def test_lanes_in_which_matrices_begin(M: int, d: int, a: int, says: str) -> None:
    m = machine()
    right = stored(whole_numbers((16, 16), "float16", 1), "float16", 0, False, B_START)
    idesc = encode_instruction("float32", "float16", "float16", M, 16)
    operands = [d << 16, a << 16 | 64, right.steps[0], idesc, False]
    with pytest.raises(TilewrightError, match=says) as caught:
        execute(products("f16")[1], operands, m)
    assert caught.value.code == "tensor-memory"
    if says.startswith("in the"):
        return
    with pytest.raises(TilewrightError, match=says):
        execute(products("f16")[0], [d << 16, *right.steps * 2, idesc, False], m)


def test_a_lies_in_allocated_columns() -> None:
    m = machine()
    m.state["tmem_columns"] = 0x000F
    right = stored(whole_numbers((16, 16), "float16", 1), "float16", 0, False, B_START)
    idesc = encode_instruction("float32", "float16", "float16", 128, 16)
    execute(products("f16")[1], [0, 120, right.steps[0], idesc, False], m)
    for start in (121, 128, 505, 512, 0xFFFF):
        with pytest.raises(TilewrightError, match="not allocated") as caught:
            execute(products("f16")[1], [0, start, right.steps[0], idesc, False], m)
        assert caught.value.code == "tensor-memory"


def plain(m: EagerMachine, a: Array, b: Array, format: str) -> list[int]:
    """Store two matrices of one K step, and give their descriptors."""
    found = []
    for values, start in ((a, A_START), (b, B_START)):
        each = stored(values, format, 0, False, start)
        m.shared[start : start + len(each.data)] = each.data
        found += each.steps
    return found


def small_operands(m: EagerMachine) -> list[int]:
    """Store the matrices of the smallest product, and give their descriptors."""
    a, b = (whole_numbers((n, 16), "float16", n) for n in (64, 8))
    return plain(m, a, b, "float16")


def nearest(value: Fraction) -> np.float32:
    """Round to float32, to nearest and to even."""
    guess = np.float32(float(value))
    around = [np.nextafter(guess, np.float32(s * np.inf)) for s in (-1, 1)] + [guess]
    return min(
        around,
        key=lambda x: (abs(Fraction(float(x)) - value), int(x.view(np.uint32)) & 1),
    )


@pytest.mark.parametrize("format", TYPES)
def test_each_output_is_a_chain_in_ascending_k(format: str) -> None:
    random = np.random.default_rng(5)
    depth = DEPTH[format]
    a, b = (random.standard_normal((n, depth)).astype(TYPES[format]) for n in (64, 8))
    start = random.standard_normal((64, 8)).astype(np.float32)
    m = machine()
    m.cells[lanes_of(64), :8] = start.view(np.uint32)
    descriptors = plain(m, a, b, format)
    idesc = encode_instruction("float32", format, format, 64, 8)
    kind = "tf32" if format == "tf32" else "f16"
    execute(products(kind)[0], [0, *descriptors, idesc, True], m)
    found = m.cells[lanes_of(64), :8].view(np.float32)

    def number(x: Any) -> Fraction:
        if format == "tf32":  # only the upper 19 bits count
            x = (np.float32(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        return Fraction(float(x))

    for i in range(0, 64, 7):
        for j in range(8):
            total = start[i, j]
            for k in range(depth):
                total = nearest(number(a[i, k]) * number(b[j, k]) + Fraction(float(total)))
            assert found[i, j] == total


def test_a_half_accumulator_takes_a_cell_each() -> None:
    a, b = (whole_numbers((n, 16), "float16", n) for n in (128, 16))
    m = machine()
    descriptors = plain(m, a, b, "float16")
    idesc = encode_instruction("float16", "float16", "float16", 128, 16)
    for more in (False, True):
        execute(products("f16")[0], [0, *descriptors, idesc, more], m)
    expected = 2 * (a.astype(np.float32) @ b.astype(np.float32).T)
    assert np.array_equal(m.cells[:, :16].astype(np.uint16).view(np.float16), expected)
    assert not (m.cells[:, :16] >> 16).any()


@pytest.mark.parametrize("format", TYPES)
@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
def test_negated_matrices(format: str, first: bool, second: bool) -> None:
    depth = DEPTH[format]
    a, b = (whole_numbers((n, depth), format, n) for n in (64, 8))
    start = whole_numbers((64, 8), "tf32", 9)
    m = machine()
    m.cells[lanes_of(64), :8] = start.view(np.uint32)
    descriptors = plain(m, a, b, format)
    idesc = encode_instruction("float32", format, format, 64, 8, negate_a=first, negate_b=second)
    kind = "tf32" if format == "tf32" else "f16"
    execute(products(kind)[0], [0, *descriptors, idesc, True], m)
    sign = -1 if first != second else 1
    expected = start + sign * (a.astype(np.float32) @ b.astype(np.float32).T)
    assert np.array_equal(m.cells[lanes_of(64), :8].view(np.float32), expected)


@pytest.mark.parametrize("result", ["float32", "float16"])
@pytest.mark.parametrize("shift", [0, 1, 3, 15])
def test_d_is_scaled_by_a_power_of_two(result: str, shift: int) -> None:
    a, b = (whole_numbers((n, 16), "float16", n) for n in (64, 8))
    start = (whole_numbers((64, 8), "tf32", 3) * 2.0**11).astype(result)
    m = machine()
    words = np.ascontiguousarray(start).view("uint16" if result == "float16" else "uint32")
    m.cells[lanes_of(64), :8] = words
    descriptors = plain(m, a, b, "float16")
    idesc = encode_instruction(result, "float16", "float16", 64, 8)
    form = products("f16", "scale_input_d")[0]
    execute(form, [0, *descriptors, idesc, True, shift], m)
    found = m.cells[lanes_of(64), :8].astype(words.dtype).view(result)
    expected = start.astype(np.float32) * np.float32(2.0**-shift)
    expected += a.astype(np.float32) @ b.astype(np.float32).T
    assert np.array_equal(found, expected.astype(result))


@pytest.mark.parametrize(("M", "first"), [(128, 0), (64, 0), (64, 16)])
def test_lanes_stay_that_are_masked(M: int, first: int) -> None:
    random = np.random.default_rng(M + first)
    a, b = (whole_numbers((n, 16), "float16", n) for n in (M, 16))
    m = machine()
    m.cells[:] = random.integers(0, 1 << 32, m.cells.shape, np.uint32)
    before = m.cells.copy()
    descriptors = plain(m, a, b, "float16")
    idesc = encode_instruction("float32", "float16", "float16", M, 16)
    masks = [int(each) for each in random.integers(0, 1 << 32, 4, np.uint32)]
    form = products("f16", "disable_output_lane")[0]
    execute(form, [first << 16 | 32, *descriptors, idesc, *masks, False], m)
    product = (a.astype(np.float32) @ b.astype(np.float32).T).view(np.uint32)
    expected = before.copy()
    for row, lane in enumerate(lanes_of(M) + first):
        if not masks[lane // 32] >> lane % 32 & 1:
            expected[lane, 32:48] = product[row]
    assert np.array_equal(m.cells, expected)


def test_what_the_collector_keeps_makes_no_difference() -> None:
    a, b = (whole_numbers((n, 16), "float16", n) for n in (64, 8))
    for use in ("fill", "use", "lastuse", "discard"):
        m = machine()
        descriptors = plain(m, a, b, "float16")
        form = spell(f"tcgen05.mma.cta_group::1.kind::f16.collector::a::{use}").forms()[0]
        execute(form, [0, *descriptors, GOOD, False], m)
        expected = a.astype(np.float32) @ b.astype(np.float32).T
        assert np.array_equal(m.cells[lanes_of(64), :8].view(np.float32), expected)


def test_scaling_is_for_the_first_family_only() -> None:
    for form in products("f16", "scale_input_d"):
        names = ("sm_100a", "sm_100f", "sm_103a", "sm_110a", "sm_90a")
        assert [target(name) in form.targets for name in names] == [True] * 3 + [False] * 2


# ---------------------------------------------------------------------------- recorded addresses

DATA = Path(__file__).parent.parent / "data" / "layout_vectors.json"
RECORDED = [
    each
    for each in json.loads(DATA.read_text())
    if each["factory"] == "mma_shared_layout"
    and each["args"]["dtype"] in ("float16", "bfloat16", "float32")
    and len(each["shape"]) == 2
    and isinstance(each.get("samples"), list)
    and each["args"]["swizzle_mode"] < 4
    # narrower ones have no step of 32 bytes
    and each["shape"][1] * (4 if each["args"]["dtype"] == "float32" else 2) >= 32
]


@pytest.mark.parametrize("record", RECORDED, ids=lambda r: "-".join(map(str, r["args"].values())))
def test_recorded_addresses(record: dict[str, Any]) -> None:
    """Of a K-major matrix, step by step in K."""
    rows = record["shape"][0]
    mode = record["args"]["swizzle_mode"]
    bits = 32 if record["args"]["dtype"] == "float32" else 16
    size, depth, span = bits // 8, 256 // bits, SPANS[mode]
    m = EagerMachine()
    for (row, k), place in record["samples"]:
        k0 = k - k % depth
        first = k0 * size // span * rows * span + k0 * size % span
        numbers = (first, rows * 16, 128 if mode == 0 else 8 * span, (0, 1, 3, 7)[mode], 0, 0)
        tile = SharedTile(*(m.constant(each, UINT32) for each in numbers))
        found = element_addresses(tile, rows, depth, bits)
        assert found[row, k % depth] == place["m"] * size


def test_there_are_recorded_addresses() -> None:
    assert len(RECORDED) >= 8
    assert {each["args"]["swizzle_mode"] for each in RECORDED} == {0, 1, 2, 3}


def test_a_base_offset_moves_the_pattern() -> None:
    m = EagerMachine()

    def addresses(*numbers: int) -> Array:
        tile = SharedTile(*(m.constant(each, UINT32) for each in numbers))
        return element_addresses(tile, 8, 16, 16)

    aligned = addresses(1024, 16, 1024, 7, 0, 0)
    assert np.array_equal(addresses(1024 + 384, 16, 1024, 7, 3, 0), aligned + 384)
    assert not np.array_equal(addresses(1024 + 384, 16, 1024, 7, 0, 0), aligned + 384)


# ---------------------------------------------------------------------------- refusals

GOOD = encode_instruction("float32", "float16", "float16", 64, 8)
BAD = {
    "sparse": GOOD | 1 << 2,
    "saturate": GOOD | 1 << 3,
    "max_shift": GOOD | 1 << 30,
    "reserved": GOOD | 1 << 6,
    "combination": encode_instruction("float32", "float16", "bfloat16", 64, 8),
    "M and N": encode_instruction("float32", "float16", "float16", 128, 8),
}


@pytest.mark.parametrize("word", BAD)
def test_instruction_descriptors_that_mean_nothing(word: str) -> None:
    m = machine()
    operands = small_operands(m)
    with pytest.raises(TilewrightError, match=word) as caught:
        execute(products("f16")[0], [0, *operands, BAD[word], False], m)
    assert caught.value.code == "undefined-operation"


def test_a_in_tensor_memory_is_k_major() -> None:
    m = machine()
    operands = small_operands(m)
    with pytest.raises(TilewrightError, match="K-major"):
        execute(products("f16")[1], [0, 64, operands[1], GOOD | 1 << 15, False], m)


def test_products_stay_in_memory() -> None:
    m = machine()
    operands = small_operands(m)
    m.state["tmem_columns"] = 1
    with pytest.raises(TilewrightError) as caught:
        execute(products("f16")[0], [28, *operands, GOOD, False], m)
    assert caught.value.code == "tensor-memory"
    outside = encode_shared((1 << 16) - 64, 1024, 128, 0)
    with pytest.raises(TilewrightError) as caught:
        execute(products("f16")[0], [0, outside, operands[1], GOOD, False], m)
    assert caught.value.code == "out-of-bounds"


# ---------------------------------------------------------------------------- order and contract


def test_products_and_commits_are_carried_out_in_order() -> None:
    m = machine()
    m.hold = True
    operands = small_operands(m)
    execute(named.MBARRIER_INIT, [0, 1], m)
    execute(named.MMA_F16, [0, *operands, GOOD, False], m)
    execute(named.TENSOR_COMMIT, [0], m)
    assert [each.form for each in m.pending] == [named.MMA_F16, named.TENSOR_COMMIT]
    assert (m.cells == 0xFFFFFFFF).all()
    assert str(contents(int(m.shared[:8].view(np.uint64)[0]))).startswith("phase 0, 0 of 1")
    m.land()
    assert (m.cells[0, :8] != 0xFFFFFFFF).all()
    assert str(contents(int(m.shared[:8].view(np.uint64)[0]))).startswith("phase 1, 0 of 1")


def test_every_lane_issues() -> None:
    m = machine()
    m.mask[:] = np.arange(32) < 3
    operands = plain(m, np.ones((64, 16), np.float16), np.ones((8, 16), np.float16), "float16")
    enable = np.arange(32) > 0
    execute(named.MMA_F16, [0, *operands, GOOD, enable], m)
    assert (m.cells[lanes_of(64), :8].view(np.float32) == 48).all()


def test_time() -> None:
    for form in (named.MMA_F16, named.MMA_TF32_TMEM):
        assert (form.time.agent, form.time.completes) == ("tensor", "")
        assert form.order.proxy == "async"
    assert (named.TENSOR_COMMIT.time.agent, named.TENSOR_COMMIT.time.completes) == (
        "tensor",
        "mbarrier",
    )


def test_shapes() -> None:
    assert (128, 64, 16) in shapes("f16") and (128, 256, 8) in shapes("tf32")
    for bad in ((128, 8, 16), (64, 4, 16), (64, 264, 16), (96, 16, 16), (64, 8, 8)):
        assert bad not in shapes("f16")
    assert (128, 8, 32) in shapes("mxf8f6f4") and (64, 64, 64) not in shapes("mxf4")
    assert (128, 8, 96) in shapes("mxf4nvf4") and (128, 8, 96) not in shapes("mxf8f6f4")
    assert (256, 256, 96) in shapes("mxf4", 2) and (128, 64, 96) not in shapes("mxf4", 2)
    assert "(128, 16 to 256 in steps of 16, 16)" in str(shapes("f16"))
    assert (256, 32, 16) in shapes("f16", 2) and (64, 32, 16) not in shapes("f16", 2)
    assert (64, 24, 32) in shapes("i8") and (64, 40, 32) not in shapes("i8")


def test_contracts() -> None:
    assert is_product(named.MMA_F16) and not is_product(named.TENSOR_COMMIT)
    found = contract(named.MMA_TF32_TMEM, (128, 64, 8))
    assert [each.operand for each in found.operands] == ["d_tmem", "a_tmem", "b_desc"]
    assert [each.atom for each in found.operands] == [(128, 64), (128, 8), (64, 8)]
    assert [each.bits for each in found.operands] == [32, 32, 32]
    assert [each.spaces[0] for each in found.operands] == [Space.TMEM, Space.TMEM, Space.SHARED]
    assert [each.repeats for each in found.operands] == [
        ("*", "m", "n"),
        ("*", "m", "k"),
        ("*", "n", "k"),
    ]
    found = contract(named.MMA_F16, (64, 8, 16), 16)
    assert [each.bits for each in found.operands] == [16, 16, 16]
    assert found.operands[1].spaces == (Space.SHARED,) and found.issuer == "thread"
