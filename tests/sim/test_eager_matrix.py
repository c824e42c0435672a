"""Matrix moves and products in the eager executor, against the ISA's own formulas.

The formulas are those of the figures of `ldmatrix`, `stmatrix` and `mma`; nothing of `isa/` but
the instruction itself is used.
"""

from fractions import Fraction

import numpy as np
import pytest

from tilewright.base.errors import MemoryFault, SimulationError
from tilewright.isa.declaration import spell
from tilewright.sim.eager import EagerMachine, execute

LANES = range(32)


def form(text):
    (found,) = spell(text).forms()
    return found


def shared_with(data):
    machine = EagerMachine(shared=4096)
    machine.shared[: data.nbytes] = data.reshape(-1).view(np.uint8)
    return machine


def row_addresses(count, pitch=16):
    """Lane l gives the address of row l % 8 of matrix l // 8; the others point nowhere."""
    lane = np.arange(32)
    return np.where(lane < 8 * count, pitch * lane, 0xFFFFFF).astype(np.uint32)


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(count, trans):
    matrices = np.arange(count * 64, dtype=np.uint16).reshape(count, 8, 8)
    machine = shared_with(matrices)
    text = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
    registers = execute(form(text), [row_addresses(count)], machine)
    assert len(registers) == count
    for i, register in enumerate(registers):
        source = matrices[i].T if trans else matrices[i]
        for lane in LANES:
            low, high = source[lane // 4, 2 * (lane % 4)], source[lane // 4, 2 * (lane % 4) + 1]
            assert register.value[lane] == int(low) | int(high) << 16


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_undoes_ldmatrix(count, trans):
    matrices = np.random.default_rng(0).integers(0, 1 << 16, (count, 8, 8)).astype(np.uint16)
    addresses = row_addresses(count)
    tail = f"m8n8.x{count}{trans}.shared.b16"
    registers = execute(form(f"ldmatrix.sync.aligned.{tail}"), [addresses], shared_with(matrices))
    target = EagerMachine(shared=1024)
    execute(form(f"stmatrix.sync.aligned.{tail}"), [addresses, *registers], target)
    assert np.array_equal(target.shared[: matrices.nbytes], matrices.reshape(-1).view(np.uint8))
    assert not target.shared[matrices.nbytes :].any()


def test_stmatrix_places_fragments():
    machine = EagerMachine(shared=128)
    register = np.array([(2 * lane) | (2 * lane + 1) << 16 for lane in LANES], np.uint32)
    execute(form("stmatrix.sync.aligned.m8n8.x1.shared.b16"), [row_addresses(1), register], machine)
    stored = machine.shared.view(np.uint16).reshape(8, 8)
    for lane in LANES:
        assert stored[lane // 4, 2 * (lane % 4)] == 2 * lane
        assert stored[lane // 4, 2 * (lane % 4) + 1] == 2 * lane + 1


def test_movmatrix():
    matrix = np.arange(64, dtype=np.uint16).reshape(8, 8)
    held = matrix.reshape(32, 2).copy().view(np.uint32).reshape(32)
    (register,) = execute(form("movmatrix.sync.aligned.m8n8.trans.b16"), [held], EagerMachine())
    assert np.array_equal(np.ascontiguousarray(register.value).view(np.uint16), matrix.T.ravel())


def test_matrix_rows_are_checked():
    load = form("ldmatrix.sync.aligned.m8n8.x4.shared.b16")
    with pytest.raises(MemoryFault) as caught:
        execute(load, [row_addresses(4) + 8], EagerMachine(shared=4096))
    assert caught.value.code == "misaligned"
    with pytest.raises(MemoryFault) as caught:
        execute(load, [row_addresses(4)], EagerMachine(shared=256))
    assert caught.value.code == "out-of-bounds"


def test_matrix_moves_need_the_whole_warp():
    load = form("ldmatrix.sync.aligned.m8n8.x1.shared.b16")
    with pytest.raises(SimulationError) as caught:
        execute(load, [row_addresses(1)], EagerMachine(shared=4096, active=0xFFFF))
    assert caught.value.code == "divergent-collective"


# ---------------------------------------------------------------------------- mma


def mma_registers(a, b, c, k):
    """Deal operands out as the figures of mma.m16n8k8 and m16n8k16 do (elements a_i, b_i, c_i)."""
    lane = np.arange(32)
    group, member = lane >> 2, lane % 4
    elements_a = 4 * k // 8
    columns = [2 * member + (i & 1) + (8 if i >= 4 else 0) for i in range(elements_a)]
    rows = [group + (8 if i % 4 >= 2 else 0) for i in range(elements_a)]
    halves = [a[r, c_] for r, c_ in zip(rows, columns, strict=True)]
    halves_b = [b[group, 2 * member + (i & 1) + (8 if i >= 2 else 0)] for i in range(2 * k // 8)]
    singles = [c[group + (8 if i >= 2 else 0), 2 * member + (i & 1)] for i in range(4)]

    def words(each):
        pairs = zip(each[::2], each[1::2], strict=True)
        return [np.stack(pair, axis=1).copy().view(np.uint32).reshape(32) for pair in pairs]

    return [*words(halves), *words(halves_b), *singles]


def collect(d, dtype: type = np.float32):
    result = np.zeros((16, 8), dtype)
    for lane in LANES:
        for i in range(4):
            row = (lane >> 2) + (8 if i >= 2 else 0)
            result[row, 2 * (lane % 4) + (i & 1)] = d[i].value[lane]
    return result


def fma_by_fractions(x, y, z):
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    # To single precision by way of the 24-bit integer nearest to it.
    if exact == 0:
        return np.float32(0)
    exponent = -24
    while abs(exact) * Fraction(2) ** -exponent >= 1 << 24:
        exponent += 1
    while abs(exact) * Fraction(2) ** -exponent < 1 << 23:
        exponent -= 1
    return np.float32(float(round(exact / Fraction(2) ** exponent) * Fraction(2) ** exponent))


@pytest.mark.parametrize("k", [8, 16])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_mma(kind, k):
    import ml_dtypes

    dtype = np.float16 if kind == "f16" else ml_dtypes.bfloat16
    random = np.random.default_rng(k)
    a, b = (random.standard_normal((n, k)).astype(dtype) for n in (16, 8))
    c = random.standard_normal((16, 8)).astype(np.float32)
    text = f"mma.sync.aligned.m16n8k{k}.row.col.f32.{kind}.{kind}.f32"
    found = collect(execute(form(text), mma_registers(a, b, c, k), EagerMachine()))
    for row in range(16):
        for column in range(8):
            chain = c[row, column]
            for depth in range(k):
                chain = fma_by_fractions(a[row, depth], b[column, depth], chain)
            assert found[row, column] == chain


@pytest.mark.parametrize("k", [4, 8])
def test_mma_of_tf32(k):
    """Of each float32 the upper 19 bits count (PTX ISA, figures of mma.m16n8k4 and m16n8k8)."""
    random = np.random.default_rng(k)
    a, b, c = (random.standard_normal(s).astype(np.float32) for s in ((16, k), (8, k), (16, 8)))
    lane = np.arange(32)
    group, member = lane >> 2, lane % 4
    registers = [
        *(a[group + 8 * (i & 1), member + 4 * (i >> 1)].view(np.uint32) for i in range(k // 2)),
        *(b[group, member + 4 * i].view(np.uint32) for i in range(k // 4)),
        *(c[group + 8 * (i >> 1), 2 * member + (i & 1)] for i in range(4)),
    ]
    text = f"mma.sync.aligned.m16n8k{k}.row.col.f32.tf32.tf32.f32"
    found = collect(execute(form(text), registers, EagerMachine()))
    a, b = ((each.view(np.uint32) & 0xFFFFE000).view(np.float32) for each in (a, b))
    for row in range(16):
        for column in range(8):
            chain = c[row, column]
            for depth in range(k):
                chain = fma_by_fractions(a[row, depth], b[column, depth], chain)
            assert found[row, column] == chain


def test_mma_with_sums_of_float16():
    """D is the chain of single precision, rounded once; a register has a pair of columns."""
    random = np.random.default_rng(5)
    a, b = (random.standard_normal((n, 16)).astype(np.float16) for n in (16, 8))
    c = random.standard_normal((16, 8)).astype(np.float16)
    registers = mma_registers(a, b, c, 16)
    pairs = [np.stack(registers[i : i + 2], 1).view(np.uint32).reshape(32) for i in (6, 8)]
    text = "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16"
    found = execute(form(text), [*registers[:6], *pairs], EagerMachine())
    for i, register in enumerate(found):
        halves = np.ascontiguousarray(register.value).view(np.float16).reshape(32, 2)
        for lane in LANES:
            for j in range(2):
                row, column = (lane >> 2) + 8 * i, 2 * (lane % 4) + j
                chain = np.float32(c[row, column])
                for k in range(16):
                    chain = fma_by_fractions(a[row, k], b[column, k], chain)
                assert halves[lane, j] == np.float16(chain)


@pytest.mark.parametrize("satfinite", ["", ".satfinite"])
@pytest.mark.parametrize("types", [("s8", "s8"), ("u8", "s8"), ("s8", "u8"), ("u8", "u8")])
@pytest.mark.parametrize("k", [16, 32])
def test_mma_of_integers(k, types, satfinite):
    """Elements as the figures of mma.m16n8k16 and m16n8k32 with .u8 and .s8 have them."""
    random = np.random.default_rng(k)
    kinds = [np.int8 if each == "s8" else np.uint8 for each in types]
    a, b = (
        random.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, (rows, k)).astype(kind)
        for rows, kind in zip((16, 8), kinds, strict=True)
    )
    # The first rows of C are near the ends of what 32 bits hold.
    c = random.integers(-100, 100, (16, 8)).astype(np.int64)
    c[0], c[1] = 2**31 - 1, -(2**31)
    lane = np.arange(32)
    group, member = lane >> 2, lane % 4

    def word(matrix, row, first):
        elements = np.stack([matrix[row, first + i] for i in range(4)], axis=1)
        return np.ascontiguousarray(elements).view(np.uint32).reshape(32)

    registers = [
        *(word(a, group + 8 * (i & 1), 4 * member + 16 * (i >> 1)) for i in range(k // 8)),
        *(word(b, group, 4 * member + 16 * i) for i in range(k // 16)),
        *(c[group + 8 * (i >> 1), 2 * member + (i & 1)].astype(np.int32) for i in range(4)),
    ]
    text = f"mma.sync.aligned.m16n8k{k}.row.col{satfinite}.s32.{types[0]}.{types[1]}.s32"
    found = collect(execute(form(text), registers, EagerMachine()), np.int64)
    expected = c + a.astype(np.int64) @ b.astype(np.int64).T
    if satfinite:
        expected = np.clip(expected, -(2**31), 2**31 - 1)
    assert np.array_equal(found, expected.astype(np.int32))


def test_mma_of_doubles():
    random = np.random.default_rng(7)
    a, b, c = (random.integers(-9, 9, s).astype(float) / 7 for s in ((8, 4), (8, 4), (8, 8)))
    lane = np.arange(32)
    group, member = lane >> 2, lane % 4
    registers = [a[group, member], b[group, member], *(c[group, 2 * member + i] for i in (0, 1))]
    text = "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64"
    found = execute(form(text), registers, EagerMachine())
    for i, register in enumerate(found):
        for each in LANES:
            row, column = each >> 2, 2 * (each % 4) + i
            total = Fraction(c[row, column])
            for k in range(4):
                total = Fraction(float(total + Fraction(a[row, k]) * Fraction(b[column, k])))
            assert register.value[each] == float(total)
