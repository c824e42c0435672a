"""Products of matrices by the tensor core of a CTA, and their commit (PTX ISA 9.7.16.10).

May import `base`, `isa.declaration`, `isa.descriptors`, `isa.machine`, `isa.mbarrier`,
`isa.tensor_allocation` and `isa.tensor_memory`. One thread issues a product; the tensor core
carries a thread's products and commits out in the order of issue, reading its operands through
descriptors.

    tcgen05.mma.cta_group::1.kind::f16 [%r0], %rd0, %rd1, %r1, %p0;
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from tilewright.base.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, DType
from tilewright.base.spaces import Space
from tilewright.base.targets import only
from tilewright.isa.declaration import (
    Declaration,
    Form,
    Order,
    TileContract,
    TileOperand,
    Time,
    address,
    declare,
    immediate,
    predicate,
    register,
)
from tilewright.isa.descriptors import D_FORMATS, FORMATS, decode_instruction, decode_shared
from tilewright.isa.machine import Lanes, Machine, SharedTile, Update
from tilewright.isa.mbarrier import arrive_at
from tilewright.isa.tensor_allocation import require_columns
from tilewright.isa.tensor_memory import CELL, LANE_SHIFT, LANES, TARGETS

_CODE = "undefined-operation"
_MEMORY = "tensor-memory"
# The operands that may be left out: lanes in which D stays, and s where D is times 2^-s.
KEPT_LANES = "disable_output_lane"
SHIFT = "scale_input_d"
MASK_WORDS = LANES // 32
SHIFTS = range(16)

# ---------------------------------------------------------------------------- shapes


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes (M, N, K) of a kind of product: the Ns of each M, and K.

    With an M of `deep` K may be 96 as well.
    """

    columns: dict[int, tuple[int, ...]]
    depth: int
    deep: tuple[int, ...] = ()

    def __contains__(self, shape: tuple[int, int, int]) -> bool:
        M, N, K = shape
        return N in self.columns.get(M, ()) and (self.depth == K or (_DEEP == K and M in self.deep))

    def __str__(self) -> str:
        each = [
            f"({m}, {n[0]} to {n[-1]} in steps of {n[1] - n[0]}, {self.depth})"
            for m, n in self.columns.items()
        ]
        return ", ".join(each)


_DEPTHS = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
_DEEP = 96
_WIDEST = 256


def _every(step: int) -> tuple[int, ...]:
    return tuple(range(step, _WIDEST + 1, step))


def shapes(kind: str, cta_group: int = 1) -> Shapes:
    """List the legal shapes of a kind: "f16", "tf32", "f8f6f4", "i8", or, with scales,
    "mxf8f6f4", "mxf4", "mxf4nvf4".

    PTX ISA, tcgen05, "Matrix shape". Those with a K of 96 are for targets later than sm_100a.
    """
    depth = _DEPTHS[kind]
    if kind.startswith("mx"):
        columns = {128: _every(8)} if cta_group == 1 else {128: _every(16), 256: _every(16)}
        return Shapes(columns, depth, (128 * cta_group,) if depth == 64 else ())
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
    return form.declaration in _PRODUCTS.values()


def left_space(form: Form) -> Space:
    """Give the space in which a product's matrix A lies."""
    return Space.TMEM if form.operands[1].kind == "address" else Space.SHARED


def options(form: Form) -> frozenset[str]:
    """Name the operands of a product that PTX lets a program leave out."""
    return frozenset(each.name for each in form.operands if each.name in (KEPT_LANES, SHIFT))


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


def _by_name(form: Form, operands: Sequence[Lanes]) -> dict[str, tuple[Lanes, ...]]:
    rest = iter(operands)
    return {each.name: tuple(islice(rest, each.count)) for each in form.operands}


