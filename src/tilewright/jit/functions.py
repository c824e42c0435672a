"""`jit`: functions of the tile dialect that are compiled when they are called.

May import everything up to `driver`. A *lazy* function takes what is known at compile time and
returns a function under `@T.prim_func`: a call gives what that is compiled to. The body of an
*eager* one is a kernel's: a call takes tensors, compiles for their sizes, and gives the outputs.
"""

from __future__ import annotations

import ast
import inspect
import reprlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any, Literal

from tilewright.base.errors import LaunchError
from tilewright.frontend.functions import KernelFunction, identity
from tilewright.frontend.source import read_source
from tilewright.frontend.tile.functions import TileFunction
from tilewright.frontend.tile.reader import Declared, declare, read_body, stated_arguments
from tilewright.ir.expressions import Var
from tilewright.ir.types import TensorType
from tilewright.jit.arrays import extents
from tilewright.jit.kernels import JITKernel, compile, par_compile
from tilewright.runtime.once import Once

Mode = Literal["lazy", "eager"]


@dataclass(frozen=True)
class Call:
    """The arguments of a call of an eager function: what is known, and what a kernel is given.

    `sizes` are names of `T.const` that are given. An argument `None` is known, and may be missed
    as a tensor: which it is, the body says.
    """

    constants: dict[str, Any]
    tensors: dict[str, Any]
    sizes: dict[str, Any]


@dataclass
class _Memo:
    """Values by keys, each made once, with any number of threads."""

    made: dict[Any, Once[Any]] = field(default_factory=dict[Any, Once[Any]])
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        with self.lock:
            once = self.made.setdefault(key, Once(make))
        return once()


class JITFunction:
    """A function that is compiled when it is called; each set of constants and sizes once.

    `options` are those of `compile`.
    """

    def __init__(
        self,
        function: FunctionType,
        around: Mapping[str, Any],
        options: dict[str, Any],
        debug_root_path: str | None = None,
    ) -> None:
        self.func = function
        self.options = options
        self.debug_root_path = debug_root_path
        self.signature = inspect.signature(function)
        self._around = around
        self._kernels, self._declared = _Memo(), _Memo()
        self._mode: Once[Mode] = Once(lambda: _mode(function))
        self._stated = Once(lambda: stated_arguments(function))
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    @property
    def mode(self) -> Mode:
        """Say what a call gives: a kernel ("lazy"), or the outputs ("eager")."""
        return self._mode()

    @property
    def out_idx(self) -> Any:
        """Give the positions of the parameters that a lazy function's kernel gives back."""
        return self.options.get("out_idx")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compile for these arguments, if that has not been done; run it, if it is eager.

        Raises what `compile` and a call of its kernel raise.
        """
        if self.mode == "lazy":
            return self.compile(*args, **kwargs)
        call = self._bound(args, kwargs)
        if lacking := [name for name in self._stated() if name not in call.tensors]:
            raise self._refusal(f"it lacks {lacking[0]!r}")
        kernel, stated = self._kernel(call), self._declaration(call).types
        return kernel(**{name: each for name, each in call.tensors.items() if name in stated})

    def compile(self, *args: Any, **kwargs: Any) -> JITKernel:
        """Compile for these arguments; an eager function's sizes may stand for its tensors."""
        if self.mode == "eager":
            return self._kernel(self._bound(args, kwargs))
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise self._refusal(str(error)) from error
        bound.apply_defaults()
        key = identity(dict(bound.arguments))
        return self._kernels.get(key, lambda: self._compiled(self.get_tir(*args, **kwargs)))

    def get_tir(self, *args: Any, **kwargs: Any) -> TileFunction:
        """Give the function that these arguments make, before it is compiled.

        Raises `LaunchError` (`argument-kind`) if a lazy function returns none.
        """
        if self.mode == "eager":
            call = self._bound(args, kwargs)
            return self._read(call, self._sizes(call))
        made = self.func(*args, **kwargs)
        if not isinstance(made, KernelFunction):
            raise LaunchError(
                f"{self.__name__} returns no function of the dialect, and has no kernel itself",
                code="argument-kind",
                expected="a function under @T.prim_func, or a body with `with T.Kernel(…)`",
                found=repr(made),
            )
        return made  # pyright: ignore[reportReturnType]

    def get_kernel_source(self, *args: Any, **kwargs: Any) -> str:
        """Compile for these arguments, and give the CUDA C++ text."""
        return self.compile(*args, **kwargs).get_kernel_source()

    def par_compile(
        self, configs: Iterable[Any], num_workers: int | None = None, ignore_error: bool = False
    ) -> list[JITKernel | None]:
        """Compile for several sets of arguments, tuples or dictionaries, at the same time."""
        functions = [
            self.get_tir(**each) if isinstance(each, dict) else self.get_tir(*each)
            for each in configs
        ]
        return par_compile(
            functions, num_workers=num_workers, ignore_error=ignore_error, **self.options
        )

    def _compiled(self, function: TileFunction) -> JITKernel:
        kernel = compile(function, **self.options)
        if self.debug_root_path is not None:
            folder = Path(self.debug_root_path)
            name = f"tilelang_jit_{{}}_{function.name}"
            kernel.export_sources(
                str(folder / f"{name.format('kernel')}.cu"),
                str(folder / f"{name.format('program')}.py"),
            )
        return kernel

    # ---- eager functions

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Tell tensors from what is known; other names are sizes."""
        own = self.signature.parameters
        sizes = {name: kwargs.pop(name) for name in list(kwargs) if name not in own}
        stated = self._stated()
        try:
            bound = self.signature.bind_partial(*args, **kwargs)
        except TypeError as error:
            raise self._refusal(str(error)) from error
        bound.apply_defaults()
        given = dict(bound.arguments)
        constants = {
            name: value for name, value in given.items() if value is None or name not in stated
        }
        missing = [name for name in own if name not in given and name not in stated]
        if missing:
            raise self._refusal(f"it lacks {missing[0]!r}")
        tensors = {name: given[name] for name in stated if name in given}
        return Call(constants, tensors, sizes)

    def _refusal(self, found: str) -> LaunchError:
        return LaunchError(
            f"{self.__name__} is called with the wrong arguments",
            code="argument-count",
            expected=f"{self.__name__}{self.signature}",
            found=found,
        )

    def _kernel(self, call: Call) -> JITKernel:
        sizes = self._sizes(call)
        key = identity(call.constants), identity(sizes)
        return self._kernels.get(key, lambda: self._compiled(self._read(call, sizes)))

    def _read(self, call: Call, sizes: Mapping[str, int]) -> TileFunction:
        if self.out_idx is not None:
            raise LaunchError(
                f"{self.__name__} declares its outputs by itself",
                code="bad-option",
                expected="T.empty(…) and `return`",
                found=f"out_idx={self.out_idx!r}",
            )
        reading = read_body(self.func, self._around, call.constants, sizes)
        return TileFunction(self.func, reading)

    def _declaration(self, call: Call) -> Declared:
        """Read what the function says of its arguments, where these are known."""
        return self._declared.get(
            identity(call.constants),
            lambda: declare(self.func, self._around, call.constants),
        )

    def _sizes(self, call: Call) -> dict[str, int]:
        """Find what the names of `T.const` stand for: given, or extents of tensors."""
        declared = self._declaration(call)
        if unknown := call.sizes.keys() - set(declared.constants):
            raise self._refusal(f"{sorted(unknown)[0]!r}, which is neither a parameter nor a size")
        found = dict(call.sizes)
        for name, value in call.tensors.items():
            type = declared.types.get(name)
            if isinstance(type, TensorType):
                self._match(name, type, value, declared, found)
        return found

    def _match(
        self, name: str, type: TensorType, value: Any, declared: Declared, found: dict[str, int]
    ) -> None:
        """Take sizes from a tensor's extents."""
        shape = extents(type, value)
        if shape is None or len(shape) != len(type.shape):
            raise LaunchError(
                f"the argument {name!r} is no tensor of {len(type.shape)} axes",
                code="argument-shape",
                expected=f"{name}: {type}",
                found=f"the shape {shape}" if shape is not None else reprlib.repr(value),
            )
        for axis, (extent, length) in enumerate(zip(type.shape, shape, strict=True)):
            if not isinstance(extent, Var) or extent.name not in declared.constants:
                continue
            known = found.setdefault(extent.name, int(length))
            if known != int(length):
                raise LaunchError(
                    f"the argument {name!r} has the wrong shape on axis {axis}",
                    code="argument-shape",
                    expected=f"{extent.name} = {known}",
                    found=f"the shape {shape}",
                )

    def __repr__(self) -> str:
        return f"<jit function {self.__name__}>"


