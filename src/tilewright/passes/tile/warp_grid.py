"""How the tile of a product is divided among the warps of a CTA.

Imports nothing of the project: these are numbers.

    >>> warp_grid(128, 128, 4, "square"), warp_grid(64, 128, 8, "full_row")
    ((2, 2), (4, 2))
"""

from __future__ import annotations

# What one instruction gives: rows and columns of C.
ROWS, COLUMNS = 16, 8


def warp_grid(rows: int, columns: int, warps: int, policy: str) -> tuple[int, int] | None:
    """Choose how many warps lie along the rows of C, and how many along its columns.

    Each has the same part, whole blocks of 16 × 8. "full_row" lays as many as it can along the
    rows, "full_col" along the columns, "square" makes the parts such that their rows and columns
    together are few, which is what a warp reads. `None` if no division fits.
    """
    fits = [
        (down, warps // down)
        for down in range(1, warps + 1)
        if warps % down == 0
        and rows % (ROWS * down) == 0
        and columns % (COLUMNS * (warps // down)) == 0
    ]
    if not fits:
        return None
    match policy:
        case "full_row":
            return max(fits)
        case "full_col":
            return min(fits)
        case _:
            return min(fits, key=lambda grid: (rows // grid[0] + columns // grid[1], -grid[0]))


def feasible_warps(rows: int, columns: int, most: int = 32) -> list[int]:
    """List the numbers of warps among which a tile of C can be divided."""
    return [each for each in range(1, most + 1) if warp_grid(rows, columns, each, "square")]
