"""The arguments of a call held against the parameters: element types, shapes, memory.

May import `base`, `layout`, `isa`, `ir` and `runtime.arrays`. Every refusal is a `LaunchError`
that names the parameter. Arrays are passed where they lie if they can be; one that is strided or
not aligned as its parameter asks is copied in, and copied back where the kernel may write it.

    bound = bind(program, (a, b, out), written=frozenset({"Out"}))
    run(bound.values); bound.copy_back()
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from tilewright.base.dtypes import DType, from_numpy
from tilewright.base.errors import LaunchError
from tilewright.ir.expressions import Expr, Var
from tilewright.ir.statements import Program
from tilewright.ir.types import PointerType, ScalarType, TensorMapType, TensorType
from tilewright.isa.tensor_map import TensorMap, refusal
from tilewright.layout import TileLayout, image
from tilewright.runtime.arrays import Array, Raw, Unseen, address_of, aligned_empty, describe
from tilewright.runtime.host import Number, Value, evaluate, fit
from tilewright.runtime.storage import Holding, alignment, holding, packed, unit, unpack


@dataclass(frozen=True)
class Memory:
    """The memory of one array argument, as the kernel is given it. Sizes are in bytes.

    `device` is "cpu", or a GPU such as "cuda:0".
    """

    name: str
    address: int
    size: int
    writable: bool
    device: str = "cpu"


@dataclass(frozen=True)
class Bound:
    """The arguments of a call, ready for a launch.

    `values` has the value of every parameter and shape symbol: addresses of arrays, numbers,
    tensor maps.
    `device` is "cpu", a GPU such as "cuda:0", or "cuda" where there are no arrays of a GPU.
    Keep the object alive during the launch: it holds the copies that were made.
    """

    values: dict[str, Value]
    memories: tuple[Memory, ...]
    _spans: tuple[_Span, ...] = ()
    _owners: tuple[Any, ...] = ()
    device: str = "cpu"

    @property
    def sizes(self) -> dict[str, int]:
        """Give the bytes of every array, by the name of its parameter."""
        return {memory.name: memory.size for memory in self.memories}

    def copy_back(self) -> None:
        """Bring what the kernel wrote into copies back to the arrays they were made of."""
        for span in {id(span.copy): span for span in self._spans if span.writes}.values():
            span.copy_back()


def bind(
    program: Program, arguments: Sequence[Any], written: frozenset[str], device: str = "cpu"
) -> Bound:
    """Hold the arguments of a call against a program's parameters.

    `program` is in its high form, where parameters are tensors; `written` names those that a
    kernel may write. `device` is "cpu" or "cuda", where the launch will be. Arrays of a GPU are
    taken as they lie, and only for a launch there; those of the CPU are bound for either, and
    the caller moves their memory. Raises `LaunchError`.
    """
    if len(arguments) != len(program.params):
        names = ", ".join(param.name for param in program.params)
        raise LaunchError(
            f"{program.name} is called with the wrong number of arguments",
            code="argument-count",
            location=program.location,
            expected=f"{len(program.params)}: {names}",
            found=str(len(arguments)),
        )
    binding = _Binding(program.name, written, device)
    pairs = list(zip(program.params, arguments, strict=True))
    for param, argument in pairs:
        match param.type:
            case ScalarType(dtype):
                binding.scalar(param, argument, dtype)
            case TensorMapType():
                binding.tensor_map(param, argument)
            case _:
                continue
    arrays = [
        (param, binding.array(param, argument))
        for param, argument in pairs
        if isinstance(param.type, TensorType | PointerType)
    ]
    for param, array in arrays:
        binding.solve(param, array)
    for param, array in arrays:
        binding.check_shape(param, array)
    for param, array in arrays:
        binding.place(param, array)
    return binding.done()


def flattened(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Put the entries of tuples in their place: each field of one is a parameter."""
    found: list[Any] = []
    for each in arguments:
        if isinstance(each, tuple):
            found += flattened(cast("tuple[Any, ...]", each))
        else:
            found.append(each)
    return tuple(found)


