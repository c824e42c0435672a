"""Formats of C's `printf`, applied to values."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tilewright.base.formats import directives, formatted


@pytest.mark.parametrize(
    ("format", "values", "text"),
    [
        ("hello\n", [], "hello\n"),
        ("%d%%|%5d|%-3d|%03i", [1, 2, 3, 4], "1%|    2|3  |004"),
        ("%5d|%-5d|%05d|%+d|% d|%.3d", [1, 2, 3, 4, 5, 5], "    1|2    |00003|+4| 5|005"),
        ("%d %d %u", [2**31, -1, -1], "-2147483648 -1 4294967295"),
        ("%hd %hhd %hhu", [70000, 300, -1], "4464 44 255"),
        ("%lld %llx %lu", [2**40, -1, 7], "1099511627776 ffffffffffffffff 7"),
        ("%llu %zu %ld", [-1, 1 << 40, -1], "18446744073709551615 1099511627776 -1"),
        ("%x %#X %o %#x %#o %+u", [255, 255, 8, 255, 8, 5], "ff 0XFF 10 0xff 010 5"),
        ("%#o %#.3o|%5.3d|%-5.3x|", [0, 8, 7, 255], "0 010|  007|0ff  |"),
        ("%#7o|%#07o|%#x", [8, 8, 0], "    010|0000010|0"),
        ("%6.2f %e %g %.1e", [1.5, 0.5, 1e10, 1.5], "  1.50 5.000000e-01 1e+10 1.5e+00"),
        ("%08.3f|%05f|%F|%G", [-1.5, math.inf, math.nan, 1e-7], "-001.500|  inf|NAN|1E-07"),
        ("%c %p %c%c", [65, 4096, 66, 256 + 67], "A 0x1000 BC"),
        ("%a %a %A %a", [1.0, 1.5, 0.1, -0.0], "0x1p+0 0x1.8p+0 0X1.999999999999AP-4 -0x0p+0"),
        ("%.1a %.0a %9.2a|%a", [1.05, 1.5, -1.5, math.inf], "0x1.1p+0 0x2p+0 -0x1.80p+0|inf"),
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
