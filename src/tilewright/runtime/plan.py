"""Plans: launches that are ready, for arguments like those of an earlier call.

May import `base`, `ir`, `isa` and the rest of `runtime`. A plan is what makes launches cheap: it
asks PyTorch whether the tensors are like those that it was made with, writes addresses and numbers
into its parameter buffers and calls the driver, in Python text made for just that. It allocates no
memory of the GPU and waits for nothing, so that its launches can be captured in a CUDA graph. Its
buffers belong to one thread.

    plan.start((a, b, out))    # False: these are not like its own; nothing was launched
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from tilewright.base import lazy
from tilewright.base.dtypes import DType
from tilewright.base.locations import Location
from tilewright.ir.expressions import Var
from tilewright.ir.statements import Kernel
from tilewright.ir.types import PointerType, ScalarType, TensorType
from tilewright.isa.tensor_map import ALIGN, BYTES, TensorMap
from tilewright.runtime.arguments import fitted
from tilewright.runtime.cuda_driver import WRONG_CONTEXT, Gpu
from tilewright.runtime.host import LaunchShape
from tilewright.runtime.launch_attributes import Config
from tilewright.runtime.likeness import Recognizer, recognizer
from tilewright.runtime.storage import alignment

Arguments = tuple[Any, ...]

_MEMORY = TensorType | PointerType
# The bits of a tensor map for addresses beyond this number are forgotten.
_MOST_ADDRESSES = 1024
_NUMBER_KINDS = {"bool": bool, "int": int, "uint": int, "float": float}
# Types that `struct` writes, and refuses to write where a number does not fit.
_FORMATS = dict(
    zip(
        ("bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))),
        "?bhiqBHIQ",
        strict=True,
    )
) | {"float16": "e", "float32": "f", "float64": "d"}


@dataclass(frozen=True)
class Start:
    """A launch that is ready: call `go`; the other fields keep its buffers, and tell of it."""

    go: Callable[[], int]
    config: Config
    kernel: Kernel
    shape: LaunchShape
    buffers: tuple[Any, ...]
    own_stream: bool


class MapCell:
    """A tensor map of a plan: its bits, where launches find them, and those of earlier calls.

    `base` is the address of the argument in which the tensor lies.
    """

    def __init__(
        self, gpu: Gpu, name: str, made: TensorMap, base: int, location: Location | None
    ) -> None:
        self._gpu, self._name, self._made, self._location = gpu, name, made, location
        self._offset = made.address - base
        raw = ctypes.create_string_buffer(BYTES + ALIGN)
        self.bits = (ctypes.c_char * BYTES).from_buffer(raw, -ctypes.addressof(raw) % ALIGN)
        self._known: dict[int, bytes] = {}
        self._base: int | None = None
        self.point(base)

    def point(self, base: int) -> bool:
        """Let the map be of an argument at that address; `False` if there cannot be one."""
        if base == self._base:
            return True
        bits = self._known.get(base)
        if bits is None:
            made = replace(self._made, address=base + self._offset)
            if made.problem() is not None:
                return False
            self._base = None
            into = ctypes.addressof(self.bits)
            self._gpu.encode_tensor_map(self._name, made, into, self._location)
            if len(self._known) >= _MOST_ADDRESSES:
                self._known.clear()
            self._known[base] = self.bits.raw
        else:
            self.bits.raw = bits
        self._base = base
        return True


class Plan:
    """The launches of a call, for arguments that are like those it was made with.

    `cells` are the parameters by name; `shaping` names those that have none, as another value
    means another launch. `maps` are the tensor maps, each with the parameter that it is a map of.

    `launch()` launches on what the buffers hold. `start(arguments)` launches on other arguments;
    it gives `False`, and has launched nothing, if they are not like those that the plan is for.
    """

    launch: Callable[[], None]
    start: Callable[[Arguments], bool]

    def __init__(
        self,
        gpu: Gpu,
        starts: tuple[Start, ...],
        params: tuple[Var, ...],
        arguments: Arguments,
        cells: Mapping[str, Any],
        shaping: frozenset[str],
        maps: tuple[tuple[str, MapCell], ...],
    ) -> None:
        self._gpu = gpu
        self._starts = starts
        places = {param.name: place for place, param in enumerate(params)}
        tensors = {i: p for i, p in enumerate(params) if isinstance(p.type, _MEMORY)}
        numbers = {i: p for i, p in enumerate(params) if isinstance(p.type, ScalarType)}
        fixed = {i: arguments[i] for i, param in numbers.items() if param.name in shaping}
        self._tensors = tuple(tensors)
        self._names: dict[str, Any] = {
            "stream_of": _stream_source(gpu.ordinal),
            "follow": self._follow,
            "misfits": (OverflowError, struct.error),
            **{f"go{i}": start.go for i, start in enumerate(starts)},
            **{f"again{i}": partial(self._again, start) for i, start in enumerate(starts)},
            **{f"point{i}": tensor_map.point for i, (_, tensor_map) in enumerate(maps)},
            **{f"cell{i}": cells[param.name] for i, param in tensors.items()},
            **{f"kind{i}": type(arguments[i]) for i in numbers},
            **{f"fixed{i}": value for i, value in fixed.items()},
            **{
                f"write{i}": _writer(cells[param.name], param.dtype, arguments[i])
                for i, param in numbers.items()
                if i not in fixed
            },
        }
        text = _written_out(
            len(params),
            {i: _misaligned(param) for i, param in tensors.items()},
            [places[name] for name, _ in maps],
            {i: i in fixed for i in numbers},
            len(starts),
            self._names,
        )
        self._make = _compiled(text)
        self._recognize(_none_yet)

    def start_alike(self, arguments: Arguments) -> bool:
        """Launch on arguments of the plan's likeness, and recognize such ones from now on.

        `False` if their addresses or numbers do not do. Not all of the likeness are recognized:
        none at first, nor where a tensor is given twice or PyTorch is in another mode.
        """
        if self.start(arguments):
            return True
        self._recognize(recognizer(tuple(arguments[place] for place in self._tensors)))
        return self.start(arguments)

    def _recognize(self, recognizes: Recognizer) -> None:
        self.launch, self.start = self._make(recognizes=recognizes, **self._names)

    def _follow(self, stream: int | None) -> None:
        """Launch on another stream from now on."""
        for each in self._starts:
            if not each.own_stream:
                each.config.stream = stream

    def _again(self, start: Start, status: int) -> None:
        """Try once more in the right context, if that was what was wrong; else raise."""
        gpu, kernel = self._gpu, start.kernel
        if status in WRONG_CONTEXT:
            with gpu.current():
                status = start.go()
        if status:
            shape = start.shape
            raise gpu.error(
                status,
                f"{kernel.name} cannot be launched on {gpu.name}",
                kernel.launch.location or kernel.location,
                f"grid {shape.grid}, block {shape.block}, cluster {shape.cluster}, "
                f"{start.config.shared_bytes} bytes of shared memory",
            )


# ---------------------------------------------------------------------------- a call, written out


def _written_out(
    count: int,
    tensors: Mapping[int, int],
    maps: Sequence[int],
    numbers: Mapping[int, bool],
    launches: int,
    names: Iterable[str],
) -> str:
    """Write a plan's functions for its number of arguments, tensor maps and launches.

    `tensors` and `numbers` are by their place among the arguments: the bits that an address must
    not have set, and whether a number is fixed. `maps` are the places of their tensors. Loops
    over these would take as long as what is done in them. The text speaks of `names`: arguments of
    a function around it, as plans that share a text would fight over what Python keeps of globals.
    """
    # Tensors can have changed in place since the last call; numbers of another type can be equal.
    alike = [
        f"recognizes({', '.join(f'argument{i}' for i in tensors)})",
        *(f"type(argument{i}) is kind{i}" for i in numbers),
        *(f"argument{i} == fixed{i}" for i, fixed in numbers.items() if fixed),
    ]
    read = [f"address{i} = argument{i}.data_ptr()" for i in tensors]
    misaligned = [f"address{i} & {bits}" for i, bits in tensors.items() if bits]
    filled = [f"cell{i}.value = address{i}" for i in tensors]
    pointed = [f"point{number}(address{i})" for number, i in enumerate(maps)]
    written = [f"write{i}(argument{i})" for i, fixed in numbers.items() if not fixed]
    started = [f"if status := go{i}(): again{i}(status)" for i in range(launches)]
    launching = f"""
        nonlocal current
        stream = stream_of()
        if stream != current:
            follow(stream)
            current = stream
        {_lines(started)}"""
    return f"""
