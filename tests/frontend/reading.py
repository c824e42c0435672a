"""Reading small kernels from text, and looking at what they became or where they were refused."""

from __future__ import annotations

import textwrap

import pytest

from tilewright.base.errors import TilewrightError
from tilewright.frontend import KernelFunction, parse, parse_function
from tilewright.ir.printer import print_kernel
from tilewright.ir.statements import Block
from tilewright.ir.verify import Stage, verify

HEAD = """\
from tilewright import simt as T
from tilewright.layout import *
"""
ENTRY = "    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))\n"
PARAMS = 'A: T.Tensor((64, 32), "float32"), B: T.Tensor((64,), "int32"), n: T.int32'


def read_text(text: str, stage: Stage = "high", check: bool = True) -> KernelFunction:
    """Read a text; the verifier must pass it, and what it prints must read back equal."""
    text = textwrap.dedent(text).lstrip("\n")
    made = parse_function(text if text.startswith("from __future__") else HEAD + text)
    verify(made.program, stage)
    if check:
        assert parse(made.script()) == made.program, made.script()
    return made


def kernel_text(body: str, params: str = PARAMS) -> str:
    """Wrap a body into a kernel."""
    return (
        f"@T.function\ndef k({params}):\n"
        + ENTRY
        + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    )


def read(body: str, params: str = PARAMS, before: str = "", check: bool = True) -> KernelFunction:
    """Read a kernel of that body."""
    return read_text(textwrap.dedent(before) + "\n" + kernel_text(body, params), check=check)


def body_of(made: KernelFunction) -> Block:
    """Give the statements of the only kernel."""
    (kernel,) = made.program.kernels
    return kernel.body


def printed(body: str, params: str = PARAMS, before: str = "") -> list[str]:
    """Read a kernel of that body, and print what it became, line by line."""
    (kernel,) = read(body, params, before).program.kernels
    return print_kernel(kernel).splitlines()


def refused(text: str, code: str, *, whole: bool = False) -> TilewrightError:
    """Check that a kernel is refused with a code, with the carets under the text between « and ».

    `text` is a kernel's body, or the `whole` text.
    """
    marked = HEAD + (textwrap.dedent(text) if whole else kernel_text(text))
    before, rest = marked.split("«")
    under = rest.split("»")[0]
    with pytest.raises(TilewrightError) as caught:
        parse_function(marked.replace("«", "").replace("»", ""))
    error = caught.value
    assert error.code == code, error
    place = error.location
    assert place is not None
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n") - 1
    assert (place.line, place.column) == (line, column), error
    assert place.end_line > line or place.end_column == column + len(under), error
    return error
