"""The decorators of the tile dialect, and what a function says of its arguments and outputs.

May import `base`, `ir` and the modules of `frontend`.

    @T.prim_func
    def double(A: T.Tensor((256,), "float32"), B: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(256):
                B[i] = A[i] * 2.0
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import FunctionType
from typing import Any, cast

from tilewright.base.errors import FrontendError
from tilewright.base.spaces import Space
from tilewright.frontend.annotations import tensor_type
from tilewright.frontend.builder import active, argument_place, current, here
from tilewright.frontend.functions import InlineFunction, KernelFunction
from tilewright.frontend.reader import LocalFunction
from tilewright.frontend.tensors import Tensor
from tilewright.frontend.tile.reader import (
    Reading,
    TileReader,
    read_function,
    reference_names,
    referring,
)
from tilewright.frontend.tile.types import ALIGNMENT, names_in
from tilewright.frontend.values import as_dtype, as_dtype_or_none, as_tuple
from tilewright.ir.types import TensorType


class TileFunction(KernelFunction):
    """A function of the tile dialect, read into a program.

    `reading` says which parameters are outputs, and what the body asks of the compilation.
    """

    def __init__(self, function: FunctionType, reading: Reading) -> None:
        super().__init__(function, reading.program, reading.types)
        self.reading = reading


def _around(levels: int) -> Mapping[str, Any]:
    """Give the names where a decorator stands, some frames above: annotations may mention them."""
    frame = inspect.currentframe()
    for _ in range(levels + 1):
        frame = None if frame is None else frame.f_back
    return {} if frame is None else dict(frame.f_locals)


def prim_func(function: Any = None, **options: Any) -> Any:
    """Read a Python function into a program, at once (a decorator).

    Raises `FrontendError` for what is no program of the dialect.
    """
    around = _around(1)
    _refuse_options("prim_func", options, ("private", "check_well_formed"))

    def decorate(given: Any) -> TileFunction:
        if not isinstance(given, FunctionType):
            raise FrontendError(
                "a kernel function is not defined inside another",
                code="bad-call",
                location=here(),
                hint="use @T.macro for a helper",
            )
        return TileFunction(given, read_function(given, around))

    return decorate if function is None else decorate(function)


class Macro(InlineFunction):
    """A function that is expanded where a kernel calls it; `T.Ref` parameters are places."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if active() is not None:
            wanted = reference_names(self.function)
            args, kwargs = referring(inspect.signature(self.function), wanted, args, kwargs)
        return super().__call__(*args, **kwargs)


def macro(function: Any = None, **options: Any) -> Any:
    """Expand a function where a kernel calls it (a decorator)."""
    _refuse_options("macro", options, ("hygienic",))

    def decorate(given: Any) -> Any:
        return given if isinstance(given, LocalFunction) else Macro(cast(FunctionType, given))

    return decorate if function is None else decorate(function)


def meta_class(kind: type) -> type:
    """Expand the methods of a class whose objects hold values of the kernel (a decorator)."""
    for name, member in list(vars(kind).items()):
        if isinstance(member, FunctionType):
            setattr(kind, name, Macro(member))
    return kind


def _refuse_options(decorator: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    if unknown := [name for name in given if name not in known]:
        raise FrontendError(
            f"@T.{decorator} does not take {unknown[0]}",
            code="bad-call",
            location=here(),
            expected=", ".join(known),
        )


# ---------------------------------------------------------------------------- in the body


def reader() -> TileReader:
    """Give the reader of the function that is being read.

    Raises `FrontendError` (`bad-call`) outside one.
    """
    found = current().reader
    if not isinstance(found, TileReader):
        raise FrontendError(
            "this function has a meaning only in programs of the tile dialect",
            code="bad-call",
            location=here(),
        )
    return found


def const(names: Any, dtype: Any = "int32") -> Any:
    """Name the sizes that arguments tell: each set of them is compiled by itself.

    Gives a number for each name in the text. Raises `FrontendError` (`bad-call`).
    """
    known, kind = reader(), as_dtype(dtype)
    found = tuple(known.constant(name, kind) for name in names_in(names))
    return found[0] if len(found) == 1 else found


def empty(*shape: Any, dtype: Any = "float32") -> Tensor:
    """Declare an output: a tensor that a call of the function allocates and returns."""
    return reader().output(_global(*_shape_and_type(shape, dtype)), "output", returned=True)


def alloc_global(shape: Any, dtype: Any, scope: str = "global") -> Tensor:
    """Allocate a tensor in global memory for the kernels of one call to use."""
    return reader().output(_global(shape, dtype), "workspace", returned=False)


def _shape_and_type(shape: tuple[Any, ...], dtype: Any) -> tuple[Any, Any]:
    """Read `T.empty((m, n), dtype)` and `T.empty(m, n, dtype=…)`."""
    first, last = shape[0] if shape else (), shape[-1] if shape else None
    if isinstance(first, tuple | list):
        return as_tuple(first), shape[1] if len(shape) > 1 else dtype
    if len(shape) > 1 and as_dtype_or_none(last) is not None:
        return shape[:-1], last
    return shape, dtype


def _global(shape: Any, dtype: Any) -> TensorType:
    return tensor_type(as_tuple(shape), dtype, Space.GLOBAL, ALIGNMENT, None)


def annotate_pass_configs(configs: Mapping[Any, Any]) -> None:
    """Ask for configurations of the compiler, as `pass_configs` of `jit` do."""
    reader().facts.options.setdefault("pass_configs", {}).update(configs)


def annotate_compile_flags(flags: Any) -> None:
    """Ask for flags of the compiler, as `compile_flags` of `jit` do."""
    reader().facts.options.setdefault("compile_flags", []).extend(as_tuple(flags))


def func_attr(attributes: Mapping[str, Any]) -> None:
    """Set attributes of the kernel: "global_symbol" names it; that nothing aliases is a hint.

    Raises `FrontendError` (`not-supported`) for others.
    """
    for key in attributes:
        if key not in ("global_symbol", "tir.noalias", "tirx.noalias"):
            raise FrontendError(
                f"the attribute {key!r} has no meaning here",
                code="not-supported",
                location=argument_place(0),
                expected="global_symbol",
            )
    name = attributes.get("global_symbol")
    if name is not None:
        current().attributes["name"] = str(name)


def assume(condition: Any) -> None:
    """State what holds whenever this is reached; nothing here depends on it."""
    del condition
