"""The source of a function as a tree, with places in the user's own file.

May import `base`. The whole file is parsed, so that lines and columns are the file's.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any

from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location


@dataclass(frozen=True)
class Source:
    """A function's definition: its tree, and the file in which it stands."""

    file: str
    tree: ast.FunctionDef

    def place(self, node: ast.AST, at: Location | None = None) -> Location:
        """Give the place of a node, reached through the call `at`."""
        return place(self.file, node, at)


def place(file: str, node: Any, at: Location | None = None) -> Location:
    """Give the place of a node of a file's tree; columns count characters."""
    line, end_line = node.lineno, node.end_lineno or node.lineno
    return Location(
        file,
        line,
        _characters(file, line, node.col_offset),
        end_line,
        _characters(file, end_line, node.end_col_offset or node.col_offset),
        at,
    )


def attribute_place(file: str, node: ast.Attribute, at: Location | None = None) -> Location:
    """Give the place of the name after the dot."""
    line = node.end_lineno or node.lineno
    end = _characters(file, line, node.end_col_offset or 0)
    return Location(file, line, max(end - len(node.attr), 0), line, end, at)


def _characters(file: str, line: int, offset: int) -> int:
    # `ast` counts UTF-8 bytes.
    text = linecache.getline(file, line)
    return offset if text.isascii() else len(text.encode()[:offset].decode(errors="ignore"))


def read_source(function: Callable[..., Any]) -> Source:
    """Find and parse the definition of a Python function.

    Raises `FrontendError` (`no-source`) where its text cannot be read.
    """
    code = function.__code__ if isinstance(function, FunctionType) else None
    if code is None:
        raise FrontendError(
            f"{function!r} is not a Python function, and has no source",
            code="no-source",
        )
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    place = Location(code.co_filename, code.co_firstlineno)
    found = _definitions(text).get((code.co_firstlineno, code.co_name)) if text else None
    if found is None:
        raise FrontendError(
            f"the source of {function.__name__!r} cannot be read",
            code="no-source",
            location=place,
            expected="a function defined with `def` in a file, or in a text that `linecache` has",
            hint="put the kernel into a file, or read its text with tilewright.frontend.parse",
        )
    return Source(code.co_filename, found)


@lru_cache(maxsize=64)
def _definitions(text: str) -> dict[tuple[int, str], ast.FunctionDef]:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return {}
    found: dict[tuple[int, str], ast.FunctionDef] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found[first, node.name] = node
    return found
