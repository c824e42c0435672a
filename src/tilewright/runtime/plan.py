"""Plans: launches that are ready, for arguments like those of an earlier call.

May import `base`, `ir`, `isa` and the rest of `runtime`. A plan is what makes launches cheap: it
asks PyTorch whether the tensors are like those that it was made with, writes what has changed of
addresses and numbers into its parameter buffers and calls the driver, in Python text made for just
that. It allocates no memory of the GPU and waits for nothing, so that its launches can be captured
in a CUDA graph. Its buffers belong to one thread.

    plan.start((a, b, out))    # False: these are not like its own; nothing was launched
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Protocol

import numpy as np

from tilewright.base import lazy
from tilewright.base.dtypes import DType
from tilewright.base.locations import Location
from tilewright.ir.expressions import Var
from tilewright.ir.statements import Kernel
from tilewright.ir.types import PointerType, ScalarType, TensorType
from tilewright.isa.tensor_map import ALIGN, BYTES, TensorMap
from tilewright.runtime.arguments import fitted
from tilewright.runtime.cuda_driver import Gpu
from tilewright.runtime.faults import WRONG_CONTEXT, failed
from tilewright.runtime.host import LaunchShape
from tilewright.runtime.launch_attributes import Config
from tilewright.runtime.likeness import Recognizer, recognizer
from tilewright.runtime.storage import alignment
from tilewright.runtime.streams import Source, current_stream

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


@dataclass(frozen=True)
class Launches:
    """The launches of a call on a GPU, in order, as their buffers say."""

    gpu: Gpu
    starts: tuple[Start, ...]

    def follow(self, stream: int | None) -> None:
        """Go to another stream from now on, but for kernels that name one of their own."""
        for each in self.starts:
            if not each.own_stream:
                each.config.stream = stream

    def run(self, stream: Source) -> None:
        """Launch."""
        self.follow(stream())
        for each in self.starts:
            if status := each.go():
                self.again(each, status)

    def finish(self) -> None:
        """Wait for the GPU; a fault is told at the kernel, as it can only be one of these."""
        if not self.starts:
            return
        with self.gpu.current():
            status = int(self.gpu.api.cuCtxSynchronize()[0])
        if status:
            self.gpu.told.add(status)
            kernels = list(dict.fromkeys(each.kernel.name for each in self.starts))
            first = self.starts[0].kernel
            location = first.launch.location or first.location
            raise failed(self.gpu.spelled(status), kernels, self.gpu.name, location)

    def again(self, start: Start, status: int) -> None:
        """Try once more in the right context, if that was what was wrong; else raise."""
        gpu, kernel = self.gpu, start.kernel
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


class StartEntry(Protocol):
    """Launches on arguments, on PyTorch's current stream or on that which is given."""

    def __call__(self, arguments: Arguments, stream_of: Source = ..., /) -> bool:
        """Tell whether it has launched: `False` for arguments that are not alike."""
        ...


class Plan:
    """The launches of a call, for arguments that are like those it was made with.

    `cells` are the parameters by name; `shaping` names those that have none, as another value
    means another launch; `written` those whose memory the launches may write. `maps` are the
    tensor maps, each with the parameter that it is a map of.

    `start(arguments)` launches on other arguments, on PyTorch's current stream, and
    `start(arguments, stream)` on the one that `stream()` gives. It gives `False`, and has launched
    nothing, for arguments that are not like those of the plan.
    """

    start: StartEntry

    def __init__(
        self,
        launches: Launches,
        params: tuple[Var, ...],
        arguments: Arguments,
        cells: Mapping[str, Any],
        shaping: frozenset[str],
        written: frozenset[str],
        maps: tuple[tuple[str, MapCell], ...],
    ) -> None:
        gpu, starts = launches.gpu, launches.starts
        tensors = {i: p for i, p in enumerate(params) if isinstance(p.type, _MEMORY)}
        numbers = {i: p for i, p in enumerate(params) if isinstance(p.type, ScalarType)}
        fixed = {i: arguments[i] for i, param in numbers.items() if param.name in shaping}
        self._tensors = tuple(tensors)
        names: dict[str, Any] = {
            "current": current_stream(gpu.ordinal),
            "follow": launches.follow,
            "misfits": (OverflowError, struct.error),
            "bits": bits,
            "floor": _floor(gpu, [arguments[i] for i in tensors]),
            **{f"go{i}": start.go for i, start in enumerate(starts)},
            **{f"again{i}": partial(launches.again, start) for i, start in enumerate(starts)},
            **{f"point{i}": tensor_map.point for i, (_, tensor_map) in enumerate(maps)},
            **{f"cell{i}": cells[param.name] for i, param in tensors.items()},
            **{f"kind{i}": type(arguments[i]) for i in numbers},
            **{f"fixed{i}": bits(value) for i, value in fixed.items()},
            **{
                f"write{i}": _writer(cells[param.name], param.dtype, arguments[i])
                for i, param in numbers.items()
                if i not in fixed
            },
        }
        gradients = (getattr(arguments[i], "requires_grad", False) for i in tensors)
        changed = (param.name in written for param in tensors.values())
        if any(map(all, zip(gradients, changed, strict=True))):
            torch: Any = lazy.loaded("torch")
            names["recorded"] = torch.is_grad_enabled
        pointed: dict[str, tuple[int, ...]] = {}
        for i, (name, _) in enumerate(maps):
            pointed[name] = (*pointed.get(name, ()), i)
        make = _compiled(
            len(params),
            tuple(
                _Taken(i, _bad(param, arguments[i]), pointed.get(param.name, ()))
                for i, param in tensors.items()
            ),
            tuple((i, i in fixed) for i in numbers),
            len(starts),
            tuple(names),
        )
        self.start, self._recognize = make(recognizes=_none_yet, **names)

    def start_alike(self, arguments: Arguments, *stream: Source) -> bool:
        """Start on arguments of the plan's likeness, and recognize such ones from now on.

        `False` if their addresses or numbers do not do. Not all of the likeness are recognized:
        none at first, nor where a tensor is given twice or PyTorch is in another mode.
        """
        if self.start(arguments, *stream):
            return True
        self._recognize(recognizer(tuple(arguments[place] for place in self._tensors)))
        return self.start(arguments, *stream)


