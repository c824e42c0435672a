"""A compiled function of the tile dialect: called with its inputs, it gives its outputs.

May import everything up to `driver`.

    kernel = compile(function, out_idx=[-1], target="sm_90a")
    c = kernel(a, b)
    print(kernel.get_kernel_source())
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from tilewright import driver
from tilewright.base.errors import LaunchError, TargetError, TilewrightError
from tilewright.frontend.annotations import symbols_of
from tilewright.frontend.functions import KernelFunction
from tilewright.frontend.tile.functions import TileFunction
from tilewright.ir.expressions import Var
from tilewright.ir.rewrite import map_statements
from tilewright.ir.statements import Program, Stmt
from tilewright.ir.tile import CopyTile
from tilewright.ir.types import ScalarType, TensorType, Type
from tilewright.jit.arrays import allocated, as_memory, sizes
from tilewright.jit.configs import configs
from tilewright.jit.profiler import Profiler, TensorSupplyType


@dataclass(frozen=True)
class KernelParam:
    """A parameter of a kernel: its element type and extents, `None` where a call tells them."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    @classmethod
    def of(cls, name: str, type: Type) -> KernelParam:
        """Describe a parameter."""
        dtype = type.dtype.name if isinstance(type, TensorType | ScalarType) else "handle"
        extents = type.shape if isinstance(type, TensorType) else ()
        known: list[Any] = [getattr(each, "value", None) for each in extents]
        return cls(name, dtype, tuple(known))

    def is_scalar(self) -> bool:
        """Tell a number from a tensor."""
        return not self.shape


class JITKernel:
    """A function of the tile dialect, compiled for a target.

    `params` are its parameters, `out_idx` the positions of those that a call gives back.
    `config`, `latency` and `ref_latency` (milliseconds) are set by tuning.
    """

    def __init__(
        self,
        function: KernelFunction,
        executable: driver.Executable,
        outputs: tuple[int, ...],
        allocates: tuple[int, ...],
        pass_configs: Mapping[str, Any],
    ) -> None:
        self.prim_func = function
        self.executable = executable
        self.pass_configs = dict(pass_configs)
        self.params = [KernelParam.of(*each) for each in function.params.items()]
        self.out_idx = list(outputs)
        self._allocates = allocates
        self.config: Any = None
        self.latency: float | None = None
        self.ref_latency: float | None = None

    @property
    def name(self) -> str:
        """Name the function."""
        return self.executable.name

    @property
    def target(self) -> Any:
        """Give the target that it is compiled for."""
        return self.executable.target

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run it; gives its outputs, several as a list, in the order that the function returns.

        Outputs are allocated here. Raises `LaunchError` (`argument-count`), and what an
        `Executable` raises.
        """
        given, options = self._arguments(args, named)
        types = self.prim_func.params
        values = sizes(types, given)
        whole: list[Any] = []
        like = list(given.values())
        for at, (name, type) in enumerate(types.items()):
            if at in self._allocates:
                assert isinstance(type, TensorType)
                whole.append(allocated(type, values, like))
            else:
                whole.append(as_memory(given[name]))
        self.executable(*whole, **options)
        found = [whole[at] for at in self.out_idx]
        return found[0] if len(found) == 1 else found or None

    def _arguments(
        self, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Name the arguments of a call; what names no parameter is an option of the call."""
        names = self.inputs
        given = dict(zip(names, args, strict=False))
        given |= {name: named.pop(name) for name in names if name in named}
        if len(args) > len(names) or len(given) != len(names):
            raise LaunchError(
                f"{self.name} is called with the wrong number of arguments",
                code="argument-count",
                location=self.prim_func.location,
                expected=f"{len(names)}: {', '.join(names) or 'none'}",
                found=f"{len(args)} by position, {', '.join(given)}",
                hint="outputs are allocated by the call" if self._allocates else None,
            )
        return {name: given[name] for name in names}, named

    @property
    def inputs(self) -> list[str]:
        """Name the parameters that a call gives."""
        return [name for at, name in enumerate(self.prim_func.params) if at not in self._allocates]

    # ---- what it is compiled to

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """Give the CUDA C++ text; with the host's part if `kernel_only` is false."""
        source = self.executable.source
        return source if kernel_only else f"{source}\n{self.get_host_source()}"

    def get_host_source(self) -> str:
        """Give the program whose host's part launches the kernels."""
        return self.prim_func.script()

    def show_source(self, which: str = "kernel") -> None:
        """Print the CUDA C++ text ("kernel"), the program ("host"), or "both"."""
        if which in ("kernel", "both"):
            print(self.get_kernel_source())
        if which in ("host", "both"):
            print(self.get_host_source())

    def export_sources(self, kernel_path: str | None = None, host_path: str | None = None) -> None:
        """Write the CUDA C++ text, and the program, to files."""
        for path, text in (
            (kernel_path, self.get_kernel_source),
            (host_path, self.get_host_source),
        ):
            if path is not None:
                _write(path, text())

    def get_ptx(self) -> str:
        """Compile to PTX."""
        return self.executable.ptx()

    def get_sass(self) -> str:
        """Show the instructions of the cubin."""
        return self.executable.sass()

    def show_ptx(self) -> None:
        """Print the PTX."""
        print(self.get_ptx())

    def show_sass(self) -> None:
        """Print the instructions of the cubin."""
        print(self.get_sass())

    def export_ptx(self, path: str) -> None:
        """Write the PTX to a file."""
        _write(path, self.get_ptx())

    def export_sass(self, path: str) -> None:
        """Write the instructions of the cubin to a file."""
        _write(path, self.get_sass())

    def export_library(self, path: str) -> None:
        """Write the cubin to a file.

        Raises `TargetError` (`not-supported`) for a library that the host loads.
        """
        if Path(path).suffix in (".so", ".dll", ".dylib"):
            raise TargetError(
                "there is no library of the host to write: Python launches the kernels",
                code="not-supported",
                expected="a path that ends with .cubin",
                found=path,
            )
        _to(path).write_bytes(self.executable.cubin())

    # ---- measuring

    def get_profiler(
        self, tensor_supply_type: TensorSupplyType = TensorSupplyType.Auto
    ) -> Profiler:
        """Give what makes inputs, compares results and measures."""
        types = [self.prim_func.params[name] for name in self.inputs]
        return Profiler(self, types, tensor_supply_type)

    def run_once(self, func: Callable[..., Any] | None = None) -> None:
        """Run it once, with inputs that are made."""
        self.get_profiler().run_once(func)

    def __repr__(self) -> str:
        return f"<compiled {self.executable!r}>"


