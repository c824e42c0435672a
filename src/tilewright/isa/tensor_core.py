"""Products of matrices by the tensor core of a CTA, and their commit (PTX ISA 9.7.16.10).

May import `base`, `isa.declaration`, `isa.descriptors`, `isa.machine`, `isa.mbarrier` and
`isa.tensor_memory`. One thread issues a product; the tensor core carries products and commits out
in the order of issue, reading its operands through the descriptors.

    tcgen05.mma.cta_group::1.kind::f16 [%r0], %rd0, %rd1, %r1, %p0;
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.base.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, DType
from tilewright.base.spaces import Space
from tilewright.isa.declaration import (
    Declaration,
    Form,
    Operand,
    Order,
    TileContract,
    TileOperand,
    Time,
    address,
    declare,
    predicate,
    register,
)
from tilewright.isa.descriptors import D_FORMATS, FORMATS, decode_instruction, decode_shared
from tilewright.isa.machine import Lanes, Machine, SharedTile
from tilewright.isa.mbarrier import arrive_at
from tilewright.isa.tensor_memory import TARGETS

_CODE = "undefined-operation"

# ---------------------------------------------------------------------------- shapes


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes (M, N, K) of a kind of product: the Ns of each M, and K."""

    columns: dict[int, tuple[int, ...]]
    depth: int

    def __contains__(self, shape: tuple[int, int, int]) -> bool:
        M, N, K = shape
        return N in self.columns.get(M, ()) and self.depth == K

    def __str__(self) -> str:
        each = [f"({m}, {n[0]} to {n[-1]}, {self.depth})" for m, n in self.columns.items()]
        return ", ".join(each)


_DEPTHS = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32}
_WIDEST = 256


def _every(step: int) -> tuple[int, ...]:
    return tuple(range(step, _WIDEST + 1, step))


def shapes(kind: str, cta_group: int = 1) -> Shapes:
    """List the legal shapes of a kind without scales: "f16", "tf32", "f8f6f4" or "i8".

    PTX ISA, tcgen05.mma, "Matrix shape".
    """
    depth = _DEPTHS[kind]
    if cta_group == 2:
        return Shapes({128: _every(32), 256: _every(32)}, depth)
    if kind == "i8":
        columns = tuple(sorted((8, 24, *_every(16))))
        return Shapes({64: columns, 128: columns}, depth)
    return Shapes({64: _every(8), 128: _every(16)}, depth)


# What is multiplied in each kind: the element types of A and B, that of D, and their formats.
@dataclass(frozen=True, slots=True)
class Combination:
    """A combination of formats: their names in descriptors, and the types of the elements."""

    formats: tuple[str, str]
    types: tuple[DType, DType]


COMBINATIONS = {
    "f16": (
        Combination(("float16", "float32"), (FLOAT16, FLOAT32)),
        Combination(("bfloat16", "float32"), (BFLOAT16, FLOAT32)),
        Combination(("float16", "float16"), (FLOAT16, FLOAT16)),
    ),
    "tf32": (Combination(("tf32", "float32"), (FLOAT32, FLOAT32)),),
}


def kind(form: Form) -> str:
    """Name the kind of a product, such as "f16"."""
    return form["kind"].removeprefix("kind::")


def is_product(form: Form) -> bool:
    """Tell the forms of `tcgen05.mma`."""
    return form.declaration in (mma, mma_tmem)


def left_space(form: Form) -> Space:
    """Give the space in which a product's matrix A lies."""
    return Space.TMEM if form.operands[1].kind == "address" else Space.SHARED


def product_tiles(form: Form) -> tuple[str, str, str]:
    """Name the operands of a product that are tiles: D, A and B."""
    return "d_tmem", form.operands[1].name, "b_desc"


def contract(form: Form, shape: tuple[int, int, int], d_bits: int = 32) -> TileContract:
    """State the tile contract of a product of a shape (M, N, K).

    D is (*, Mr, Nr, M, N) in Tensor Memory, A (*, Mr, Kr, M, K), B (*, Nr, Kr, N, K). Operands in
    shared memory are given by descriptors, whose layout has to reach every element of the atom.
    D accumulates over Kr, where all but the first product have `enable_input_d`.
    """
    M, N, K = shape
    bits = COMBINATIONS[kind(form)][0].types[0].bits
    d, a, b = product_tiles(form)
    return TileContract(
        "thread",
        (
            TileOperand(d, (Space.TMEM,), (M, N), d_bits, ("*", "m", "n")),
            TileOperand(a, (left_space(form),), (M, K), bits, ("*", "m", "k"), align=16),
            TileOperand(b, (Space.SHARED,), (N, K), bits, ("*", "n", "k"), align=16),
        ),
    )


