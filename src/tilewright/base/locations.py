"""Places in a user's source, and how an error shows them.

Imports nothing from this package.

    >>> Location("k.py", 3, 4, 3, 9).header()
    'k.py:3:5'
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass

# How many calls of a chain are listed.
_CALLERS = 8


@dataclass(frozen=True, slots=True)
class Location:
    """A span of source text: 1-based lines, 0-based columns, as in Python's `ast`.

    `inlined_at` is the call through which the code was reached when it stands in a helper.
    """

    file: str
    line: int
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    inlined_at: Location | None = None

    def header(self) -> str:
        """Name the place as editors do: file:line:column, the column 1-based."""
        return f"{self.file}:{self.line}:{self.column + 1}"

    def source_line(self) -> str:
        """Read the line from its file; an empty string where it cannot be read."""
        return linecache.getline(self.file, self.line).rstrip("\n")

    def excerpt(self) -> str:
        """Render the line with carets under the span, or nothing if there is no source."""
        text = self.source_line()
        if not text:
            return ""
        last = self.end_column if self.end_line == self.line else len(text)
        width = max(last - self.column, 1)
        gutter = f"{self.line:>5} | "
        pad = "".join("\t" if c == "\t" else " " for c in text[: self.column])
        return f"{gutter}{text}\n{' ' * (len(gutter) - 2)}| {pad}{'^' * width}"

    def shown(self, before: str = "-->") -> list[str]:
        """Lay the place out as lines: its name, the excerpt, the calls that lead to it."""
        _, *callers = self.chain()
        lines = [f"  {before} {self.header()}"]
        if excerpt := self.excerpt():
            lines.append(excerpt)
        lines += [f"  called from {caller.header()}" for caller in callers[:_CALLERS]]
        if more := callers[_CALLERS:]:
            lines.append(f"  called through {len(more)} more calls from {more[-1].header()}")
        return lines

    def chain(self) -> tuple[Location, ...]:
        """List this place and the calls that lead to it, innermost first."""
        rest = self.inlined_at.chain() if self.inlined_at else ()
        return (self, *rest)