def _multiply(m: Machine, form: Form, *operands: Lanes) -> None:
    given = _by_name(form, operands)
    (d,), (a,), (b,), (idesc,) = (given[each.name] for each in form.operands[:4])
    fields = decode_instruction(m, idesc)
    for name in ("sparse", "sparse_selector", "saturate", "max_shift"):
        text = f"an instruction descriptor sets {name!r}, which a dense product has not"
        m.require(fields[name] == 0, _CODE, text)
    legal = _is_shape(m, form, fields["M"], fields["N"])
    text = f"M and N of a product are none of {shapes(kind(form))}"
    m.require(legal, _CODE, text)
    depth = shapes(kind(form)).depth
    bits = COMBINATIONS[kind(form)][0].types[0].bits
    _check_cells(m, form, fields, d, a, depth * bits // (8 * CELL))
    right = decode_shared(m, b, fields["transpose_b"], bits)
    left: SharedTile | Lanes
    if left_space(form) is Space.TMEM:
        left = a
        text = "a matrix in Tensor Memory is K-major"
        m.require(fields["transpose_a"] == 0, _CODE, text)
    else:
        left = decode_shared(m, a, fields["transpose_a"], bits)
    size = (fields["M"], fields["N"], depth)
    update = _update(m, given, fields)
    known = m.constant(False, BOOL)
    for each in COMBINATIONS[kind(form)]:
        chosen = _has_formats(form, fields, each)
        known = known | chosen
        m.when(legal & chosen, _product(m, d, left, right, size, each, update))
    m.require(known, _CODE, "an instruction descriptor has no such combination of formats")


def _check_cells(
    m: Machine, form: Form, fields: dict[str, Lanes], d: Lanes, a: Lanes, width: int
) -> None:
    """Require that D, and A of that many columns if it is in Tensor Memory, lie where they may.

    PTX ISA, "Data path layout organization": the alignment of lanes.
    """
    lane = d >> LANE_SHIFT
    upper = (fields["M"] == 64) & (lane == 16)
    text = "D of a product begins in lane 0 of Tensor Memory, or if M is 64 in lane 0 or 16"
    m.require((lane == 0) | upper, _MEMORY, text)
    require_columns(m, d, fields["N"])
    if left_space(form) is Space.TMEM:
        text = "A and D of a product begin in the same lane of Tensor Memory"
        m.require(a >> LANE_SHIFT == lane, _MEMORY, text)
        require_columns(m, a, width)


def _update(m: Machine, given: dict[str, tuple[Lanes, ...]], fields: dict[str, Lanes]) -> Update:
    scale = m.constant(1.0, FLOAT32)
    if SHIFT in given:
        (shift,) = given[SHIFT]
        scale = m.bitcast((127 - shift) << 23, FLOAT32)  # the float32 2^-shift
    (enable,) = given["enable_input_d"]
    negated = fields["negate_a"] != fields["negate_b"]
    return Update(enable, scale, negated, given.get(KEPT_LANES, ()))


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
    update: Update,
) -> Callable[[], None]:
    return lambda: m.product_tiles(d, a, b, size, each.types, update)


_LEFT = {
    Space.SHARED: register("a_desc", "b64"),
    Space.TMEM: address("a_tmem", Space.TMEM, "read", 0),
}
_SUMMARY = {
    Space.SHARED: "Multiply matrices in shared memory into Tensor Memory",
    Space.TMEM: "Multiply a matrix in Tensor Memory by one in shared memory",
}
_COLLECTORS = tuple(f"collector::a::{use}" for use in ("fill", "use", "lastuse", "discard"))


def _product_of(left: Space, masked: bool, scaled: bool) -> Declaration:
    """Declare a product, with the operands that are optional in PTX or without.

    What may stay in the core's collector buffer makes no difference to the result.
    """
    mask = register(KEPT_LANES, "b32", count=MASK_WORDS, grouped=True)
    scale = immediate(SHIFT, "u32", SHIFTS)
    options = [", except in lanes that stay"] * masked + [", scaling what is there"] * scaled
    return declare(
        "tcgen05",
        "mma.cta_group::1.{kind}{collector}",
        slots={"kind": ("kind::f16", "kind::tf32"), "collector": ("", *_COLLECTORS)},
        summary=f"{_SUMMARY[left]}{''.join(options)}; later, in the order of issue.",
        section='9.7.16.10.9.1 "tcgen05.mma"',
        targets=_SCALING_TARGETS if scaled else TARGETS,
        operands=(
            address("d_tmem", Space.TMEM, "update", 0),
            _LEFT[left],
            register("b_desc", "b64"),
            register("idesc", "b32"),
            *((mask,) if masked else ()),
            predicate("enable_input_d"),
            *((scale,) if scaled else ()),
        ),
        compute=_issue,
        order=Order(proxy="async"),
        time=Time(agent="tensor"),
        lands=_multiply,
    )


_SCALING_TARGETS = only("sm_100a", "sm_103a", families=(100,))
# By where A lies, whether lanes may stay, and whether D is scaled; the plain ones are found first.
_PRODUCTS = {
    (left, masked, scaled): _product_of(left, masked, scaled)
    for masked in (False, True)
    for scaled in (False, True)
    for left in _LEFT
}
mma = _PRODUCTS[Space.SHARED, False, False]
mma_tmem = _PRODUCTS[Space.TMEM, False, False]

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
