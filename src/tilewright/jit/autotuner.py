"""Choosing among configurations of a function.

May import everything up to `driver`. On a GPU each is measured. The times of a simulation say
nothing about a GPU: there the first configuration that compiles is taken, which is said.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from tilewright.base.errors import LaunchError, TilewrightError
from tilewright.frontend.values import as_tuple
from tilewright.jit.functions import JITFunction
from tilewright.jit.kernels import JITKernel, compile
from tilewright.jit.profiler import TensorSupplyType, do_bench, simulated

__all__ = ["AutoTuner", "AutotuneResult", "autotune", "get_autotune_inputs", "set_autotune_inputs"]

_inputs: ContextVar[tuple[Any, ...] | None] = ContextVar("tilewright_tuned", default=None)


@contextmanager
def set_autotune_inputs(*tensors: Any) -> Generator[None]:
    """Let functions be tuned on these inputs, until the block ends."""
    given = as_tuple(tensors[0]) if len(tensors) == 1 else tensors
    token = _inputs.set(given)
    try:
        yield
    finally:
        _inputs.reset(token)


def get_autotune_inputs() -> tuple[Any, ...] | None:
    """Give the inputs on which functions are tuned, if they are set."""
    return _inputs.get()


@dataclass(frozen=True)
class AutotuneResult:
    """The best configuration, what it compiles to, and its time in milliseconds."""

    latency: float | None
    config: Mapping[str, Any] | None
    ref_latency: float | None
    libcode: str | None
    func: Any
    kernel: Any


def _tune(
    configs: Sequence[Mapping[str, Any]],
    make: Callable[[Mapping[str, Any]], JITKernel],
    measure: Callable[[JITKernel], float],
) -> AutotuneResult:
    """Make all configurations, and give the fastest; those that cannot be compiled are left out.

    Raises `LaunchError` (`bad-option`) if none can.
    """
    if not configs:
        raise LaunchError("there is no configuration to choose", code="bad-option")
    best: AutotuneResult | None = None
    reason: TilewrightError | None = None
    for config in configs:
        try:
            kernel = make(config)
            latency = None if simulated() else measure(kernel)
        except TilewrightError as error:
            reason = error
            continue
        if best is None or (latency is not None and latency < (best.latency or 0.0)):
            best = AutotuneResult(latency, config, None, None, kernel.prim_func, kernel)
        if latency is None:
            text = (
                f"tilewright: simulated times say nothing about a GPU: of {len(configs)} "
                f"configurations of {kernel.name} the first that compiles is taken, {dict(config)}"
            )
            print(text, file=sys.stderr, flush=True)
            break
    if best is None:
        raise LaunchError(
            f"none of {len(configs)} configurations compiles", code="bad-option", found=str(reason)
        ) from reason
    best.kernel.config, best.kernel.latency = best.config, best.latency
    return best


class AutoTuned:
    """A function under `jit` whose configuration is chosen when it is called."""

    def __init__(
        self,
        function: JITFunction,
        configs: Any,
        measure: Callable[[JITKernel, Sequence[Any] | None], float],
    ) -> None:
        self.jit_impl = function
        self.configs = configs
        self._measure = measure
        self._chosen: dict[Any, AutotuneResult] = {}
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Choose a configuration for these arguments, unless they give it; see `JITFunction`."""
        configs = self._configs(args, kwargs)
        given = self._given(args, kwargs)
        if not configs or all(name in given for name in configs[0]):
            return self.jit_impl(*args, **kwargs)
        chosen = self.tune(args, kwargs, configs)
        if self.jit_impl.mode == "lazy":
            return chosen.kernel
        return self.jit_impl(*args, **{**kwargs, **(chosen.config or {})})

    def tune(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]
    ) -> AutotuneResult:
        """Choose a configuration, once for arguments of the same kind."""
        named = [(name, _kind(kwargs[name])) for name in sorted(kwargs)]
        key = (*map(_kind, args), *named)
        if key not in self._chosen:
            lazy = self.jit_impl.mode == "lazy"
            tensors = None if lazy else [each for each in args if hasattr(each, "shape")]

            def make(config: Mapping[str, Any]) -> JITKernel:
                return self.jit_impl.compile(*args, **{**kwargs, **config})

            self._chosen[key] = _tune(
                configs, make, lambda kernel: self._measure(kernel, tensors or _inputs.get())
            )
        return self._chosen[key]

    def compile(self, *args: Any, **kwargs: Any) -> JITKernel:
        """Compile for arguments that give a configuration, or choose one."""
        configs = self._configs(args, kwargs)
        if not configs or all(name in self._given(args, kwargs) for name in configs[0]):
            return self.jit_impl.compile(*args, **kwargs)
        return self.tune(args, kwargs, configs).kernel

    def get_tir(self, *args: Any, **kwargs: Any) -> Any:
        """Give the function that these arguments make."""
        return self.jit_impl.get_tir(*args, **kwargs)

    def _configs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        configs: Any = self.configs
        if callable(configs):
            takes = inspect.signature(configs).parameters
            configs = configs(*args, **kwargs) if takes else configs()
        return list(configs)

    def _given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> set[str]:
        names = list(self.jit_impl.signature.parameters)
        return {*names[: len(args)], *kwargs}


