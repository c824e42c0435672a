"""Private functions: helpers with types, which get values and may return from anywhere."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import driver
from tilewright import simt as T
from tilewright.base.errors import FrontendError, LaunchError, TilewrightError
from tilewright.frontend import KernelFunction, parse, parse_function

HEAD = "from __future__ import annotations\nfrom tilewright import simt as T\n"
PARAMS = 'A: T.Tensor((64,), "float32"), O: T.Tensor((64,), "float32"), n: T.int32'


def private(text: str) -> str:
    return "@T.function(private=True)\n" + textwrap.dedent(text).strip("\n") + "\n"


def read(helpers: str, body: str) -> KernelFunction:
    made = parse_function(
        f"{HEAD}{helpers}@T.function\ndef k({PARAMS}):\n"
        "    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))\n"
        "    i = T.cuda.thread_idx('x')\n" + textwrap.indent(textwrap.dedent(body), "    ")
    )
    assert parse(made.script()) == made.program, made.script()
    return made


def run(helpers: str, body: str, n: int = 5) -> np.ndarray:
    a = np.arange(64, dtype=np.float32)
    result = np.zeros(64, np.float32)
    driver.compile(read(helpers, body), backend="sim")(a, result, n)
    return result


def refused(helpers: str, body: str) -> TilewrightError:
    with pytest.raises(TilewrightError) as caught:
        read(helpers, body)
    assert caught.value.location is not None
    return caught.value


A = np.arange(64, dtype=np.float32)

DOUBLE = private("def double(x: T.float32) -> T.float32:\n    return x * 2.0")
CLAMP = private("""
def clamp(x: T.float32, low: T.float32, high: T.float32) -> T.float32:
    if x < low:
        return low
    elif x > high:
        return high
    else:
        return x
""")
FIND = private("""
def find(A: T.Tensor((64,), "float32"), x: T.float32) -> T.int32:
    for i in range(8):
        j: T.int32 = 0
        while j < 8:
            if A[i * 8 + j] == x:
                return i * 8 + j
            j += 1
    return -1
""")
STORE = private("""
def store(O: T.Tensor((64,), "float32"), i: T.int32, x: T.float32):
    if i > 9:
        return
    O[i] = x
