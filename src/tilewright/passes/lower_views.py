"""Lower tensors and views to pointers, byte offsets and arrays of registers.

May import `base`, `layout`, `ir`, `passes.analysis` and `passes.places`. Global tensors become
pointer parameters of the same name, elements of global and shared tensors become reads and
writes at an offset in bytes, local tensors become arrays of one axis. Shared buffers stay named
by the address of their first element, until `allocate_shared` places them; so do the parameters
in the host's part of a program, where they stay tensors.

    a[i, j] = A[i, j]     # both (16, 16) float16
    # -> *(&a[0, 0] + (i * 16 + j) * 2) = *(A + (i * 16 + j) * 2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import gcd
from typing import Any

from tilewright.base.dtypes import INT32, INT64, UINT32
from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.base.spaces import Space
from tilewright.ir.expressions import (
    AddressOf,
    Bitcast,
    Constant,
    Declared,
    Expr,
    Load,
    Offset,
    Read,
    Var,
    as_constant,
    as_expr,
    cast,
    int32,
)
from tilewright.ir.operands import paired_operands
from tilewright.ir.rewrite import Rewriter, keep_location, map_children
from tilewright.ir.shapes import static_shape
from tilewright.ir.statements import (
    Allocate,
    Bind,
    Block,
    Declare,
    Instruct,
    Kernel,
    Program,
    Stmt,
    Store,
    Write,
)
from tilewright.ir.types import PointerType, ScalarType, TensorMapType, TensorType
from tilewright.ir.verify_expressions import is_local_array
from tilewright.ir.visit import variables, walk_statements
from tilewright.isa.declaration import Operand, accepts
from tilewright.isa.tensor_memory import CELL, LANE_SHIFT
from tilewright.layout import TLane
from tilewright.passes.allocate_shared import alignment_of, pointer_to, pointer_type
from tilewright.passes.analysis.ranges import Ranges, analyse_ranges
from tilewright.passes.local_arrays import Element, LocalView, array_of
from tilewright.passes.places import (
    is_constant,
    laid_out_by,
    locate,
    root_of,
    storage_bytes,
    tensor_type,
)
from tilewright.passes.wide_views import require_whole_elements

# Byte offsets in a tensor of that many bytes fit in an int32.
_NARROW = 2**31


def lower_views(program: Program) -> Program:
    """Replace tensors by pointers and arrays, and their elements by accesses of those.

    Raises `FrontendError`: bad-index for registers of other threads, bad-view for a view that
    has no addresses, not-constant for a buffer without a constant shape.
    """
    host = _HostLowering(program.host).block(program.host)
    return replace(program, host=host, kernels=tuple(map(_lower_kernel, program.kernels)))


def _lower_kernel(kernel: Kernel) -> Kernel:
    lowering = _Lowering(kernel, kernel.body, analyse_ranges(kernel))
    params = tuple(pointer_to(p) if isinstance(p.type, TensorType) else p for p in kernel.params)
    body = lowering.block(kernel.body)
    return replace(kernel, params=params, body=body)


class _Lowering:
    """Lowers the body of one kernel, or another block; no names of `scope` are given anew."""

    def __init__(self, scope: Kernel | Block, body: Block, ranges: Ranges) -> None:
        self.scope = scope
        self.ranges = ranges
        self.expression = Rewriter(((Load, self.load), (AddressOf, self.address_of)))
        self.locals: dict[int, tuple[Expr, LocalView]] = {}
        self.arrays: dict[str, Var] = {}
        self.wide: dict[str, bool] = {}
        self.bases: dict[str, Expr] = {}
        self.declared = {
            stmt.var.name
            for stmt in walk_statements(body)
            if isinstance(stmt, Bind) and isinstance(stmt.value, Declared)
        }

    @cached_property
    def names(self) -> set[str]:
        """Collect the names that are taken."""
        return {each.name for each in variables(self.scope)}

    # ---- statements

    def block(self, block: Block) -> Block:
        """Lower a block."""
        return map_children(block, self.node)

    def node(self, node: Any) -> Any:
        """Lower a statement, to one or several, or an expression."""
        match node:
            case Expr():
                return self.expression(node)
            case Store():
                lowered = self.store(map_children(node, self.node))
            case Instruct():
                lowered = self.instruct(node)
            case Bind(value=Declared() as declared):
                lowered = _declaration(node.var, self.expression(declared.pointer))
            case Allocate() if tensor_type(node.var).space is Space.LOCAL:
                lowered = replace(node, var=self.array(node.var))
            case _:
                return map_children(node, self.node)
        return keep_location(lowered, node.location)

    def store(self, stmt: Store) -> Stmt | Block:
        """Lower a store whose indices and value are lowered."""
        kind = tensor_type(stmt.tensor)
        if kind.space is Space.LOCAL:
            return self.element(stmt.tensor, stmt.indices, stmt.location).write(stmt.value)
        return Write(self.element_pointer(stmt.tensor, stmt.indices, stmt.location), stmt.value)

    def instruct(self, stmt: Instruct) -> Block:
        """Lower an instruction; an output that is no place of its own goes through a cell."""
        operands: list[Expr] = []
        before: list[Stmt] = []
        after: list[Stmt] = []
        for declared, operand in paired_operands(stmt.form, stmt.operands):
            if declared.role == "in" or not isinstance(operand, Load):
                operands.append(_number(self.expression(operand)))
                continue
            place = self.expression.inside(operand)
            direct = self.direct_place(place, declared, stmt.location)
            if direct is not None:
                operands.append(direct)
                continue
            cell = self.fresh(root_of(place.tensor).name, ScalarType(place.dtype))
            reads = declared.role == "inout" or stmt.preserve
            before.append(Declare(cell, self.expression(operand) if reads else None))
            operands.append(cell)
            stored = self.store(Store(place.tensor, place.indices, cell, location=stmt.location))
            after += stored if isinstance(stored, tuple) else (stored,)
        predicate = None if stmt.predicate is None else self.expression(stmt.predicate)
        issued = replace(stmt, operands=tuple(operands), predicate=predicate)
        return (*before, issued, *after)

    def direct_place(
        self, place: Load, declared: Operand, location: Location | None
    ) -> Load | None:
        """Give the element of an array that an output can be written to as it is."""
        if tensor_type(place.tensor).space is not Space.LOCAL:
            return None
        element = self.element(place.tensor, place.indices, location)
        fits = element.fits and accepts(declared.type, element.array.dtype)
        return element.place() if fits else None

    def fresh(self, name: str, kind: ScalarType) -> Var:
        """Make a variable with a name that nothing has."""
        number = next(n for n in range(1, 1 << 30) if f"{name}_{n}" not in self.names)
        self.names.add(f"{name}_{number}")
        return Var(f"{name}_{number}", kind)

    # ---- expressions, their children lowered

    def load(self, load: Load) -> Expr | None:
        """Lower a load to a read, or to an element of an array."""
        if is_local_array(load.tensor):
            return None
        if tensor_type(load.tensor).space is Space.LOCAL:
            return self.element(load.tensor, load.indices, load.location).read()
        pointer = self.element_pointer(load.tensor, load.indices, load.location)
        return Read(pointer, ScalarType(load.dtype), location=load.location)

    def address_of(self, address: AddressOf) -> Expr | None:
        """Lower an address to a pointer and an offset; that of a tensor map stays."""
        of_map = isinstance(address.tensor.type, TensorMapType)
        if of_map or address == self.base(root_of(address.tensor)):
            return None
        return self.pointer(address.tensor, address.indices, address.type, address.location)

    def element(self, view: Expr, indices: Sequence[Expr], location: Location | None) -> Element:
        """Find the element of an array that an index of a local tensor's view names."""
        _, known = self.locals.get(id(view), (view, None))
        if known is None:
            require_whole_elements(view, self.ranges, location)
            known = LocalView(view, self.array(root_of(view)))
            # The view is kept so that its id stays taken.
            self.locals[id(view)] = (view, known)
        return known.element(indices, location)

    def array(self, buffer: Var) -> Var:
        """Give the array of a local tensor; there is one node for it."""
        if buffer.name not in self.arrays:
            self.arrays[buffer.name] = array_of(buffer)
        return self.arrays[buffer.name]

    def element_pointer(
        self, view: Expr, indices: Sequence[Expr], location: Location | None
    ) -> Expr:
        """Point at an element for a plain access, which relies on its natural alignment."""
        kind = tensor_type(view)
        if kind.space is Space.TMEM:
            raise FrontendError(
                f"elements of {root_of(view).name} lie in Tensor Memory, which is not indexed",
                code="bad-index",
                location=location,
                expected="tile operations that load from Tensor Memory, or store to it",
                hint="bring a tile of it to registers, and index those: T.copy(C_tmem, C_local); "
                "in the simt dialect T.cuda.tile.apply",
            )
        pointed = PointerType(kind.space, kind.dtype, kind.dtype.bytes)
        pointer = self.pointer(view, indices, pointed, location)
        if not isinstance(pointer, Offset):
            return pointer
        root = root_of(view)
        known = gcd(alignment_of(root), self.ranges.divisor(pointer.bytes))
        return replace(pointer, type=replace(pointed, align=max(known, pointed.align)))

    def pointer(
        self, view: Expr, indices: Sequence[Expr], pointed: PointerType, location: Location | None
    ) -> Expr:
        """Point at an element, by a pointer of the type given."""
        root, kind = root_of(view), tensor_type(view)
        if kind.space is Space.TMEM:
            return Bitcast(self.cell(view, indices, location), pointed, location=location)
        if kind.space not in (Space.GLOBAL, Space.SHARED):
            raise FrontendError(
                f"{root.name} in {kind.space.value} memory has no address",
                code="bad-view",
                location=location,
                expected="a tensor in global or shared memory",
            )
        index = INT64 if self.is_wide(root) else INT32

        def as_index(value: Expr) -> Any:
            # What is known is computed with numbers: it is faster than with expressions.
            if isinstance(value, Constant):
                return int(value.value)
            narrow = value.dtype.bits < index.bits or value.dtype.kind != "int"
            return cast(value, index) if narrow else value

        require_whole_elements(view, self.ranges, location)
        place = locate(view, [as_index(each) for each in indices], as_index)
        offset = as_expr(sum(value * scale for value, scale in place.terms), index)
        base = self.base(root)
        if as_constant(offset) == 0 and base.type == pointed:
            return base
        return Offset(base, offset, pointed, location=location)

    def is_wide(self, root: Var) -> bool:
        """Tell whether byte offsets in a buffer may leave the int32s."""
        if root.name not in self.wide:
            kind = tensor_type(root)
            small = static_shape(kind.shape) is not None and storage_bytes(kind) < _NARROW
            self.wide[root.name] = not small
        return self.wide[root.name]

    def base(self, root: Var) -> Expr:
        """Point at the start of a buffer; there is one such pointer of each."""
        if root.name not in self.bases:
            self.bases[root.name] = self.start(root)
        return self.bases[root.name]

    def start(self, root: Var) -> Expr:
        """Write the pointer to the start of a buffer."""
        if tensor_type(root).space is not Space.SHARED or root.name in self.declared:
            return pointer_to(root)
        return _start_of(root)

    def cell(self, view: Expr, indices: Sequence[Expr], location: Location | None) -> Expr:
        """Give the address in Tensor Memory of the cell in which an element begins, uint32."""
        require_whole_elements(view, self.ranges, location)
        numbers = static_shape(indices) if is_constant(view) else None
        place = locate(view, indices if numbers is None else numbers)
        offset: Expr = int32(0)
        for value, scale in place.terms:
            offset = offset + as_expr(value) * scale
        if place.axes.keys() - {TLane.name} or self.ranges.divisor(offset) % CELL:
            raise FrontendError(
                f"this element of {place.root.name} has no address in Tensor Memory",
                code="bad-view",
                location=location,
                expected="a layout over lanes and columns, and the start of a 32-bit column",
                found=str(laid_out_by(view).layout),
            )
        lane = as_expr(place.axes.get(TLane.name, 0))
        moved = lane * (1 << LANE_SHIFT) + offset // CELL
        return Var(place.root.name, ScalarType(UINT32)) + cast(moved, UINT32)


