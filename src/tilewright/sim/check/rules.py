"""Rules about a kernel as a whole, and about what a CTA leaves behind.

May import `base`, `isa`, `ir` and the modules of `sim.check` below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tilewright.base.targets import SHARED_ALIGNMENT, Target
from tilewright.ir.statements import Instruct, Kernel
from tilewright.ir.visit import walk_statements
from tilewright.isa.tensor_copy import is_of_pair
from tilewright.sim.check import state
from tilewright.sim.check.raw import RawFinding, about
from tilewright.sim.engine.sites import Site


def pairs(kernel: Kernel) -> Iterator[RawFinding]:
    """Find instructions for a pair of CTAs: faults in clusters of an odd number of CTAs."""
    for stmt in walk_statements(kernel.body):
        if isinstance(stmt, Instruct) and is_of_pair(stmt.form):
            yield about("cta-group/pair", 0, Site(stmt.location, stmt.form.text))


def permit(
    special: Mapping[str, np.ndarray], cta: int, sites: Sequence[Site]
) -> Iterator[RawFinding]:
    """Find where a CTA has allocated Tensor Memory, not all of it, that has kept the permit."""
    number = state.number_of(special["check"], "allocated")
    if number:
        yield about("tmem-lifecycle/permit", cta, sites[number - 1])


def has_room(target: Target, threads: int, shared: int) -> bool:
    """Tell whether another CTA of so many threads and bytes finds room on a multiprocessor."""
    bytes = shared + SHARED_ALIGNMENT
    return (
        2 * threads <= target.threads_per_multiprocessor
        and 2 * bytes <= target.shared_bytes_per_multiprocessor
        and target.ctas_per_multiprocessor > 1
    )
