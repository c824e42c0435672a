"""What long work shows of itself: a line on the terminal while it lasts, and nothing elsewhere.

Imports nothing from this package.

    with shown("product is compiled") as report:
        report(3, 12)       # tilewright: product is compiled, 3 of 12, 2 s
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TextIO

Report = Callable[[int, int], None]
_AFTER = 0.4  # seconds before anything is shown
_EVERY = 0.2


@contextmanager
def shown(text: str) -> Generator[Report]:
    """Show what is done meanwhile on the error output, if that is a terminal.

    Yields a function that takes how much is done by now, and of how much.
    """
    stream = sys.stderr
    if stream is None or stream.closed or not stream.isatty():  # pyright: ignore[reportUnnecessaryComparison] there is none under pythonw
        yield lambda done, count: None
        return
    line = _Line(text, stream)
    thread = threading.Thread(target=line.run, daemon=True)
    thread.start()
    try:
        yield line.report
    finally:
        line.ended.set()
        thread.join()


class _Line:
    """A line that is written over and over by a thread of its own, and at last wiped out."""

    def __init__(self, text: str, stream: TextIO) -> None:
        self.text = text
        self.stream = stream
        self.ended = threading.Event()
        self.start = time.monotonic()
        self.done = ""
        self.width = 0

    def report(self, done: int, count: int) -> None:
        """Take note of how much is done."""
        self.done = f", {done} of {count}"

    def run(self) -> None:
        """Write until the work has ended; a terminal that is gone is no fault."""
        with suppress(OSError, ValueError):
            wait = _AFTER
            while not self.ended.wait(wait):
                seconds = int(time.monotonic() - self.start)
                self._write(f"tilewright: {self.text}{self.done}, {seconds} s")
                wait = _EVERY
            if self.width:
                self._write("")
                self.stream.write("\r")
                self.stream.flush()

    def _write(self, text: str) -> None:
        room = shutil.get_terminal_size().columns - 1
        text = text[:room]
        self.stream.write(f"\r{text.ljust(min(self.width, room))}")
        self.stream.flush()
        self.width = len(text)
