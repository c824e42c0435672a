"""The leading group axes of a tile's shape: who takes part in a tile operation.

May import `base`, `isa`, `ir`, NumPy and `passes.analysis`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.base.errors import TileContractError
from tilewright.ir.expressions import Expr, SpecialRegister, int32
from tilewright.ir.statements import Apply
from tilewright.passes.analysis.evaluation import Bools, Values
from tilewright.passes.analysis.threads import WARP, WARPS_PER_WARPGROUP
from tilewright.passes.tiles.scene import Scene

SCOPES = ("thread", "warp", "warpgroup", "cta")


@dataclass(frozen=True)
class Group:
    """The group axes of an operation.

    `numbers`, of the axes' shape, has the number of each issuer's first thread, counted within
    the scope; `coordinates` are the group coordinates of the thread that executes.
    """

    scope: str
    numbers: Values
    coordinates: tuple[Expr, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        """Give the extents of the group axes."""
        return self.numbers.shape


def group_of(apply: Apply, issuer: str, scene: Scene) -> Group:
    """Find the group axes of a tile operation.

    Raises `TileContractError` (tile-scope) where the threads that an instruction needs are not
    all active, or form no regular group.
    """
    if apply.scope not in SCOPES:
        raise _refuse(apply, "a tile operation has no such scope", ", ".join(SCOPES), apply.scope)
    if apply.scope == "thread":
        if issuer == "warp":
            expected = 'scope="warp", "warpgroup" or "cta"'
            raise _refuse(apply, f"{apply.form.text} is issued by whole warps", expected, "thread")
        return Group("thread", np.zeros((), dtype=np.int64), ())
    lanes = _active_lanes(apply, scene)
    if issuer == "warp":
        _require_whole_warps(apply, lanes)
    warps = _active_warps(apply, lanes)
    numbers = WARP * warps
    coordinates = _warp_coordinates(apply.scope, warps)
    if issuer == "thread":
        active = _common_lanes(apply, lanes)
        numbers = numbers[..., None] + active
        coordinates = (*coordinates, _from(SpecialRegister("laneid"), active))
    return Group(apply.scope, numbers, coordinates)


def _active_lanes(apply: Apply, scene: Scene) -> Bools:
    if scene.threads is None:
        if apply.scope == "warp":
            return np.ones((1, WARP), dtype=np.bool_)
        raise _refuse(
            apply,
            f"the {apply.scope}'s threads are not known",
            "a block whose shape is constant",
            "a block whose shape is a parameter",
        )
    lanes = scene.threads.lanes_by_warp()
    if not lanes.any():
        raise _refuse(apply, "no thread can come here", "a reachable tile operation", "none")
    return lanes


def _require_whole_warps(apply: Apply, lanes: Bools) -> None:
    counts = lanes.sum(axis=1)
    partial = np.flatnonzero((counts > 0) & (counts < WARP))
    if partial.size:
        warp = int(partial[0])
        raise _refuse(
            apply,
            f"{apply.form.text} needs all lanes of a warp, but a guard leaves some out",
            f"all {WARP} lanes of every warp that comes here",
            f"in warp {warp} {_spell(np.flatnonzero(lanes[warp]), 'lane')}",
            hint="move the operation out of the `if` that depends on the lane",
        )


def _active_warps(apply: Apply, lanes: Bools) -> Values:
    """Give the numbers of the active warps within the scope; a scalar for a warp's own."""
    warps = np.flatnonzero(lanes.any(axis=1))
    if apply.scope == "warp":
        return np.zeros((), dtype=np.int64)
    if apply.scope == "warpgroup":
        by_warpgroup = [
            warps[warps // WARPS_PER_WARPGROUP == each] % WARPS_PER_WARPGROUP
            for each in np.unique(warps // WARPS_PER_WARPGROUP)
        ]
        if any(not np.array_equal(each, by_warpgroup[0]) for each in by_warpgroup):
            found = "; ".join(_spell(each, "warp") for each in by_warpgroup)
            expected = "the same warps of each warpgroup"
            raise _refuse(apply, "warpgroups take part in different ways", expected, found)
        warps = by_warpgroup[0]
    _require_consecutive(apply, warps, "warp")
    return warps


def _common_lanes(apply: Apply, lanes: Bools) -> Values:
    active = lanes[lanes.any(axis=1)]
    if (active != active[0]).any():
        raise _refuse(
            apply,
            "different lanes of different warps come here",
            "the same lanes of every warp that comes here",
            "; ".join(_spell(np.flatnonzero(each), "lane") for each in np.unique(active, axis=0)),
        )
    found = np.flatnonzero(active[0])
    _require_consecutive(apply, found, "lane")
    return found


def _require_consecutive(apply: Apply, numbers: Values, unit: str) -> None:
    if (np.diff(numbers) != 1).any():
        raise _refuse(
            apply,
            f"the {unit}s that come here do not follow one another",
            f"consecutive {unit}s",
            _spell(numbers, unit),
        )


_WARP_REGISTERS = {"warpgroup": "warp_in_warpgroup", "cta": "warp_id"}


def _warp_coordinates(scope: str, warps: Values) -> tuple[Expr, ...]:
    if scope == "warp":
        return ()
    return (_from(SpecialRegister(_WARP_REGISTERS[scope]), warps),)


def _from(register: Expr, numbers: Values) -> Expr:
    """Count from the first active unit; a unit that is alone needs no counting."""
    return int32(0) if numbers.size == 1 else register - int(numbers[0])


def _spell(numbers: Values, unit: str) -> str:
    """Write numbers as a program would: `lanes 0-2`, `warps 1, 3`."""
    if numbers.size > 1 and (np.diff(numbers) == 1).all():
        return f"{unit}s {numbers[0]}-{numbers[-1]}"
    return f"{unit}{'s' * (numbers.size != 1)} {', '.join(map(str, numbers))}"


def _refuse(
    apply: Apply, message: str, expected: str, found: str, hint: str | None = None
) -> TileContractError:
    return TileContractError(
        message,
        code="tile-scope",
        location=apply.location,
        expected=expected,
        found=found,
        hint=hint,
    )
