"""Allocation of Tensor Memory (PTX ISA 9.7.16.7).

May import `base`, `isa.declaration`, `isa.machine` and `isa.tensor_memory`. A warp allocates
columns, all lanes of them, in granules of 32; another of its CTA waits until there are enough.

    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 64;
"""

from __future__ import annotations

from tilewright.base.dtypes import UINT32
from tilewright.base.spaces import Space
from tilewright.isa.declaration import Form, Wait, address, declare, register
from tilewright.isa.machine import Lanes, Machine, uint32
from tilewright.isa.tensor_memory import COLUMNS, LANE_SHIFT, TARGETS

GRANULE = 32  # columns
_GRANULE_SHIFT = 5
_CODE = "tensor-memory"
_ALL = (1 << COLUMNS // GRANULE) - 1
_SIZES = (1, 2, 4, 8, 16)  # granules


def _starts(size: int) -> int:
    """Give the granules at which an allocation of a size may begin, as a set of bits."""
    return sum(1 << start for start in range(0, COLUMNS // GRANULE, size))


def _is_size(columns: Lanes) -> Lanes:
    power = (columns & (columns - 1)) == 0
    return power & (columns >= GRANULE) & (columns <= COLUMNS)


def _require_size(m: Machine, columns: Lanes) -> None:
    text = "Tensor Memory is allocated in 32, 64, 128, 256 or 512 columns"
    m.require(_is_size(columns), _CODE, text)


def _room(m: Machine, columns: Lanes) -> Lanes:
    """Find the granules at which so many columns are free, as a set of bits."""
    free = ~m.cta_state("tmem_columns") & _ALL
    starts = uint32(m, _starts(1))
    for size in _SIZES[1:]:
        # Whoever needs `size` granules needs two neighbouring runs of half as many.
        wanted = columns >= size * GRANULE
        free = m.select(wanted, free & (free >> (size // 2)), free)
        starts = m.select(wanted, uint32(m, _starts(size)), starts)
    return free & starts


def _granules(m: Machine, first: Lanes, columns: Lanes) -> Lanes:
    """Give the granules of an allocation as a set of bits."""
    return ((uint32(m, 1) << (columns >> _GRANULE_SHIFT)) - 1) << first


def require_columns(m: Machine, taddr: Lanes, count: Lanes | int) -> None:
    """Require that `count` columns (uniform, at least 1) from a uniform address are allocated."""
    first = taddr & ((1 << LANE_SHIFT) - 1)
    last = first + count - 1
    every = uint32(m, (1 << 32) - 1)
    span = (every << (first >> _GRANULE_SHIFT)) & (every >> (31 - (last >> _GRANULE_SHIFT)))
    held = (span & ~m.cta_state("tmem_columns")) == 0
    text = "an access to columns of Tensor Memory that are not allocated"
    m.require(held & (last < COLUMNS), _CODE, text)


def _may_allocate(m: Machine, form: Form, dst: Lanes, columns: Lanes) -> Lanes:
    columns = m.first(columns)
    refused = (m.cta_state("tmem_permit") != 0) | ~_is_size(columns)
    return refused | (_room(m, columns) != 0)


def _awaited_columns(m: Machine, form: Form, dst: Lanes, columns: Lanes) -> tuple[str, Lanes]:
    return "columns", m.first(columns)


def _same_columns(m: Machine, columns: Lanes) -> Lanes:
    same = m.first(columns)
    m.require(columns == same, _CODE, "the lanes of a warp give different numbers of columns")
    _require_size(m, same)
    return same


def _allocate(m: Machine, form: Form, dst: Lanes, columns: Lanes) -> None:
    columns = _same_columns(m, columns)
    kept = m.cta_state("tmem_permit") == 0
    m.require(kept, _CODE, "an allocation after the permit to allocate was relinquished")
    first = m.cast(m.intrinsic("ctz", _room(m, columns)), UINT32)
    taken = m.cta_state("tmem_columns") | _granules(m, first, columns)
    m.set_cta_state("tmem_columns", taken & _ALL)
    begins = m.cta_state("tmem_starts") | (uint32(m, 1) << first)
    m.set_cta_state("tmem_starts", begins & _ALL)
    m.store(Space.SHARED, m.first(dst), [first * GRANULE])


def _free(m: Machine, form: Form, taddr: Lanes, columns: Lanes) -> None:
    """Free an allocation, which is known by where it begins and what it does not share."""
    taddr, columns = m.first(taddr), _same_columns(m, columns)
    held, starts = m.cta_state("tmem_columns"), m.cta_state("tmem_starts")
    first = taddr >> _GRANULE_SHIFT
    begins = ((taddr & (GRANULE - 1)) == 0) & (((starts >> first) & 1) != 0)
    m.require(begins & (taddr < COLUMNS), _CODE, "no allocation begins at this address")
    freed = _granules(m, first, columns)
    following = uint32(m, 1) << (first + (columns >> _GRANULE_SHIFT))
    whole = ((held & freed) == freed) & ((held & ~starts & following) == 0)
    alone = (starts & freed) == (uint32(m, 1) << first)
    m.require(whole & alone, _CODE, "an allocation is freed with the number of columns that it has")
    m.set_cta_state("tmem_columns", held & ~freed)
    m.set_cta_state("tmem_starts", starts & ~freed)


def _relinquish(m: Machine, form: Form) -> None:
    m.set_cta_state("tmem_permit", uint32(m, 1))


_ALLOCATION = '9.7.16.7.1 "tcgen05.alloc, tcgen05.dealloc, tcgen05.relinquish_alloc_permit"'

_SIZE = register("nCols", "u32", values=(32, 64, 128, 256, 512))

alloc = declare(
    "tcgen05",
    "alloc.cta_group::1.sync.aligned.shared::cta.b32",
    summary="Allocate columns of Tensor Memory, waiting until there are; their address is stored.",
    section=_ALLOCATION,
    targets=TARGETS,
    operands=(address("dst", Space.SHARED, "write", 4, lanes=1), _SIZE),
    compute=_allocate,
    lanes="warp",
    aligned=True,
    wait=Wait("columns", poll=_may_allocate, awaits=_awaited_columns),
)
dealloc = declare(
    "tcgen05",
    "dealloc.cta_group::1.sync.aligned.b32",
    summary="Free columns of Tensor Memory.",
    section=_ALLOCATION,
    targets=TARGETS,
    operands=(register("taddr", "b32"), _SIZE),
    compute=_free,
    lanes="warp",
    aligned=True,
)
relinquish_alloc_permit = declare(
    "tcgen05",
    "relinquish_alloc_permit.cta_group::1.sync.aligned",
    summary="Promise that this CTA allocates no more Tensor Memory.",
    section=_ALLOCATION,
    targets=TARGETS,
    compute=_relinquish,
    lanes="warp",
    aligned=True,
)
