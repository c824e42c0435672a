"""What a program asks for and does not get is told, where it is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

import tilewright
from tilewright import cli
from tilewright import tile as T

PROGRAM = """
import numpy as np, tilewright
from tilewright import tile as T

@T.prim_func
def doubled(A: T.Tensor((5, 128), "float32")):
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((128,), "float32")
        for k in T.Pipelined(4, num_stages=3):
            T.copy(A[k, 0], a)
            for i in T.Parallel(128):
                A[k + 1, i] = 2 * a[i]

for _ in range(2):
    tilewright.compile(doubled)(np.ones((5, 128), np.float32))
"""


def test_run_explains_what_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    assert cli.main(["run", "--explain", str(script)]) == 0
    told = capsys.readouterr().err
    assert told.count("the loop writes A, which it copies from") == 1
    assert f"{script}:10:13" in told
    assert cli.main(["run", str(script)]) == 0
    assert "copies from" not in capsys.readouterr().err


def test_an_executable_has_its_notes() -> None:
    @T.prim_func
    def plain(A: T.Tensor((4, 128), "float32"), B: T.Tensor((4, 128), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((128,), "float32")
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[k, 0], a)
                T.copy(a, B[k, 0])

    assert tilewright.compile(plain, "sm_80").notes == ()
    [note] = tilewright.compile(plain, "sm_75").notes
    assert note.reason == "the target has no asynchronous copies"
