"""PyTorch programs that ask for `cuda`, without a GPU."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tilewright import compat

torch: Any = pytest.importorskip("torch")
context: Any = pytest.importorskip("torch.utils._device").DeviceContext
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture(autouse=True)
def mapped() -> Iterator[None]:
    compat.install(replace=True, target="sm_90a")
    yield
    compat.uninstall()


def make(device: Any = "cuda") -> Any:
    return torch.ones(3, device=device)


@pytest.mark.parametrize(
    "create",
    [
        lambda: torch.randn(2, device="cuda"),
        lambda: torch.empty((2, 2), device="cuda:0", dtype=torch.bfloat16),
        lambda: torch.zeros(2, device=torch.device("cuda")),
        lambda: torch.tensor([1.0], device=torch.device("cuda", 0)),
        lambda: torch.arange(4, device=0),
        lambda: torch.zeros(2).new_empty(3, device="cuda"),
        lambda: torch.zeros_like(torch.zeros(2), device="cuda"),
        lambda: torch.zeros(2).to("cuda"),
        lambda: torch.zeros(2).to("cuda", torch.float16),
        lambda: torch.zeros(2).to(device="cuda", dtype=torch.float16),
        lambda: torch.zeros(2).to(0),
        lambda: torch.zeros(2).cuda(),
        lambda: torch.zeros(2, pin_memory=True).cuda(non_blocking=True),
        lambda: torch.zeros(2).pin_memory(),
        lambda: torch.randn(2, generator=torch.Generator("cuda"), device="cuda"),
        lambda: torch.randn(2, generator=torch.Generator(device="cuda").manual_seed(1)),
        lambda: torch.nn.Linear(2, 2, device="cuda").weight,
        lambda: torch.nn.Linear(2, 2).to("cuda").weight,
        lambda: torch.nn.Linear(2, 2).cuda().weight,
    ],
)
def test_tensors_asked_for_on_cuda_are_on_the_cpu(create: Any) -> None:
    assert create().device == torch.device("cpu")


def test_default_devices_are_mapped() -> None:
    with torch.device("cuda"):
        assert torch.zeros(2).device.type == "cpu"
    torch.set_default_device("cuda")
    try:
        assert torch.zeros(2).device.type == "cpu"
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("move", [lambda t: t.cuda(), lambda t: t.cpu(), lambda t: t.to("cuda")])
def test_a_move_copies(move: Any) -> None:
    before = make()
    after = move(before)
    after[0] = 7
    assert before[0] == 1


def test_a_change_of_type_alone_does_not_copy() -> None:
    before = make()
    assert before.to(torch.float32) is before


def test_the_chip_of_the_target_answers() -> None:
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    assert torch.cuda.get_device_capability() == (9, 0)
    chip = torch.cuda.get_device_properties("cuda")
    assert chip.multi_processor_count == 132 and "H100" in chip.name


def test_events_and_streams_exist() -> None:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.synchronize()
    end.record()
    torch.cuda.current_stream().wait_event(end)
    assert start.elapsed_time(end) >= 0


def test_profilers_may_be_told_of_ranges() -> None:
    with torch.cuda.profiler.profile(), torch.cuda.nvtx.range("kernel"):
        torch.cuda.nvtx.mark("here")
    torch.cuda.profiler.start()
    torch.cuda.profiler.stop()


def test_generators_are_recognised() -> None:
    assert isinstance(torch.Generator("cuda"), torch.Generator)


def test_threads_that_start_later_are_mapped() -> None:
    class Own(threading.Thread):
        def run(self) -> None:
            self.found = make()

    own = Own()
    own.start()
    own.join()
    assert own.found.device.type == "cpu"
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(make).result().device.type == "cpu"


def test_uninstall_restores_everything() -> None:
    compat.uninstall()
    markers = torch.cuda.profiler, torch.cuda.nvtx
    before = dict(vars(torch.cuda)), torch.Generator, dict(vars(threading.Thread))
    before_in = [dict(vars(each)) for each in markers]
    init = context.__init__
    compat.install(replace=True)
    assert torch.cuda.is_available()
    compat.uninstall()
    assert (dict(vars(torch.cuda)), torch.Generator, dict(vars(threading.Thread))) == before
    assert [dict(vars(each)) for each in markers] == before_in
    assert context.__init__ is init
    assert torch.overrides._get_current_function_mode_stack() == []
    with pytest.raises((AssertionError, RuntimeError)):
        make()


def test_modes_of_the_program_survive_an_uninstall() -> None:
    class Counting(torch.overrides.TorchFunctionMode):
        calls = 0

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    with Counting() as counting:
        compat.uninstall()
        torch.zeros(2)
    assert counting.calls == 1
    # What is left of the mapping in this thread has no effect; take it off for later tests.
    for _ in torch.overrides._get_current_function_mode_stack():
        torch.overrides._pop_mode()


def test_torch_may_be_imported_afterwards() -> None:
    program = """
import sys
from tilewright import compat
compat.install()
assert "torch" not in sys.modules
import torch
assert torch.zeros(2, device="cuda").device.type == "cpu"
assert type(torch.__spec__.loader).__name__ == "SourceFileLoader"
compat.uninstall()
assert not torch.cuda.is_available()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
