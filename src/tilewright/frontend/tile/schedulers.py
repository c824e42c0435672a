"""Which tile a CTA that stays takes next: `T.PersistentTileScheduler`.

May import `base`, `ir` and the modules of `frontend`.

    sched = T.PersistentTileScheduler(rows, columns, num_workers=4)
    sched.init(worker)
    while sched.valid():
        …                           # the tile (sched.m_idx, sched.n_idx)
        sched.next_tile()
"""

from __future__ import annotations

from typing import Any

from tilewright.base.errors import FrontendError
from tilewright.frontend.builder import current, here
from tilewright.frontend.math import ceildiv, extremum
from tilewright.frontend.storage import local_scalar
from tilewright.frontend.tile.launch import block_extents
from tilewright.frontend.values import Cell, stored, wrap
from tilewright.ir.statements import Assign

_min = extremum("min")


class PersistentTileScheduler:
    """Gives worker w of n the tiles w, w + n, w + 2 n, … of a grid.

    They are numbered along one axis, down the rows if `column_major`, in panels of `swizzle_size`
    along the other. With `cluster_size` rows of tiles are taken that many at a time, and `m_idx`
    counts such groups. Without `stateful` it only tells the place of a number: `coord`.
    """

    def __init__(
        self,
        num_m_tiles: Any,
        num_n_tiles: Any,
        num_workers: Any = None,
        swizzle_size: int = 1,
        column_major: bool = True,
        cluster_size: int = 1,
        stateful: bool = True,
        name: str | None = None,
    ) -> None:
        rows = ceildiv(num_m_tiles, cluster_size) if cluster_size > 1 else num_m_tiles
        self._fast, self._slow = (rows, num_n_tiles) if column_major else (num_n_tiles, rows)
        self._panel, self._down = swizzle_size, column_major
        self._total = rows * num_n_tiles
        self._step, self._cluster = num_workers, cluster_size
        prefix = f"{name}_" if name else ""
        self._cells: dict[str, Cell] = {}
        if stateful:
            for each in ("m_idx", "n_idx", "linear_idx", "current_iter"):
                self._cells[each] = local_scalar("int32", name=prefix + each)

    def coord(self, tile: Any) -> tuple[Any, Any]:
        """Give the row and the column of a tile by its number."""
        fast, slow, width = self._fast, self._slow, self._panel
        if width == 1:
            along, across = tile % fast, tile // fast
        else:
            first = tile // (fast * width) * width
            wide = _min(width, slow - first)
            within = tile % (fast * width)
            along, across = within // wide, first + within % wide
        return (along, across) if self._down else (across, along)

    def init(self, linear_init: Any) -> None:
        """Begin with the tile of a number."""
        self._set("current_iter", 0)
        self._set("linear_idx", linear_init)
        self._find()

    def next_tile(self, step: Any = None) -> None:
        """Go on by the number of workers, or by a step."""
        by = self._workers() if step is None else step
        self._set("current_iter", self.current_iter + 1)
        self._set("linear_idx", self.linear_idx + by)
        self._find()

    def valid(self) -> Any:
        """Tell whether there is a tile left."""
        return self.linear_idx < self._total

    @property
    def m_idx(self) -> Any:
        """Give the tile's row."""
        return self._get("m_idx")

    @property
    def n_idx(self) -> Any:
        """Give the tile's column."""
        return self._get("n_idx")

    @property
    def linear_idx(self) -> Any:
        """Give the tile's number."""
        return self._get("linear_idx")

    @property
    def current_iter(self) -> Any:
        """Count the tiles that this worker has done."""
        return self._get("current_iter")

    def _workers(self) -> Any:
        """Count the workers: as given, or all clusters of the grid."""
        if self._step is not None:
            return self._step
        found: Any = 1
        for extent in block_extents():
            found = found * extent
        return found // self._cluster if self._cluster > 1 else found

    def _find(self) -> None:
        row, column = self.coord(self.linear_idx)
        self._set("m_idx", row)
        self._set("n_idx", column)

    def _get(self, name: str) -> Any:
        if name not in self._cells:
            raise FrontendError(
                "the scheduler keeps no state",
                code="bad-call",
                location=here(),
                hint="T.PersistentTileScheduler(…, stateful=True)",
            )
        return wrap(self._cells[name].expr)

    def _set(self, name: str, value: Any) -> None:
        cell = self._get(name).expr
        current().emit(Assign(cell, stored(value, cell.dtype), location=here()))
