"""Calls among PyTorch's own machinery: its compiler, its transformations, its autograd."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import tilewright
from tilewright import simt
from tilewright.base.errors import LaunchError
from tilewright.runtime.cuda_driver import find_gpu

# PyTorch's compiler imports parts of PyTorch that are about to end.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
torch: Any = pytest.importorskip("torch")
T: Any = simt
n = T.dynamic("n")


@T.function
def scale(A: T.Tensor((n,), "float32"), Out: T.Tensor((n,), "float32"), factor: T.float32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(n + 31) // 32, block=32))
    i = T.cuda.block_idx("x") * 32 + T.cuda.thread_idx("x")
    if i < n:
        Out[i] = A[i] * factor


on_gpu = pytest.param(
    ("gpu", "cuda"), marks=pytest.mark.skipif(find_gpu() is None, reason="there is no GPU")
)


@pytest.fixture(params=[("sim", "cpu"), on_gpu], ids=["sim", "gpu"])
def place(request: pytest.FixtureRequest) -> Any:
    """Give an executable of `scale`, and the device that it runs on."""
    backend, device = request.param
    return tilewright.compile(scale, backend=backend), device


def test_the_compiler_leaves_a_call_alone(place: Any) -> None:
    ex, device = place
    counters = pytest.importorskip("torch._dynamo").utils.counters

    def whole(a: Any) -> Any:
        out = torch.zeros_like(a)
        ex(a + 1, out, 2.0)
        return out - 1

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(whole, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (1.0, 1.0, 2.0):
            a = torch.full((64,), value, device=device)
            assert torch.equal(compiled(a), whole(a))
    assert sum(counters["graph_break"].values()) == 1, counters["graph_break"]
    torch._dynamo.reset()
    with pytest.raises(Exception, match="launches kernels of Tilewright"):
        torch.compile(whole, backend="eager", fullgraph=True)(a)


def test_an_operator_of_one_s_own_can_be_compiled_whole(place: Any) -> None:
    ex, device = place

    @torch.library.custom_op(f"tilewright_tests::scaled_{device}", mutates_args=())
    def scaled(a: torch.Tensor, factor: float) -> torch.Tensor:
        out = torch.empty_like(a)
        ex(a, out, factor)
        return out

    def set_up(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factor = inputs[1]

    scaled.register_fake(lambda a, factor: torch.empty_like(a))
    scaled.register_autograd(
        lambda ctx, gradient: (gradient * ctx.factor, None), setup_context=set_up
    )
    torch._dynamo.reset()
    a = torch.ones(64, device=device, requires_grad=True)
    whole = torch.compile(lambda a: scaled(a + 1, 2.0).sum(), backend="eager", fullgraph=True)
    whole(a).backward()
    assert torch.equal(a.grad, torch.full_like(a, 2.0))


def test_transformations_are_refused(place: Any) -> None:
    ex, device = place

    def call(a: Any) -> Any:
        ex(a, torch.zeros(4, device=device), 1.0)
        return a.sum()

    ex(torch.zeros(4, device=device), torch.zeros(4, device=device), 1.0)
    for transformed, shape in ((torch.vmap(call), (2, 4)), (torch.func.grad(call), (4,))):
        with pytest.raises(LaunchError) as caught:
            transformed(torch.ones(shape, device=device))
        assert caught.value.code == "argument-kind" and "torch.vmap" in (caught.value.found or "")


def test_a_parameter_is_read_and_written_where_nothing_is_recorded(place: Any) -> None:
    ex, device = place
    weight = torch.nn.Parameter(torch.ones(4, device=device))
    out = torch.zeros(4, device=device)
    for _ in range(3):
        ex(weight, out, 2.0)
        assert out.tolist() == [2.0] * 4
        with pytest.raises(LaunchError) as caught:
            ex(out, weight, 3.0)
        assert caught.value.code == "argument-read-only"
        with torch.no_grad():
            ex(out, weight, 0.5)
        assert weight.tolist() == [1.0] * 4
    product = weight * 1.0  # no leaf: PyTorch would record a write of its own, and cannot ours
    with pytest.raises(LaunchError):
        ex(out, product, 1.0)


def test_freed_storage_is_refused(place: Any) -> None:
    ex, device = place
    whole, out = torch.ones(1 << 16, device=device), torch.zeros(64, device=device)
    views = whole[:64], whole[1000:1064]
    for view in views * 3:
        ex(view, out, 2.0)
    whole.untyped_storage().resize_(0)
    for view in views * 2:
        with pytest.raises(LaunchError) as caught:
            ex(view, out, 2.0)
        assert "lost its memory" in caught.value.message
    ex(torch.ones(64, device=device), out, 3.0)
    assert out.tolist() == [3.0] * 64


def test_modes_of_pytorch_do_not_matter(place: Any) -> None:
    ex, device = place
    out = torch.zeros(64, device=device)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad) * 2:
        with mode():
            a = torch.ones(64, device=device)
            for factor in (2.0, 3.0):
                ex(a, out, factor)
                assert out.tolist() == [factor] * 64
