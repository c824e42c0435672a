"""Names of the dialect that this package does not support, and why.

May import `base` and `frontend.builder`. Using one is an error that says so; a name that stands in
none of the tables is unknown.
"""

from __future__ import annotations

from typing import Any

from tilewright.base.errors import FrontendError
from tilewright.frontend.builder import here


class Unsupported:
    """A name, or a namespace of names, that is refused where it is called."""

    _name: str
    _reason: str
    _instead: str | None

    def __init__(self, name: str, reason: str, instead: str | None = None) -> None:
        self._name, self._reason, self._instead = name, reason, instead

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise FrontendError(
            f"{self._name} is not supported: {self._reason}",
            code="not-supported",
            location=here(),
            hint=self._instead,
        )

    def __getattr__(self, name: str) -> Unsupported:
        if name.startswith("_"):
            raise AttributeError(name)
        return Unsupported(f"{self._name}.{name}", self._reason, self._instead)

    def __repr__(self) -> str:
        return self._name


_FOREIGN = "the simulator runs kernels of this dialect only"
_HELPERS = "@T.inline expands a helper where it is called"
_PROFILING = "a simulated kernel has no times to record"
_LEGACY = "it is a spelling of what an instruction does"
_MMA = "T.ptx.mma and T.cuda.tile.apply multiply fragments"


def _all(prefix: str, names: str, reason: str, instead: str | None = None) -> dict[str, Any]:
    return {each: Unsupported(f"{prefix}.{each}", reason, instead) for each in names.split()}


CUDA: dict[str, Any] = {
    **_all(
        "T.cuda",
        "grid_sync",
        "a barrier of the grid needs memory that the driver lends cooperative launches, and only "
        "CUDA's own headers know where",
        "count arrivals by T.cuda.atomic_add, and wait by T.cuda.wait_until",
    ),
    **_all("T.cuda", "func_call", f"{_FOREIGN}, no CUDA text", _HELPERS),
    **_all("T.cuda", "mma_store mma_fill bmma_sync", _LEGACY, _MMA),
    **_all("T.cuda", "iket timer_init timer_start timer_end timer_finalize", _PROFILING),
    **_all("T.cuda", "wgmma", "the instructions of that family are not there yet", _MMA),
}
BLOCK_SCALED = Unsupported(
    "T.cuda.tcgen05.encode_instr_descriptor_block_scaled",
    "products with scales are not there yet",
)
TOP: dict[str, Any] = {
    **_all("T", "ir_module", "a program is one function", _HELPERS),
    **_all("T", "call_extern call_pure_extern", f"{_FOREIGN}, no functions in C", _HELPERS),
    **_all("T", "call_packed", "the host's part of a program calls nothing"),
    **_all("T", "call_kernel call_ffi_kernel external_kernel", f"{_FOREIGN}, no others"),
    **_all("T", "nvshmem", "there is one GPU, and no library for several"),
}
