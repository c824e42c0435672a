"""What the driver's errors mean, told as errors of this package.

Imports `base`. A fault in a kernel is reported by whatever asks the driver next, and from then on
by everything: only with care can it be said where it happened.

    raise fault(719, "CUDA_ERROR_LAUNCH_FAILED: …", "k cannot be launched", location, launched=())
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.errors import LaunchError
from tilewright.base.locations import Location

# CUresult (cuda.h): what kills the context, so that every later call reports it again.
LOSES_CONTEXT = frozenset({214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721})
# What a launch reports where another context is current than the function's.
WRONG_CONTEXT = frozenset({201, 400})
NOT_INITIALIZED = 3
NOT_READY = 600
# A stream cannot be asked while another one is captured that it would wait for.
CAPTURE_IMPLICIT = 906
# The kernel asks for more than there is: threads, registers, shared memory, cooperative CTAs,
# clusters.
_SHAPE = frozenset({1, 701, 720, 912})
_OUT_OF_MEMORY = 2
_MOST_LISTED = 6


def fault(
    status: int,
    found: str,
    problem: str,
    location: Location | None,
    request: str | None = None,
    launched: Sequence[str] = (),
) -> LaunchError:
    """Make the error for a status of the driver, which is `found`.

    `request` says what a launch asked for, `launched` which kernels were launched before.
    """
    if status in LOSES_CONTEXT:
        return _lost(found, f"{problem}: a kernel failed while it ran", location, launched)
    code = "launch-memory" if status == _OUT_OF_MEMORY else "gpu-fault"
    if request is not None and status in _SHAPE:
        code, found = "launch-shape", f"{found}, for {request}"
    return LaunchError(problem, code=code, location=location, found=found)


def failed(found: str, kernels: Sequence[str], name: str, location: Location | None) -> LaunchError:
    """Make the error of a fault in a call that was waited for: it is of a kernel of the call."""
    problem = f"{kernels[0]} failed while it ran on {name}"
    if len(kernels) > 1:
        problem = f"one of {', '.join(kernels)} failed while it ran on {name}"
    return LaunchError(
        problem,
        code="gpu-fault",
        location=location,
        found=found,
        hint='start the program anew with backend="sim", which shows the line at fault',
        notes=("the GPU's context is lost: every later call of this process fails",),
    )


def forked() -> LaunchError:
    """Make the error for a process that was forked after its parent had used the driver."""
    return LaunchError(
        "the GPU cannot be used in a process that was forked from one that uses it",
        code="gpu-fork",
        expected="a process that was started anew, or forked before the first use of CUDA",
        found="a child whose parent has initialised CUDA",
        hint='multiprocessing.set_start_method("spawn"), or backend="sim" in the child',
    )


def _lost(
    found: str, problem: str, location: Location | None, launched: Sequence[str]
) -> LaunchError:
    met = "the place shown is where that was met; the launch there need not be at fault"
    several = launched[-_MOST_LISTED:]
    more = len(launched) - len(several)
    listed = ", ".join(several) + (f" and {more} more" if more else "")
    notes = (
        *((met,) if location is not None else ()),
        *((f"it can be any launch since the last synchronization, of {listed}",) if listed else ()),
        "it can be a kernel of another package, too",
        "the GPU's context is lost: every later call of this process fails",
    )
    return LaunchError(
        problem,
        code="gpu-fault",
        location=location,
        found=found,
        hint="start the program anew: with CUDA_LAUNCH_BLOCKING=1 in its environment the launch "
        'at fault is shown, with backend="sim" the line',
        notes=notes,
    )
