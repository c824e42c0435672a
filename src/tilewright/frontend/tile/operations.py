"""The tile operations of the tile dialect: copies, fills, products, reductions, scans.

May import `base`, `ir` and the modules of `frontend`. Each function adds a statement of `ir.tile`.
"""

from __future__ import annotations

from typing import Any

from tilewright.base.dtypes import BOOL
from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.issuing import issue
from tilewright.frontend.taking import as_place
from tilewright.frontend.tensors import Tensor
from tilewright.frontend.tile import annotations as layouts
from tilewright.frontend.tile.options import check_width, hints
from tilewright.frontend.tile.regions import element, operand, paired, shape_text, tile
from tilewright.frontend.values import constant_int, lift, stored, wrap
from tilewright.ir.expressions import Expr, Var, as_constant, cast, int32, truth
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Assign, Store
from tilewright.ir.tile import (
    POLICIES,
    REDUCTIONS,
    CopyTile,
    FillTile,
    GemmTile,
    ReduceTile,
    ScanTile,
)
from tilewright.isa import named

# What `prefer_instruction` may ask for, and the way that it is.
_PREFERRED = {"tma": "tma", "cp_async": "cp_async", "sync": "simt"}
_EVICTION = ("evict_normal", "evict_first", "evict_last")


def _choice(name: str, value: Any, choices: Any) -> None:
    if value is not None and value not in choices:
        raise FrontendError(
            f"{name} is not {value!r}",
            code="bad-call",
            location=argument_place(name),
            expected=", ".join(map(repr, choices)),
        )


