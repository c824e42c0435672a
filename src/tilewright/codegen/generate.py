"""A lowered program as one translation unit of CUDA C++, with what a launch must know.

May import `base`, `isa`, `ir` and `passes`.

    source = generate(program, target("sm_90a"))
    source.text, source.kernels[0].shared_bytes
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from tilewright.base.dtypes import DType
from tilewright.base.targets import SHARED_ALIGNMENT, Target
from tilewright.codegen.expressions import Expressions, Uses
from tilewright.codegen.instructions import helper_name
from tilewright.codegen.prelude import prelude
from tilewright.codegen.registers import reader, reader_text
from tilewright.codegen.spelling import WIDTH, Names, bug
from tilewright.codegen.statements import Helpers, Statements
from tilewright.ir.expressions import SpecialRegister, Var
from tilewright.ir.shapes import static_shape
from tilewright.ir.statements import Declare, Instruct, Kernel, Launch, Program
from tilewright.ir.types import PointerType, ScalarType, TensorMapType
from tilewright.ir.visit import walk, walk_statements
from tilewright.passes.analysis.ranges import analyse_ranges
from tilewright.passes.analysis.read_only import read_only_pointers


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a generated kernel.

    `name` is the program's, `c_type` as in the text; `kind` is "pointer" (passed as 8 bytes),
    "scalar" (passed as a value of `dtype`), "symbol" (an extent, passed as int32) or
    "tensor_map" (128 bytes, aligned to 64).
    """

    name: str
    c_type: str
    kind: str
    dtype: DType | None


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What a launch of a generated kernel needs.

    `name` is the symbol in the cubin. `params` are in the order of the text: the kernel's
    parameters, then its symbols. `shared_bytes` are those that the kernel lays out itself,
    dynamic shared memory of the launch; what `launch.dynamic_shared_bytes` asks for comes on
    top. `block` is `None` where it depends on arguments.
    """

    name: str
    params: tuple[Parameter, ...]
    shared_bytes: int
    block: tuple[int, int, int] | None
    launch: Launch


@dataclass(frozen=True, slots=True)
class Source:
    """A translation unit, and its kernels in the order of the program."""

    text: str
    kernels: tuple[KernelFacts, ...]


def generate(program: Program, target: Target) -> Source:
    """Write a lowered program as header-free CUDA C++ for a target.

    Raises `CompilerBug` for what lowering should not have left.
    """
    uses = Uses()
    symbols = kernel_symbols(program)
    helpers = Helpers(_helper_names(program, frozenset(symbols.values())))
    taken = frozenset(
        [
            *helpers.names,
            *symbols.values(),
            *(reader(name) for name in _registers(program)),
        ]
    )
    written = [
        _kernel(kernel, symbols[kernel.name], target, uses, helpers, taken)
        for kernel in program.kernels
    ]
    readers = [reader_text(name, bits) for name, bits in sorted(uses.registers.items())]
    shared = [f"extern __shared__ __align__({SHARED_ALIGNMENT}) unsigned char shared_memory[];\n"]
    pieces = [
        f"// {program.name}, for {target}.\n",
        prelude(uses.snippets | helpers.needs, target.capability),
        *readers,
        *(shared if uses.shared else []),
        *helpers.texts,
        *(text for text, _ in written),
    ]
    return Source("\n".join(pieces), tuple(facts for _, facts in written))


def kernel_symbols(program: Program) -> dict[str, str]:
    """Give the symbols of a program's kernels in its cubin, by the names of the kernels."""
    names = Names()
    found: dict[str, str] = {}
    for kernel in program.kernels:
        # PTX takes no symbol of underscores alone.
        spellable = re.search("[a-zA-Z0-9]", kernel.name) is not None
        found[kernel.name] = names.fresh(kernel.name if spellable else "kernel")
    return found


