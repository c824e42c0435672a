"""The checker has nothing to say of correct kernels, whenever asynchronous work lands."""

from __future__ import annotations

import pytest
from corpus import corpus
from running import SCHEDULES, checked

# What the checker warns of, rightly, in kernels that run on every GPU all the same.
WARNED = {
    "hopper_pipeline": {"missing-proxy-fence-war"},
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", corpus())
def test_a_correct_kernel_is_right_and_has_no_findings(name: str, schedule: str) -> None:
    entry = corpus()[name]
    case = entry.make()
    verdict = checked(entry, case, case.program, schedule)
    assert verdict.error is None, verdict.text
    warned = {each.kind for each in verdict.findings if each.severity == "warning"}
    assert warned == WARNED.get(name, set()), verdict.text
    assert len(warned) == len(verdict.findings), verdict.text
    assert not case.wrong()
