"""The host's part of a program: kernels under its branches and in its loops."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

from tilewright import driver
from tilewright.base.errors import TilewrightError
from tilewright.frontend import KernelFunction, parse, parse_function

HEAD = "from tilewright import simt as T\n"
ENTRY = "with T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1)):"


def read(body: str) -> KernelFunction:
    params = 'A: T.Tensor((16,), "int32"), n: T.int32'
    text = f"{HEAD}@T.function\ndef k({params}):\n"
    made = parse_function(text + textwrap.indent(textwrap.dedent(body).strip("\n"), "    "))
    assert parse(made.script()) == made.program, made.script()
    return made


def run(body: str, n: int) -> list[int]:
    executable = driver.compile(read(body), backend="sim")
    assert parse(str(executable.ir)) == executable.ir
    values = np.zeros(16, np.int32)
    executable(values, n)
    return values.tolist()


@pytest.mark.parametrize(("n", "expected"), [(1, [7, 0]), (5, [0, 8]), (3, [9, 0])])
def test_a_branch_of_the_host_chooses_a_kernel(n: int, expected: list[int]) -> None:
    body = f"""
    if n < 2:
        {ENTRY}
            A[0] = 7
    elif n > 4:
        {ENTRY}
            A[1] = 8
    else:
        {ENTRY}
            A[0] = 9
    """
    assert run(body, n)[:2] == expected


def test_a_loop_of_the_host_starts_a_kernel_again_and_again() -> None:
    body = f"""
    for i in range(n):
        twice = i * 2
        {ENTRY}
            A[i] = A[i] + twice + n
    """
    assert run(body, 4)[:5] == [4, 6, 8, 10, 0]


def test_the_shape_of_a_launch_may_depend_on_the_turn() -> None:
    body = """
    for i in range(1, n):
        with T.device_entry(launch=T.cuda.LaunchConfig(grid=i, block=1)):
            b = T.cuda.block_idx("x")
            A[b] = A[b] + 1
    """
    assert run(body, 4)[:4] == [3, 2, 1, 0]


def test_loops_and_branches_of_the_host_and_of_the_kernel_do_not_mix() -> None:
    body = f"""
    for i, j in T.grid(2, 3):
        if j == n:
            break_here = i
            {ENTRY}
                for m in range(8):
                    if m == 3:
                        break
                    A[m] = A[m] + 1 + break_here
                if A[0] > 100:
                    return
                A[8] = A[8] + 1
    """
    assert run(body, 2)[:9] == [3, 3, 3, 0, 0, 0, 0, 0, 2]


def test_the_host_leaves_a_loop_after_a_kernel() -> None:
    body = f"""
    for i in range(8):
        {ENTRY}
            A[i] = 1
        if i == n:
            break
        {ENTRY}
            A[8 + i] = 2
    """
    assert run(body, 2) == [1, 1, 1, 0, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 0, 0]


def test_a_while_loop_of_the_host_gives_a_kernel_the_value_of_now() -> None:
    body = f"""
    left: T.int32 = n
    while left > 0:
        now = left
        {ENTRY}
            A[0] = A[0] * 10 + now
        left -= 1
    """
    assert run(body, 3)[0] == 321


def test_a_loop_that_runs_when_the_program_is_read_makes_kernels() -> None:
    made = read(f"for i in (3, 4):\n    {ENTRY}\n        A[i] = i")
    assert [each.name for each in made.program.kernels] == ["k_kernel", "k_kernel_1"]


def test_names_of_a_kernel_are_not_those_of_the_next() -> None:
    body = f"""
    x = n + 1
    if n > 0:
        {ENTRY}
            x = 5
            A[0] = x
        {ENTRY}
            A[1] = n
    {ENTRY}
        A[2] = 7
    """
    assert run(body, 2)[:3] == [5, 2, 7]


@pytest.mark.parametrize(
    ("body", "code", "line"),
    [
        (
            "if n > 1:\n    T.device_entry(launch=T.cuda.LaunchConfig())\n    A[0] = 1",
            "unsupported-statement",
            "T.device_entry",
        ),
        (
            f"{ENTRY}\n    {ENTRY}\n        A[0] = 1",
            "unsupported-statement",
            "with",
        ),
        (f"x: T.int32 = n\nif n > 1:\n    {ENTRY}\n        A[0] = x", "unbound-name", "with"),
        (f"for i in range(3):\n    {ENTRY}\n        break", "unsupported-statement", "break"),
        (
            f"if n > 1:\n    {ENTRY}\n        x = n + 1\n    {ENTRY}\n        A[0] = x",
            "unbound-name",
            "A[0] = x",
        ),
        (
            f"for i in range(3):\n    y = i\n    {ENTRY}\n        A[0] = y\n{ENTRY}\n    A[0] = y",
            "unbound-name",
            "A[0] = y",
        ),
    ],
)
def test_what_is_refused(body: str, code: str, line: str) -> None:
    with pytest.raises(TilewrightError) as caught:
        read(body)
    assert caught.value.code == code, caught.value
    assert caught.value.location is not None
    assert line in caught.value.location.source_line()