def _mode(function: FunctionType) -> Mode:
    """Tell a function whose body is a kernel's from one that makes such functions."""
    tree = read_source(function).tree
    inner = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    made = any(
        _called(decorator) == "prim_func"
        for each in inner
        if each is not tree
        for decorator in each.decorator_list
    )
    return "eager" if not made and any(map(_of_kernel, _own(tree))) else "lazy"


def _called(node: ast.expr) -> str:
    """Name what is called or named, without what stands before its last dot."""
    callee = node.func if isinstance(node, ast.Call) else node
    return getattr(callee, "attr", None) or getattr(callee, "id", "")


def _own(tree: ast.FunctionDef) -> Iterable[ast.AST]:
    """List the nodes of a function's body that are no part of a function inside it."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def _of_kernel(node: ast.AST) -> bool:
    """Tell what stands only in the body of an eager function."""
    match node:
        case ast.With(items=[ast.withitem(context_expr=ast.Call() as call), *_]):
            return _called(call) in ("Kernel", "ClusterKernel")
        case ast.Call():
            return _called(node) == "const"
        case ast.AnnAssign(value=None, annotation=annotation):
            kind = annotation.value if isinstance(annotation, ast.Subscript) else annotation
            return _called(kind) in ("Tensor", "StridedTensor")
        case _:
            return False


def jit(
    func: Any = None,
    *,
    out_idx: Any = None,
    target: Any = None,
    target_host: Any = None,
    execution_backend: str | None = None,
    verbose: bool | None = None,
    pass_configs: Mapping[Any, Any] | None = None,
    debug_root_path: str | None = None,
    compile_flags: Any = None,
    **options: Any,
) -> Any:
    """Compile a function when it is called (a decorator); see `JITFunction`.

    Options are those of `compile`. With `debug_root_path` the CUDA text and the program of every
    compilation are written into that folder.
    """
    frame = inspect.currentframe()
    caller = None if frame is None else frame.f_back
    around = {} if caller is None else dict(caller.f_locals)
    chosen: dict[str, Any] = {
        "out_idx": out_idx,
        "target": target,
        "target_host": target_host,
        "execution_backend": execution_backend,
        "verbose": verbose,
        "pass_configs": pass_configs,
        "compile_flags": compile_flags,
        **options,
    }

    def decorate(given: Any) -> Any:
        if isinstance(given, KernelFunction):
            return compile(given, **chosen)
        return JITFunction(given, around, chosen, debug_root_path)

    return decorate if func is None else decorate(func)
