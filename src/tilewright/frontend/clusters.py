"""`T.cuda` across the CTAs of a cluster.

May import `base`, `ir`, `isa.named` and the modules of this folder below it.
"""

from __future__ import annotations

from typing import Any

from tilewright.base.dtypes import UINT32, UINT64
from tilewright.frontend.builder import here
from tilewright.frontend.issuing import issue, shared_address
from tilewright.frontend.values import lift, wrap
from tilewright.ir.expressions import Bitcast, binary, cast
from tilewright.ir.types import ScalarType
from tilewright.isa import named

# The bit of a shared address that tells the CTAs of a pair apart; without it the address is that
# of the pair's first CTA.
_PAIR_BIT = 1 << 24


def cluster_sync() -> None:
    """Wait for all threads of the cluster; memory accesses before it are seen after it."""
    issue(named.CLUSTER_ARRIVE)
    issue(named.CLUSTER_WAIT)


def smem_addr_from_uint64(cluster_addr: Any) -> Any:
    """Take an address in shared memory, uint32, from a register of 64 bits."""
    return wrap(cast(lift(cluster_addr, UINT64), UINT32, here()))


def sm100_2sm_leader_smem_addr(ptr: Any) -> Any:
    """Give the address of a place in shared memory as that of the first CTA of the pair, uint32."""
    address = Bitcast(shared_address(ptr), ScalarType(UINT32), location=here())
    return wrap(binary("and", address, 0xFFFFFFFF - _PAIR_BIT, here()))


FUNCTIONS: dict[str, Any] = {
    each.__name__: each
    for each in (cluster_sync, smem_addr_from_uint64, sm100_2sm_leader_smem_addr)
}