def _options(**given: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((name, value) for name, value in given.items() if value)


def _layout_of(given: Any, target: Expr) -> Any:
    """Read who copies which elements, of the axes that are more than one element."""
    extents = tensor_type(target).shape
    return layouts.loop_layout(given, [each for each in extents if as_constant(each) != 1])


def copy(
    src: Any,
    dst: Any,
    *,
    coalesced_width: int | None = None,
    disable_tma: bool = False,
    eviction_policy: str | None = None,
    prefer_instruction: str | None = None,
    annotations: Any = None,
    loop_layout: Any = None,
) -> None:
    """Copy a tile, converting its elements; afterwards the target may be used.

    An element into an element is an assignment. Raises `FrontendError` (`operand-type`,
    `bad-view`, `bad-index`, `bad-call`).
    """
    hints(annotations)
    check_width(coalesced_width)
    _choice("prefer_instruction", prefer_instruction, _PREFERRED)
    _choice("eviction_policy", eviction_policy, _EVICTION)
    ends = element(src), element(dst)
    if ends[0] is not None and ends[1] is not None:
        place = ends[1]
        value = cast(ends[0], place.dtype, here())
        current().emit(Store(place.tensor, place.indices, value, location=here()))
        return
    source, target = paired(operand(src, "src", 0), operand(dst, "dst", 1))
    options = _options(
        coalesced_width=coalesced_width,
        disable_tma=disable_tma,
        eviction_policy=eviction_policy,
        loop_layout=_layout_of(loop_layout, target),
    )
    way = None if prefer_instruction is None else _PREFERRED[prefer_instruction]
    current().emit(CopyTile(source, target, way, options=options, location=here()))


def async_copy(
    src: Any,
    dst: Any,
    *,
    coalesced_width: int | None = None,
    annotations: Any = None,
    loop_layout: Any = None,
) -> None:
    """Copy a tile of global memory to shared memory, as a group that T.ptx_wait_group waits for."""
    hints(annotations)
    check_width(coalesced_width)
    source, target = paired(operand(src, "src", 0), operand(dst, "dst", 1))
    layout = _layout_of(loop_layout, target)
    options = _options(coalesced_width=coalesced_width, loop_layout=layout)
    current().emit(
        CopyTile(source, target, "cp_async", waits=False, options=options, location=here())
    )
    commit_copies()


def tma_copy(
    src: Any,
    dst: Any,
    *,
    barrier: Any = None,
    cluster_mask: Any = None,
    leader_scope_threads: Any = None,
    eviction_policy: str | None = None,
    annotations: Any = None,
) -> None:
    """Copy a tile in bulk: into shared memory, arriving at a barrier, or out of it as a group."""
    hints(annotations)
    _choice("eviction_policy", eviction_policy, _EVICTION)
    _not_there("cluster_mask", cluster_mask)
    source, target = paired(operand(src, "src", 0), operand(dst, "dst", 1))
    spaces = {tensor_type(each).space for each in (source, target)}
    if spaces != {Space.SHARED, Space.GLOBAL}:
        raise FrontendError(
            "a bulk copy is one between global and shared memory",
            code="operand-type",
            location=here(),
            found=f"{tensor_type(source)} to {tensor_type(target)}",
            hint="T.copy(src, dst) copies it by the threads",
        )
    loads = tensor_type(target).space is Space.SHARED
    if loads != (barrier is not None):
        raise FrontendError(
            "a bulk copy arrives at a barrier" if loads else "a bulk store has no barrier",
            code="bad-call",
            location=argument_place("barrier"),
            expected="barrier=, what T.alloc_barrier(…) has given" if loads else "no barrier",
        )
    options = _options(eviction_policy=eviction_policy)
    current().emit(
        CopyTile(
            source,
            target,
            "tma",
            waits=False,
            barrier=None if barrier is None else barrier_tile(barrier, "barrier"),
            options=options,
            location=here(),
        )
    )


def _not_there(name: str, value: Any) -> None:
    if value is not None and value is not False:
        raise FrontendError(
            f"{name} is not supported: clusters of the tile dialect are not there yet",
            code="not-supported",
            location=argument_place(name),
        )


def transpose(src: Any, dst: Any, annotations: Any = None) -> None:
    """Copy a matrix, rows to columns."""
    hints(annotations)
    source, target = tile(src, "src", 0), wrap(tile(dst, "dst", 1))
    rank = target.ndim
    flipped = target.permute(*range(rank - 2), rank - 1, rank - 2)
    copy(wrap(source), flipped)


def fill(buffer: Any, value: Any, annotations: Any = None) -> None:
    """Set all elements of a tile; or a variable."""
    hints(annotations)
    place = None if isinstance(buffer, Tensor) else as_place(buffer)
    if isinstance(place, Var) and place.name in current().cells:
        current().emit(Assign(place, stored(value, place.dtype), location=here()))
        return
    target = tile(buffer, "buffer", 0)
    held = stored(value, tensor_type(target).dtype)
    current().emit(FillTile(target, held, location=here()))


def clear(buffer: Any, annotations: Any = None) -> None:
    """Set all elements of a tile to zero."""
    hints(annotations)
    fill(buffer, 0)


# ---------------------------------------------------------------------------- products


class GemmWarpPolicy:
    """How the tile of a product is divided among the warps."""

    Square = "square"
    FullRow = "full_row"
    FullCol = "full_col"


def gemm(
    A: Any,
    B: Any,
    C: Any,
    transpose_A: bool = False,
    transpose_B: bool = False,
    policy: str = "square",
    clear_accum: Any = False,
    k_pack: int = 1,
    mbar: Any = None,
    annotations: Any = None,
) -> None:
    """Add the product of two tiles to a third; see `ir.tile.GemmTile`."""
    hints(annotations)
    _product(A, B, C, transpose_A, transpose_B, policy, clear_accum, mbar)


def wgmma_gemm(
    A: Any,
    B: Any,
    C: Any,
    transpose_A: bool = False,
    transpose_B: bool = False,
    policy: str = "square",
    clear_accum: Any = False,
    annotations: Any = None,
) -> None:
    """Add the product of two tiles to a third; T.wait_wgmma has nothing to wait for then."""
    hints(annotations)
    _product(A, B, C, transpose_A, transpose_B, policy, clear_accum, None)


def tcgen05_gemm(
    A: Any,
    B: Any,
    C: Any,
    transpose_A: bool = False,
    transpose_B: bool = False,
    policy: str = "square",
    clear_accum: Any = False,
    *,
    mbar: Any,
    use_2cta: bool = False,
    annotations: Any = None,
) -> None:
    """Issue a product into Tensor Memory; its completion arrives at `mbar`, if there is one."""
    hints(annotations)
    _not_there("use_2cta", use_2cta)
    _product(
        *(A, B, C, transpose_A, transpose_B, policy, clear_accum, mbar),
        waits=False,
        way="tcgen05",
    )


def _product(
    A: Any,
    B: Any,
    C: Any,
    transpose_a: Any,
    transpose_b: Any,
    policy: Any,
    clear_accum: Any,
    mbar: Any,
    **more: Any,
) -> None:
    if policy not in POLICIES:
        raise FrontendError(
            "there is no such way to divide a product among warps",
            code="bad-call",
            location=argument_place("policy", 5),
            expected="T.GemmWarpPolicy.Square, FullRow or FullCol",
            found=repr(policy),
        )
    a, b, c = (
        tile(each, name, at) for at, (name, each) in enumerate(zip("ABC", (A, B, C), strict=True))
    )
    flags = bool(transpose_a), bool(transpose_b)
    _check_product(a, b, c, *flags)
    made = GemmTile(
        *(a, b, c, *flags),
        truth(lift(clear_accum, BOOL), here()),
        policy,
        None if mbar is None else barrier_tile(mbar, "mbar", 8),
        location=here(),
        **more,
    )
    current().emit(made)


def _check_product(a: Expr, b: Expr, c: Expr, transpose_a: bool, transpose_b: bool) -> None:
    """Hold the extents of a product's tiles against one another."""
    left, right, out = (
        _matrix(each, name, at)
        for at, (name, each) in enumerate(zip("ABC", (a, b, c), strict=True))
    )
    if None in (*left, *right, *out):
        return

    def fits(as_a: bool, as_b: bool) -> bool:
        (m, k), (k_too, n) = left[:: -1 if as_a else 1], right[:: -1 if as_b else 1]
        return (m, n) == out and k == k_too

    if not fits(transpose_a, transpose_b):
        ways = [(x, y) for x in (False, True) for y in (False, True) if fits(x, y)]
        raise FrontendError(
            "the tiles of a product do not fit together",
            code="bad-view",
            location=here(),
            expected="(M, K) times (K, N) into (M, N)",
            found=f"{shape_text(a)} times {shape_text(b)} into {shape_text(c)}"
            + ", A transposed" * transpose_a
            + ", B transposed" * transpose_b,
            hint=f"transpose_A={ways[0][0]}, transpose_B={ways[0][1]} fits" if ways else None,
        )


def _matrix(tile: Expr, name: str, at: int) -> tuple[Any, Any]:
    extents = [as_constant(each) for each in tensor_type(tile).shape]
    while len(extents) > 2 and extents[0] == 1:
        extents = extents[1:]
    if len(extents) > 2:
        extents = [each for each in extents if each != 1]
    if len(extents) != 2:
        raise FrontendError(
            f"{name} is no matrix",
            code="bad-view",
            location=argument_place(name, at),
            expected="two axes, beside axes of extent 1",
            found=shape_text(tile),
        )
    return extents[0], extents[1]


def barrier_tile(value: Any, *keys: int | str) -> Expr:
    """Read a barrier: one of several, or all of a buffer that has one."""
    return tile(value, *keys)


def wait_products(count: Any = 0) -> None:
    """Wait for products: those that T.wgmma_gemm has issued are complete already."""
    constant_int(count, "a number of products")


def wait_copies(count: Any = 0) -> None:
    """Wait until at most some groups of this thread's asynchronous copies are under way."""
    issue(named.COPIES_WAIT, int32(constant_int(count, "a number of groups")))


def commit_copies() -> None:
    """Make a group of this thread's asynchronous copies since the last one."""
    issue(named.COPIES_COMMIT)


def wait_stores(count: Any = 0, read: bool = True) -> None:
    """Wait until at most some groups of this thread's bulk stores are under way.

    With `read` it waits until shared memory has been read, and may be written again.
    """
    form = named.BULK_WAIT_READ if read else named.BULK_WAIT
    issue(form, int32(constant_int(count, "a number of groups")))


def commit_stores() -> None:
    """Make a group of this thread's bulk stores since the last one; T.tma_copy makes its own."""
    issue(named.BULK_COMMIT)


# ---------------------------------------------------------------------------- along an axis


def reduction(op: str) -> Any:
    """Make the function of a reduction."""

    def reduce(
        buffer: Any,
        out: Any,
        dim: int = -1,
        clear: bool = True,
        batch: int = 1,
        nan_propagate: bool = False,
        annotations: Any = None,
    ) -> None:
        hints(annotations)
        source, target = tile(buffer, "buffer", 0), tile(out, "out", 1)
        axis = _axis_of(source, dim)
        _check_reduced(source, target, axis)
        _check_bits(op, source)
        current().emit(
            ReduceTile(op, source, target, axis, bool(clear), bool(nan_propagate), location=here())
        )

    reduce.__name__ = f"reduce_{op}"
    reduce.__doc__ = f"Reduce a tile along an axis by {op}; see `ir.tile.ReduceTile`."
    return reduce


def _axis_of(source: Expr, dim: Any) -> int:
    axis, rank = constant_int(dim, "an axis"), len(tensor_type(source).shape)
    if not -rank <= axis < rank:
        raise FrontendError(
            f"the tile has no axis {axis}",
            code="bad-index",
            location=argument_place("dim", 2),
            expected=f"{-rank} … {rank - 1}",
            found=shape_text(source),
        )
    return axis % rank


def _check_reduced(source: Expr, target: Expr, axis: int) -> None:
    """Refuse a target that is not what is left of the source."""
    shape = [as_constant(each) for each in tensor_type(source).shape]
    found = [as_constant(each) for each in tensor_type(target).shape]
    left = shape[:axis] + shape[axis + 1 :]
    fitting = (left or [1], [*shape[:axis], 1, *shape[axis + 1 :]])
    if None not in (*shape, *found) and found not in fitting:
        raise FrontendError(
            "the target of a reduction is not what is left of its source",
            code="bad-view",
            location=argument_place("out", 1),
            expected=f"{tuple(fitting[0])}, or {tuple(fitting[1])}",
            found=f"{shape_text(target)} for {shape_text(source)} along axis {axis}",
        )


def _check_bits(op: str, source: Expr) -> None:
    kind = tensor_type(source).dtype
    if op.startswith("bit") and kind.kind == "float":
        raise FrontendError(
            f"reduce_{op} takes the bits of integers",
            code="operand-type",
            location=argument_place("buffer", 0),
            expected="elements of an integer type, or bool",
            found=str(kind),
            hint="T.view(buffer, dtype=…) shows the bits as integers",
        )


def reduce(
    buffer: Any,
    out: Any,
    reduce_type: str,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    nan_propagate: bool = False,
    annotations: Any = None,
) -> None:
    """Reduce a tile along an axis by an operation that is named."""
    hints(annotations)
    _choice("reduce_type", reduce_type, REDUCTIONS)
    reduction(reduce_type)(buffer, out, dim, clear, batch, nan_propagate)


def scan(op: str) -> Any:
    """Make the function of a running sum or maximum."""

    def run(
        src: Any, dst: Any = None, dim: int = 0, reverse: bool = False, annotations: Any = None
    ) -> None:
        hints(annotations)
        source = tile(src, "src", 0)
        target = source if dst is None else tile(dst, "dst", 1)
        if shape_text(source) != shape_text(target):
            raise FrontendError(
                "the two sides of a scan do not have the same extents",
                code="bad-view",
                location=argument_place("dst", 1),
                expected=shape_text(source),
                found=shape_text(target),
            )
        axis = _axis_of(source, dim)
        current().emit(ScanTile(op, source, target, axis, bool(reverse), location=here()))

    run.__name__ = f"cum{op}"
    run.__doc__ = f"Write the running {op} along an axis; see `ir.tile.ScanTile`."
    return run


FUNCTIONS: dict[str, Any] = {
    **{
        each.__name__: each
        for each in (
            *(copy, async_copy, tma_copy, transpose, fill, clear, gemm, wgmma_gemm),
            *(tcgen05_gemm, reduce, GemmWarpPolicy),
        )
    },
    "tcgen05_mma": tcgen05_gemm,
    "wgmma_mma": wgmma_gemm,
    "wait_wgmma": wait_products,
    "warpgroup_wait": wait_products,
    "ptx_wait_group": wait_copies,
    "ptx_commit_group": commit_copies,
    "tma_store_wait": wait_stores,
    "tma_store_arrive": commit_stores,
    **{f"reduce_{op}": reduction(op) for op in REDUCTIONS},
    "cumsum": scan("sum"),
    "cummax": scan("max"),
}