class _HostLowering(_Lowering):
    """Lowers addresses in the host's part of a program."""

    def __init__(self, host: Block) -> None:
        super().__init__(host, host, Ranges())

    def start(self, root: Var) -> Expr:
        """Write the pointer to the start of a parameter, which is a tensor still."""
        return pointer_to(root) if root.name in self.declared else _start_of(root)


def _start_of(root: Var) -> AddressOf:
    """Point at the start of storage that its tensor still names."""
    zeros = (int32(0),) * len(tensor_type(root).shape)
    return AddressOf(root, zeros, pointer_type(root))


def _number(operand: Expr) -> Expr:
    """Take an address in Tensor Memory as the number that it is."""
    match operand:
        case Bitcast(operand=number, type=PointerType(space=Space.TMEM)):
            return number
        case _:
            return operand


def _declaration(var: Var, source: Expr) -> Bind:
    """Bind the pointer, or in Tensor Memory the number, at which storage is declared."""
    pointer = pointer_to(var)
    assert isinstance(pointer.type, PointerType)
    if pointer.type.space is Space.TMEM:
        number = ScalarType(UINT32)
        value = _number(source)
        value = value if value.type == number else Bitcast(value, number)
        return Bind(Var(var.name, number), value)
    same = source.type == pointer.type
    return Bind(pointer, source if same else Offset(source, int32(0), pointer.type))