def make(recognizes, {", ".join(names)}):
    current = None

    def launch():{launching}

    def start(arguments):
        try:
            [{", ".join(f"argument{i}" for i in range(count))}] = arguments
        except ValueError:  # of another number
            return False
        if not ({" and ".join(alike)}):
            return False
        {_lines(read)}
        if {" or ".join(misaligned) or False}:
            return False
        {_lines(filled)}
        if not ({" and ".join(pointed) or True}):
            return False
        try:
            {"; ".join(written) or "pass"}
        except misfits:
            return False{launching}
        return True

    return launch, start
"""


def _lines(lines: Iterable[str]) -> str:
    return "\n        ".join(lines)


def _none_yet(*_: Any) -> bool:
    """Recognize nothing, as a plan does until `start_alike`."""
    return False


@lru_cache
def _compiled(text: str) -> Callable[..., tuple[Callable[[], None], Callable[[Arguments], bool]]]:
    """Compile a text, which the plans of many programs have in common."""
    module: dict[str, Any] = {}
    exec(compile(text, "<plan of a launch>", "exec"), module)
    return module["make"]


# ---------------------------------------------------------------------------- parameters


def parameter_cell(var: Var, value: Any) -> Any:
    """Make memory that holds a parameter of a kernel, an address or a number of its type."""
    if not isinstance(var.type, ScalarType):
        return ctypes.c_uint64(int(value))
    # A union would do as well: the driver reads as many bytes as the parameter has.
    cell = (ctypes.c_uint64 * 2)()
    _set_number(cell, value, var.dtype)
    return cell


def _set_number(cell: Any, value: Any, dtype: DType) -> None:
    data = np.asarray(value, dtype.numpy).tobytes()
    ctypes.memmove(cell, data, len(data))


def _writer(cell: Any, dtype: DType, like: Any) -> Callable[[Any], object]:
    """Make what writes a number of one's type of Python's; it raises if the number does not fit."""
    if dtype.name in _FORMATS and type(like) is _NUMBER_KINDS[dtype.kind]:
        return partial(struct.Struct(f"={_FORMATS[dtype.name]}").pack_into, cell, 0)

    def write(number: Any) -> None:
        value = fitted(number, dtype)
        if value is None:
            raise OverflowError
        _set_number(cell, value, dtype)

    return write


def _misaligned(param: Var) -> int:
    """Give the bits of an address that must not be set. An empty tensor has the address 0."""
    assert isinstance(param.type, _MEMORY)
    return alignment(param.type) - 1  # alignments are powers of two


def _stream_source(ordinal: int) -> Callable[[], int | None]:
    """Give the function that tells a GPU's current stream, `None` for the default stream."""
    torch = lazy.loaded("torch")
    if torch is None or not torch.cuda.is_available():
        return lambda: None
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:
        return partial(raw, ordinal)
    return lambda: torch.cuda.current_stream(ordinal).cuda_stream
