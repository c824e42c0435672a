"""Grids that depend on the one in front of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import simt
from tilewright.base.errors import TargetError

T: Any = simt


@T.function
def producer(Out: T.Tensor((256,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=64))
    i = T.cuda.block_idx("x") * 64 + T.cuda.thread_idx("x")
    T.ptx.griddepcontrol.launch_dependents()
    Out[i] = i


@T.function
def consumer(A: T.Tensor((256,), "int32"), Out: T.Tensor((256,), "int32")):
    T.device_entry(
        launch=T.cuda.LaunchConfig(grid=4, block=64, programmatic_stream_serialization=True)
    )
    i = T.cuda.block_idx("x") * 64 + T.cuda.thread_idx("x")
    if T.cuda.thread_idx("x") % 2 == 0:
        T.ptx.griddepcontrol.wait()
    else:
        T.ptx["griddepcontrol.wait"]()
    Out[i] = A[i] + 1


@pytest.mark.parametrize("check", [False, "strict"])
def test_a_grid_sees_what_the_one_in_front_of_it_wrote(check: Any) -> None:
    first, second = (tilewright.compile(each, "sm_90a", "sim") for each in (producer, consumer))
    a, out = np.zeros(256, np.int32), np.zeros(256, np.int32)
    first(a, check=check)
    second(a, out, check=check)
    assert out.tolist() == list(range(1, 257))


def test_the_gpu_is_told() -> None:
    assert "griddepcontrol.launch_dependents;" in tilewright.compile(producer, "sm_90").source
    assert "griddepcontrol.wait;" in tilewright.compile(consumer, "sm_90").source


def test_an_older_target_has_no_dependent_grids() -> None:
    with pytest.raises(TargetError) as caught:
        tilewright.compile(consumer, target="sm_89", backend="sim")
    assert caught.value.code == "missing-instruction" and "sm_90" in (caught.value.expected or "")
