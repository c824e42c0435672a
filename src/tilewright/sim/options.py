"""How a simulation runs: schedule, numerics, limits; and what a launch may touch.

May import `base`.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_STEP_LIMIT = 1 << 34


@dataclass(frozen=True)
class Options:
    """Options of a simulation.

    `schedule` says when asynchronous operations land: "late" (when they are waited for),
    "eager" (at issue) or "random" (by `seed`). `numerics` says how products of matrices and
    approximate functions are rounded: "fast" (float32 FMA chains in ascending k; results rounded
    correctly, or nearly so) or "exact" (as on the target's chips, bit by bit). `workers` is the
    number of threads, by default one per core; `step_limit` bounds the turns of loops that the
    warps of a CTA take together (lanes of a warp that turn at once count once); `cpu` is LLVM's
    name of the CPU to make code for, by default this one. With `check` the code is instrumented:
    it notes what the run shows to be wrong in any order. With `trace` it writes down what happens,
    for a timeline; one at a time of the two.
    """

    schedule: str = "late"
    seed: int = 0
    numerics: str = "fast"
    workers: int | None = None
    step_limit: int | None = None
    cpu: str | None = None
    check: bool = False
    trace: bool = False


@dataclass(frozen=True)
class Region:
    """A run of host memory that a launch may touch: one tensor argument, or a tensor map.

    `described` is the address of the memory that a tensor map describes.
    """

    name: str
    address: int
    size: int
    writable: bool
    described: int = 0