def _kind(value: Any) -> Any:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return tuple(shape), str(getattr(value, "dtype", ""))
    return repr(value)


def autotune(
    func: Any = None,
    *,
    configs: Any,
    warmup: int = 25,
    rep: int = 100,
    timeout: int = 30,
    supply_type: TensorSupplyType = TensorSupplyType.Auto,
    ref_prog: Callable[..., Any] | None = None,
    supply_prog: Callable[..., Any] | None = None,
    rtol: float = 1e-2,
    atol: float = 1e-2,
    max_mismatched_ratio: float = 0.01,
    skip_check: bool = False,
    manual_check_prog: Callable[..., Any] | None = None,
    cache_input_tensors: bool = False,
    **_: Any,
) -> Any:
    """Choose one of `configs` when a function under `jit` is called (a decorator above `jit`).

    `configs` is a list of dictionaries, or a function that gives one. On a GPU each is measured,
    and compared with `ref_prog` first unless `skip_check` is true.
    """

    def measure(kernel: JITKernel, tensors: Sequence[Any] | None) -> float:
        profiler = kernel.get_profiler(supply_type)
        if tensors is None and supply_prog is not None:
            tensors = supply_prog(kernel.params)
        if ref_prog is not None and not skip_check:
            if manual_check_prog is not None:
                profiler.manual_assert_close(ref_prog, tensors, manual_check_prog)
            else:
                profiler.assert_allclose(ref_prog, tensors, atol, rtol, max_mismatched_ratio)
        return profiler.do_bench(warmup=warmup, rep=rep, input_tensors=tensors)

    def decorate(given: JITFunction) -> AutoTuned:
        return AutoTuned(given, configs, measure)

    return decorate if func is None else decorate(func)


class AutoTuner:
    """Chooses among configurations of a function, set up step by step."""

    def __init__(self, function: Callable[..., Any], configs: Sequence[Any]) -> None:
        self.function = function
        self.configs = list(configs)
        self._compile: dict[str, Any] = {}
        self._profile: dict[str, Any] = {}

    @classmethod
    def from_kernel(cls, kernel: Callable[..., Any], configs: Sequence[Any]) -> AutoTuner:
        """Begin with a function that makes what is compiled, and its configurations."""
        return cls(kernel, configs)

    def set_compile_args(self, out_idx: Any = None, target: Any = None, **more: Any) -> AutoTuner:
        """Set the options of `compile`."""
        self._compile = {"out_idx": out_idx, "target": target, **more}
        return self

    def set_profile_args(self, **options: Any) -> AutoTuner:
        """Set how configurations are measured and compared, as `autotune` takes it."""
        self._profile = options
        return self

    def run(self, warmup: int = 25, rep: int = 100, timeout: int = 30) -> AutotuneResult:
        """Choose, and give the best configuration."""
        function = getattr(self.function, "func", self.function)

        def make(config: Any) -> JITKernel:
            made = function(**config) if isinstance(config, dict) else function(*config)
            return compile(made, **self._compile)

        def measure(kernel: JITKernel) -> float:
            supply = self._profile.get("supply_type", TensorSupplyType.Auto)
            profiler = kernel.get_profiler(supply)
            reference = self._profile.get("ref_prog")
            if reference is not None and not self._profile.get("skip_check"):
                profiler.assert_allclose(reference)
            return profiler.do_bench(warmup=warmup, rep=rep)

        result = _tune(self.configs, make, measure)
        reference = self._profile.get("ref_prog")
        if reference is None or result.latency is None:
            return result
        inputs = result.kernel.get_profiler()
        slow = do_bench(lambda: inputs.run_once(reference), warmup=warmup, rep=rep)
        return AutotuneResult(
            *(result.latency, result.config, slow, result.libcode, result.func, result.kernel)
        )