# ---------------------------------------------------------------------------- products


def _issue(m: Machine, form: Form, *operands: Lanes) -> None:
    m.each_lane(lambda *scalars: m.issue(form, scalars), *operands)


def _is_shape(m: Machine, form: Form, rows: Lanes, columns: Lanes) -> Lanes:
    """Tell whether M and N are those of a legal shape."""
    held = m.constant(False, BOOL)
    for number, allowed in shapes(kind(form)).columns.items():
        # The steps of these kinds are powers of two.
        step = allowed[0]
        stepped = (columns >= step) & (columns <= allowed[-1]) & ((columns & (step - 1)) == 0)
        held = held | ((rows == number) & stepped)
    return held


def _multiply(
    m: Machine,
    form: Form,
    d: Lanes,
    a: Lanes,
    b: Lanes,
    idesc: Lanes,
    enable: Lanes,
) -> None:
    fields = decode_instruction(m, idesc)
    for name in ("sparse", "sparse_selector", "saturate", "max_shift"):
        text = f"an instruction descriptor sets {name!r}, which a dense product has not"
        m.require(fields[name] == 0, _CODE, text)
    for name in ("negate_a", "negate_b"):
        m.require(fields[name] == 0, _CODE, f"a product with {name!r} cannot be simulated")
    legal = _is_shape(m, form, fields["M"], fields["N"])
    text = f"M and N of a product are none of {shapes(kind(form))}"
    m.require(legal, _CODE, text)
    right = decode_shared(m, b, fields["transpose_b"])
    left: SharedTile | Lanes
    if form.declaration is mma_tmem:
        left = a
        text = "a matrix in Tensor Memory is K-major"
        m.require(fields["transpose_a"] == 0, _CODE, text)
    else:
        left = decode_shared(m, a, fields["transpose_a"])
    size = (fields["M"], fields["N"], shapes(kind(form)).depth)
    known = m.constant(False, BOOL)
    for each in COMBINATIONS[kind(form)]:
        chosen = _has_formats(form, fields, each)
        known = known | chosen
        m.when(legal & chosen, _product(m, d, left, right, size, each, enable))
    m.require(known, _CODE, "an instruction descriptor has no such combination of formats")


def _has_formats(form: Form, fields: dict[str, Lanes], each: Combination) -> Lanes:
    given, result = each.formats
    number = FORMATS[kind(form)][given]
    alike = (fields["a_format"] == number) & (fields["b_format"] == number)
    return alike & (fields["d_format"] == D_FORMATS[result])


def _product(
    m: Machine,
    d: Lanes,
    a: SharedTile | Lanes,
    b: SharedTile,
    size: tuple[Lanes, Lanes, int],
    each: Combination,
    enable: Lanes,
) -> Callable[[], None]:
    return lambda: m.product_tiles(d, a, b, size, each.types, enable)


def _product_of(left: Operand, summary: str) -> Declaration:
    return declare(
        "tcgen05",
        "mma.cta_group::1.{kind}",
        slots={"kind": ("kind::f16", "kind::tf32")},
        summary=summary,
        section='9.7.16.10.9.1 "tcgen05.mma"',
        targets=TARGETS,
        operands=(
            address("d_tmem", Space.TMEM, "update", 0),
            left,
            register("b_desc", "b64"),
            register("idesc", "b32"),
            predicate("enable_input_d"),
        ),
        compute=_issue,
        order=Order(proxy="async"),
        time=Time(agent="tensor"),
        lands=_multiply,
    )


mma = _product_of(
    register("a_desc", "b64"),
    "Multiply matrices in shared memory into Tensor Memory, later, in the order of issue.",
)
mma_tmem = _product_of(
    address("a_tmem", Space.TMEM, "read", 0),
    "Multiply a matrix in Tensor Memory by one in shared memory, later, in the order of issue.",
)

# ---------------------------------------------------------------------------- commit


def _commit(m: Machine, form: Form, mbar: Lanes) -> None:
    def one(where: Lanes) -> None:
        m.issue(form, (where,), where)

    m.each_lane(one, mbar)


def _complete(m: Machine, form: Form, mbar: Lanes) -> None:
    arrive_at(m, mbar)


commit = declare(
    "tcgen05",
    "commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64",
    summary="Have an mbarrier arrive when the products that this thread has issued are done.",
    section='9.7.16.12.1 "tcgen05.commit"',
    targets=TARGETS,
    operands=(address("mbar", Space.SHARED, "update", 8),),
    compute=_commit,
    order=Order(releases=True, scope="cluster"),
    time=Time(agent="tensor", completes="mbarrier"),
    lands=_complete,
)
