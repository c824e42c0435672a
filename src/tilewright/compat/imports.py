"""Import hooks: modules under other packages' names, and actions after an import.

Imports `base` and `compat.names`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tilewright.compat.names import ALIASES, MODULES, submodules


class Substitution(MetaPathFinder, Loader):
    """Finds the modules of `names.MODULES` that belong to some packages, and makes them."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self.packages = packages
        self._hidden: dict[str, ModuleType] = {}

    def install(self) -> None:
        """Stand in front of every other finder; modules already imported are set aside."""
        self._hidden = self._take_out()
        sys.meta_path.insert(0, self)

    def uninstall(self) -> None:
        """Put everything back as it was."""
        sys.meta_path.remove(self)
        self._take_out()
        sys.modules.update(self._hidden)

    def _take_out(self) -> dict[str, ModuleType]:
        names = [name for name in sys.modules if name.partition(".")[0] in self.packages]
        return {name: sys.modules.pop(name) for name in names}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of the table."""
        if fullname.partition(".")[0] not in self.packages:
            return None
        if fullname in MODULES or fullname in ALIASES:
            return ModuleSpec(fullname, self, is_package=bool(submodules(fullname)))
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module with its names, or put the module that it stands for in its place."""
        name = module.__name__
        if name in ALIASES:
            found = sys.modules[name] = importlib.import_module(ALIASES[name])
            if submodules(name):  # the import system asks where they are
                found.__dict__.setdefault("__path__", [])
            return
        module.__file__ = __file__
        module.__doc__ = f"The names of {name} that Tilewright answers to."
        for attribute, place in MODULES[name].items():
            setattr(module, attribute, _resolve(place))
        module.__dict__["__getattr__"] = partial(_missing, name)


def _resolve(place: str) -> Any:
    module, _, attribute = place.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def _missing(module: str, name: str) -> Any:
    """Import a submodule that is asked for as an attribute."""
    if name in submodules(module):
        return importlib.import_module(f"{module}.{name}")
    raise AttributeError(f"Tilewright has no {name!r} under the name {module}")


class AfterImport(MetaPathFinder):
    """Runs an action once a module has been imported, whoever imports it."""

    def __init__(self, module: str, action: Callable[[], None]) -> None:
        self.module = module
        self.action = action
        self._searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the other finders find the module, and wrap its loader."""
        if fullname != self.module or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Wrapped(spec.loader, self.action)
        return spec


class _Wrapped(Loader):
    """A loader that runs an action when the module has been executed, and then steps aside."""

    def __init__(self, loader: Loader, action: Callable[[], None]) -> None:
        self._loader = loader
        self._action = action

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._action()
