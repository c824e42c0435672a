"""What `device.py pack` writes: a case is a cubin, launches, inputs and the simulator's bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import device_forms
import device_kernels
import numpy as np

import tilewright
from tilewright.base.errors import TargetError
from tilewright.base.targets import target as target_named
from tilewright.codegen import kernel_symbols
from tilewright.ir.statements import Kernel
from tilewright.ir.types import PointerType
from tilewright.isa.tensor_map import FORMATS, TensorMap
from tilewright.runtime.arguments import bind
from tilewright.runtime.arrays import aligned_empty
from tilewright.runtime.host import HostRun, Values, launch_shape
from tilewright.runtime.launch_attributes import attributes


@dataclass(frozen=True)
class Case:
    """A program with its arguments; `regions` name parts of arrays: array, start, end, text."""

    name: str
    program: Any
    arguments: tuple[Any, ...]
    regions: tuple[tuple[int, int, int, str], ...] = field(default=())


def cases(target: str) -> list[Case]:
    """List the kernels: those of the examples, those written for this, and one per family."""
    written = (Case(*each) for each in device_kernels.kernels())
    made = (Case(*each) for each in device_forms.kernels(target_named(target)))
    return [*written, *made]


def pack(folder: Path, target: str, names: Iterable[str]) -> list[dict[str, Any]]:
    """Write the files of the cases, and give their entries in the manifest."""
    wanted = tuple(names)
    entries: list[dict[str, Any]] = []
    for case in cases(target):
        if wanted and not any(name in case.name for name in wanted):
            continue
        try:
            entries.append(entry(folder, target, case))
        except TargetError as error:
            print(f"left out: {case.name}: {error.message}")
        except Exception as error:
            print(f"NOT PACKED: {case.name}: {type(error).__name__}: {error}")
    return entries


def entry(folder: Path, target: str, case: Case, *, simulated: bool = True) -> dict[str, Any]:
    """Write the files of a case, and give what the manifest says of it.

    What is not simulated is expected to leave its arguments as they are.
    """
    ex = tilewright.compile(case.program, target=target, backend="sim", numerics="exact")
    arguments = tuple(_aligned(each) for each in case.arguments)
    arrays = [each for each in arguments if isinstance(each, np.ndarray)]
    given = [_raw(each).copy() for each in arrays]
    launches = _launches(ex, arguments, arrays)
    if simulated:
        ex(*arguments)
    stem = re.sub(r"\W+", "_", case.name)
    cubin, data = f"{stem}.cubin", f"{stem}.npz"
    (folder / cubin).write_bytes(ex.cubin())
    contents = {f"given{i}": each for i, each in enumerate(given)}
    contents |= {f"expected{i}": _raw(each) for i, each in enumerate(arrays)}
    np.savez_compressed(folder / data, **contents)
    return {
        "name": case.name,
        "cubin": cubin,
        "data": data,
        "arrays": len(arrays),
        "launches": launches,
        "regions": [list(each) for each in case.regions],
    }


def _launches(ex: Any, arguments: tuple[Any, ...], arrays: list[Any]) -> list[dict[str, Any]]:
    bound = bind(ex.program, arguments, frozenset())
    places = {each.ctypes.data: i for i, each in enumerate(arrays)}
    found: list[dict[str, Any]] = []

    symbols = kernel_symbols(ex.ir)

    def record(kernel: Kernel, values: Values) -> None:
        shape = launch_shape(kernel, values, ex.target)
        params: list[Any] = []
        for var in (*kernel.params, *kernel.symbols):
            value = values[var.name]
            if isinstance(value, TensorMap):
                params.append(_tensor_map(value, arrays))
            elif isinstance(var.type, PointerType):
                params.append(places[int(value)])
            else:
                params.append(np.asarray(value, var.dtype.numpy).tobytes().hex())
        made = attributes(dict(kernel.launch.options), None, values, None)
        found.append(
            {
                "kernel": symbols[kernel.name],
                "grid": shape.grid,
                "block": shape.block,
                "shared": kernel.shared_bytes + shape.dynamic_shared_bytes,
                "params": params,
                "attributes": [[each.id, bytes(each.value).hex()] for each in made],
            }
        )

    HostRun(ex.ir, record, print)(bound.values)
    return found


def _tensor_map(made: TensorMap, arrays: list[Any]) -> dict[str, Any]:
    """Say which array a map is of, and what the driver is told of it, in its order."""
    starts = [made.address - each.ctypes.data for each in arrays]
    fits = [0 <= at < each.nbytes for at, each in zip(starts, arrays, strict=True)]
    array = fits.index(True)
    return {
        "array": array,
        "offset": starts[array],
        "format": tuple(FORMATS).index(made.format),
        "axes": [made.extents, made.strides, made.box, made.steps],
        "options": [made.interleave, made.swizzle, made.l2_promotion, made.oob_fill],
    }


def _aligned(argument: Any) -> Any:
    if not isinstance(argument, np.ndarray):
        return argument
    copied = aligned_empty(argument.nbytes).view(argument.dtype).reshape(argument.shape)
    np.copyto(copied, argument)
    return copied


def _raw(array: Any) -> Any:
    return array.reshape(-1).view(np.uint8)