def _to(path: str) -> Path:
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _write(path: str, text: str) -> None:
    _to(path).write_text(text)


# ---------------------------------------------------------------------------- compiling


def compile(
    func: Any = None,
    out_idx: Any = None,
    execution_backend: str | None = None,
    target: Any = None,
    target_host: Any = None,
    verbose: bool | None = None,
    pass_configs: Mapping[Any, Any] | None = None,
    compile_flags: Any = None,
    **options: Any,
) -> JITKernel:
    """Compile a function of the tile dialect.

    `out_idx` are the positions of parameters that a call allocates and gives back, where the
    function declares none; negative ones count from the end. Of `pass_configs` those that forbid
    bulk copies act. `execution_backend`, `target_host`, `verbose` and `compile_flags` mean
    nothing here; further options are those of `tilewright.compile`. Raises `LaunchError`
    (`argument-kind`, `bad-option`), and what `tilewright.compile` raises.
    """
    if not isinstance(func, KernelFunction):
        raise LaunchError(
            "there is nothing to compile",
            code="argument-kind",
            expected="a function decorated with @T.prim_func",
            found=f"{func!r} of type {type(func).__name__}",
        )
    reading = func.reading if isinstance(func, TileFunction) else None
    asked = configs(reading and reading.options.get("pass_configs"), pass_configs)
    outputs, allocates = _outputs(func, out_idx)
    program = _configured(func.program, asked)
    executable = driver.compile(program, _target(target), **options)
    return JITKernel(func, executable, outputs, allocates, asked)