@dataclass
class _Binding:
    """The state of binding one call: what is known so far of names, and the memory taken."""

    program: str
    written: frozenset[str]
    device: str
    values: dict[str, Value] = field(default_factory=dict[str, Value])
    origins: dict[str, str] = field(default_factory=dict[str, str])
    memories: list[Memory] = field(default_factory=list[Memory])
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    holdings: dict[str, Holding] = field(default_factory=dict[str, Holding])
    spans: list[_Span] = field(default_factory=list["_Span"])
    owners: list[Any] = field(default_factory=list[Any])

    def refuse(
        self, param: Var, code: str, problem: str, expected: str, found: str, hint: str = ""
    ) -> LaunchError:
        return LaunchError(
            f"argument {param.name!r} of {self.program} {problem}",
            code=code,
            location=param.location,
            expected=expected,
            found=found,
            hint=hint or None,
        )

    # ---- numbers

    def scalar(self, param: Var, argument: Any, kind: DType) -> None:
        number = _number(argument)
        if number is None or (kind.is_integer and isinstance(number, float)):
            raise self.refuse(
                param,
                "argument-kind",
                "is not a number of its parameter's type",
                f"a Python {'int' if kind.is_integer else 'number'} for {kind}",
                _describe(argument),
            )
        value = fitted(number, kind)
        if value is None:
            raise self.refuse(
                param,
                "argument-dtype",
                "does not fit its parameter's type",
                f"a value in the range of {kind}",
                repr(argument),
            )
        self.values[param.name] = value
        self.origins[param.name] = f"argument {param.name!r}"

    def tensor_map(self, param: Var, argument: Any) -> None:
        """Take a tensor map that the caller has made."""
        if not isinstance(argument, TensorMap):
            expected = "a tilewright.TensorMap"
            found = _describe(argument)
            raise self.refuse(param, "argument-kind", "is not a tensor map", expected, found)
        if problem := argument.problem():
            raise refusal(param.name, problem, param.location)
        self.values[param.name] = argument

    # ---- arrays

    def array(self, param: Var, argument: Any) -> Array:
        """Describe an array argument, and check all but its shape."""
        kind = param.type
        assert isinstance(kind, TensorType | PointerType)
        try:
            array = describe(argument)
        except Unseen as why:
            raise self.refuse(
                param, "argument-kind", why.problem, why.expected, why.found, why.hint
            ) from why
        if array is None:
            raise self.refuse(
                param,
                "argument-kind",
                "is not an array",
                f"an array of {kind.dtype}",
                _describe(argument),
            )
        self._check_device(param, array)
        self._check_dtype(param, array, kind)
        assert array.raw is not None
        if param.name in self.written and not array.raw.flags.writeable:
            raise self.refuse(
                param,
                "argument-read-only",
                "is read-only, and the kernel writes it",
                "an array that can be written",
                "a read-only one",
            )
        if param.name in self.written and array.recorded:
            raise self.refuse(
                param,
                "argument-read-only",
                "requires a gradient, and the kernel writes it",
                "a tensor of whose changes PyTorch's autograd need not know",
                "one that requires a gradient, where gradients are recorded",
                f"call the kernel under torch.no_grad(), or pass {param.name}.detach()",
            )
        self.owners.append(array)
        return array

    def _check_device(self, param: Var, array: Array) -> None:
        if self.device == array.device:
            return
        if self.device == "cpu":
            raise self.refuse(
                param,
                "argument-device",
                "lives where the simulator cannot reach it",
                "memory of the CPU",
                f"memory of {array.device}",
                "move it to the CPU first",
            )
        if array.device == "cpu":
            return
        if self.device == "cuda" and array.device.startswith("cuda:"):
            # The first array of a GPU says which it is.
            self.device = array.device
            return
        here = "a GPU" if self.device == "cuda" else self.device
        raise self.refuse(
            param,
            "argument-device",
            "lives where the GPU cannot reach it",
            f"memory of {here}, or of the CPU",
            f"memory of {array.device}",
            'move it to the GPU first, or compile with backend="sim"',
        )

    def _check_dtype(self, param: Var, array: Array, kind: TensorType | PointerType) -> None:
        held = holding(kind, array)
        if held is None:
            wanted = kind.dtype
            entries = f"{wanted}, or packed in uint8" if wanted.bits % 8 else str(unit(wanted))
            hint = ""
            if array.dtype is None and array.type_name[:1] in ("<", ">"):
                hint = "convert it to the machine's byte order"
            raise self.refuse(
                param,
                "argument-dtype",
                "has another element type than its parameter",
                entries,
                array.type_name,
                hint,
            )
        self.holdings[param.name] = held

    # ---- shapes

    def solve(self, param: Var, array: Array) -> None:
        """Check the rank of an array, and take shape symbols that are not known yet from it."""
        if isinstance(param.type, PointerType):
            return
        assert isinstance(param.type, TensorType) and array.raw is not None
        wanted = param.type.shape
        found = self.holdings[param.name].element_shape(array.raw.shape, len(wanted))
        if found is None or len(wanted) != len(found):
            raise self._wrong_shape(param, array.raw.shape)
        self.shapes[param.name] = found
        for axis, (extent, actual) in enumerate(zip(wanted, found, strict=True)):
            if isinstance(extent, Var) and extent.name not in self.values:
                if fitted(actual, extent.dtype) is None:
                    raise self._too_long(param, array.raw.shape, axis, extent)
                self.values[extent.name] = actual
                self.origins[extent.name] = f"axis {axis} of {param.name!r}"

    def check_shape(self, param: Var, array: Array) -> None:
        """Hold the shape of an array against its parameter's, when every symbol is known."""
        if isinstance(param.type, PointerType):
            return
        assert isinstance(param.type, TensorType) and array.raw is not None
        found = self.shapes[param.name]
        for axis, extent in enumerate(param.type.shape):
            if evaluate(extent, self.values) != found[axis]:
                raise self._wrong_shape(param, array.raw.shape, axis, extent)

    def _too_long(self, param: Var, found: tuple[int, ...], axis: int, symbol: Var) -> LaunchError:
        most = (1 << (symbol.dtype.bits - (symbol.dtype.kind == "int"))) - 1
        return self.refuse(
            param,
            "argument-shape",
            f"is too long on axis {axis}",
            f"at most {most} elements, as {symbol.name} is of type {symbol.dtype}",
            str(found),
            f'declare {symbol.name} = T.dynamic("{symbol.name}", "int64")',
        )

    def _wrong_shape(
        self,
        param: Var,
        found: tuple[int, ...],
        axis: int | None = None,
        extent: Expr | None = None,
    ) -> LaunchError:
        assert isinstance(param.type, TensorType)
        expected = self._shape_text(param, param.type)
        hint = ""
        if isinstance(extent, Var) and extent.name in self.origins:
            solved = self.values[extent.name]
            hint = f"{extent.name} is {solved} by {self.origins[extent.name]}"
        problem = "has the wrong shape" if axis is None else f"has the wrong shape on axis {axis}"
        return self.refuse(param, "argument-shape", problem, expected, str(found), hint)

    def _shape_text(self, param: Var, kind: TensorType) -> str:
        extents = ", ".join(str(extent) for extent in kind.shape)
        text = f"({extents}{',' if len(kind.shape) == 1 else ''})"
        held = self.holdings[param.name]
        if held.entries == held.elements:
            return text
        per = f"{held.entries} for {held.elements} of them"
        own_axis = ", or an axis of their own" if held.elements == 1 else ""
        return f"{text} of {kind.dtype}: {per} along the last axis{own_axis}"

    # ---- memory

    def place(self, param: Var, array: Array) -> None:
        """Decide where the kernel finds an array: where it is, or in a copy."""
        kind, raw = param.type, array.raw
        assert raw is not None and isinstance(kind, TensorType | PointerType)
        writes = param.name in self.written
        align, loose = alignment(kind), self.holdings[param.name].loose
        if writes and not _is_injective(raw):
            raise self.refuse(
                param,
                "argument-shape",
                "has elements that share memory, and the kernel writes it",
                "an array whose elements lie apart",
                f"strides of {raw.strides} bytes",
            )
        strided = not self._lies_as_expected(param, raw)
        if strided and self._has_own_layout(param):
            raise self.refuse(
                param,
                "argument-shape",
                "does not lie in memory as its parameter's layout says",
                f"the layout {kind.layout if isinstance(kind, TensorType) else None}",
                f"strides of {raw.strides} bytes",
            )
        copied = strided or bool(loose) or (raw.size > 0 and address_of(raw) % align != 0)
        if copied and array.device != "cpu":
            raise self.refuse(
                param,
                "argument-shape",
                "is strided, not packed or not aligned, and what lies on the GPU is not copied",
                f"a compact array, aligned to {align} bytes",
                f"strides of {raw.strides} bytes, at address {address_of(raw):#x}",
                f"pass {param.name}.contiguous(), or {param.name}.clone() if it is compact",
            )
        span = _Span(param, raw, self._copy_of(raw, loose) if copied else None, writes, loose)
        self._check_overlap(span)
        self.spans.append(span)
        used = raw if span.copy is None else span.copy
        self.values[param.name] = address_of(used)
        writable = bool(raw.flags.writeable)
        extent = _extent(used)
        self.memories.append(Memory(param.name, address_of(used), extent, writable, array.device))

    def _lies_as_expected(self, param: Var, raw: Raw) -> bool:
        if not self._has_own_layout(param) or raw.size == 0:
            return bool(raw.flags.c_contiguous)
        assert isinstance(param.type, TensorType)
        return raw.flags.c_contiguous or self._follows(param, param.type.layout, raw)

    def _follows(self, param: Var, layout: Any, raw: Raw) -> bool:
        """Tell whether an array's own strides put each element where a layout says."""
        held, shape = self.holdings[param.name], self.shapes[param.name]
        places, strides = image(layout, shape).get("m"), held.element_strides(raw, shape)
        if places is None or strides is None:
            return False
        axes = zip(np.indices(shape), strides, strict=True)
        own = sum((index * stride for index, stride in axes), start=np.zeros(shape, np.int64))
        return bool(np.array_equal(places * raw.itemsize * held.entries, own))

    def _has_own_layout(self, param: Var) -> bool:
        """Tell whether a parameter has a layout other than the compact one."""
        if not isinstance(param.type, TensorType) or param.type.layout is None:
            return False
        layout = param.type.layout
        return not (isinstance(layout, TileLayout) and layout.is_trivial())

    def _copy_of(self, raw: Raw, loose: int) -> Raw:
        """Copy an array to aligned, compact memory, once for arguments that are the same one."""
        for span in self.spans:
            if span.copy is not None and span.loose == loose and span.same_array(raw):
                return span.copy
        if loose:
            return packed(raw, loose)
        copied = aligned_empty(raw.nbytes).view(raw.dtype).reshape(raw.shape)
        np.copyto(copied, raw)
        return copied

    def _check_overlap(self, new: _Span) -> None:
        for old in self.spans:
            harmless = old.copy is new.copy or not (old.writes or new.writes)
            if not harmless and np.may_share_memory(old.raw, new.raw):
                copied = new if new.copy is not None else old
                raise self.refuse(
                    new.param,
                    "argument-shape",
                    f"overlaps argument {old.param.name!r} in memory, and {copied.param.name!r} "
                    "is strided, not packed or not aligned",
                    "compact, aligned arrays, or separate ones",
                    f"strides of {copied.raw.strides} bytes",
                    f"pass np.ascontiguousarray({copied.param.name})",
                )

    def done(self) -> Bound:
        return Bound(
            self.values,
            tuple(self.memories),
            tuple(self.spans),
            tuple(self.owners),
            self.device,
        )


