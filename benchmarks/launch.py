"""What a launch costs in Python, for three tensors: Tilewright beside what else launches.

Each row is the median, over many batches, of the microseconds that the host needs to queue one
launch, and what that is more than the bare launch by `cuda.core`. Batches of the rows take turns,
so that all see the same machine. Needs a GPU and PyTorch; a row whose package is absent is left
out.

    python benchmarks/launch.py --json launch.json
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tilewright
from tilewright import simt

T: Any = simt
SIZE = 1024
BATCH = 50  # launches between two synchronizations: fewer than the driver's queue holds


@T.function
def add(
    A: T.Tensor((SIZE,), "float32"),
    B: T.Tensor((SIZE,), "float32"),
    Out: T.Tensor((SIZE,), "float32"),
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=SIZE // 128, block=128))
    i = T.cuda.block_idx("x") * 128 + T.cuda.thread_idx("x")
    Out[i] = A[i] + B[i]


Call = Callable[[Any, Any, Any], Any]
Tensors = tuple[Any, Any, Any]


def tilewright_call() -> tuple[str, Call]:
    """Compile for this GPU."""
    return f"tilewright {tilewright.__version__}", tilewright.compile(add, backend="gpu")


def changing_call() -> tuple[str, Call]:
    """Launch on tensors that lie elsewhere at each call than at the last."""
    ex = tilewright.compile(add, backend="gpu")
    turned = False

    def call(a: Any, b: Any, out: Any) -> None:
        nonlocal turned
        turned = not turned
        if turned:
            ex(b, a, out)
        else:
            ex(a, b, out)

    return f"tilewright {tilewright.__version__}, two tensors change places", call


def cuda_core_call() -> tuple[str, Call]:
    """Launch the same cubin by `cuda.core`, on PyTorch's stream, addresses taken at each call."""
    core = importlib.import_module("cuda.core")
    if not hasattr(core, "ObjectCode"):
        core = importlib.import_module("cuda.core.experimental")
    torch = importlib.import_module("torch")
    core.Device(0).set_current()
    ex = tilewright.compile(add, backend="gpu")
    kernel = core.ObjectCode.from_cubin(ex.cubin()).get_kernel(ex.ir.kernels[0].name)
    config = core.LaunchConfig(grid=SIZE // 128, block=128)
    stream = core.Stream.from_handle(torch.cuda.current_stream().cuda_stream)
    launch = core.launch

    def call(a: Any, b: Any, out: Any) -> None:
        launch(stream, config, kernel, a.data_ptr(), b.data_ptr(), out.data_ptr())

    return f"cuda.core {importlib.import_module('cuda.core').__version__}, bare", call


def torch_call() -> tuple[str, Call]:
    """Add by PyTorch."""
    torch = importlib.import_module("torch")

    def call(a: Any, b: Any, out: Any) -> None:
        torch.add(a, b, out=out)

    return f"torch {torch.__version__}, torch.add(out=)", call


def triton_call() -> tuple[str, Call]:
    """Add by Triton."""
    triton = importlib.import_module("triton")
    kernel = importlib.import_module("triton_add").add

    def call(a: Any, b: Any, out: Any) -> None:
        kernel[(SIZE // 128,)](a, b, out, BLOCK=128)

    return f"triton {triton.__version__}", call


def prepared(make: Callable[[], tuple[str, Call]]) -> tuple[str, Call, Tensors] | None:
    """Make a row's call and its tensors; `None`, and why, where it cannot be or adds wrongly."""
    torch = importlib.import_module("torch")
    try:
        name, call = make()
        a, b, out = (torch.randn(SIZE, device="cuda") for _ in range(3))
        call(a, b, out)
        torch.cuda.synchronize()
        if not torch.equal(out, a + b):
            raise ValueError("a wrong sum")
    except Exception as error:
        print(f"left out: {make.__name__}: {type(error).__name__}: {error}")
        return None
    return name, call, (a, b, out)


def batch(call: Call, tensors: Tensors, synchronize: Callable[[], None]) -> float:
    """Give the microseconds of one call of a batch."""
    a, b, out = tensors
    synchronize()
    begin = time.perf_counter_ns()
    for _ in range(BATCH):
        call(a, b, out)
    return (time.perf_counter_ns() - begin) / BATCH / 1000


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parsed = parser.parse_args()
    torch = importlib.import_module("torch")
    makes = (tilewright_call, changing_call, cuda_core_call, torch_call, triton_call)
    rows = {make: row for make in makes if (row := prepared(make)) is not None}
    times: dict[Any, list[float]] = {make: [] for make in rows}
    for number in range(parsed.batches + parsed.batches // 10):
        for make, (_, call, tensors) in rows.items():
            taken = batch(call, tensors, torch.cuda.synchronize)
            if number >= parsed.batches // 10:
                times[make].append(taken)
    torch.cuda.synchronize()
    medians = {rows[make][0]: statistics.median(each) for make, each in times.items()}
    bare = statistics.median(times.get(cuda_core_call, [math.nan]))
    device = torch.cuda.get_device_name()
    print(f"launches of three tensors on {device}, microseconds of the host, median,")
    print("and what that is more than the bare launch by cuda.core:")
    for name, median in medians.items():
        print(f"{median:8.2f} {median - bare:+8.2f}  {name}")
    if parsed.json is not None:
        record = {"device": device, "batch": BATCH, "batches": parsed.batches, "median_us": medians}
        parsed.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
