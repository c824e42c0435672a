"""The tensor maps that copies of tiles need: those that the program makes, and those made for it.

May import `base`, `isa`, `ir` and the modules of this folder above. A map describes the view of
a tensor that an operation names; the host makes it before it launches the kernel.

    A.sub[8:, :]      # A is (n, 64) float16
    # -> on the host: A_map = the map of (n - 8, 64) elements from A + 1024 bytes on
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tilewright.base.dtypes import INT64
from tilewright.ir.expressions import (
    AddressOf,
    Binary,
    Cast,
    Constant,
    Expr,
    Offset,
    Select,
    Unary,
    Var,
    as_constant,
    cast,
    constant,
    int32,
)
from tilewright.ir.rewrite import substitute
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import Apply, EncodeTensorMap, Kernel, Program
from tilewright.ir.types import TENSOR_MAP_POINTER, PointerType, ScalarType, TensorMapType
from tilewright.ir.visit import defined, variables, walk, walk_statements
from tilewright.isa.tensor_map import (
    GRANULE,
    TensorMap,
    element_bytes,
    image_shape,
    row_pitch,
)
from tilewright.passes.allocate_shared import alignment_of
from tilewright.passes.places import root_of
from tilewright.passes.tiles.rectangles import NoRectangle, Rectangle, Side, rectangle_of
from tilewright.passes.tiles.scene import Scene
from tilewright.passes.tiles.shapes import refuse


@dataclass(frozen=True)
class Box:
    """What a tensor map says of boxes; axes are listed innermost first, as there."""

    format: str
    extents: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: int = 0
    interleave: int = 0
    l2_promotion: int = 0
    oob_fill: int = 0

    @property
    def element_bytes(self) -> int:
        """Count the bytes of an element."""
        return element_bytes(self.format)

    @property
    def image(self) -> tuple[int, ...]:
        """Give the extents that a box has in shared memory, outermost first."""
        return image_shape(self.extents, self.steps)[::-1]

    @property
    def pitch(self) -> int:
        """Count the bytes from one row to the next in shared memory."""
        return row_pitch(self.format, self.extents, self.swizzle)

    def map_of(
        self, address: int = 0, extents: Sequence[int] = (), strides: Sequence[int] = ()
    ) -> TensorMap:
        """Give a map with such boxes, of a tensor of which nothing else need be known."""
        return TensorMap(
            address,
            self.format,
            tuple(extents) or (1,) * len(self.extents),
            tuple(strides) or (0,) * (len(self.extents) - 1),
            self.extents,
            self.steps,
            self.interleave,
            self.swizzle,
            self.l2_promotion,
            self.oob_fill,
        )


@dataclass
class Maps:
    """The tensor maps of a kernel, collected while its body is lowered.

    `visible` are those that the program makes, by name, `host` the names of numbers that the
    host has, `taken` all names of the program. `made` has the maps that copies need, each once.
    """

    visible: dict[str, EncodeTensorMap]
    host: frozenset[str]
    taken: set[str]
    made: dict[EncodeTensorMap, Var] = field(default_factory=dict[EncodeTensorMap, Var])

    def statements(self) -> tuple[EncodeTensorMap, ...]:
        """List the statements that make the maps, for the host."""
        return tuple(replace(stmt, var=var) for stmt, var in self.made.items())

    def address(self, apply: Apply, view: Expr, box: Box, scene: Scene) -> Expr:
        """Point at a map of the view of a tensor, of which there will be one.

        Raises `TileContractError`: tile-layout for a view that is no rectangle or that only the
        kernel knows, tile-alignment for one that does not lie as maps need it.
        """
        name = root_of(view).name
        try:
            found = rectangle_of(view, lambda value: self._on_host(apply, name, value, scene))
        except NoRectangle as error:
            message = f"{name} is no rectangle of a tensor, as a tensor map describes it"
            expected = "slices, permutations and shapes of a tensor with strides"
            raise refuse(apply, "tile-layout", message, expected, str(error)) from error
        _check(apply, found, box)
        statement = _statement(found, box, apply)
        if statement not in self.made:
            self.made[statement] = Var(self._fresh(f"{name}_map"), TensorMapType())
        return AddressOf(self.made[statement], (), TENSOR_MAP_POINTER)

    def _on_host(self, apply: Apply, name: str, value: Expr, scene: Scene) -> Expr:
        """Give an expression in terms of what the host knows."""
        inlined = _inlined(value, scene)
        for each in walk(inlined):
            match each:
                case Constant() | Unary() | Binary() | Select() | Cast():
                    continue
                case Var() if each.name in self.host:
                    continue
                case _:
                    raise refuse(
                        apply,
                        "tile-layout",
                        f"the part of {name} that is copied is only known to the kernel",
                        "starts and extents that are constants, or known to the host",
                        str(value),
                        hint="let coords= select the part, of a view of the whole tensor",
                    )
        return inlined

    def _fresh(self, name: str) -> str:
        chosen, number = name, 0
        while chosen in self.taken:
            number += 1
            chosen = f"{name}_{number}"
        self.taken.add(chosen)
        return chosen


def maps_of(program: Program, kernel: Kernel, taken: set[str]) -> Maps:
    """Begin to collect the maps of a kernel; names are added to those that are taken."""
    visible = {
        stmt.var.name: stmt
        for stmt in walk_statements(program.host)
        if isinstance(stmt, EncodeTensorMap)
    }
    numbers = [var for var in kernel.params if isinstance(var.type, ScalarType)]
    return Maps(visible, frozenset(var.name for var in (*numbers, *kernel.symbols)), taken)


def names_of(program: Program) -> set[str]:
    """List every name that a program uses, its own included."""
    params = [var for kernel in program.kernels for var in (*kernel.params, *kernel.symbols)]
    used = (*program.params, *params, *variables(program), *defined(program))
    return {program.name, *(kernel.name for kernel in program.kernels), *(v.name for v in used)}


def _inlined(value: Expr, scene: Scene) -> Expr:
    """Replace names that the kernel has given to values by those values."""
    bound = [var for var in variables(value) if var in scene.bindings]
    return substitute(value, {var.name: _inlined(scene.bindings[var], scene) for var in bound})


# ---------------------------------------------------------------------------- the tensor


def _check(apply: Apply, found: Rectangle, box: Box) -> None:
    """Hold a tensor against the rules of maps, as far as it is known."""
    name, rank = found.root.name, len(box.extents)
    if len(found.sides) != rank:
        raise refuse(
            apply,
            "tile-shape",
            f"{name} has another number of axes than its boxes",
            f"{rank} axes, for {apply.form.text}",
            f"{len(found.sides)}",
        )
    inner = found.sides[-1].stride
    size = tensor_type(found.root).dtype.bytes
    if as_constant(inner) != box.element_bytes:
        raise refuse(
            apply,
            "tile-layout",
            f"the elements of a row of {name} do not lie side by side",
            "a last axis along which elements are consecutive",
            f"a distance of {inner} bytes, for elements of {size}",
        )
    declared = tensor_type(found.root).align
    if declared % GRANULE:
        raise refuse(
            apply,
            "tile-alignment",
            f"{name} is aligned to {declared} bytes",
            f"a tensor that is aligned to {GRANULE} bytes",
            f"align={declared}",
            hint=f"declare it with align={GRANULE}, or without: the host checks it then",
        )
    _check_numbers(apply, found, box)


def _check_numbers(apply: Apply, found: Rectangle, box: Box) -> None:
    """Check what is constant as the driver will; what is not stands for what it would accept."""
    sides = found.sides[::-1]
    known = box.map_of(
        int(as_constant(found.offset) or 0) if tensor_type(found.root).align else 0,
        [_known(side.extent, 1) for side in sides],
        [_known(_padded(side), 0) for side in sides[1:]],
    )
    if problem := known.problem():
        what, expected, given = problem
        code = "tile-layout" if what.startswith("shape") else "tile-alignment"
        notes = ("a tensor map lists axes innermost first",) if given.startswith("(") else ()
        message = f"a tensor map cannot describe {found.root.name}, because of the {what}"
        raise refuse(apply, code, message, expected, given, notes=notes)


def _known(value: Expr, otherwise: int) -> int:
    number = as_constant(value)
    return otherwise if number is None else int(number)


def _padded(side: Side) -> Expr:
    """Give the stride of an axis; of one element it means nothing, and may be a whole granule."""
    stride = as_constant(side.stride)
    if as_constant(side.extent) != 1 or stride is None:
        return side.stride
    return constant(-(-int(stride) // GRANULE) * GRANULE, INT64)


def _statement(found: Rectangle, box: Box, apply: Apply) -> EncodeTensorMap:
    """Write the statement that makes the map, under a name that is no map's."""
    root, sides = found.root, found.sides[::-1]
    kind = tensor_type(root)
    element = PointerType(kind.space, kind.dtype, alignment_of(root))
    pointer: Expr = AddressOf(root, (int32(0),) * len(kind.shape), element)
    if as_constant(found.offset) != 0:
        pointer = Offset(pointer, found.offset, replace(element, align=kind.dtype.bytes))
    return EncodeTensorMap(
        Var("", TensorMapType()),
        pointer,
        tuple(cast(side.extent, INT64) for side in sides),
        tuple(_padded(side) for side in sides[1:]),
        tuple(int32(extent) for extent in box.extents),
        tuple(int32(step) for step in box.steps),
        box.format,
        box.interleave,
        box.swizzle,
        box.l2_promotion,
        box.oob_fill,
        location=apply.location,
    )