def _outputs(func: KernelFunction, out_idx: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Say which parameters a call gives back, and which it allocates."""
    reading = func.reading if isinstance(func, TileFunction) else None
    own = () if reading is None else reading.allocated
    declared = () if reading is None else reading.outputs
    if out_idx is None:
        return declared, own
    if declared:
        raise LaunchError(
            f"{func.name} declares its outputs, and out_idx is given as well",
            code="bad-option",
            location=func.location,
            expected="T.empty(…) and `return`, or out_idx=",
            found=f"out_idx={out_idx!r}",
        )
    count = len(func.params) - len(own)
    listed = cast("Sequence[int]", out_idx if isinstance(out_idx, list | tuple) else [out_idx])
    if wrong := [each for each in listed if not -count <= each < count]:
        raise LaunchError(
            f"{func.name} has no parameter {wrong[0]}",
            code="bad-option",
            location=func.location,
            expected=f"{-count} … {count - 1}",
            found=f"out_idx={out_idx!r}",
        )
    found = tuple(each % count for each in listed)
    allocates = (*found, *own)
    _check_outputs(func, found, allocates)
    return found, allocates


def _check_outputs(
    func: KernelFunction, outputs: tuple[int, ...], allocates: tuple[int, ...]
) -> None:
    """Refuse outputs that a call cannot allocate: numbers, and tensors of unknown extents."""
    types = list(func.params.items())
    known: set[str] = set()
    for at, (name, type) in enumerate(types):
        if at not in allocates:
            known.add(name)
            shape = type.shape if isinstance(type, TensorType) else ()
            known |= {each.name for each in shape if isinstance(each, Var)}
    for name, type in (types[at] for at in outputs):
        unknown = [each.name for each in symbols_of([type]) if each.name not in known]
        if unknown or not isinstance(type, TensorType):
            raise LaunchError(
                f"a call cannot allocate {name!r}, which is to be an output of {func.name}",
                code="bad-option",
                location=func.location,
                expected="a tensor whose extents are numbers, or extents of other arguments",
                found=f"{unknown[0]}, which no other argument tells" if unknown else str(type),
                hint="leave it out of out_idx=, and give it to the call",
            )


def _target(target: Any) -> Any:
    """Read a target; "auto" leaves it open."""
    return None if target == "auto" else getattr(target, "arch", target)


def _configured(program: Program, asked: Mapping[str, Any]) -> Program:
    """Let a program say by itself what configurations ask."""
    if not asked.get("tl.disable_tma_lower"):
        return program

    def without_bulk(stmt: Stmt) -> Stmt | None:
        match stmt:
            case CopyTile(way=None):
                return replace(stmt, options=(*stmt.options, ("disable_tma", True)))
            case _:
                return None

    kernels = tuple(
        replace(each, body=map_statements(each.body, without_bulk)) for each in program.kernels
    )
    return replace(program, kernels=kernels)


def par_compile(
    funcs: Iterable[Any],
    out_idx: Any = None,
    num_workers: int | None = None,
    ignore_error: bool = False,
    **options: Any,
) -> list[JITKernel | None]:
    """Compile several functions at the same time; see `compile`.

    With `ignore_error` what cannot be compiled is `None`.
    """
    listed = list(funcs)

    def one(function: Any) -> JITKernel | None:
        try:
            return compile(function, out_idx, **options)
        except TilewrightError:
            if ignore_error:
                return None
            raise

    workers = num_workers or min(len(listed) or 1, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, listed))


@dataclass(frozen=True)
class CompiledArtifact:
    """What `lower` gives: the program, its parameters, and the CUDA text."""

    device_mod: Program
    host_mod: Program
    params: list[KernelParam]
    kernel_source: str


def lower(func: Any, target: Any = None, target_host: Any = None, **_: Any) -> CompiledArtifact:
    """Compile a function, and give its program and the CUDA text."""
    kernel = compile(func, target=target)
    program = kernel.executable.ir
    return CompiledArtifact(program, program, kernel.params, kernel.get_kernel_source())


# ---------------------------------------------------------------------------- the cache


def enable_cache() -> None:
    """Keep compiled code between processes, as it is unless an option says otherwise."""
    driver.keep_compiled(True)


def disable_cache() -> None:
    """Keep no compiled code between processes, from now on."""
    driver.keep_compiled(False)
