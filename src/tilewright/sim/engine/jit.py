"""From LLVM text to code that runs.

May import `base`. A module comes in pieces, each of which becomes an object of its own; the
objects are linked in memory. So what other kernels have too is compiled once, and kept. The pass
pipeline is SROA and SimplifyCFG: the standard pipelines cost a hundred milliseconds more and give
slower code here, by hoisting loads until registers spill. LLVM is loaded when it is first used.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tilewright.base.errors import CompilerBug
from tilewright.base.forks import held_over_forks
from tilewright.base.lazy import optional
from tilewright.base.store import Store

_once = held_over_forks(threading.RLock())
_KIND = "native"
_PASSES = ("sroa", "simplify_cfg")
_LEVEL, _QUICK = 1, 0  # of optimisation; of what is called seldom
_DEFINED, _SELDOM = (re.compile(f"^define .*{end}$", re.MULTILINE) for end in ("", r" cold \{"))
# Called with how many pieces are compiled by now, and of how many.
Report = Callable[[int, int], None]

# What the engine asks about, for CPUs that are named by a level of x86-64.
_LEVEL_FEATURES = {
    "x86-64-v3": frozenset({"f16c", "fma", "avx"}),
    "x86-64-v4": frozenset({"f16c", "fma", "avx", "avx512f"}),
}


@dataclass(frozen=True)
class Machine:
    """The CPU that code is made for: LLVM's name of it, and its features."""

    cpu: str
    features: str

    @property
    def present(self) -> frozenset[str]:
        """Give the names of the features that are there."""
        if not self.features:
            return _LEVEL_FEATURES.get(self.cpu, frozenset())
        names = self.features.split(",")
        return frozenset(name[1:] for name in names if name.startswith("+"))


@cache
def _llvm() -> Any:
    """Load LLVM."""
    return optional("llvmlite.binding", purpose="run kernels on the simulator")


def _lock() -> Any:
    """Give the lock by which llvmlite makes one call at a time, those that free things too."""
    with _once:
        return _made_lock()


@cache
def _made_lock() -> Any:
    return held_over_forks(getattr(_llvm().ffi.lib, "_lock", threading.RLock()))


@cache
def host() -> Machine:
    """Describe the CPU that this process runs on."""
    llvm = _llvm()
    return Machine(llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


def machine(cpu: str | None) -> Machine:
    """Describe a CPU by LLVM's name of it, `None` for the one at hand."""
    return host() if cpu is None else Machine(cpu, "")


@cache
def _initialise() -> None:
    _llvm().initialize_native_target()
    _llvm().initialize_native_asmprinter()


@dataclass(frozen=True)
class Code:
    """Compiled code, alive as long as this is."""

    engine: Any
    _known: dict[str, int] = field(default_factory=dict[str, int])

    def address(self, name: str) -> int:
        """Give the address of a function."""
        if name not in self._known:
            self._known[name] = self.engine.get_function_address(name)
        return self._known[name]


def compile_pieces(
    pieces: Sequence[str], where: Machine, store: Store, report: Report
) -> list[bytes]:
    """Compile pieces of LLVM assembly to objects for a CPU; safe from several threads.

    Those that `store` has are not compiled; the others are kept there. `report` hears of those.
    """
    head = _recipe_head(where)
    recipes = [f"{head}\n{piece}" for piece in pieces]
    found = [store.get(_KIND, recipe) for recipe in recipes]
    missing = [index for index, each in enumerate(found) if each is None]
    if missing:
        with _lock():
            targets = {level: _target(where, level) for level in (_LEVEL, _QUICK)}
            for count, index in enumerate(missing):
                report(count, len(missing))
                made = _object(pieces[index], targets)
                store.put(_KIND, recipes[index], made)
                found[index] = made
    return [each for each in found if each is not None]


def link(objects: Sequence[bytes], where: Machine) -> Code:
    """Link objects that refer to one another into code of this process."""
    llvm = _llvm()
    with _lock():
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target(where, _LEVEL))
        for each in objects:
            engine.add_object_file(llvm.ObjectFileRef.from_data(each))
        engine.finalize_object()
        return Code(engine)


def version() -> str:
    """Name what makes objects of assembly."""
    package = optional("llvmlite", purpose="run kernels on the simulator")
    return f"llvmlite {package.__version__} LLVM {'.'.join(map(str, _llvm().llvm_version_info))}"


def _recipe_head(where: Machine) -> str:
    """Say all that an object depends on beside its text."""
    return f"{version()}\n{where.cpu} {where.features}\n{' '.join(_PASSES)} {_LEVEL} {_QUICK}"


def _target(where: Machine, level: int) -> Any:
    _initialise()
    return (
        _llvm()
        .Target.from_default_triple()
        .create_target_machine(cpu=where.cpu, features=where.features, opt=level)
    )


def _object(text: str, targets: Mapping[int, Any]) -> bytes:
    llvm = _llvm()
    seldom = len(_SELDOM.findall(text)) == len(_DEFINED.findall(text))
    target = targets[_QUICK if seldom else _LEVEL]
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CompilerBug(
            f"LLVM refuses the engine's code: {error}", code="compiler-bug"
        ) from error
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(_LEVEL))
    passes = llvm.create_new_function_pass_manager()
    for name in _PASSES:
        getattr(passes, f"add_{name}_pass")()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    return target.emit_object(module)
