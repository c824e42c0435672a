"""The import names of other packages that this one answers to, and where each name is here.

Imports nothing: the table is text, and is resolved when a program imports a name.

A module's entries are "module:attribute", or "module" for a module itself.
"""

from __future__ import annotations

_AXES = (
    *("bx", "by", "bz", "cbx", "cby", "cbz", "tx", "warpid", "wgid", "laneid"),
    *("tid_in_wg", "wid_in_wg", "m", "TCol", "TLane"),
)
_LAYOUTS = ("S", "R", "TileLayout", "ComposeLayout", "Iter")
_FACTORIES = (
    *("SwizzleMode", "mma_shared_layout", "mma_atom_layout", "mma_atom_shape"),
    *("tmem_datapath_layout", "tmem_mma_operand_layout"),
)


def _from_layout(*names: str) -> dict[str, str]:
    return {name: f"tilewright.layout:{name}" for name in names}


# import name: the names in it
MODULES: dict[str, dict[str, str]] = {
    "tvm_tirx": {"compile": "tilewright.driver:compile"},
    "tvm_tirx.script": {"tirx": "tilewright.simt"},
    "tvm_tirx.backend": {},
    "tvm_tirx.backend.cuda": {},
    "tvm_tirx.backend.cuda.axis": _from_layout(*_AXES),
    "tvm_tirx.backend.cuda.layout": _from_layout(*_FACTORIES),
    "tvm_tirx.backend.cuda.lang": {},
    "tvm_tirx.tirx": {"compile": "tilewright.driver:compile"},
    "tvm_tirx.tirx.layout": _from_layout(*_LAYOUTS, *_AXES),
    "tvm_tirx.target": {"Target": "tilewright.compat.requests:Target"},
    "tvm_tirx.testing": {"assert_allclose": "numpy.testing:assert_allclose"},
}
# import name: the module that it stands for as a whole
ALIASES: dict[str, str] = {"tvm_tirx.script.tirx": "tilewright.simt"}
PACKAGES: tuple[str, ...] = ("tvm_tirx",)


def submodules(name: str) -> tuple[str, ...]:
    """List the modules directly below a module, by their last names."""
    below = [each for each in (*MODULES, *ALIASES) if each.rpartition(".")[0] == name]
    return tuple(each.rpartition(".")[2] for each in below)
