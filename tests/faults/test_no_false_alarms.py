"""The checker has nothing to say of correct kernels, whenever asynchronous work lands."""

from __future__ import annotations

import pytest
from corpus import corpus
from running import SCHEDULES, checked


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", corpus())
def test_a_correct_kernel_is_right_and_has_no_findings(name: str, schedule: str) -> None:
    entry = corpus()[name]
    case = entry.make()
    verdict = checked(entry, case, case.program, schedule)
    assert not verdict.kind, verdict.text
    assert not case.wrong()
