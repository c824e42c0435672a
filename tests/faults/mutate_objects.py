"""Mutators of what a kernel handles: tensor maps, descriptors, Tensor Memory, and who acts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from mutate_order import form_of, is_barrier, touches
from mutations import (
    BOUNDS,
    HANGS,
    LIFETIME,
    MBARRIER,
    UNORDERED,
    Change,
    everywhere,
    mutator,
    other_form,
    twice,
    with_form,
    with_operand,
    without,
)
from sites import Site, Source, block_around, moved, operands_of

from tilewright.base.dtypes import BOOL
from tilewright.ir.expressions import (
    Binary,
    Constant,
    Expr,
    SpecialRegister,
    Var,
    binary,
    constant,
)
from tilewright.ir.statements import EncodeTensorMap, If, Instruct, Stmt
from tilewright.ir.types import ScalarType, TensorType
from tilewright.ir.visit import variables, walk_statements
from tilewright.isa import tensor_allocation
from tilewright.layout import ComposeLayout

_DESCRIBED = frozenset(
    (
        *("descriptor", "tma-rules", "out-of-bounds", "uninitialised", "race", "missing-wait"),
        *("missing-proxy-fence", "tensor-map-shape"),
    )
)
_LANE = SpecialRegister("laneid")

# ---------------------------------------------------------------------------- tensor maps

_SWIZZLES = 4  # none, and atoms of 32, 64 and 128 bytes


@mutator("swizzle")
def other_swizzle_of_a_map(source: Source, site: Site) -> Iterator[Change]:
    """Let the copy engine lay boxes out as the kernel does not expect."""
    made = site.statement
    if isinstance(made, EncodeTensorMap) and _is_laid_out(source, made):
        for mode in range(_SWIZZLES):
            if mode != made.swizzle:
                program = everywhere(source, site, lambda _, m=mode: (replace(made, swizzle=m),))
                yield Change(f"swizzle {mode}", program, _DESCRIBED | MBARRIER)


@mutator("stride")
def other_stride_of_a_map(source: Source, site: Site) -> Iterator[Change]:
    """Tell the copy engine another distance between rows, or another box."""
    made = site.statement
    if not isinstance(made, EncodeTensorMap):
        return
    for name, step in (("a chunk more", 16), ("off by eight bytes", 8)):
        strides = tuple(binary("add", each, step) for each in made.strides)
        program = everywhere(source, site, lambda _, s=strides: (replace(made, strides=s),))
        yield Change(f"stride {name}", program, _DESCRIBED)
    if _is_counted(source, made):
        *inner, last = made.box
        smaller = (*inner, binary("sub", last, 1))
        program = everywhere(source, site, lambda _: (replace(made, box=smaller),))
        yield Change("a row less in the box", program, _DESCRIBED | MBARRIER | HANGS)


def _copies(source: Source, made: EncodeTensorMap) -> Iterator[Instruct]:
    """Yield the copies that go by a map."""
    for each in walk_statements(source.program):
        if isinstance(each, Instruct) and made.var.name in {var.name for var in variables(each)}:
            yield each


def _is_counted(source: Source, made: EncodeTensorMap) -> bool:
    """Tell whether an mbarrier counts the bytes of boxes of a map."""
    return any(each.form.time.completes == "mbarrier" for each in _copies(source, made))


def _is_laid_out(source: Source, made: EncodeTensorMap) -> bool:
    """Tell whether boxes go to a buffer whose layout says how they lie there."""
    buffers = (var for each in _copies(source, made) for var in variables(each))
    return any(
        isinstance(each.type, TensorType) and isinstance(each.type.layout, ComposeLayout)
        for each in buffers
    )


# ---------------------------------------------------------------------------- descriptors

# Of a descriptor of shared memory (PTX ISA, "Matrix-Descriptor Format"): where its layout type
# begins, and what makes another type of any; of units of 16 bytes, the stride and the start.
_LAYOUT_TYPE, _OTHER_TYPES = 61, (2, 4, 6)
_STRIDE = 32
_START_BITS = 14
# Of an instruction's descriptor: N / 8.
_COLUMNS = 17


def _words(stmt: Stmt, *names: str) -> Iterator[tuple[int, str]]:
    if isinstance(stmt, Instruct):
        for position, declared, _ in operands_of(stmt):
            if declared.name in names:
                yield position, declared.name


@mutator("swizzle")
def other_swizzle_of_a_descriptor(source: Source, site: Site) -> Iterator[Change]:
    """Let the tensor core read tiles by another swizzle than they were written by."""
    for position, name in _words(site.statement, "a_desc", "b_desc"):
        for other in _OTHER_TYPES:
            flip = other << _LAYOUT_TYPE
            program = with_operand(
                source, site, position, lambda word, flip=flip: binary("xor", word, flip)
            )
            yield Change(f"swizzle {other} off in {name}", program, _DESCRIBED)


@mutator("stride")
def other_stride_of_a_descriptor(source: Source, site: Site) -> Iterator[Change]:
    """Let the tensor core read groups of rows elsewhere, or a tile from elsewhere."""
    for position, name in _words(site.statement, "a_desc", "b_desc"):
        for text, shift in (("stride", _STRIDE), ("start", 0)):
            program = with_operand(
                source, site, position, lambda word, s=shift: binary("add", word, 1 << s)
            )
            yield Change(f"{text} of {name} 16 bytes more", program, _DESCRIBED)


@mutator("stride")
def wider(source: Source, site: Site) -> Iterator[Change]:
    """Multiply more columns than there is room for."""
    for position, _ in _words(site.statement, "idesc"):
        program = with_operand(
            source, site, position, lambda word: binary("add", word, 4 << _COLUMNS)
        )
        kinds = _DESCRIBED | LIFETIME
        yield Change("32 columns more", program, kinds)


@mutator("cta_group")
def other_group(source: Source, site: Site) -> Iterator[Change]:
    """Speak of another number of CTAs than the rest of the kernel."""
    form = form_of(site.statement)
    if form is None or not isinstance(site.statement, Instruct):
        return
    for slot in form.declaration.slots:
        for token in slot.choices:
            if "cta_group::2" in token and token != form[slot.name]:
                chosen = other_form(form, **{slot.name: token})
                if chosen is not None:
                    kinds = frozenset(("cta-group", "cluster-peer")) | HANGS
                    yield Change(token, with_form(source, site, chosen), kinds)


# ---------------------------------------------------------------------------- Tensor Memory

_LIFECYCLE = LIFETIME | {"deadlock", "uninitialised", "race", "missing-wait", "out-of-bounds"}
_OWNERSHIP = (
    tensor_allocation.alloc,
    tensor_allocation.dealloc,
    tensor_allocation.relinquish_alloc_permit,
)


@mutator("allocation")
def another_lifetime(source: Source, site: Site) -> Iterator[Change]:
    """Allocate, free or relinquish not at all, too often, or another size."""
    form = form_of(site.statement)
    if form is None or form.declaration not in _OWNERSHIP:
        return
    yield Change("dropped", without(source, site), _LIFECYCLE)
    if form.declaration is not tensor_allocation.relinquish_alloc_permit:
        yield Change("twice", twice(source, site), _LIFECYCLE)
    for position, _ in _words(site.statement, "nCols"):
        for text, shift in (("half", -1), ("double", 1)):

            def resized(value: Expr, shift: int = shift) -> Expr:
                columns = cast(int, cast(Constant, value).value)
                columns = columns << shift if shift > 0 else columns >> -shift
                return constant(columns, value.dtype, value.location)

            program = with_operand(source, site, position, resized)
            yield Change(f"{text} the columns", program, _LIFECYCLE)


@mutator("allocation")
def freed_early(source: Source, site: Site) -> Iterator[Change]:
    """Free, or give up the permit, before what comes first: the last barrier, or an allocation."""
    form = form_of(site.statement)
    path = site.path
    if form is None or form.declaration not in _OWNERSHIP[1:] or path is None:
        return
    if form.declaration is tensor_allocation.relinquish_alloc_permit:
        block = block_around(source.program, path)
        allocations = [
            at
            for at, each in enumerate(block)
            if (other := form_of(each)) and other.declaration is tensor_allocation.alloc
        ]
        if allocations and allocations[0] < path[-1][1]:
            yield Change("earlier", moved(source.program, path, allocations[0]), _LIFECYCLE)
        return
    # The whole of the branch that frees, before the barrier that stands before it.
    outer = path[:-1]
    if not outer or outer[-1][0] == "kernels":
        return
    block, index = block_around(source.program, outer), outer[-1][1]
    before = [
        at for at in range(index) if (other := form_of(block[at])) is not None and is_barrier(other)
    ]
    if before and isinstance(block[index], If):
        yield Change("earlier", moved(source.program, outer, before[-1]), _LIFECYCLE)


@mutator("accumulator")
def onto_what_was_there(source: Source, site: Site) -> Iterator[Change]:
    """Add the first product to an accumulator that nobody has written."""
    stmt = site.statement
    if not isinstance(stmt, Instruct):
        return
    for position, declared, given in operands_of(stmt):
        if declared.name == "enable_input_d" and given != constant(True, BOOL):
            program = with_operand(source, site, position, lambda _: constant(True, BOOL))
            yield Change("adds to D", program, frozenset(("uninitialised", "race")))


@mutator("overrun")
def beyond_the_columns(source: Source, site: Site) -> Iterator[Change]:
    """Access Tensor Memory in columns, or in lanes, that are another's."""
    stmt = site.statement
    if not isinstance(stmt, Instruct):
        return
    for position, declared, given in operands_of(stmt):
        if declared.name not in ("taddr", "d_tmem", "a_tmem") or declared.kind != "address":
            continue
        if not isinstance(given.type, ScalarType):
            continue
        for text, step in (("512 columns", 512), ("32 lanes", 32 << 16)):
            program = with_operand(
                source, site, position, lambda value, s=step: binary("add", value, s)
            )
            kinds = LIFETIME | BOUNDS | UNORDERED
            yield Change(f"{declared.name} {text} beyond", program, kinds)