# ---------------------------------------------------------------------------- a call, written out


@dataclass(frozen=True)
class _Taken:
    """How an argument that is a tensor is taken: what its `address` must not be, and its maps."""

    place: int
    bad: str
    maps: tuple[int, ...]


@lru_cache
def _compiled(
    count: int,
    tensors: tuple[_Taken, ...],
    numbers: tuple[tuple[int, bool], ...],
    launches: int,
    names: tuple[str, ...],
) -> Callable[..., tuple[StartEntry, Callable[[Recognizer], None]]]:
    """Write a plan's functions for its number of arguments, tensor maps and launches.

    `numbers` are the places of arguments that are numbers, and whether they are fixed. Loops over
    all these would take as long as what is done in them. The text speaks of `names`: arguments of
    a function around it, which many plans have in common, as they would fight over what Python
    keeps of globals. What the cells hold is known to one function only, for as long as they live.
    """
    # Tensors can have changed in place since the last call; of numbers, another type can be equal.
    places = [each.place for each in tensors]
    kept = [f"last{i}" for i in (*places, *(i for i, _ in numbers))]
    checks = [f"if not recognizes({_listed('argument', places)}): return False"]
    checks += ["if recorded(): return False"] * ("recorded" in names)
    taken = [*map(_taken_address, tensors), *(_taken_number(i, fixed) for i, fixed in numbers)]
    started = [f"if status := go{i}(): again{i}(status)" for i in range(launches)]
    text = f"""
def make(recognizes, {", ".join(names)}):
    on = "none yet"
    {_lines([f"{each} = None" for each in kept], 1)}

    def start(arguments, stream_of=current):
        nonlocal {", ".join(("on", *kept))}
        try:
            [{_listed("argument", range(count))}] = arguments
        except ValueError:  # of another number
            return False
        {_lines(checks, 2)}
        {_lines(taken, 2)}
        if (stream := stream_of()) != on:
            follow(stream)
            on = stream
        {_lines(started, 2)}
        return True

    def recognize(by):
        nonlocal recognizes
        recognizes = by

    return start, recognize
"""
    module: dict[str, Any] = {}
    exec(compile(text, "<plan of a launch>", "exec"), module)
    return module["make"]


def _taken_address(taken: _Taken) -> str:
    """Write how the address of a tensor is taken: what was looked at once is so no more."""
    i, pointed = taken.place, ""
    if taken.maps:
        pointed = f"""
            if not ({" and ".join(f"point{number}(address)" for number in taken.maps)}):
                return False"""
    return f"""\
        if (address := argument{i}.data_ptr()) != last{i}:
            if {taken.bad}:
                return False
            last{i} = None{pointed}
            cell{i}.value = last{i} = address"""


def _taken_number(i: int, fixed: bool) -> str:
    """Write how a number is taken; one that is the very object of the last call is as it was."""
    if fixed:
        fits = f"""
            if type(argument{i}) is not kind{i} or bits(argument{i}) != fixed{i}:
                return False"""
    else:
        fits = f"""
            if type(argument{i}) is not kind{i}:
                return False
            last{i} = None
            try:
                write{i}(argument{i})
            except misfits:
                return False"""
    return f"""\
        if argument{i} is not last{i}:{fits}
            last{i} = argument{i}"""


def _listed(name: str, places: Iterable[int]) -> str:
    return ", ".join(f"{name}{i}" for i in places)


def _lines(lines: Iterable[str], depth: int) -> str:
    return ("\n" + "    " * depth).join(line.lstrip() for line in lines)


def _none_yet(*_: Any) -> bool:
    """Recognize nothing, as a plan does until `start_alike`."""
    return False


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


def bits(number: Any) -> Any:
    """Give what tells a number from all others of its type: -0.0 from 0.0, a NaN from none."""
    return struct.pack("=d", number) if type(number) is float else number


def _bad(param: Var, argument: Any) -> str:
    """Write a test of `address` for what a parameter cannot be given, or may not be.

    An empty tensor has the address 0.
    """
    assert isinstance(param.type, _MEMORY)
    bits = alignment(param.type) - 1  # alignments are powers of two
    tests = [f"address & {bits}"] * bool(bits) + ["address < floor"] * (not _is_empty(argument))
    return " or ".join(tests) or "False"


def _floor(gpu: Gpu, tensors: Sequence[Any]) -> int:
    """Give an address below which tensors are to be looked at closely: is there memory?

    In storage that was freed, the address of a tensor is its offset there, so it is less than a
    GPU's memory; that of a real one hardly ever is.
    """
    addresses = (each.data_ptr() for each in tensors if not _is_empty(each))
    return min((gpu.memory, *addresses))


def _is_empty(tensor: Any) -> bool:
    return 0 in tensor.shape
