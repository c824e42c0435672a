"""What the checker finds in a program, processes that it starts included.

May import `base`.

    with Collected() as collected:
        ...                       # calls collected(findings), in this process and in others
        collected.findings(), collected.calls()
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tilewright.base.findings import Finding, merged


class Collected:
    """Takes the findings of each checked call.

    What other processes find, forked or spawned, goes through files in a folder of the user's own.
    """

    def __init__(self) -> None:
        self._own: list[tuple[Finding, ...]] = []
        self._process = os.getpid()
        self._folder = tempfile.mkdtemp(prefix="tilewright-findings-")

    def __enter__(self) -> Collected:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if os.getpid() == self._process:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __call__(self, findings: Sequence[Finding]) -> None:
        """Take note of what a call has found, if only that it found nothing."""
        if os.getpid() == self._process:
            self._own.append(tuple(findings))
            return
        part = Path(self._folder, f"{uuid.uuid4()}.part")
        part.write_bytes(pickle.dumps(tuple(findings)))
        part.rename(part.with_suffix(".whole"))

    def _calls(self) -> list[tuple[Finding, ...]]:
        files = Path(self._folder).glob("*.whole")
        others: list[tuple[Finding, ...]] = [pickle.loads(each.read_bytes()) for each in files]
        # Which process is first depends on chance.
        return [*self._own, *sorted(others, key=repr)]

    def calls(self) -> int:
        """Count the calls that were checked."""
        return len(self._calls())

    def findings(self) -> tuple[Finding, ...]:
        """Give all that was found, each fault once, errors first."""
        return merged(each for call in self._calls() for each in call)
