"""`compile` and what it gives."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import tilewright
from tilewright import driver, simt
from tilewright.base.errors import LaunchError, TargetError, TilewrightError
from tilewright.driver import Defaults, session
from tilewright.runtime.once import Once

T: Any = simt
n = T.dynamic("n")


@T.function
def scale(
    A: T.Tensor((n,), "float32"),
    Out: T.Tensor((n,), "float32"),
    factor: T.float32,
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(n + 31) // 32, block=32))
    i = T.cuda.block_idx("x") * 32 + T.cuda.thread_idx("x")
    if i < n:
        Out[i] = A[i] * factor


@T.function
def matrix_load(A: T.Tensor((64, 4), "uint32", align=16)):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    tile = T.alloc_shared((64, 4), "uint32", layout="default", align=16)
    lane = T.cuda.thread_idx("x")
    for j in range(4):
        tile[lane, j] = A[lane, j]


def refusal(**options: Any) -> TilewrightError:
    with pytest.raises(TilewrightError) as caught:
        tilewright.compile(scale, **options)
    return caught.value


def test_a_call_writes_into_its_outputs() -> None:
    a = np.arange(70, dtype=np.float32)
    out = np.zeros_like(a)
    assert tilewright.compile(scale)(a, out, 2) is None
    assert np.array_equal(out, a * 2)


def test_arguments_may_be_named() -> None:
    a = np.arange(70, dtype=np.float32)
    ex = tilewright.compile(scale)
    for call in (
        lambda out: ex(a, Out=out, factor=2),
        lambda out: ex(factor=2, Out=out, A=a),
        lambda out: ex(a, out, factor=2),
    ):
        out = np.zeros_like(a)
        call(out)
        assert np.array_equal(out, a * 2)


@pytest.mark.parametrize(
    ("positional", "named", "message"),
    [
        (1, {"Out": 0}, "without the argument 'factor'"),
        (0, {"factor": 2}, "without the argument 'A'"),
        (2, {"Out": 0, "factor": 2}, "'Out' is given twice"),
        (2, {"factor": 2, "bias": 1}, "no parameter 'bias'"),
        (3, {"factor": 2}, "'factor' is given twice"),
    ],
)
def test_arguments_that_are_named_wrongly(
    positional: int, named: dict[str, Any], message: str
) -> None:
    a = np.zeros(4, np.float32)
    given: dict[str, Any] = {k: a if value == 0 else value for k, value in named.items()}
    with pytest.raises(LaunchError, match=message) as caught:
        tilewright.compile(scale)(*[a, a, 2][:positional], **given)
    assert caught.value.code == "argument-count"
    assert caught.value.expected == "3: A, Out, factor"


def test_one_executable_takes_any_size() -> None:
    ex = tilewright.compile(scale)
    for size in (1, 31, 32, 33, 1000):
        a = np.ones(size, np.float32)
        ex(a, a, 3)
        assert (a == 3).all()


def test_strided_and_unaligned_arrays() -> None:
    a = np.arange(20, dtype=np.float32)[::-2]
    out = np.zeros(41, np.uint8)[1:].view(np.float32)
    tilewright.compile(scale)(a, out, 0.5)
    assert np.array_equal(out, a / 2)


def test_read_only_arrays_are_refused_only_as_outputs() -> None:
    a = np.ones(4, np.float32)
    a.flags.writeable = False
    ex = tilewright.compile(scale)
    ex(a, np.zeros(4, np.float32), 1)
    with pytest.raises(LaunchError) as caught:
        ex(np.zeros(4, np.float32), a, 1)
    assert caught.value.code == "argument-read-only" and "'Out'" in str(caught.value)


def test_an_empty_array_is_nothing_to_do() -> None:
    tilewright.compile(scale)(np.zeros(0, np.float32), np.zeros(0, np.float32), 1)


@T.function
def counted_out(Out: T.Tensor((n,), "float32"), blocks: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=blocks, block=32))
    if T.cuda.block_idx("x") == 0 and T.cuda.thread_idx("x") < n:
        Out[T.cuda.thread_idx("x")] = T.float32(1)


def test_an_empty_grid_is_refused_where_no_array_is_empty() -> None:
    ex, out = tilewright.compile(counted_out), np.zeros(4, np.float32)
    with pytest.raises(LaunchError) as caught:
        ex(out, 0)
    assert caught.value.code == "launch-shape" and caught.value.location is not None
    assert "nothing to do" in (caught.value.hint or "")
    ex(out, 1)
    assert (out == 1).all()
    ex(out[:0], 1)  # the grid has CTAs, which find nothing to do


def test_a_call_takes_a_stream_wherever_it_runs() -> None:
    ex, a, out = tilewright.compile(scale), np.ones(4, np.float32), np.zeros(4, np.float32)
    ex(a, out, 2, stream=0)
    assert (out == 2).all()
    with pytest.raises(LaunchError) as caught:
        ex(a, out, 3, stream="main")
    assert caught.value.code == "bad-option" and (out == 2).all()


@T.function
def own_stream(stream: T.Tensor((4,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=4))
    stream[T.cuda.thread_idx("x")] = T.float32(1)


def test_a_parameter_may_be_called_stream() -> None:
    out = np.zeros(4, np.float32)
    tilewright.compile(own_stream)(stream=out)
    assert (out == 1).all()


def test_a_launch_beyond_its_memory_is_refused() -> None:
    ex = tilewright.compile(scale, backend="sim", memory_limit=10)
    with pytest.raises(LaunchError) as caught:
        ex(np.zeros(4, np.float32), np.zeros(4, np.float32), 1)
    assert caught.value.code == "launch-memory"


def test_the_target_is_chosen_or_named(without_gpu: None) -> None:
    assert tilewright.compile(scale).target.arch == "sm_100a"
    assert tilewright.compile(scale, "cuda").target.arch == "sm_100a"
    named = tilewright.compile(scale, target={"kind": "cuda", "arch": "sm_90a"})
    assert named.target.arch == "sm_90a" and repr(named) == "<scale for sm_90a on the simulator>"


def test_programs_are_compiled_as_functions_are() -> None:
    assert tilewright.compile(scale.program).name == "scale"
    with pytest.raises(LaunchError):
        tilewright.compile(cast(Any, "scale"))


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"backend": "cpu"}, "bad-option"),
        ({"schedule": "soon"}, "bad-option"),
        ({"schedule": "eager:1"}, "bad-option"),
        ({"schedule": "random:"}, "bad-option"),
        ({"numerics": "precise"}, "bad-option"),
        ({"numerics": 2}, "bad-option"),
        ({"schedule": 7}, "bad-option"),
        ({"workers": 0}, "bad-option"),
        ({"workers": "2"}, "bad-option"),
        ({"step_limit": 1.5}, "bad-option"),
        ({"memory_limit": -1}, "bad-option"),
        ({"pipeline": "default"}, "bad-option"),
        *(({"cache": cache}, "bad-option") for cache in (3, 0, True, False, b"c", [], "a\0b")),
        *(({"allow": allow}, "bad-option") for allow in (3, [3], [[]], "nothing", [None])),
        *(({"workers": workers}, "bad-option") for workers in (True, [], 2.0)),
        *(({"check": check}, "bad-option") for check in ("loose", [], 2)),
        *(({"backend": backend}, "bad-option") for backend in (3, [], b"sim", "", 0)),
        *(({"schedule": schedule}, "bad-option") for schedule in ([], "", 0, b"late")),
        *(({"numerics": numerics}, "bad-option") for numerics in ([], "", 0, b"fast")),
        *(({"target": target}, "unknown-target") for target in (3, [], b"sm_90a", {"arch": 90})),
        ({"target": "sm_12"}, "unknown-target"),
        ({"backend": "gpu"}, "missing-tool"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], code: str, without_gpu: None) -> None:
    assert refusal(**options).code == code


def test_cuda_ptx_and_cubin_are_made() -> None:
    ex = tilewright.compile(scale, target="sm_80")
    assert "scale" in ex.source and "#include" not in ex.source
    assert ".target sm_80" in ex.ptx()
    assert ex.cubin()[:4] == b"\x7fELF"
    assert ex.source is ex.source and ex.cubin() is ex.cubin()


def test_resources_know_registers_once_there_is_a_cubin() -> None:
    ex = tilewright.compile(matrix_load, target="sm_90a")
    before = ex.resources["matrix_load_kernel"]
    assert (before.threads, before.dynamic_shared_bytes, before.compiled) == (64, 1024, None)
    ex.cubin()
    after = ex.resources["matrix_load_kernel"].compiled
    assert after is not None and after.registers > 0


def test_ir_is_lowered_and_prints_as_source() -> None:
    ex = tilewright.compile(scale)
    assert "def scale" in str(ex.ir) and ex.ir != ex.program


def test_a_session_overrides_and_ends() -> None:
    made: list[tilewright.Executable] = []
    with session(Defaults(target="sm_80", schedule="eager", on_compile=made.append)):
        tilewright.compile(scale, target="sm_90a")
    assert [ex.target.arch for ex in made] == ["sm_80"]
    assert tilewright.compile(scale, target="sm_90a").target.arch == "sm_90a" and len(made) == 1


@pytest.mark.parametrize("bad", [{"target": "x"}, {"schedule": "x"}, {"backend": "x"}])
def test_a_session_refuses_what_compile_would(bad: dict[str, Any]) -> None:
    with pytest.raises((LaunchError, TargetError)):
        Defaults(**bad)


def test_every_option_is_named_in_the_refusal() -> None:
    import inspect

    names = set(inspect.signature(driver.compile).parameters) - {"kernel", "unknown"}
    expected = refusal(nothing=1).expected or ""
    assert set(expected.removeprefix("one of ").split(", ")) == names


# ---------------------------------------------------------------------------- once


def in_threads(action: Callable[[], Any], count: int = 8) -> None:
    threads = [threading.Thread(target=action) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_an_executable_may_be_called_by_many_threads() -> None:
    ex = tilewright.compile(scale)
    outs = [np.zeros(100, np.float32) for _ in range(8)]
    waiting = list(outs)
    in_threads(lambda: ex(np.ones(100, np.float32), waiting.pop(), 4))
    assert all((out == 4).all() for out in outs)


def test_a_value_is_made_once() -> None:
    calls: list[int] = []
    ready = threading.Event()

    def make() -> int:
        calls.append(1)
        ready.wait(0.05)
        return 5

    once = Once(make)
    in_threads(once)
    assert calls == [1] and once() == 5 and once.done


def test_a_failure_is_not_kept() -> None:
    outcomes: list[Any] = [ValueError(), 3]

    def make() -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    once = Once(make)
    with pytest.raises(ValueError):
        once()
    assert once() == 3


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_fork_during_the_making_does_not_lock_the_child() -> None:
    inside, leave = threading.Event(), threading.Event()

    def make() -> int:
        inside.set()
        leave.wait()
        return 1

    once = Once(make)
    maker = threading.Thread(target=once)
    maker.start()
    inside.wait()
    child = os.fork()
    if child == 0:
        leave.set()
        os._exit(0 if once() == 1 else 1)
    leave.set()
    maker.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_an_executable_works_after_a_fork() -> None:
    ex = tilewright.compile(scale, backend="sim")
    a = np.ones(100, np.float32)
    ex(a, a, 2)
    child = os.fork()
    if child == 0:
        ex(a, a, 2)
        os._exit(0 if (a == 4).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def kernel_that_adds(number: int) -> Any:
    @T.function
    def adds(Out: T.Tensor((32,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        Out[T.cuda.lane_id()] += number

    return adds


def run_a_new_kernel(number: int) -> None:
    out = np.zeros(32, np.int32)
    tilewright.compile(kernel_that_adds(number), backend="sim")(out)
    assert (out == number).all()


def build_a_new_kernel(number: int) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    assert tilewright.compile(kernel_that_adds(number), backend="sim").cubin()


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("work", [run_a_new_kernel, build_a_new_kernel])
def test_a_fork_while_other_threads_compile_does_not_hang_the_child(
    work: Callable[[int], None],
) -> None:
    work(0)
    numbers, stop = itertools.count(1000), threading.Event()

    def compile_on() -> None:
        while not stop.is_set():
            work(next(numbers))

    threads = [threading.Thread(target=compile_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    context = multiprocessing.get_context("fork")
    children = []
    try:
        for number in range(8):
            child = context.Process(target=work, args=(number,), daemon=True)
            child.start()
            child.join(0.02 * number)
            children.append(child)
        for child in children:
            child.join(60)
        assert [child.exitcode for child in children] == [0] * 8
    finally:
        stop.set()
        for child in children:
            child.kill()
        for thread in threads:
            thread.join()
