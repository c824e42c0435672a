"""Measuring functions, and comparing them with others on inputs that are made.

May import everything up to `driver`. On the simulator a time says how long simulating has taken.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from enum import Enum
from statistics import mean, median
from typing import Any

import numpy as np

from tilewright import driver
from tilewright.base.dtypes import DType
from tilewright.base.errors import LaunchError
from tilewright.base.lazy import optional
from tilewright.frontend.values import as_tuple
from tilewright.ir.expressions import as_constant
from tilewright.ir.types import TensorType, Type
from tilewright.jit.arrays import torch_dtype, torch_shape
from tilewright.runtime.cuda_driver import find_gpu
from tilewright.runtime.storage import packed


class TensorSupplyType(Enum):
    """How inputs are made."""

    Integer = 1
    Uniform = 2
    Normal = 3
    Randn = 4
    Zero = 5
    One = 6
    Auto = 7


def simulated() -> bool:
    """Tell whether calls run on the simulator, as far as the session says."""
    return driver.defaults().backend == "sim" or find_gpu() is None


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    _n_warmup: int = 0,
    _n_repeat: int = 0,
    quantiles: Sequence[float] | None = None,
    fast_flush: bool = True,
    backend: str = "event",
    return_mode: str = "mean",
    **_: Any,
) -> Any:
    """Measure a function, in milliseconds: a number, or one for each of the `quantiles`.

    On a GPU it is called for `warmup` and then `rep` milliseconds, or by the numbers of calls. On
    the simulator it is called once, and the time is that of the simulation, which is said.
    """
    if simulated():
        begin = time.perf_counter()
        fn()
        spent = (time.perf_counter() - begin) * 1e3
        text = f"tilewright: {spent:.3f} ms is the time of one simulated call, not of a GPU"
        print(text, file=sys.stderr, flush=True)
        return [spent] * len(quantiles) if quantiles else spent
    torch = optional("torch", purpose="measure on a GPU")
    fn()
    torch.cuda.synchronize()
    once = max(_times(torch, fn, 5)[-1], 1e-3)
    _times(torch, fn, _n_warmup or max(int(warmup / once), 1))
    times = _times(torch, fn, _n_repeat or max(int(rep / once), 1))
    if quantiles:
        return [float(np.quantile(times, each)) for each in quantiles]
    reduce: dict[str, Callable[[list[float]], float]] = {
        "mean": mean,
        "median": median,
        "min": min,
        "max": max,
    }
    return float(reduce[return_mode](times))


def _times(torch: Any, fn: Callable[[], Any], count: int) -> list[float]:
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    for begin, end in events:
        begin.record()
        fn()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in events]


class Profiler:
    """Makes inputs for a compiled function, compares what it gives, and measures it.

    `func` is the function, `types` those of its inputs.
    """

    def __init__(self, func: Any, types: Sequence[Type], supply: TensorSupplyType) -> None:
        self.func = func
        self.types = list(types)
        self.supply = supply

    def with_default_adapter(self, adapter: Any) -> Profiler:
        """Take another function for the same inputs."""
        return Profiler(adapter, self.types, self.supply)

    def _get_inputs(self, with_output: bool = False) -> list[Any]:
        return [self._input(each) for each in self.types]

    def _input(self, type: Type) -> Any:
        """Make one input; numbers are 1.

        Raises `LaunchError` (`bad-option`) for extents that no call has told.
        """
        if not isinstance(type, TensorType):
            return 1
        shape = [as_constant(each) for each in type.shape]
        if None in shape:
            raise LaunchError(
                "inputs of extents that a call tells are not made",
                code="bad-option",
                expected="a function of constant shapes, or input_tensors=[…]",
                found=str(type),
            )
        return make_tensor([int(each or 0) for each in shape], type, self.supply)

    def run_once(self, func: Callable[..., Any] | None = None) -> Any:
        """Run the function, or another, once."""
        return (func or self.func)(*self._get_inputs())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.func(*args, **kwargs)

    def assert_allclose(
        self,
        reference_program: Callable[..., Any],
        input_tensors: Sequence[Any] | None = None,
        atol: float = 1e-2,
        rtol: float = 1e-2,
        max_mismatched_ratio: float = 0.01,
    ) -> None:
        """Compare what the function gives with a reference, on the same inputs.

        Raises `AssertionError` where more than a share of elements differ.
        """
        inputs = list(input_tensors) if input_tensors is not None else self._get_inputs()
        expected = _listed(reference_program(*inputs))
        found = _listed(self.func(*inputs))
        if len(expected) != len(found):
            raise AssertionError(f"{len(found)} outputs, and {len(expected)} of the reference")
        for own, other in zip(found, expected, strict=True):
            assert_close(own, other, rtol, atol, max_mismatched_ratio)

    def manual_assert_close(
        self,
        reference_program: Callable[..., Any],
        input_tensors: Sequence[Any] | None = None,
        manual_check_prog: Callable[..., Any] | None = None,
    ) -> None:
        """Let a function compare what this one and a reference give."""
        inputs = list(input_tensors) if input_tensors is not None else self._get_inputs()
        expected, found = reference_program(*inputs), self.func(*inputs)
        if manual_check_prog is not None:
            manual_check_prog(found, expected)

    def assert_consistent(self, repeat: int = 10) -> None:
        """Run several times on the same inputs.

        Raises `AssertionError` where results differ.
        """
        inputs = self._get_inputs()
        first = _listed(self.func(*inputs))
        for _ in range(repeat):
            for own, other in zip(_listed(self.func(*inputs)), first, strict=True):
                assert bool((own == other).all()), "results differ from run to run"

    def do_bench(
        self,
        func: Callable[..., Any] | None = None,
        warmup: float = 25,
        rep: float = 100,
        n_warmup: int = 0,
        n_repeat: int = 0,
        input_tensors: Sequence[Any] | None = None,
        **options: Any,
    ) -> Any:
        """Measure the function, or another, in milliseconds; see `do_bench`."""
        inputs = list(input_tensors) if input_tensors is not None else self._get_inputs()
        measured = func or self.func
        return do_bench(
            lambda: measured(*inputs),
            warmup=warmup,
            rep=rep,
            _n_warmup=n_warmup,
            _n_repeat=n_repeat,
            **options,
        )


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(as_tuple(value))


def make_tensor(shape: Sequence[int], type: TensorType, supply: TensorSupplyType) -> Any:
    """Make a tensor of PyTorch, on its device `cuda` if there is one.

    Raises `TargetError` (`missing-tool`) without PyTorch.
    """
    torch = optional("torch", purpose="make inputs")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kind, dtype = type.dtype, torch_dtype(torch, type.dtype)
    if kind.bits % 8:
        return _packed_tensor(torch, tuple(shape), kind, supply).to(device)
    if supply is TensorSupplyType.Zero:
        return torch.zeros(shape, dtype=dtype, device=device)
    if supply is TensorSupplyType.One:
        return torch.ones(shape, dtype=dtype, device=device)
    if not kind.is_float or supply is TensorSupplyType.Integer:
        low, high = (0, 2) if kind.is_bool else (0, 3) if kind.kind == "uint" else (-2, 3)
        return torch.randint(low, high, tuple(shape), device=device).to(dtype)
    if supply is TensorSupplyType.Uniform:
        return (torch.rand(tuple(shape), device=device) * 2 - 1).to(dtype)
    return torch.randn(tuple(shape), device=device).to(dtype)


def _packed_tensor(
    torch: Any, shape: tuple[int, ...], kind: DType, supply: TensorSupplyType
) -> Any:
    """Make a tensor of numbers below a byte, packed as kernels find them."""
    match supply:
        case TensorSupplyType.Zero:
            values = np.zeros(shape)
        case TensorSupplyType.One:
            values = np.ones(shape)
        case TensorSupplyType.Uniform:
            values = np.random.uniform(-1, 1, shape)
        case TensorSupplyType.Integer:
            values = np.random.randint(-2, 3, shape)
        case _:
            values = np.random.standard_normal(shape)
    held = packed(values.astype(kind.numpy).view(np.uint8), kind.bits)
    entries = torch.from_numpy(held.reshape(torch_shape(shape, kind)).copy())
    return entries.view(torch_dtype(torch, kind))


def assert_close(
    tensor_a: Any,
    tensor_b: Any,
    rtol: float = 1e-2,
    atol: float = 1e-3,
    max_mismatched_ratio: float = 0.001,
    verbose: bool = False,
    equal_nan: bool = True,
    **_: Any,
) -> bool:
    """Compare two tensors, of which a share of the elements may differ by more.

    Raises `AssertionError`.
    """
    own, other = (_float(each) for each in (tensor_a, tensor_b))
    assert own.shape == other.shape, f"the shapes {own.shape} and {other.shape} differ"
    near = np.isclose(own, other, rtol=rtol, atol=atol, equal_nan=equal_nan)
    wrong = near.size - int(np.count_nonzero(near))
    if wrong > max_mismatched_ratio * near.size:
        worst = np.nanmax(np.abs(own - other)[~near])
        raise AssertionError(
            f"{wrong} of {near.size} elements differ, by up to {worst} "
            f"(rtol {rtol}, atol {atol}, {max_mismatched_ratio:.2%} may)"
        )
    return True


def _float(value: Any) -> Any:
    if hasattr(value, "detach"):
        value = value.detach().cpu().double().numpy()
    return np.asarray(value, dtype=np.float64)
