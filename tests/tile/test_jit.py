"""Functions of the tile dialect that are compiled when they are called."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright.jit
from tilewright import compat
from tilewright import tile as T
from tilewright.base.errors import FrontendError, LaunchError, TargetError
from tilewright.compat.names import MODULES
from tilewright.jit import functions
from tilewright.jit.arrays import allocated, sizes
from tilewright.jit.autotuner import AutoTuner, autotune
from tilewright.jit.configs import PassConfigKey
from tilewright.jit.functions import jit
from tilewright.jit.kernels import JITKernel, compile, lower, par_compile
from tilewright.jit.profiler import TensorSupplyType, do_bench, make_tensor

F = np.float32


@jit(target="sm_90a")
def add(A, B, block, dtype=T.float32):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), dtype)
    B: T.Tensor((M, N), dtype)
    C = T.empty((M, N), dtype)
    with T.Kernel(T.ceildiv(M, block), T.ceildiv(N, block)) as (bx, by):
        for i, j in T.Parallel(block, block):
            row, column = bx * block + i, by * block + j
            C[row, column] = A[row, column] + B[row, column]
    return C


@jit(out_idx=[-1], target="sm_90a")
def scale(N, factor, dtype="float32"):
    @T.prim_func
    def main(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(N):
                B[i] = A[i] * factor

    return main


def matrix(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).random(shape, F)


# ---------------------------------------------------------------------------- eager and lazy


def test_an_eager_function_gives_its_output() -> None:
    a, b = matrix(64, 96), matrix(96, 64).T.copy()
    c = add(a, b, 32)
    assert isinstance(c, np.ndarray) and (c == a + b).all()
    assert add.mode == "eager"


def test_outputs_are_of_the_library_of_the_inputs() -> None:
    torch = pytest.importorskip("torch")
    a = torch.rand(32, 32)
    c = add(a, B=a, block=32)
    assert isinstance(c, torch.Tensor) and c.dtype is torch.float32
    assert torch.equal(c, a + a)


def test_arguments_that_pytorch_differentiates_are_memory() -> None:
    """A kernel is the inside of an operation that PyTorch differentiates, as in its `forward`."""
    torch = pytest.importorskip("torch")
    a = torch.ones(4, 8, requires_grad=True)
    found = add(a, torch.ones(4, 8), 4)
    assert found.tolist() == [[2.0] * 8] * 4 and not found.requires_grad
    assert a.requires_grad


def test_an_element_type_is_its_name_to_other_libraries() -> None:
    torch = pytest.importorskip("torch")
    assert getattr(torch, T.bfloat16) is torch.bfloat16
    assert np.dtype(str(T.float16)) == np.float16 and T.float16.bits == 16
    assert {"int8": 1}[T.int8] == 1 and T.int8 != "uint8"


def test_each_set_of_sizes_is_compiled_once() -> None:
    first = add.compile(M=32, N=64, block=32)
    assert add.compile(matrix(32, 64), matrix(32, 64), block=32) is first
    assert add.compile(M=64, N=64, block=32) is not first
    assert [each.shape for each in first.params] == [(32, 64)] * 3
    assert (first.inputs, first.out_idx) == (["A", "B"], [2])


def test_sizes_are_told_once() -> None:
    with pytest.raises(LaunchError, match=r"wrong shape on axis 1(.|\n)*N = 64") as error:
        add(matrix(32, 64), matrix(32, 32), 32)
    assert error.value.code == "argument-shape"
    with pytest.raises(LaunchError, match="no tensor of 2 axes"):
        add(matrix(32), matrix(32), 32)


def test_a_size_that_nothing_tells() -> None:
    with pytest.raises(FrontendError, match="no argument tells what N is"):
        add.compile(M=32, block=32)
    with pytest.raises(LaunchError, match="neither a parameter nor a size"):
        add.compile(M=32, N=32, K=32, block=32)
    with pytest.raises(LaunchError, match="lacks 'block'"):
        add(matrix(32, 32), matrix(32, 32))


def test_a_lazy_function_gives_a_kernel() -> None:
    kernel = scale(64, 3.0)
    assert isinstance(kernel, JITKernel) and scale.mode == "lazy"
    assert scale(64, factor=3.0) is kernel and scale(64, 3) is not kernel
    a = matrix(64)
    assert (kernel(a) == a * F(3)).all()
    assert (kernel(A=a) == a * F(3)).all()
    with pytest.raises(LaunchError, match="outputs are allocated"):
        kernel(a, a)


def test_several_outputs_and_a_workspace() -> None:
    @jit(target="sm_90a")
    def split(A):
        N = T.const("N")
        A: T.Tensor((N,), T.float32)
        low = T.empty((N // 2,), T.float32)
        high = T.empty(N - N // 2, dtype=T.float32)
        held = T.alloc_global((N,), T.float32)
        with T.Kernel(1, threads=32):
            T.copy(A, held)
        with T.Kernel(1, threads=32):
            T.copy(held[0 : N // 2], low)
            T.copy(held[N // 2 : N], high)
        return low, high

    a = matrix(64)
    low, high = split(a)
    assert (low == a[:32]).all() and (high == a[32:]).all()


def test_sizes_that_a_launch_tells() -> None:
    @jit(target="sm_90a")
    def double(A):
        n = T.dynamic("n")
        A: T.Tensor((n,), T.float32)
        B = T.empty((n,), T.float32)
        with T.Kernel(T.ceildiv(n, 32), threads=32) as block:
            for i in T.Parallel(32):
                B[block * 32 + i] = A[block * 32 + i] * 2.0
        return B

    for count in (32, 70):
        a = matrix(count)
        assert (double(a) == a * 2).all()
    assert double.compile(matrix(32)) is double.compile(matrix(70))


def test_only_outputs_are_returned() -> None:
    @jit(target="sm_90a")
    def wrong(A):
        A: T.Tensor((32,), T.float32)
        with T.Kernel(1, threads=32):
            A[0] = 1.0
        return A

    with pytest.raises(FrontendError, match="returns outputs, and this is none"):
        wrong(matrix(32))


@pytest.mark.parametrize("kept", ["", "low"])
def test_outputs_that_are_declared_are_returned(kept: str) -> None:
    @jit(target="sm_90a")
    def wrong(A):
        A: T.Tensor((32,), T.float32)
        low = T.empty((32,), T.float32)
        high = T.empty((32,), T.float32)
        with T.Kernel(1, threads=32):
            T.copy(A, low)
            T.copy(A, high)
        if kept:
            return low

    with pytest.raises(FrontendError, match="is declared, and not returned") as caught:
        wrong(matrix(32))
    assert "expected: return low, high" in str(caught.value)
    assert f"'{'high' if kept else 'low'}' is declared" in str(caught.value)


def test_a_call_lacks_an_argument_or_has_another() -> None:
    with pytest.raises(LaunchError, match="it lacks 'B'"):
        add(matrix(8, 8), block=8)
    with pytest.raises(LaunchError, match="it lacks 'block'"):
        add(matrix(8, 8), matrix(8, 8))
    with pytest.raises(LaunchError, match="missing a required argument: 'factor'"):
        scale(32)
    with pytest.raises(LaunchError, match="unexpected keyword argument 'factors'"):
        scale(32, 2.0, factors=2)
    tuned = autotune(configs=[{"factors": 2.0}])(scale)
    with pytest.raises(LaunchError, match=r"none of 1 configurations(.|\n)*'factors'"):
        tuned(32, 2.0)


@jit(target="sm_90a")
def shifted(A, bias=None, scale: Any = None, *, scales=False):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    if bias is not None:
        bias: T.Tensor((N,), T.float32)
    if scales:
        scale: T.Tensor((M,), T.float32)
    B = T.empty((M, N), T.float32)
    with T.Kernel(M, threads=32) as row:
        for j in T.Parallel(N):
            value = A[row, j] if bias is None else A[row, j] + bias[j]
            B[row, j] = value * scale[row] if scales else value
    return B


def test_tensors_that_a_call_may_leave_out() -> None:
    a, bias, scale = matrix(3, 20), matrix(20), matrix(3)
    assert (shifted(a) == a).all()
    assert (shifted(a, bias) == a + bias).all()
    assert (shifted(a, None) == a).all()
    assert (shifted(a, bias, scale, scales=True) == (a + bias) * scale[:, None]).all()
    assert (shifted(a, scale=scale, scales=True) == a * scale[:, None]).all()
    with pytest.raises(LaunchError, match=r"'scale' is no tensor of 1 axes(.|\n)*found: None"):
        shifted(a, bias, scales=True)
    with pytest.raises(LaunchError, match=r"'bias' has the wrong shape(.|\n)*N = 20"):
        shifted(a, matrix(19))


def test_outputs_are_what_a_call_can_allocate() -> None:
    m = T.dynamic("m")

    @T.prim_func
    def function(A: T.Tensor((32,), "float32"), n: T.int32, B: T.Tensor((m,), "float32")):
        with T.Kernel(1, threads=32):
            B[0] = A[n]

    with pytest.raises(LaunchError, match=r"cannot allocate 'n'(.|\n)*found: int32"):
        compile(function, out_idx=[1], target="sm_80")
    with pytest.raises(LaunchError, match=r"cannot allocate 'B'(.|\n)*m, which no other"):
        compile(function, out_idx=[2], target="sm_80")


def test_outputs_are_declared_in_one_way() -> None:
    @jit(out_idx=[-1], target="sm_90a")
    def wrong(A):
        A: T.Tensor((32,), T.float32)
        B = T.empty((32,), T.float32)
        with T.Kernel(1, threads=32):
            T.copy(A, B)
        return B

    with pytest.raises(LaunchError, match="declares its outputs"):
        wrong(matrix(32))


def test_threads_share_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(function: Any, **options: Any) -> Any:
        made.append(function.name)
        return compile(function, **options)

    monkeypatch.setattr(functions, "compile", counted)
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(add.compile(M=96, N=32, block=16)))
        for _ in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert made == ["add"] and len({id(each) for each in found}) == 1


# ---------------------------------------------------------------------------- compiling


def test_compile_takes_a_function() -> None:
    function = scale.get_tir(32, 2.0)
    kernel = compile(function, out_idx=-1, target={"kind": "cuda", "arch": "sm_80"})
    assert str(kernel.target) == "sm_80"
    assert (kernel(np.ones(32, F)) == 2).all()
    whole = compile(function, target="sm_80")
    b = np.zeros(32, F)
    assert whole(np.ones(32, F), b) is None and (b == 2).all()
    assert lower(function, "sm_80").kernel_source == whole.get_kernel_source()


def test_positions_of_outputs() -> None:
    with pytest.raises(LaunchError, match="has no parameter 2"):
        compile(scale.get_tir(32, 2.0), out_idx=[2], target="sm_80")
    with pytest.raises(LaunchError, match="nothing to compile"):
        compile(add)


def test_several_functions_are_compiled_at_once() -> None:
    kernels = par_compile([scale.get_tir(32, each) for each in (2.0, 3.0)], -1, target="sm_80")
    assert [float(each(np.ones(32, F))[0]) for each in kernels if each] == [2, 3]
    assert len(scale.par_compile([(32, 2.0), {"N": 64, "factor": 2.0}])) == 2


def test_configurations() -> None:
    keys = {PassConfigKey.TL_DISABLE_TMA_LOWER: True, "tl.enable_fast_math": True}
    kernel = compile(scale.get_tir(32, 2.0), pass_configs=keys, target="sm_90a")
    assert kernel.pass_configs == {"tl.disable_tma_lower": True, "tl.enable_fast_math": True}
    with pytest.raises(LaunchError, match=r"did you mean 'tl\.disable_wgmma'"):
        compile(scale.get_tir(32, 2.0), pass_configs={"tl.disable_wgma": 1}, target="sm_90a")


def test_configurations_in_the_body() -> None:
    @T.prim_func
    def copied(A: T.Tensor((32,), "float32"), B: T.Tensor((32,), "float32")):
        T.annotate_pass_configs({PassConfigKey.TL_DISABLE_TMA_LOWER: True})
        with T.Kernel(1, threads=32):
            T.copy(A, B)

    assert compile(copied, target="sm_90a").pass_configs == {"tl.disable_tma_lower": True}


def test_sources_are_shown_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = scale(64, 3.0)
    source = kernel.get_kernel_source()
    assert "__global__" in source
    assert scale.get_kernel_source(64, 3.0) == source
    kernel.show_source()
    assert capsys.readouterr().out == source + "\n"
    kernel.export_sources(str(tmp_path / "out" / "kernel.cu"), str(tmp_path / "program.py"))
    assert (tmp_path / "out" / "kernel.cu").read_text() == source
    assert "T.Parallel(64)" in (tmp_path / "program.py").read_text()
    with pytest.raises(TargetError, match="no library of the host"):
        kernel.export_library(str(tmp_path / "kernel.so"))


# ---------------------------------------------------------------------------- measuring, tuning


@pytest.mark.usefixtures("without_gpu")
def test_a_simulated_time_is_said_to_be_one(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[int] = []
    spent = do_bench(lambda: calls.append(1), warmup=10, rep=10, backend="cupti")
    assert len(calls) == 1 and spent >= 0
    assert "the time of one simulated call, not of a GPU" in capsys.readouterr().err
    assert len(do_bench(lambda: None, quantiles=[0.2, 0.5])) == 2


def test_a_profiler_compares_with_a_reference() -> None:
    pytest.importorskip("torch")
    profiler = scale(64, 3.0).get_profiler()
    profiler.assert_allclose(lambda a: a * 3)
    profiler.assert_consistent(2)
    with pytest.raises(AssertionError, match="of 64 elements differ"):
        profiler.assert_allclose(lambda a: a * 4 + 1)


@pytest.mark.usefixtures("without_gpu")
def test_tuning_takes_what_compiles(capsys: pytest.CaptureFixture[str]) -> None:
    @autotune(configs=[{"threads": 4096}, {"threads": 64}, {"threads": 32}])
    @jit(target="sm_90a")
    def tuned(A, threads=None):
        N = T.const("N")
        A: T.Tensor((N,), T.float32)
        B = T.empty((N,), T.float32)
        with T.Kernel(1, threads=threads):
            T.copy(A, B)
        return B

    a = matrix(64)
    assert (tuned(a) == a).all()
    assert "{'threads': 64}" in capsys.readouterr().err
    assert (tuned(a) == a).all()
    assert capsys.readouterr().err == ""
    b = matrix(64) + 1
    assert (tuned(A=a) == a).all() and (tuned(A=b) == b).all()
    assert capsys.readouterr().err.count("the first that compiles") == 1
    assert (tuned(a, threads=32) == a).all()


@pytest.mark.usefixtures("without_gpu")
def test_a_tuner_is_set_up_step_by_step() -> None:
    tuner = AutoTuner.from_kernel(scale, [{"N": 64, "factor": 2.0}])
    found = tuner.set_compile_args(out_idx=[-1], target="sm_90a").set_profile_args().run()
    assert found.config == {"N": 64, "factor": 2.0} and found.latency is None
    assert (found.kernel(np.ones(64, F)) == 2).all()


# ---------------------------------------------------------------------------- other names


@pytest.fixture
def names() -> Iterator[None]:
    """Let programs import the names of the package that they are written for."""
    compat.install(replace=True)
    yield
    compat.uninstall()


@pytest.mark.usefixtures("names")
def test_names_that_programs_import(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(
        "import tilelang\n"
        "import tilelang.language as T\n"
        "from tilelang import language as L\n"
        "from tilelang.autotuner import *\n"
        "from tilelang.carver.arch import driver\n"
        "from tilelang.language.fp8 import determine_fp8_type\n"
        "from tilelang.profiler import do_bench\n"
        "from tilelang.utils.tensor import torch_assert_close\n"
        "from tvm import DataType\n"
        "assert L is T and autotune and driver.get_num_sms() > 0\n"
        "assert DataType('float16').bits == 16 and determine_fp8_type() == T.float8_e4m3fn\n"
        "assert tilelang.cdiv(5, 2) == 3 and tilelang.next_power_of_2(5) == 8\n"
        "tilelang.testing.set_random_seed(0)\n"
        "tilelang.disable_cache()\n"
        "tilelang.enable_cache()\n"
        "configs = {tilelang.PassConfigKey.TL_DISABLE_WGMMA: True}\n"
        "@tilelang.jit(out_idx=[-1], pass_configs=configs)\n"
        "def kernel(n):\n"
        "    @T.prim_func\n"
        "    def main(A: T.Tensor((n,), T.float), B: T.Tensor((n,), T.float)):\n"
        "        with T.Kernel(1, threads=32):\n"
        "            T.copy(A, B)\n"
        "    return main\n"
    )
    module = _load(file)
    assert (module.kernel(32)(np.ones(32, F)) == 1).all()


@pytest.mark.usefixtures("names")
def test_the_seed_program(seed: Path) -> None:
    torch = pytest.importorskip("torch")
    module = _load(seed / "tcgen05_gemm.py")
    a, b = torch.randn(128, 256).bfloat16(), torch.randn(256, 256).bfloat16()
    given = (128, 128, 128, False, True, T.bfloat16, T.bfloat16, T.float, 2, 256)
    c = module.matmul_tcgen05(a, b, *given)
    torch.testing.assert_close(c, (a.float() @ b.float().T).bfloat16(), rtol=1e-2, atol=1e-2)
    source = module.matmul_tcgen05.get_kernel_source(a, b, *given)
    assert "tcgen05_mma" in source and "tcgen05_dealloc" in source


def _load(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------------------- narrow types


@jit(target="sm_100a")
def narrowed(X, kind):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), T.float32)
    Y = T.empty((M, N), kind)
    with T.Kernel(1, threads=32):
        for i, j in T.Parallel(M, N):
            Y[i, j] = T.cast(X[i, j], kind)
    return Y


@pytest.mark.parametrize("kind", [T.float8_e4m3, "float8_e4m3", T.float8_e4m3fn])
def test_the_hardwares_eight_bits_are_pytorchs(kind: Any) -> None:
    """The format has no infinities, and 448 is its greatest number, by either of its names."""
    torch = pytest.importorskip("torch")
    given = torch.tensor([[0.3, -448.0, 17.0, 1.0625]])
    found = narrowed(given, kind)
    assert found.dtype == torch.float8_e4m3fn
    assert found.float().tolist() == [[0.3125, -448.0, 16.0, 1.0]]


def test_an_element_that_is_a_part_of_a_byte_has_no_address() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(FrontendError) as error:
        narrowed(torch.tensor([[1.0, -6.0], [0.5, 3.0]]), T.float4_e2m1fn)
    assert error.value.code == "not-supported"
    assert "Y[i, j] = T.cast(X[i, j], kind)" in str(error.value)


def test_numbers_of_four_bits_are_packed_for_pytorch() -> None:
    """Two make a byte, and the extents of a kernel's tensors are counted in elements."""
    torch = pytest.importorskip("torch")

    @T.prim_func
    def kernel(X: T.Tensor((T.dynamic("m"), T.dynamic("n")), "float4_e2m1fn")):
        with T.Kernel(1, threads=32):
            pass

    type = kernel.params["X"]
    for kind in (torch.uint8, torch.float4_e2m1fn_x2):
        given = torch.empty((3, 4), dtype=torch.uint8).view(kind)
        assert sizes({"X": type}, {"X": given}) == {"m": 3, "n": 8}
        made = allocated(type, {"m": 3, "n": 8}, [given])
        assert made.shape == (3, 4) and made.dtype == T.float4_e2m1fn.as_torch()


