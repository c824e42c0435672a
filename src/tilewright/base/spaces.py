"""State spaces: where bytes live.

Imports nothing. Addresses are the chip's numbers: 32 bits in shared memory and Tensor Memory,
64 bits in global memory and generic addressing (PTX ISA, "State Spaces").
"""

from __future__ import annotations

from enum import Enum


class Space(Enum):
    """A state space of the PTX machine; the value is the dialects' name for the scope."""

    GLOBAL = "global"
    SHARED = "shared"
    SHARED_CLUSTER = "shared_cluster"
    LOCAL = "local"
    TMEM = "tmem"
    GENERIC = "generic"
    PARAM = "param"
    # Registers that the threads of a CTA hold a tile in together: the tile dialect's own.
    FRAGMENT = "fragment"

    @property
    def address_bits(self) -> int:
        """Count the bits of an address."""
        return 32 if self in (Space.SHARED, Space.SHARED_CLUSTER, Space.TMEM) else 64
