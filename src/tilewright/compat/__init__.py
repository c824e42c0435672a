"""Programs written for `tvm_tirx` import this package under that name, and find a `cuda` device.

May import everything up to `view`.

    import tilewright.compat
    tilewright.compat.install()
    from tvm_tirx.script import tirx as T
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Collection

from tilewright.base.errors import LaunchError
from tilewright.base.targets import DEFAULT_ORDER, Target
from tilewright.base.targets import target as target_named
from tilewright.compat.devices import DeviceMapping
from tilewright.compat.imports import AfterImport, Substitution
from tilewright.compat.names import PACKAGES

__all__ = ["install", "installed", "uninstall"]


class _TorchImport(AfterImport):
    """Maps devices as soon as PyTorch is imported; the finder is where the mapping is kept."""

    def __init__(self, mapping: DeviceMapping) -> None:
        super().__init__("torch", mapping.install)
        self.mapping = mapping


def install(
    replace: bool = False, *, keep: str | Collection[str] = (), target: str | Target | None = None
) -> tuple[str, ...]:
    """Let `import tvm_tirx` mean this package and, without a GPU, PyTorch's `cuda` the CPU.

    `keep` is a name, or several, to be left alone. `torch.cuda` describes the chip of `target`,
    else that of the first usual target. Does nothing if it is installed already.
    Returns the package names that are substituted. Raises `LaunchError`: `name-taken` if a real
    package is imported or could be, unless `replace` is true; `bad-option` for a wrong `keep`.
    """
    keep = (keep,) if isinstance(keep, str) else tuple(keep)
    if unknown := set(keep) - set(PACKAGES):
        raise LaunchError(
            f"{sorted(unknown)[0]!r} is not a name that is substituted",
            code="bad-option",
            expected="one of " + ", ".join(PACKAGES),
        )
    if not any(isinstance(finder, _TorchImport) for finder in sys.meta_path):
        packages = tuple(name for name in PACKAGES if name not in keep)
        if not replace:
            _require_free(packages)
        chip = target if isinstance(target, Target) else target_named(target or DEFAULT_ORDER[0])
        mapping = DeviceMapping(chip)
        sys.meta_path.insert(0, _TorchImport(mapping))
        Substitution(packages).install()
        mapping.install()
    return installed()


def uninstall() -> None:
    """Undo `install`: the import system, `sys.modules` and PyTorch are as they were before."""
    for finder in list(sys.meta_path):
        match finder:
            case Substitution():
                finder.uninstall()
            case _TorchImport():
                finder.mapping.uninstall()
                sys.meta_path.remove(finder)
            case _:
                pass


def installed() -> tuple[str, ...]:
    """List the package names that are substituted now."""
    substitutions = (each for each in sys.meta_path if isinstance(each, Substitution))
    return tuple(name for each in substitutions for name in each.packages)


def _require_free(packages: tuple[str, ...]) -> None:
    for name in packages:
        if name in sys.modules or importlib.util.find_spec(name) is not None:
            raise LaunchError(
                f"the name {name!r} belongs to a package that is here",
                code="name-taken",
                found=f"{name}, {'imported' if name in sys.modules else 'importable'}",
                hint="tilewright.compat.install(replace=True) takes the name all the same",
            )