@dataclass(frozen=True)
class _Span:
    """The memory of an argument, and the copy that stands for it, packed from `loose` bits."""

    param: Var
    raw: Raw
    copy: Raw | None
    writes: bool
    loose: int = 0

    def copy_back(self) -> None:
        if self.copy is not None and self.loose:
            unpack(self.copy, self.loose, self.raw)
        elif self.copy is not None:
            np.copyto(self.raw, self.copy)

    def same_array(self, raw: Raw) -> bool:
        mine = (address_of(self.raw), self.raw.shape, self.raw.strides, self.raw.dtype)
        return mine == (address_of(raw), raw.shape, raw.strides, raw.dtype)


def _number(argument: Any) -> Number | None:
    """Give a Python or NumPy number as Python's, `None` for anything else."""
    if isinstance(argument, np.generic):  # first: `np.float64` is a `float`, too
        scalar = cast(Any, argument)
        kind = from_numpy(scalar.dtype)
        if kind is None:
            return None
        return float(scalar) if kind.is_float else scalar.item()
    return argument if isinstance(argument, bool | int | float) else None


def plain_number(argument: Any) -> Any:
    """Give a number of NumPy as Python's, and everything else as it is."""
    if not isinstance(argument, np.generic):
        return argument
    number = _number(argument)
    return cast(Any, argument) if number is None else number