# ---------------------------------------------------------------------------- who acts


def _conjuncts(condition: Expr) -> list[Expr]:
    if isinstance(condition, Binary) and condition.op == "logical_and":
        return [*_conjuncts(condition.left), *_conjuncts(condition.right)]
    return [condition]


def _of_all_lanes(source: Source, condition: Expr) -> Expr | None:
    """Give the condition that all lanes of the warp meet if one does; `None` if it is that."""
    if isinstance(condition, Var) and condition.name in source.elected:
        return constant(True, BOOL)
    if not isinstance(condition, Binary) or condition.op != "eq":
        return None
    if source.is_id(condition.left, "laneid"):
        return constant(True, BOOL)
    if source.is_id(condition.left, "tid.x", "linear_tid"):
        warp, chosen = (binary("floordiv", side, 32) for side in (condition.left, condition.right))
        return binary("eq", warp, chosen)
    return None


@mutator("election dropped")
def everybody(source: Source, site: Site) -> Iterator[Change]:
    """Let all lanes of a warp do what one of them is to do."""
    branch = site.statement
    if not isinstance(branch, If) or not touches(branch):
        return
    parts = _conjuncts(branch.condition)
    wide = [_of_all_lanes(source, part) for part in parts]
    if all(each is None for each in wide):
        return
    whole: Expr = constant(True, BOOL)
    for part, other in zip(parts, wide, strict=True):
        whole = binary("logical_and", whole, part if other is None else other)
    program = everywhere(source, site, lambda _: (replace(branch, condition=whole),))
    kinds = HANGS | UNORDERED | LIFETIME | {"not-elected", "global-race"}
    yield Change("by all lanes", program, kinds)


@mutator("part of a warp")
def not_all(source: Source, site: Site) -> Iterator[Change]:
    """Let one lane of the warp leave out what the whole warp is to execute."""
    form = form_of(site.statement)
    if form is None or form.declaration.lanes != "warp" or not isinstance(site.statement, Instruct):
        return
    most = binary("ne", _LANE, 1)
    program = everywhere(source, site, lambda stmt: (If(most, (stmt,), location=stmt.location),))
    kinds = HANGS | UNORDERED | {"tmem-access"}
    yield Change("without lane 1", program, kinds)


@mutator("part of a warp")
def one_warp_less(source: Source, site: Site) -> Iterator[Change]:
    """Let one warp of the CTA stay away from a barrier."""
    form = form_of(site.statement)
    if form is None or not is_barrier(form) or form.declaration.wait is None:
        return
    if form.declaration.wait.kind != "barrier":
        return
    others = binary("ne", SpecialRegister("warp_id"), 0)
    program = everywhere(source, site, lambda stmt: (If(others, (stmt,), location=stmt.location),))
    yield Change("without warp 0", program, HANGS | UNORDERED | LIFETIME)
