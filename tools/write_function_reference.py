"""Write `docs/functions.md` from what is stated with the functions' expansions.

Run it by `python tools/write_function_reference.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tilewright.passes.functions.notation import Function
from tilewright.passes.math_functions import FUNCTIONS, OPERATIONS, PRIMITIVES

PATH = Path(__file__).parent.parent / "docs" / "functions.md"
_HEAD = """\
# Functions of numbers

What the functions of `T` compute, and how far they may be off. The errors are in units in the
last place (ulp) of the exact result: the largest over the whole range, of float32 and of float64.
They hold on the simulator and on the GPU alike, which give the same bytes. Narrower floats are
computed in float32 and then rounded, which leaves them no more than just over half a unit off.

This page is written from `tilewright.passes.functions` by `tools/write_function_reference.py`;
tests measure the errors. Special cases, such as infinities and zeros, are those of C's functions.
"""
_COLUMNS = "| function | computes | error |\n|---|---|---|\n"
# How programs write what are operations for the compiler.
_WRITTEN = {
    "floordiv": "x // y",
    "mod": "x % y",
    "truncdiv": "T.truncdiv",
    "truncmod": "T.truncmod",
}
_TESTS = {"isfinite", "isinf", "isnan"}
_OF_INTEGERS = {"brev", "clz", "popcount"}


def stated(function: Function) -> tuple[str, str]:
    """Read what a function computes, and its error, off its documentation: before and after `;`."""
    first = (function.__doc__ or "").split("\n")[0].rstrip(".").replace("*", "\\*")
    what, _, error = first.partition("; ")
    return what.removeprefix("Compute "), error or "none"


def text() -> str:
    """Lay the functions out as Markdown."""
    exact = sorted(PRIMITIVES - _TESTS - _OF_INTEGERS)
    return (
        f"{_HEAD}\n{_rows({f'T.{name}': each for name, each in FUNCTIONS.items()})}\n"
        f"{', '.join(f'`T.{name}`' for name in exact)} are exact, or rounded correctly.\n\n"
        "## Division of floats\n\n"
        f"{_rows({_WRITTEN[name]: each for name, each in OPERATIONS.items()})}"
    )


def _rows(functions: Mapping[str, Function]) -> str:
    rows = (f"| `{name}` | {' | '.join(stated(each))} |\n" for name, each in functions.items())
    return _COLUMNS + "".join(rows)


if __name__ == "__main__":
    PATH.write_text(text())
