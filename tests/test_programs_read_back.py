"""Programs print as source that reads back to them, before and after lowering."""

from __future__ import annotations

import textwrap

import pytest

from tilewright import driver
from tilewright.frontend import parse, parse_function
from tilewright.frontend.math import BINARY, COUNTS, TESTS, UNARY

HEAD = "from tilewright import simt as T\n"


def read_back(body: str, kind: str = "float32") -> None:
    text = (
        f'{HEAD}@T.function\ndef k(A: T.Tensor((128,), "{kind}"), O: T.Tensor((128,), "{kind}")):\n'
        "    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))\n"
        "    i = T.cuda.thread_idx('x')\n" + textwrap.indent(textwrap.dedent(body), "    ")
    )
    made = parse_function(text)
    assert parse(str(made)) == made.program
    lowered = driver.compile(made, backend="sim").ir
    assert parse(str(lowered)) == lowered, str(lowered)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", [*UNARY, *TESTS, *BINARY])
def test_functions_of_numbers(name: str, kind: str) -> None:
    arguments = "A[i], A[i + 64]" if name in BINARY else "A[i]"
    read_back(f"O[i] = T.{name}({arguments})", kind)


@pytest.mark.parametrize("name", COUNTS)
def test_functions_of_bits(name: str) -> None:
    read_back(f"O[i] = T.{name}(A[i])", "int32")


@pytest.mark.parametrize("body", [
    "O[i] = T.float32('nan')",
    "O[i] = T.select(A[i] > 0, -T.infinity('float32'), T.float32('nan'))",
    "x: T.float32 = T.float32('nan')\nx = -x\nO[i] = x",
    "O[i] = T.float32(-0.0) * A[i]",
    "assert i < 99",
    "assert i < 99, 'never'",
    "assert i > 99, 'always'",
    "assert A[i] > 0",
    "T.cuda.trap_when_assert_failed(A[i] > 0)",
    "if i < 99:\n    O[i] = 1",
    "if i > 99:\n    O[i] = 1\nelse:\n    O[i] = 2",
    "while i > 99:\n    O[i] = 1",
    "while True:\n    O[i] = 1\n    break",
])  # fmt: skip
def test_what_is_known_when_it_is_compiled(body: str) -> None:
    read_back(body)
