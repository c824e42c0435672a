"""Kernels of any size: large expressions, deep nests, long straight code.

What a kernel computes is computed again by Python. Costs are held to growth, not to seconds.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable

import numpy as np
import pytest

from tilewright import driver
from tilewright.base.errors import FrontendError
from tilewright.frontend import KernelFunction, parse, parse_function

TARGET = "sm_90a"
HEAD = """
from tilewright import simt as T

def fold(step, count, x):
    for j in range(count):
        x = step(x, j)
    return x

@T.function
def k(A: T.Tensor((64,), "float32"), O: T.Tensor((64,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    i = T.cuda.lane_id()
"""


def kernel(body: str) -> KernelFunction:
    return parse_function(HEAD + textwrap.indent(textwrap.dedent(body), "    "))


def result(made: KernelFunction) -> np.ndarray:
    values, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    driver.compile(made, target=TARGET, backend="sim")(values, out)
    return out[:32]


LANES = np.arange(32, dtype=np.float32)
COUNT = 300
# Expressions of COUNT operations, and what they are in lane `i`, where A[j] is j.
LARGE: dict[str, tuple[str, np.ndarray]] = {
    "sum of a list": (f"sum([A[i] for j in range({COUNT})])", COUNT * LANES),
    "terms in the source": (" + ".join(["A[i]"] * COUNT), COUNT * LANES),
    "to the right": (f"fold(lambda x, j: 1.0 - x, {COUNT}, A[i])", LANES),
    "to the left": (f"fold(lambda x, j: x - 1.0, {COUNT}, A[i])", LANES - COUNT),
    "negated": (f"fold(lambda x, j: -x, {COUNT}, A[i])", LANES),
    "signs in the source": ("-" * COUNT + "A[i]", LANES),
    "casts": (
        f'fold(lambda x, j: T.cast(T.cast(x, "float16"), "float32"), {COUNT}, A[i])',
        LANES,
    ),
    "functions": (
        f"fold(lambda x, j: T.log2(T.exp2(x)), {COUNT // 10}, A[i] * 0.0)",
        0 * LANES,
    ),
    "an index": (f"A[sum([i for j in range({COUNT})]) % 64]", COUNT * LANES % 64),
    "choices": (
        f"fold(lambda x, j: T.select(i == j, j * 2.0, x), {COUNT}, A[i] * 0.0)",
        2 * LANES,
    ),
    "used twice": ("fold(lambda x, j: (x + x) * 0.5, 60, A[i] * 1.0)", LANES),
    "under a condition": (
        f"T.select(i < 16, {' + '.join(['A[i * 4]'] * COUNT)}, 1.0)",
        np.where(LANES < 16, COUNT * 4 * LANES, 1),
    ),
    "choices under a condition": (
        f"({' + '.join(['A[i * 4]'] * COUNT)}) if i < 16 else "
        f"(2.0 if i < 20 else {' * '.join(['A[i]'] + ['1.0'] * COUNT)})",
        np.where(LANES < 16, COUNT * 4 * LANES, np.where(LANES < 20, 2, LANES)),
    ),
}


@pytest.mark.parametrize("text", LARGE)
def test_an_expression_may_be_of_any_size(text):
    expression, expected = LARGE[text]
    made = kernel(f"O[i] = {expression}")
    np.testing.assert_array_equal(result(made), expected)
    assert parse(made.script()) == made.program


# Where an expression stands in a statement, with what becomes of x in lane `i`.
TERMS = " + ".join(["A[i * 4]"] * 40)  # 160 i, outside A where i is 16 or more
PLACES: dict[str, tuple[str, np.ndarray]] = {
    "if and": (f"if i < 16 and {TERMS} > 200.0:\n    x = 1", (LANES > 1) & (LANES < 16)),
    "if or": (f"if i >= 16 or {TERMS} > 200.0:\n    x = 1", LANES > 1),
    "while": (
        f"while i < 16 and {TERMS} > x * 160 and x < 9:\n"
        "    x = x + 1\n"
        "    if x == 3:\n        continue\n"
        "    if x == 7:\n        break\n",
        np.where(LANES < 16, np.minimum(LANES, 7), 0),
    ),
    "for": (
        "for j in range(" + " + ".join(["i"] * 40) + "):\n    x = x + 1",
        LANES * 40,
    ),
    "declaration": (
        f"y: T.float32 = T.select(i < 16, {TERMS}, 0.0)\nx = T.cast(y, 'int32')",
        np.where(LANES < 16, 160 * LANES, 0),
    ),
    "assert": (f"assert i >= 16 or {TERMS} >= 0.0\nx = 1", np.ones(32)),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_large_expression_may_stand_anywhere(place):
    body, expected = PLACES[place]
    made = kernel("x: T.int32 = 0\n" + body + "\nO[i] = T.cast(x, 'float32')\n")
    np.testing.assert_array_equal(result(made), expected)
    assert parse(made.script()) == made.program


def test_a_large_expression_may_stand_on_the_host():
    text = HEAD.replace("def k(", "def k(n: T.int32, ").replace(
        "    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))",
        f"    blocks = {' + '.join(['n'] * COUNT)}\n"
        "    T.device_entry(launch=T.cuda.LaunchConfig(grid=blocks, block=32))",
    )
    made = parse_function(text + "    A[T.cuda.grid_dim() // 10] = 1.0\n")
    out = np.zeros(64, np.float32)
    driver.compile(made, target=TARGET, backend="sim")(2, out, out.copy())
    assert np.flatnonzero(out).tolist() == [2 * COUNT // 10]
    assert parse(made.script()) == made.program


def test_conditions_that_nest_without_end_are_refused_where_they_stand():
    table = " ".join(f"A[{j % 64}] if i == {j} else" for j in range(COUNT))
    with pytest.raises(FrontendError, match="nest too deeply") as caught:
        kernel(f"O[i] = {table} 0.0")
    assert caught.value.location is not None


# ---------------------------------------------------------------------------- growth

# Statements that a program may repeat.
REPEATED = {
    "a value": "x = x + 1.0",
    "a store": "O[i] = O[i] + 1.0",
    "an index": "y = i * 3 + 1\nx = x + A[y % 64]",
    "a branch": "if x > A[0]:\n    x = x + 1.0",
    "a loop": "for q in range(3):\n    x = x + A[q]",
    "a waiting loop": "for q in range(3):\n    T.cuda.warp_sync()",
    "shared memory": "s[i] = s[i] + 1.0",
    "a local array": "v[0] = v[0] + 1.0",
    "an exchange": "x = T.cuda.__shfl_xor_sync(0xffffffff, x, 1, 32)",
}


def seconds(body: str) -> float:
    start = time.process_time()
    result(kernel(body))
    return time.process_time() - start


def growth(body: Callable[[int], str], small: int, large: int) -> float:
    """Tell how many times as long a first call of the large kernel takes, in the best of tries."""
    return min(seconds(body(large)) / seconds(body(small)) for _ in range(2))


@pytest.mark.parametrize("statement", REPEATED)
def test_a_first_call_takes_time_in_proportion_to_straight_code(statement):
    text = REPEATED[statement]

    def body(count: int) -> str:
        first = 's = T.alloc_shared((64,), "float32")\nv: T.float32[4]\nx: T.float32 = A[i]\n'
        return first + f"for j in [*range({count})]:\n" + textwrap.indent(text, "    ")

    # Eight times the code; the square would be 64 times the time.
    assert growth(body, 50, 400) < 16


def nest(head: str, inner: str) -> Callable[[int], str]:
    def body(depth: int) -> str:
        lines = ["x: T.int32 = 0"]
        lines += ["    " * level + head.format(level) for level in range(depth)]
        lines += ["    " * depth + line for line in inner.splitlines()]
        return "\n".join([*lines, "O[i] = T.cast(x, 'float32')"])

    return body


@pytest.mark.parametrize(
    ("head", "inner"),
    [
        ("for j{} in range(1):", "x = x + 1"),
        ("for j{} in range(1):", "x = x + 1\nT.cuda.cta_sync()"),
        ("for j{} in range(i, i + 1):", "x = x + 1"),
        ("for j{} in range(1):", "x = x + 1\nif A[i] > 5.0:\n    break\nT.cuda.warp_sync()"),
        ("while x == 0:", "x = 1\nT.cuda.cta_sync()"),
        ("if A[i] >= 0.0:", "x = 1\nT.cuda.warp_sync()"),
    ],
)
def test_a_first_call_does_not_take_longer_by_the_power_of_a_nests_depth(head, inner):
    body = nest(head, inner)
    np.testing.assert_array_equal(result(kernel(body(18))), np.ones(32))
    # Three times the code; if every level doubled the time, it would be 4096 times as long.
    assert growth(body, 6, 18) < 12
