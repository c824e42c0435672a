"""Matrix moves and products in the eager executor, against the ISA's own formulas.

The formulas are those of the figures of `ldmatrix`, `stmatrix` and `mma`; nothing of `isa/` but
the instruction itself is used.
"""

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


def collect(d):
    result = np.zeros((16, 8), np.float32)
    for lane in LANES:
        for i in range(4):
            row = (lane >> 2) + (8 if i >= 2 else 0)
            result[row, 2 * (lane % 4) + (i & 1)] = d[i].value[lane]
    return result


def fma_by_fractions(x, y, z):
    from fractions import Fraction

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