""")


def test_a_function_that_returns_once_is_expanded_in_place() -> None:
    assert np.array_equal(run(DOUBLE, "O[i] = double(A[i]) + double(x=1)"), A * 2 + 2)


def test_a_function_may_return_from_branches() -> None:
    expected = np.clip(A, 10, 20) + np.clip(A, 0, 3)
    assert np.array_equal(
        run(CLAMP, "O[i] = clamp(A[i], 10, 20) + clamp(A[i], 0, high=3)"), expected
    )


def test_a_function_may_return_from_loops() -> None:
    body = "O[i] = find(A, A[i] * 2)"
    assert np.array_equal(run(FIND, body), np.where(A < 32, A * 2, -1))


def test_a_function_may_return_from_a_grid_of_loops() -> None:
    helper = private("""
    def first(x: T.int32) -> T.int32:
        for i, j in T.grid(8, 8):
            if i * 8 + j >= x:
                return j
        return 99
    """)
    assert np.array_equal(run(helper, "O[i] = first(i)"), A % 8)


def test_a_function_without_a_result_may_return_early() -> None:
    assert np.array_equal(run(STORE, "store(O, i, 7)\nstore(O, 20, 1)"), np.where(A > 9, 0, 7))


def test_functions_call_functions() -> None:
    outer = private("""
    def outer(x: T.float32) -> T.float32:
        for _ in range(3):
            if clamp(x, 0, 8) == 8:
                return double(clamp(x, 20, 30))
        return x
    """)
    result = run(CLAMP + DOUBLE + outer, "O[i] = outer(A[i])")
    assert np.array_equal(result, np.where(A < 8, A, np.clip(A, 20, 30) * 2))


def test_a_return_leaves_the_function_and_nothing_else() -> None:
    body = """
    for j in range(4):
        for m in range(4):
            if clamp(A[j], 0, 2) == 2:
                break
            O[j * 4 + m] = 1
    """
    assert run(CLAMP, body)[:16].tolist() == [1.0] * 8 + [0.0] * 8


def test_arguments_are_values() -> None:
    helper = private("""
    def put(v: T.Tensor((4,), "float32", scope="local"), x: T.float32) -> T.float32:
        v[0] = 9.0
        x = x + 1
        return x
    """)
    body = (
        "v: T.float32[4]\nv[0] = 7.0\nO[i] = put(v, v[0])\nx: T.float32 = 1.0\nO[0] = put(v, x) + x"
    )
    assert run(helper, body).tolist()[:2] == [3.0, 8.0]


def test_arguments_and_results_are_converted_as_assignments_are() -> None:
    helper = private("def f(x: T.float32, n: T.int64) -> T.float64:\n    return x + n")
    lines = str(read(helper, "O[i] = f(n, i)")).splitlines()
    assert lines[-3:] == [
        '    x = T.cast(n, "float32")',
        '    n_1 = T.cast(i, "int64")',
        '    O[i] = T.cast(T.cast(x + T.cast(n_1, "float32"), "float64"), "float32")',
    ]


def test_a_pointer_is_given_and_taken() -> None:
    helper = private("""
    def choose(p: T.Ptr("float32"), q: T.Ptr("float32"), n: T.int32) -> T.Ptr("float32"):
        if n > 3:
            return p
        return q
    """)
    result = run(helper, "O[i] = choose(A.ptr_to([1]), A.ptr_to([2]), i)[0]")
    assert np.array_equal(result, np.where(A > 3, 1, 2))


@pytest.mark.parametrize(
    ("helper", "body", "code", "line"),
    [
        (DOUBLE, "O[i] = double(A)", "type-mismatch", "double(A)"),
        (DOUBLE, "x: T.int32 = double(A[i])", "type-mismatch", "x: T.int32"),
        (DOUBLE, "O[i] = double()", "bad-call", "double()"),
        (DOUBLE, "O[i] = double(1, 2)", "bad-call", "double(1, 2)"),
        (DOUBLE, "O[i] = double(y=1)", "bad-call", "double(y=1)"),
        (FIND, "O[i] = find(A.view(8, 8), 1)", "type-mismatch", "find("),
        (FIND, "s = T.alloc_shared((64,), 'float32')\nO[i] = find(s, 1)", "type-mismatch", "find("),
        (STORE, "store(O, 0.5, 1)", "type-mismatch", "store("),
        (STORE, "store(O, 2**31, 1)", "type-mismatch", "store("),
        (
            private("def f(x: T.float32) -> T.float32:\n    if x > 1:\n        return x"),
            "O[i] = f(A[i])",
            "type-mismatch",
            "def f",
        ),
        (
            private("def f(x: T.float32) -> T.float32:\n    x = x + 1"),
            "O[i] = f(A[i])",
            "type-mismatch",
            "def f",
        ),
        (
            private("def f(x: T.float32):\n    return x"),
            "O[i] = f(A[i])",
            "type-mismatch",
            "return x",
        ),
        (
            private("def f(x: T.float32) -> T.float32:\n    return"),
            "O[i] = f(A[i])",
            "type-mismatch",
            "return",
        ),
        (
            private("def f(x: T.float32) -> T.int32:\n    return x"),
            "O[i] = f(A[i])",
            "type-mismatch",
            "return x",
        ),
        (
            private("def f(x: T.float32) -> T.float32:\n    return f(x)"),
            "O[i] = f(A[i])",
            "trace-error",
            "return f(x)",
        ),
        (private("def f(x) -> T.float32:\n    return x"), "", "missing-annotation", "def f"),
        (private("def f(x: 3):\n    return x"), "", "bad-annotation", "def f"),
        (
            private('def f(x: T.int32) -> T.Tensor((4,), "int32"):\n    return x'),
            "",
            "bad-annotation",
            "def f",
        ),
        (
            private(
                "def f(x: T.int32):\n"
                "    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))"
            ),
            "f(1)",
            "unsupported-statement",
            "T.device_entry",
        ),
    ],
)
def test_what_is_refused(helper: str, body: str, code: str, line: str) -> None:
    error = refused(helper, body)
    assert error.code == code, error
    assert error.location is not None and line in error.location.source_line()


def test_a_kernel_is_not_called_from_a_kernel() -> None:
    kernel = "@T.function\ndef other():\n    T.device_entry(launch=T.cuda.LaunchConfig())\n"
    error = refused(kernel, "other()")
    assert error.code == "bad-call"
    assert "private=True" in (error.hint or "") and "compile" not in (error.hint or "")


def test_a_private_function_is_neither_compiled_nor_called_by_the_host() -> None:
    names: dict[str, Any] = {}

    @T.function(private=True)
    def helper(x: T.float32) -> T.float32:
        names["read"] = True
        return x

    assert repr(helper) == "<private function helper>"
    with pytest.raises(FrontendError) as caught:
        helper(1.0)
    assert caught.value.code == "bad-call"
    with pytest.raises(LaunchError) as refusal:
        tilewright.compile(helper)
    assert refusal.value.code == "argument-kind"
    assert "private" in (refusal.value.hint or "")


@pytest.mark.parametrize(
    "decorator",
    [
        "function(persistent=True)",
        "function(check_well_formed=False)",
        "function(private=True, persistent=True)",
        "function(foo=3)",
        "jit(persistent=True)",
        "jit(check_well_formed=False)",
        "jit(private=True)",
        "inline(foo=3)",
        "macro(hygienic=False)",
        "macro(foo=3)",
    ],
)
def test_an_option_that_would_change_nothing_is_refused(decorator: str) -> None:
    with pytest.raises(FrontendError) as caught:
        parse_function(f"{HEAD}@T.{decorator}\ndef k():\n    pass\n")
    assert caught.value.code == "bad-call"
    assert caught.value.location is not None and caught.value.location.line == 3


@pytest.mark.parametrize(
    "decorator",
    ["function(private=False, persistent=False, check_well_formed=True)", "function()"],
)
def test_options_may_say_what_holds(decorator: str) -> None:
    entry = "T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))"
    parse_function(f"{HEAD}@T.{decorator}\ndef k():\n    {entry}\n")
