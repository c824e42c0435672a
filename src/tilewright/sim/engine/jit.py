"""From LLVM text to code that runs.

May import `base`. The pass pipeline is SROA and SimplifyCFG: the standard pipelines cost a
hundred milliseconds more and give slower code here, by hoisting loads until registers spill.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding  # pyright: ignore[reportMissingTypeStubs] there are none

from tilewright.base.errors import CompilerBug
from tilewright.base.forks import held_over_forks

llvm: Any = llvmlite.binding
# By this lock llvmlite makes one call at a time, those that free things too.
_lock: Any = held_over_forks(getattr(llvm.ffi.lib, "_lock", threading.RLock()))

# What the engine asks about, for CPUs that are named by a level of x86-64.
_LEVEL_FEATURES = {
    "x86-64-v3": frozenset({"f16c", "fma"}),
    "x86-64-v4": frozenset({"f16c", "fma"}),
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
def host() -> Machine:
    """Describe the CPU that this process runs on."""
    return Machine(llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


def machine(cpu: str | None) -> Machine:
    """Describe a CPU by LLVM's name of it, `None` for the one at hand."""
    return host() if cpu is None else Machine(cpu, "")


@cache
def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@dataclass(frozen=True)
class Code:
    """Compiled code, alive as long as this is."""

    engine: Any

    def address(self, name: str) -> int:
        """Give the address of a function."""
        return self.engine.get_function_address(name)


def compile_text(text: str, where: Machine, level: int = 1) -> Code:
    """Compile a module for a CPU; safe from several threads."""
    with _lock:
        _initialise()
        target = llvm.Target.from_default_triple().create_target_machine(
            cpu=where.cpu, features=where.features, opt=level
        )
        try:
            module = llvm.parse_assembly(text)
            module.verify()
        except RuntimeError as error:
            raise CompilerBug(
                f"LLVM refuses the engine's code: {error}", code="compiler-bug"
            ) from error
        builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(level))
        passes = llvm.create_new_function_pass_manager()
        passes.add_sroa_pass()
        passes.add_simplify_cfg_pass()
        for function in module.functions:
            if not function.is_declaration:
                passes.run(function, builder)
        engine = llvm.create_mcjit_compiler(module, target)
        engine.finalize_object()
        return Code(engine)
