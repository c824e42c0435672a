"""Reading small kernels from text, and looking at what they became or where they were refused."""

from __future__ import annotations

import textwrap

import pytest

from tilewright.base.errors import TilewrightError
from tilewright.frontend import KernelFunction, parse, parse_function
from tilewright.ir.statements import Block
from tilewright.ir.printer import print_kernel

HEAD = """\
from tilewright import simt as T
from tilewright.layout import *
"""
ENTRY = "    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))\n"
PARAMS = 'A: T.Tensor((64, 32), "float32"), B: T.Tensor((64,), "int32"), n: T.int32'


def read_text(text: str) -> KernelFunction:
    """Read a whole text, and check that what it prints reads back equal."""
    made = parse_function(HEAD + textwrap.dedent(text))
    assert parse(made.script()) == made.program, made.script()
    return made


def kernel_text(body: str, params: str = PARAMS) -> str:
    """Wrap a body into a kernel."""
    return f"@T.function\ndef k({params}):\n" + ENTRY + textwrap.indent(
        textwrap.dedent(body).strip("\n"), "    "
    )


def read(body: str, params: str = PARAMS, before: str = "") -> KernelFunction:
    """Read a kernel of that body."""
    return read_text(textwrap.dedent(before) + "\n" + kernel_text(body, params))


def body_of(made: KernelFunction) -> Block:
    """Give the statements of the only kernel."""
    (kernel,) = made.program.kernels
    return kernel.body


def printed(body: str, params: str = PARAMS, before: str = "") -> list[str]:
    """Read a kernel of that body, and print what it became, line by line."""
    (kernel,) = read(body, params, before).program.kernels
    return print_kernel(kernel).splitlines()


def refused(text: str, code: str, under: str, *, whole: bool = False) -> TilewrightError:
    """Check that a kernel is refused with a code, with the caret under a piece of its text.

    `under` names the piece and, after `#`, which of its occurrences is meant.
    """
    source = textwrap.dedent(text) if whole else kernel_text(text)
    piece, _, which = under.partition("#")
    with pytest.raises(TilewrightError) as caught:
        parse_function(HEAD + source)
    error = caught.value
    assert error.code == code, error
    assert error.location is not None
    lines = (HEAD + source).splitlines()
    places = [
        (number, column)
        for number, line in enumerate(lines, start=1)
        for column in range(len(line))
        if line.startswith(piece, column)
    ]
    assert places, f"{piece!r} does not occur"
    wanted = places[int(which or 0)]
    assert (error.location.line, error.location.column) == wanted, error
    return error
