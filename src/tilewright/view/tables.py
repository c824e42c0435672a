"""Tables as text: laid out for the eye on a terminal, aligned columns elsewhere.

May import `base`. On a terminal `rich` draws them; in a pipe nothing is cut and nothing is drawn.

    write([Table("kinds", ("kind", "bytes"), [("cubin", "12 KiB")])], sys.stdout)
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TextIO

from tilewright.base.lazy import optional

_GAP = "  "


@dataclass(frozen=True)
class Table:
    """Rows under a title; without names of columns the first one names its row."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@contextmanager
def streams_there() -> Generator[None]:
    """Let there be an output and an error output, where they were closed before Python began."""
    with ExitStack() as stack:
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:
                setattr(sys, name, stack.enter_context(open(os.devnull, "w")))
                stack.callback(setattr, sys, name, None)
        yield


@contextmanager
def reader_may_leave() -> Generator[None]:
    """Let whoever reads the output stop before its end, as `head` does; that ends the block."""
    try:
        yield
    except BrokenPipeError:
        if not _left_alone():  # it is another pipe's, such as that of a program's own
            raise
    finally:
        # What is still to be written would fail again when the interpreter ends.
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _left_alone() -> bool:
    """Tell whether the output is a pipe that nobody reads."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    poll = select.poll()
    poll.register(output, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def write(tables: Iterable[Table], stream: TextIO) -> None:
    """Write tables, one after another."""
    if stream.isatty():
        _draw(tables, stream)
        return
    for number, table in enumerate(tables):
        stream.write("\n" * (number > 0) + plain(table))


def plain(table: Table) -> str:
    """Lay a table out in columns of equal width; the last one is as wide as its text."""
    rows = [table.columns] * bool(any(table.columns)) + list(table.rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [table.title] * bool(table.title)
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append(_GAP.join(cells).rstrip())
    return "".join(f"{line}\n" for line in lines)


def _draw(tables: Iterable[Table], stream: TextIO) -> None:
    rich = {
        name: optional(f"rich.{name}", purpose="draw tables")
        for name in ("box", "console", "table", "text")
    }
    console = rich["console"].Console(file=stream, highlight=False)
    for table in tables:
        drawn = rich["table"].Table(
            title=rich["text"].Text(table.title, style="bold") if table.title else None,
            title_justify="left",
            box=rich["box"].SIMPLE_HEAD,
            pad_edge=False,
            show_header=any(table.columns),
        )
        for number, name in enumerate(table.columns):
            drawn.add_column(name, no_wrap=number == 0, overflow="fold")
        for row in table.rows:
            drawn.add_row(*(rich["text"].Text(cell) for cell in row))
        console.print(drawn)