def fitted(number: Number, kind: DType) -> Number | None:
    """Bring a number to a type, if it has the number: exactly for integers, else rounded."""
    if kind.is_bool:
        return bool(number) if number in (0, 1) else None
    try:
        with np.errstate(over="ignore"):
            value = fit(number, kind)
    except OverflowError:  # Python's integers have no bounds.
        return None
    if kind.is_integer:
        return value if value == number else None
    overflowed = math.isinf(value) and not math.isinf(number)
    return None if overflowed else value


def _describe(argument: Any) -> str:
    text = repr(argument)
    short = text if len(text) <= 40 else text[:37] + "..."
    return f"{short} of type {type(argument).__name__}"


def _is_injective(raw: Raw) -> bool:
    """Tell whether an array's elements lie apart, as all but contrived strides have them."""
    if raw.size == 0:
        return True
    reach = raw.itemsize
    axes = sorted((abs(s), e) for s, e in zip(raw.strides, raw.shape, strict=True) if e > 1)
    for stride, extent in axes:
        if stride < reach:
            return False
        reach += stride * (extent - 1)
    return True


def _extent(raw: Raw) -> int:
    """Count the bytes from an array's first element to the end of its last."""
    if raw.size == 0:
        return 0
    spans = zip(raw.strides, raw.shape, strict=True)
    return sum(stride * (extent - 1) for stride, extent in spans) + raw.itemsize