def test_rows_of_four_bits_that_are_no_whole_bytes_are_refused() -> None:
    torch = pytest.importorskip("torch")

    @T.prim_func
    def kernel(X: T.Tensor((2, 3), "float4_e2m1fn")):
        with T.Kernel(1, threads=32):
            pass

    with pytest.raises(LaunchError) as error:
        allocated(kernel.params["X"], {}, [torch.zeros(1)])
    assert error.value.code == "argument-shape" and "a multiple of 2" in str(error.value)


def test_inputs_of_four_bits_are_made() -> None:
    torch = pytest.importorskip("torch")

    @T.prim_func
    def kernel(X: T.Tensor((4, 8), "float4_e2m1fn")):
        with T.Kernel(1, threads=32):
            X[0, 0] = T.cast(1.0, "float4_e2m1fn")

    made = make_tensor((4, 8), kernel.params["X"], TensorSupplyType.One)
    assert made.view(torch.uint8).tolist() == [[0x22] * 4] * 4


def test_what_the_package_gives_beside_the_dialect_is_in_one_place() -> None:
    """Layouts and element types are of the dialect itself."""
    own = {"Layout", "Fragment", "make_swizzled_layout"}
    names = MODULES["tilelang"].keys() - own - {"DataType"}
    assert names <= set(tilewright.jit.__all__)
    assert all(hasattr(tilewright.jit, name) for name in tilewright.jit.__all__)
    assert all(hasattr(T, name) for name in own)


def test_passes_of_another_compiler_are_refused() -> None:
    with pytest.raises(LaunchError) as error:
        compile(
            scale.get_tir(32, 2), target="sm_80", pass_configs={"tirx.add_lower_pass": [(1, abs)]}
        )
    assert error.value.code == "bad-option" and "add_lower_pass" in str(error.value)
