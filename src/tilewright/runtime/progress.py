"""What long work shows of itself: a line on the terminal while it lasts, and nothing elsewhere.

Imports nothing from this package. There is one line at a time, whatever the number of threads.

    with shown("product is compiled") as report:
        report(3, 12)       # tilewright: product is compiled, 3 of 12, 2 s
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TextIO

Report = Callable[[int, int], None]
_AFTER = 0.4  # seconds before anything is shown
_AFTER_POLLED = 1.0
_EVERY = 0.2
_NEVER = 1e9

# Held by the line that is shown.
_terminal = threading.Lock()
_on_terminal: Line | None = None


def hide() -> None:
    """Wipe out the line that is shown, if there is one, and show no more of its work.

    For the end of a process whose other threads are at work yet.
    """
    if _on_terminal is not None:
        _on_terminal.due += _NEVER
        _on_terminal.clear()


def _free_the_terminal() -> None:
    global _terminal, _on_terminal
    _terminal, _on_terminal = threading.Lock(), None


atexit.register(hide)
if hasattr(os, "register_at_fork"):
    # The thread that shows a line is not in the child.
    os.register_at_fork(after_in_child=_free_the_terminal)


@contextmanager
def shown(text: str) -> Generator[Report]:
    """Show what is done meanwhile on the error output, if that is a terminal.

    Yields a function that takes how much is done by now, and of how much. A thread writes, so
    that work which reports nothing is shown too.
    """
    stream = _of_terminal()
    if stream is None:
        yield lambda done, count: None
        return
    line, ended = Line(text, stream, _AFTER), threading.Event()
    thread = threading.Thread(target=line.run, args=(ended,), daemon=True)
    thread.start()
    try:
        yield line.note
    finally:
        ended.set()
        thread.join()
        line.end()


@contextmanager
def polled(text: str, what: str) -> Generator[Line]:
    """Show what is done meanwhile, as `shown` does, by work that reports several times a second.

    Yields the line: its `report` takes how much is done by now, and of how much. `what` is what
    is counted. There is no thread for it: short work costs nothing.
    """
    stream = _of_terminal()
    if stream is None:
        yield _NOWHERE
        return
    line = Line(text, stream, _AFTER_POLLED, what)
    try:
        yield line
    finally:
        line.end()


def _of_terminal() -> TextIO | None:
    stream = sys.stderr
    # There is none under pythonw, nor where it was closed before Python began.
    if stream is None or stream.closed or not stream.isatty():  # pyright: ignore[reportUnnecessaryComparison]
        return None
    return stream


class Line:
    """A line that is written over and over, and at last wiped out.

    Without a stream nothing is written. Any thread may report; a terminal that is gone is no fault.
    """

    def __init__(self, text: str, stream: TextIO | None, after: float, what: str = "") -> None:
        self.text = text
        self.stream = stream
        self.what = f" {what}" if what else ""
        self.start = time.monotonic()
        self.due = self.start + after
        self.done = (0, 0)
        self.width = 0
        self.terminal: threading.Lock | None = None
        self.writing = threading.Lock()

    def note(self, done: int, count: int) -> None:
        """Take note of how much is done."""
        self.done = (done, count)

    def report(self, done: int, count: int) -> None:
        """Take note of how much is done, and show it if it is time to."""
        if self.stream is not None:
            self.done = (done, count)
            if time.monotonic() >= self.due:
                self.show()

    def run(self, ended: threading.Event) -> None:
        """Show how much is done, now and then, until the work has ended."""
        while not ended.wait(max(self.due - time.monotonic(), 0.0)):
            self.show()

    def show(self) -> None:
        """Write how much is done, if no other line is there."""
        global _on_terminal
        with self.writing, suppress(OSError, ValueError):
            now = time.monotonic()
            if now < self.due:
                return  # another thread has shown it just now
            self.due = now + _EVERY
            if self.terminal is None and _terminal.acquire(blocking=False):
                self.terminal, _on_terminal = _terminal, self
            if self.terminal is not None:
                done, count = self.done
                part = f", {done} of {count}{self.what}" if count else ""
                seconds = int(now - self.start)
                self._write(f"tilewright: {self.text}{part}, {seconds} s")

    def clear(self) -> None:
        """Wipe the line out, before something else is written; it comes back."""
        if self.width:
            with self.writing, suppress(OSError, ValueError):
                self._write("")
                self.width = 0

    def before(self, output: Callable[[str], None]) -> Callable[[str], None]:
        """Let the line make room for what is written meanwhile."""
        if self.stream is None:
            return output

        def write(text: str) -> None:
            self.clear()
            output(text)

        return write

    def end(self) -> None:
        """Wipe the line out for good."""
        global _on_terminal
        try:
            self.clear()
        finally:
            held, self.terminal = self.terminal, None
            if held is not None:
                _on_terminal = None
                held.release()

    def _write(self, text: str) -> None:
        assert self.stream is not None, "only a line with a stream is written"
        room = shutil.get_terminal_size().columns - 1
        text = text[:room]
        # An interrupt shows as ^C behind what is there.
        before, self.width = min(self.width, room), len(text) + len("^C")
        end = "" if text else "\r"
        self.stream.write(f"\r{text.ljust(before)}{end}")
        self.stream.flush()


_NOWHERE = Line("", None, 0.0)
