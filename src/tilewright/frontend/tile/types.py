"""Types as programs of the tile dialect write them: `T.Tensor`, `T.StridedTensor`, `T.Ref`.

May import `base`, `ir` and the modules of `frontend`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from tilewright.base.dtypes import INT64
from tilewright.base.errors import FrontendError
from tilewright.frontend import annotations
from tilewright.frontend.annotations import PointerKind, TensorKind, pointer
from tilewright.frontend.builder import argument_place, here, placed
from tilewright.frontend.functions import place_of_caller
from tilewright.frontend.storage import decl_tensor
from tilewright.frontend.tensors import Pointer
from tilewright.frontend.values import as_dtype_or_none, as_tuple, hardware_type

# What tensors are aligned to, in bytes: the widest access of a thread, and of a tensor map.
ALIGNMENT = 16


class TensorMaker:
    """`T.Tensor`: describes a tensor, as a call or in brackets: `T.Tensor[[M, N], dtype]`."""

    def __init__(self, name: str, make: Callable[..., TensorKind]) -> None:
        self.__name__ = name
        self.make = make

    def __call__(self, *args: Any, **kwargs: Any) -> TensorKind:
        try:
            return self.make(*args, **kwargs)
        except FrontendError as error:
            # An annotation is evaluated by Python, before the function is read.
            raise placed(error, here() or place_of_caller()) from None

    def __getitem__(self, keys: Any) -> TensorKind:
        parts = as_tuple(keys)
        is_shape = all(not isinstance(each, tuple | list) and not _names(each) for each in parts)
        return self(parts) if is_shape else self(*parts)

    def __repr__(self) -> str:
        return f"T.{self.__name__}"


def _names(value: Any) -> bool:
    """Tell what stands for an element type in brackets."""
    return isinstance(value, PointerKind) or as_dtype_or_none(value) is not None


def _tensor(scope: str) -> Callable[..., TensorKind]:
    def make(
        shape: Any, dtype: Any = "float32", data: Any = None, scope: str | None = scope
    ) -> Any:
        element = (
            INT64 if isinstance(dtype, PointerKind) else hardware_type(annotations.as_dtype(dtype))
        )
        if isinstance(data, Pointer):
            kind = annotations.tensor(as_tuple(shape), element, scope or "global")
            return decl_tensor(data, ty_args=[kind])
        return annotations.tensor(as_tuple(shape), element, scope or "global", ALIGNMENT, data=data)

    return make


def _strided(
    shape: Any, strides: Any, dtype: Any = "float32", scope: str | None = None
) -> TensorKind:
    """Describe a tensor whose elements need not lie side by side.

    A call takes arrays of any strides, and a kernel is compiled for compact ones: so the strides
    are held to the number of axes, and have no further meaning.
    """
    if len(as_tuple(shape)) != len(as_tuple(strides)):
        raise FrontendError(
            "a tensor has a stride for each axis",
            code="bad-annotation",
            location=argument_place("strides", 1),
            expected=f"{len(as_tuple(shape))} strides",
            found=f"{len(as_tuple(strides))} strides",
        )
    return _tensor("global")(shape, dtype, None, scope)


@dataclass(frozen=True)
class Reference:
    """The annotation of a macro's parameter that stands for a variable or an element itself."""

    def __getitem__(self, kind: Any) -> Reference:
        return self


class Pointers(PointerKind):
    """`T.ptr`: a pointer as it stands, or `T.ptr(dtype)`."""

    def __call__(self, dtype: Any = None, storage_scope: str = "global", **_: Any) -> PointerKind:
        return cast(PointerKind, pointer("uint8" if dtype is None else dtype, storage_scope))


def dtype(value: Any) -> Any:
    """Give an element type by any of its names.

    Raises `FrontendError` (`unknown-name`).
    """
    return annotations.ScalarKind(hardware_type(annotations.as_dtype(value)))


class _Symbols:
    """`T.dyn["K"]`: symbols for extents that are known when the kernel is launched."""

    def __getitem__(self, name: str) -> Any:
        return symbols(name)


def symbols(name: Any, dtype: Any = "int32") -> Any:
    """Make symbols for extents that are known at launch: one for each name in the text."""
    names = names_in(name)
    found = tuple(annotations.dynamic(each, dtype) for each in names)
    return found[0] if len(found) == 1 else found


def names_in(text: Any) -> list[str]:
    """List the names in a text such as "M, N, K".

    Raises `FrontendError` (`bad-call`) if it has none.
    """
    names = str(text).replace(",", " ").split() if isinstance(text, str) else []
    if not names:
        raise FrontendError(
            "symbols are named by a text",
            code="bad-call",
            location=argument_place(0) or here(),
            expected='a text such as "M, N, K"',
            found=repr(text),
        )
    return names


TENSORS: dict[str, Any] = {
    "Tensor": TensorMaker("Tensor", _tensor("global")),
    "Buffer": TensorMaker("Buffer", _tensor("global")),
    "StridedTensor": TensorMaker("StridedTensor", _strided),
    "SharedBuffer": TensorMaker("SharedBuffer", _tensor("shared")),
    "FragmentBuffer": TensorMaker("FragmentBuffer", _tensor("fragment")),
    "LocalBuffer": TensorMaker("LocalBuffer", _tensor("local")),
    "ptr": Pointers(cast(PointerKind, pointer()).type),
    "handle": Pointers(cast(PointerKind, pointer()).type),
    "Ref": Reference(),
    "Var": Reference(),
    "dtype": dtype,
    "dynamic": symbols,
    "symbolic": symbols,
    "dyn": _Symbols(),
}
