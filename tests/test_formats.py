"""Formats of C's `printf`, applied to values."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.base.formats import directives, formatted


@pytest.mark.parametrize(
    ("format", "values", "text"),
    [
        ("hello\n", [], "hello\n"),
        ("%d%%|%5d|%-3d|%03i", [1, 2, 3, 4], "1%|    2|3  |004"),
        ("%d %d %u", [2**31, -1, -1], "-2147483648 -1 4294967295"),
        ("%lld %llx %lu", [2**40, -1, 7], "1099511627776 ffffffffffffffff 7"),
        ("%x %#X %o", [255, 255, 8], "ff 0XFF 10"),
        ("%6.2f %e %g", [1.5, 0.5, 1e10], "  1.50 5.000000e-01 1e+10"),
        ("%c %p %a", [65, 4096, 1.0], "A 0x1000 0x1.0000000000000p+0"),
        ("%d %d", [1], "1 %d"),
    ],
)
def test_values_print_as_in_c(format: str, values: list[Any], text: str) -> None:
    assert formatted(format, values) == text


def test_directives_tell_what_they_take() -> None:
    found = directives("%% %d %llu %f %p %s")
    assert found is not None
    taken = [("int", 32), ("int", 64), ("float", 64), ("pointer", 64), ("text", 64)]
    assert [(each.kind, each.bits) for each in found] == taken
    assert directives("100%") is None and directives("%*d") is None
