"""The part of the dialect that makes storage: buffers, cells, pointers, and what lowering leaves.

May import `base`, `ir` and the modules of this folder below it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tilewright.base.dtypes import UINT32
from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.frontend.annotations import TensorKind, tensor_type
from tilewright.frontend.builder import argument_place, current, here
from tilewright.frontend.taking import Taken
from tilewright.frontend.tensors import (
    CellTensor,
    Pointer,
    Tensor,
    TensorMap,
    converted,
    space_named,
)
from tilewright.frontend.values import (
    Cell,
    Value,
    as_dtype,
    as_tuple,
    lift,
    lift_index,
    not_constant,
    stored,
    wrap,
)
from tilewright.ir.expressions import (
    AddressOf,
    Declared,
    Expr,
    Load,
    Offset,
    Read,
    SharedBase,
    SpecialRegister,
    Var,
    as_constant,
)
from tilewright.ir.print_expressions import SHARED_BASE_TYPE
from tilewright.ir.shapes import tensor_type as ir_type
from tilewright.ir.statements import Declare, Write
from tilewright.ir.types import TENSOR_MAP_POINTER, PointerType, ScalarType, TensorType

_ALLOCATED = (Space.SHARED, Space.LOCAL)
DEFAULT_ALIGNMENT = 64


def _allocate(shape: Any, kind: Any, space: Space, align: int, layout: Any) -> TensorType:
    alignment = DEFAULT_ALIGNMENT if align == -1 else align
    for extent in map(lift_index, as_tuple(shape)):
        if as_constant(extent) is None:
            raise not_constant("the shape of a buffer is constant", extent)
    return tensor_type(shape, kind, space, alignment, layout)


def alloc_tensor(
    shape: Any = None,
    dtype: Any = "float32",
    *,
    scope: str = "shared",
    align: int = -1,
    layout: Any = "default",
    ty_args: Any = None,
    allocated_addr: Any = None,
) -> Tensor:
    """Allocate a buffer: shared memory of the CTA, or registers of each thread.

    `ty_args=[T.Tensor(…)]` gives shape, type and scope in one. Alignment is in bytes, 64 by
    default; the layout is compact and row-major by default, unspecified if `None`. Tensor Memory
    is allocated by an instruction; `allocated_addr` is the address that it gave.
    """
    if ty_args is None and space_named(scope) is Space.TMEM:
        return tmem(shape, dtype, layout=layout, allocated_addr=allocated_addr)
    if ty_args is not None:
        type = _tensor_argument(ty_args)
        if type.space is Space.TMEM:
            return decl_tensor(_allocated(allocated_addr), ty_args=ty_args)
        given = type.align or align
        space, extents = type.space, [wrap(extent) for extent in type.shape]
        allocated = _allocate(extents, type.dtype, space, given, type.layout)
    else:
        space = space_named(scope)
        allocated = _allocate(shape, dtype, space, align, layout)
    if space not in _ALLOCATED:
        raise FrontendError(
            f"there is nothing to allocate in {space.value} memory",
            code="bad-call",
            location=argument_place("scope"),
            expected='"shared" or "local"',
        )
    return Tensor(current().allocate(allocated))


def tmem(
    shape: Any,
    dtype: Any = "float32",
    data: None = None,
    align: int = -1,
    layout: Any = None,
    allocated_addr: Any = None,
) -> Tensor:
    """View Tensor Memory at an address that an instruction has allocated; see `decl_tensor`."""
    kind = tensor_type(shape, dtype, Space.TMEM, 0, None if layout == "default" else layout)
    return decl_tensor(_allocated(allocated_addr), ty_args=[TensorKind(kind)])


def _allocated(address: Any) -> Any:
    if address is None:
        raise FrontendError(
            "Tensor Memory is allocated by an instruction, not by a declaration",
            code="bad-call",
            location=here(),
            expected="allocated_addr=, the address that the instruction has stored",
            hint="T.cuda.decl_tmem(address[0], ty_args=[…]) views what is allocated",
        )
    return address


def _tensor_argument(ty_args: Any) -> TensorType:
    kinds = as_tuple(ty_args)
    if len(kinds) != 1 or not isinstance(kinds[0], TensorKind):
        raise FrontendError(
            "ty_args is one T.Tensor(…)", code="bad-call", location=argument_place("ty_args")
        )
    return kinds[0].type


def alloc_shared(
    shape: Any,
    dtype: Any = "float32",
    data: None = None,
    align: int = -1,
    layout: Any = "default",
    over: Any = (),
) -> Tensor:
    """Allocate shared memory of the CTA; see `alloc_tensor`.

    It may lie over the buffers of `over`, which are shared, and not in use while this one is.
    Raises `FrontendError` (`operand-type`) for what is none.
    """
    below = tuple(map(_shared_buffer, as_tuple(over)))
    type = _allocate(shape, dtype, Space.SHARED, align, layout)
    return Tensor(current().allocate(type, over=below))


def _shared_buffer(value: Any) -> Var:
    buffer = value.expr if isinstance(value, Tensor) else None
    if isinstance(buffer, Var) and ir_type(buffer).space is Space.SHARED:
        return buffer
    raise FrontendError(
        "a buffer lies over other buffers in shared memory",
        code="operand-type",
        location=argument_place("over"),
        expected="buffers that T.alloc_shared has given",
        found=str(value.expr.type) if isinstance(value, Value) else repr(value),
    )


def alloc_local(
    shape: Any,
    dtype: Any = "float32",
    data: None = None,
    align: int = -1,
    layout: Any = "default",
) -> Tensor:
    """Allocate registers of each thread, or of a group that a layout spreads them over."""
    return Tensor(current().allocate(_allocate(shape, dtype, Space.LOCAL, align, layout)))


def shared_scalar(dtype: Any = "int32", init: Any = None, *, name: str | None = None) -> CellTensor:
    """Allocate one element of shared memory, read and assigned to as a name."""
    type = _allocate((1,), dtype, Space.SHARED, -1, "default")
    made = CellTensor(current().allocate(type, name))
    if init is not None:
        made[0] = init
    return made


def local_scalar(dtype: Any = "int32", init: Any = None, *, name: str | None = None) -> Cell:
    """Declare a mutable cell of each thread."""
    kind, builder = as_dtype(dtype), current()
    first = None if init is None else stored(init, kind)
    return Cell(builder.declare(builder.named(name, "cell"), kind, first))


def pointer_cell(name: str, type: PointerType, init: Any = None) -> Cell:
    """Declare a mutable cell of each thread that holds a pointer."""
    builder = current()
    first = None if init is None else converted(init, type).expr
    var = builder.variable(name, type)
    builder.cells.add(var.name)
    builder.emit(Declare(var, first, location=here()))
    return Cell(var)


def alloc_scalar(
    dtype: Any = "int32", init: Any = None, *, scope: str = "local", name: str | None = None
) -> Cell | CellTensor:
    """Declare a mutable cell, of each thread or in shared memory."""
    if space_named(scope) is Space.LOCAL:
        return local_scalar(dtype, init, name=name)
    return shared_scalar(dtype, init, name=name)


# ---------------------------------------------------------------------------- pointers


@dataclass(frozen=True)
class CellAddress:
    """`T.address_of(x)` of a mutable cell, which is in no memory: a place for a result."""

    var: Var


def address_of(place: Any) -> Any:
    """Point at an element of a tensor, its first one, a tensor map, or a mutable cell."""
    given: Any = place.exposed() if isinstance(place, Taken) else place
    match given:
        case TensorMap() if current().in_kernel:
            return wrap(AddressOf(given.expr, (), TENSOR_MAP_POINTER, location=here()))
        case TensorMap():
            raise FrontendError(
                "only a kernel points at a tensor map",
                code="bad-call",
                location=here(),
                hint="the host names it: T.cuda.tensormap_encode_tiled(amap, …)",
            )
        case Tensor():
            return given.data
        case Value(expr=Load() as load):
            pointer = PointerType(
                load.tensor.type.space,
                load.dtype,
                load.dtype.bytes,
            )
            return wrap(AddressOf(load.tensor, load.indices, pointer, location=here()))
        case Value(expr=Read() as read):
            return wrap(read.pointer)
        case Value(expr=Var() as var) if var.name in current().cells:
            return CellAddress(var)
        case _:
            raise FrontendError(
                "only an element of a tensor, or a tensor map, has an address",
                code="operand-type",
                location=argument_place(0),
                expected="T.address_of(t[i]) or T.address_of(t)",
            )


def _pointer(value: Any) -> Any:
    if not isinstance(value, Pointer):
        raise FrontendError(
            "a pointer is expected",
            code="operand-type",
            location=argument_place(0),
            found=repr(value),
        )
    return value.expr


def decl_tensor(ptr: Any, *, ty_args: Any) -> Tensor:
    """View the storage at a pointer as a tensor of the type `ty_args=[T.Tensor(…)]`.

    The pointer is evaluated once, where this stands. In Tensor Memory it may be a uint32.
    Raises `FrontendError` (`operand-type`, `bad-layout`).
    """
    return Tensor(_declared(ptr, _tensor_argument(ty_args), None))


def decl_scalar(ptr: Any, dtype: Any = None, *, name: str | None = None) -> CellTensor:
    """View the element at a pointer as one that is read and assigned to as a name."""
    source = _pointer(ptr)
    element = source.dtype if dtype is None else dtype
    return CellTensor(_declared(ptr, tensor_type((1,), element, source.type.space, 0, None), name))


def _declared(ptr: Any, type: TensorType, name: str | None) -> Expr:
    source = _address(ptr, type.space)
    if isinstance(source.type, PointerType) and not type.align:
        type = replace(type, align=max(source.type.align, type.dtype.bytes))
    builder = current()
    return builder.bind(builder.named(name, "declared"), Declared(source, type, location=here()))


def _address(value: Any, space: Space) -> Expr:
    """Take a pointer into a space, or a number where that is what addresses are."""
    if isinstance(value, Pointer):
        if value.expr.type.space is space:
            return value.expr
    elif space is Space.TMEM and not isinstance(value, Tensor):
        number = lift(value, UINT32)
        if number.type == ScalarType(UINT32):
            return number
    expected = f"a pointer into {space.value} memory"
    raise FrontendError(
        f"a tensor in {space.value} memory is declared at what is no address there",
        code="operand-type",
        location=argument_place(0),
        expected=expected + (", or a uint32" if space is Space.TMEM else ""),
        found=str(value.expr.type) if isinstance(value, Value) else repr(value),
    )


def shared_base(dtype: Any = None, align: int | None = None) -> Any:
    """Give the start of the kernel's block of shared memory."""
    if dtype is None:
        return wrap(SharedBase(SHARED_BASE_TYPE, location=here()))
    type = PointerType(
        Space.SHARED, as_dtype(dtype), SHARED_BASE_TYPE.align if align is None else align
    )
    return wrap(SharedBase(type, location=here()))


def offset(pointer: Any, bytes: Any, dtype: Any = None, align: int | None = None) -> Any:
    """Move a pointer by a number of bytes, to an element of a type and a known alignment."""
    base = _pointer(pointer)
    element = base.dtype if dtype is None else as_dtype(dtype)
    type = PointerType(base.type.space, element, element.bytes if align is None else align)
    return wrap(Offset(base, lift_index(bytes), type, location=here()))


def read(pointer: Any) -> Any:
    """Read the value at a pointer."""
    base = _pointer(pointer)
    return wrap(Read(base, ScalarType(base.dtype), location=here()))


def write(pointer: Any, value: Any) -> None:
    """Write a value at a pointer."""
    base = _pointer(pointer)
    current().emit(Write(base, stored(value, base.dtype), location=here()))


def special_register(name: str, dtype: Any = "int32") -> Any:
    """Read a special register by its name."""
    return wrap(SpecialRegister(name, ScalarType(as_dtype(dtype)), location=here()))