def _helper_names(program: Program, symbols: frozenset[str]) -> dict[str, str]:
    """Choose a function name for each form that a program issues."""
    names = Names(symbols)
    found: dict[str, str] = {}
    for kernel in program.kernels:
        for stmt in walk_statements(kernel.body):
            if isinstance(stmt, Instruct) and stmt.form.text not in found:
                found[stmt.form.text] = names.fresh(helper_name(stmt.form))
    return found


def _registers(program: Program) -> set[str]:
    return {
        node.name
        for kernel in program.kernels
        for node in walk(kernel.body)
        if isinstance(node, SpecialRegister)
    }


def _cells(kernel: Kernel) -> frozenset[str]:
    return frozenset(
        stmt.var.name for stmt in walk_statements(kernel.body) if isinstance(stmt, Declare)
    )


def _kernel(
    kernel: Kernel,
    symbol: str,
    target: Target,
    uses: Uses,
    helpers: Helpers,
    taken: frozenset[str],
) -> tuple[str, KernelFacts]:
    read_only = read_only_pointers(kernel)
    expressions = Expressions(Names(taken), analyse_ranges(kernel), uses, read_only)
    parameters: list[Parameter] = []
    declarators: list[str] = []
    for var in (*kernel.params, *kernel.symbols):
        kind = _parameter_kind(var, kernel)
        spelled = expressions.spell(var.type, var)
        qualified = f"const __grid_constant__ {spelled}" if kind == "tensor_map" else spelled
        space = "" if spelled.endswith("*") else " "
        declarators.append(f"{qualified}{space}{expressions.names(var.name)}")
        dtype = None if isinstance(var.type, TensorMapType) else var.dtype
        parameters.append(Parameter(var.name, spelled, kind, dtype))
    writer = Statements(expressions, helpers, _cells(kernel))
    body = "".join(f"{line}\n" for line in writer.block(kernel.body, 1))
    block = cast("tuple[int, int, int] | None", static_shape(kernel.launch.block))
    qualifiers = _qualifiers(kernel, target, block)
    head = _head(f'extern "C" __global__ void {qualifiers}{symbol}', declarators)
    facts = KernelFacts(symbol, tuple(parameters), kernel.shared_bytes, block, kernel.launch)
    return f"{head} {{\n{body}}}\n", facts


def _parameter_kind(var: Var, kernel: Kernel) -> str:
    match var.type:
        case PointerType():
            return "pointer"
        case TensorMapType():
            return "tensor_map"
        case ScalarType():
            return "symbol" if var in kernel.symbols else "scalar"
        case _:
            raise bug(f"the parameter {var} of {kernel.name} is a {var.type}", var.location)


def _qualifiers(kernel: Kernel, target: Target, block: tuple[int, int, int] | None) -> str:
    """Write the launch bounds and the shape of the cluster, each followed by a space."""
    attributes = {name: value for name, value in kernel.attributes if value is not None}
    registers = attributes.get("max_registers_per_thread")
    text = ""
    if registers is not None:
        # NVRTC takes either this or launch bounds.
        text += f"__maxnreg__({int(registers)}) "
    elif block is not None:
        bounds = [str(block[0] * block[1] * block[2])]
        blocks = attributes.get("min_blocks_per_sm")
        clusters = attributes.get("max_blocks_per_cluster")
        if blocks is not None or clusters is not None:
            bounds.append(str(int(blocks or 1)))
        if clusters is not None:
            bounds.append(str(int(clusters)))
        text += f"__launch_bounds__({', '.join(bounds)}) "
    cluster = static_shape(kernel.launch.cluster)
    if cluster is not None and cluster != (1, 1, 1) and target.capability >= 90:
        text += f"__cluster_dims__({', '.join(map(str, cluster))}) "
    return text


def _head(start: str, declarators: Sequence[str]) -> str:
    line = f"{start}({', '.join(declarators)})"
    if len(line) + 2 <= WIDTH:
        return line
    joined = ",\n    ".join(declarators)
    return f"{start}(\n    {joined})"
