"""Print programs as Python source of the simt dialect, which the frontend reads back.

May import `base`, `layout`, `isa` and the nodes of `ir`. Both the high and the lowered form are
written, and reading the text gives an equal program. What a reader meets beside the dialect:

- layouts other than the default are module-level names, defined above the function;
- shape symbols are module-level: `n = T.dynamic("n")`;
- a kernel whose parameters are not the program's begins with
  `T.kernel_params(A=T.Ptr("float16", space="global", align=16), n=T.int32)`;
- a kernel whose name does not follow from the program's has `T.func_attr({"name": …})`, one of
  shared memory laid out has `T.func_attr({"shared_bytes": …})`;
- a tensor map is made in two lines, as programs make it.

    >>> print(print_program(program))
    from tilewright import simt as T
    …
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, cast

from tilewright.base.dtypes import INT32
from tilewright.base.spaces import Space
from tilewright.ir.expressions import Constant, Expr, Var, int32
from tilewright.ir.print_expressions import (
    DEFAULT_ALIGNMENT,
    Writer,
    print_expr,
    print_tuple,
    print_type,
    quote,
)
from tilewright.ir.shapes import tensor_type
from tilewright.ir.statements import (
    Allocate,
    Apply,
    Assert,
    Assign,
    Bind,
    Block,
    Break,
    Breakpoint,
    Continue,
    Declare,
    EncodeTensorMap,
    For,
    If,
    Instruct,
    Kernel,
    Launch,
    LaunchKernel,
    Print,
    Program,
    Return,
    Stmt,
    Store,
    While,
    Write,
)
from tilewright.ir.tile import AllocateBarriers, ParallelTile, PipelinedTile, TileStmt
from tilewright.ir.types import TensorType
from tilewright.ir.visit import defined, walk
from tilewright.layout import Axis, Iter, LayoutSpec, Term

__all__ = ["print_expr", "print_kernel", "print_program", "print_stmt", "print_type"]

# The fields of tile statements that are written without their names.
_POSITIONAL = ("a", "b", "c", "source", "target", "op", "value", "buffer")
_INDENT = "    "
_IMPORT = "from tilewright import simt as T"


def print_program(program: Program) -> str:
    """Write a program, with its imports, as source that parses back to an equal program."""
    writer = _Statements(_taken_names(program))
    function = writer.function(program)
    params = {each.name for each in program.params}
    symbols = {
        each.name: each
        for kernel in program.kernels
        for each in kernel.symbols
        if each.name not in params
    }
    lines = [_IMPORT]
    if writer.layouts:
        lines.append(f"from tilewright.layout import {', '.join(_imports(writer.layouts))}")
    lines.append("")
    lines += [f"{name} = {layout!r}" for layout, name in writer.layouts.items()]
    lines += [f"{name} = {_symbol(var)}" for name, var in symbols.items()]
    return "\n".join([*lines, "", *function]).replace("\n\n\n\n", "\n\n\n") + "\n"


def print_kernel(kernel: Kernel) -> str:
    """Write one kernel's body, for reading; layouts stand in their own notation."""
    return "\n".join(_Statements().block(kernel.body))


def print_stmt(stmt: Stmt) -> str:
    """Write a statement, with the blocks in it."""
    return "\n".join(_Statements().statement(stmt))


def kernel_name(program: str, index: int) -> str:
    """Give the name of a program's kernel number `index`, where it has no name of its own."""
    return f"{program}_kernel" + (f"_{index}" if index else "")


def _symbol(var: Var) -> str:
    kind = "" if var.dtype == INT32 else f", {quote(var.dtype.name)}"
    return f"T.dynamic({quote(var.name)}{kind})"


def _taken_names(program: Program) -> set[str]:
    names = {"T", program.name, *(each.name for each in program.params)}
    names |= {each.name for each in walk(program) if isinstance(each, Var)}
    return names | {each.name for each in defined(program)}


def _imports(layouts: Iterable[Any]) -> list[str]:
    """List the names that the notation of layouts uses, from `tilewright.layout`."""
    found: set[str] = set()
    for layout in layouts:
        found |= set(_names_in(layout))
        found |= {name for name in ("S", "R") if f"{name}[" in repr(layout)}
    return sorted(found, key=lambda name: (not name[0].isupper(), name))


def _names_in(value: Any) -> Iterator[str]:
    match value:
        case Axis():
            if value.name != "m":
                yield value.name
        case tuple():
            for each in cast(tuple[Any, ...], value):
                yield from _names_in(each)
        case _ if is_dataclass(value):
            if not isinstance(value, Iter | Term | LayoutSpec):
                yield type(value).__name__
            for each in fields(value):
                yield from _names_in(getattr(value, each.name))
        case _:
            return


class _Statements(Writer):
    """Writes statements and programs, naming the layouts that it meets unless told not to."""

    def __init__(self, taken: set[str] | None = None) -> None:
        super().__init__(repr if taken is None else self.named_layout)
        self.taken = taken or set()
        self.layouts: dict[Any, str] = {}
        # Where launches stand for the kernels that they start.
        self.program: Program | None = None

    def named_layout(self, layout: Any) -> str:
        if layout not in self.layouts:
            number = len(self.layouts)
            while (name := f"layout_{number}") in self.taken:
                number += 1
            self.taken.add(name)
            self.layouts[layout] = name
        return self.layouts[layout]

    # ---- programs

    def function(self, program: Program) -> list[str]:
        params = ", ".join(f"{each.name}: {self.type(each.type)}" for each in program.params)
        lines = ["", "@T.function", f"def {program.name}({params}):"]
        flat = len(program.kernels) == 1 and program.host == (
            LaunchKernel(program.kernels[0].name),
        )
        if flat:
            return lines + _indented(self.region(program, 0, flat=True))
        self.program = program
        return lines + _indented(self.block(program.host))

    def region(self, program: Program, index: int, *, flat: bool) -> list[str]:
        kernel = program.kernels[index]
        entry = f"T.device_entry({', '.join(self.entry(kernel))})"
        body: list[str] = []
        if kernel.params != program.params:
            params = [f"{each.name}={self.type(each.type)}" for each in kernel.params]
            body.append(f"T.kernel_params({', '.join(params)})")
        if attributes := self.function_attributes(kernel, kernel_name(program.name, index)):
            body.append(f"T.func_attr({{{', '.join(attributes)}}})")
        body += self.block(kernel.body) if kernel.body or not (body or flat) else []
        return [entry, *body] if flat else [f"with {entry}:", *_indented(body)]

    def function_attributes(self, kernel: Kernel, name: str) -> list[str]:
        found: list[str] = []
        if kernel.name != name:
            found.append(f'"name": {quote(kernel.name)}')
        if kernel.shared_bytes:
            found.append(f'"shared_bytes": {kernel.shared_bytes}')
        return found

    def entry(self, kernel: Kernel) -> list[str]:
        arguments = [f"launch=T.cuda.LaunchConfig({', '.join(self.launch(kernel.launch))})"]
        if kernel.attributes:
            attributes = ", ".join(f"{key}={self.value(v)}" for key, v in kernel.attributes)
            arguments.append(f"kernel_attrs=T.cuda.KernelAttributes({attributes})")
        return arguments

    def launch(self, launch: Launch) -> list[str]:
        parts = [f"grid={self.extents(launch.grid)}", f"block={self.extents(launch.block)}"]
        if launch.cluster != (int32(1),) * 3:
            parts.append(f"cluster={self.extents(launch.cluster)}")
        if launch.dynamic_shared_bytes != int32(0):
            parts.append(f"dynamic_smem_bytes={self.expr(launch.dynamic_shared_bytes)}")
        return parts + [f"{key}={self.value(value)}" for key, value in launch.options]

    def extents(self, extents: tuple[Expr, ...]) -> str:
        """Write the extents of a grid without the ones at its end."""
        kept = list(extents)
        while len(kept) > 1 and kept[-1] == int32(1):
            kept.pop()
        written = [self.expr(each) for each in kept]
        return written[0] if len(written) == 1 else print_tuple(written)

    # ---- statements

    def block(self, block: Block) -> list[str]:
        lines = [line for stmt in block for line in self.statement(stmt)]
        return lines or ["pass"]

    def statement(self, stmt: Stmt) -> list[str]:
        match stmt:
            case If():
                return self.branches(stmt, "if")
            case TileStmt():
                return self.tile_statement(stmt)
            case While():
                return [f"while {self.expr(stmt.condition)}:", *_indented(self.block(stmt.body))]
            case For():
                head = f"for {stmt.var.name} in {self.loop(stmt)}:"
                return [head, *_indented(self.block(stmt.body))]
            case LaunchKernel() if self.program is not None:
                names = [each.name for each in self.program.kernels]
                return self.region(self.program, names.index(stmt.kernel), flat=False)
            case EncodeTensorMap():
                return [f'{stmt.var.name} = T.stack_alloca("tensormap", 1)', self.encoding(stmt)]
            case _:
                return [self.simple(stmt)]

    def tile_statement(self, stmt: TileStmt) -> list[str]:
        """Write a statement of the tile dialect, for reading: what is left open is left out."""
        match stmt:
            case ParallelTile():
                names = ", ".join(each.name for each in stmt.vars)
                head = f"for {names} in T.Parallel({self.exprs(stmt.extents)}):"
                return [head, *_indented(self.block(stmt.body))]
            case PipelinedTile():
                over = self.exprs((stmt.start, stmt.stop))
                plan = {"num_stages": stmt.stages, "stage": stmt.stage, "order": stmt.order}
                given = (f"{key}={value}" for key, value in plan.items() if value is not None)
                head = f"for {stmt.var.name} in T.Pipelined({over}, {', '.join(given)}):"
                return [head, *_indented(self.block(stmt.body))]
            case AllocateBarriers():
                return [f"{stmt.var.name} = T.alloc_barrier({self.exprs(stmt.counts)})"]
            case _:
                name = type(stmt).__name__.removesuffix("Tile").lower()
                given = {each.name: getattr(stmt, each.name) for each in fields(cast(Any, stmt))}
                given.pop("location")
                parts = [
                    f"{key}={self.value(value)}" if key not in _POSITIONAL else self.value(value)
                    for key, value in given.items()
                    if value is not None and value != ()
                ]
                return [f"T.{name}({', '.join(parts)})"]

    def allocation(self, stmt: Allocate) -> str:
        """Write the call that allocates a buffer."""
        type = tensor_type(stmt.var)
        parts = [print_tuple([self.expr(e) for e in type.shape]), quote(type.dtype.name)]
        function = {Space.SHARED: "alloc_shared", Space.LOCAL: "alloc_local"}.get(type.space)
        if function is None:
            function = "alloc_tensor"
            parts.append(f"scope={quote(type.space.value)}")
        parts.append(f"layout={self.layout(type)}")
        if type.align != DEFAULT_ALIGNMENT:
            parts.append(f"align={type.align}")
        if stmt.over:
            parts.append(f"over={print_tuple([each.name for each in stmt.over])}")
        return f"T.{function}({', '.join(parts)})"

    def branches(self, stmt: If, word: str) -> list[str]:
        lines = [f"{word} {self.expr(stmt.condition)}:", *_indented(self.block(stmt.then))]
        match stmt.orelse:
            case ():
                return lines
            case (If() as nested,):
                return lines + self.branches(nested, "elif")
            case _:
                return [*lines, "else:", *_indented(self.block(stmt.orelse))]

    def loop(self, stmt: For) -> str:
        plain = stmt.start == int32(0) and stmt.step == int32(1)
        if plain and stmt.kind == "serial":
            return f"range({self.expr(stmt.stop)})"
        arguments = [self.expr(stmt.start), self.expr(stmt.stop)]
        if isinstance(stmt.start, Constant) and stmt.start.value == 0:
            arguments = arguments[1:]
        if not (isinstance(stmt.step, Constant) and stmt.step.value == 1):
            if len(arguments) == 1:
                arguments.insert(0, self.expr(stmt.start))
            arguments.append(f"step={self.expr(stmt.step)}")
        if stmt.var.dtype != INT32:
            arguments.append(f"dtype={quote(stmt.var.dtype.name)}")
        return f"T.{stmt.kind}({', '.join(arguments)})"

    def simple(self, stmt: Stmt) -> str:
        match stmt:
            case Bind():
                let = ": T.let" if isinstance(stmt.value, Var | Constant) else ""
                return f"{stmt.var.name}{let} = {self.expr(stmt.value)}"
            case Declare(value=None):
                return f"{stmt.var.name}: {self.type(stmt.var.type)}"
            case Declare(value=Expr() as value):
                return f"{stmt.var.name}: {self.type(stmt.var.type)} = {self.expr(value)}"
            case Assign():
                return f"{stmt.var.name} = {self.expr(stmt.value)}"
            case Allocate():
                type = stmt.var.type
                call = self.allocation(stmt) if isinstance(type, TensorType) else self.type(type)
                return f"{stmt.var.name} = {call}"
            case Store():
                place = f"{self.expr(stmt.tensor)}[{self.exprs(stmt.indices)}]"
                return f"{place} = {self.expr(stmt.value)}"
            case Write():
                return f"T.write({self.exprs((stmt.pointer, stmt.value))})"
            case _:
                return self.effect(stmt)

    def effect(self, stmt: Stmt) -> str:
        match stmt:
            case Break():
                return "break"
            case Continue():
                return "continue"
            case Return():
                return "return"
            case Instruct():
                return self.instruction(stmt)
            case Apply():
                return self.application(stmt)
            case Print():
                arguments = [quote(stmt.format), *map(self.expr, stmt.operands)]
                return f"T.cuda.printf({', '.join(arguments)})"
            case Breakpoint():
                shown = [f"parts={stmt.parts!r}"] + [f"labels={stmt.labels!r}"] * bool(stmt.labels)
                return f"T.breakpoint({', '.join([*map(self.expr, stmt.operands), *shown])})"
            case Assert():
                return self.assertion(stmt)
            case LaunchKernel():
                return f"# launch {stmt.kernel}"
            case _:
                raise AssertionError(f"the printer does not know {type(stmt).__name__}")

    def assertion(self, stmt: Assert) -> str:
        condition, message = self.expr(stmt.condition), quote(stmt.message)
        if stmt.message and not isinstance(stmt.condition, Constant):
            return f"assert {condition}, {message}"
        # What is known is asserted when the source is read.
        return f"T.cuda.trap_when_assert_failed({condition}, {message})"

    def encoding(self, stmt: EncodeTensorMap) -> str:
        numbers = (*stmt.extents, *stmt.strides, *stmt.box, *stmt.steps)
        arguments = [stmt.var.name, self.expr(stmt.pointer), *map(self.number, numbers)]
        arguments += [f"descriptor_dtype={quote(stmt.format)}", f"rank={len(stmt.box)}"]
        for name in ("interleave", "swizzle", "l2_promotion", "oob_fill"):
            if number := getattr(stmt, name):
                arguments.append(f"{name}={number}")
        return f"T.cuda.tensormap_encode_tiled({', '.join(arguments)})"

    def instruction(self, stmt: Instruct) -> str:
        arguments = [self.expr(each) for each in stmt.operands]
        if stmt.predicate is not None:
            arguments.append(f"pred={self.expr(stmt.predicate)}")
        if stmt.preserve:
            arguments.append("preserve_dst=True")
        return f"T.ptx[{quote(stmt.form.text)}]({', '.join(arguments)})"

    def application(self, stmt: Apply) -> str:
        arguments = [f"T.ptx[{quote(stmt.form.text)}]", *map(self.expr, stmt.operands)]
        arguments.append(f"scope={quote(stmt.scope)}")
        arguments += [f"{key}={self.value(value)}" for key, value in stmt.parameters]
        return f"T.cuda.tile.apply({', '.join(arguments)})"


def _indented(lines: list[str]) -> list[str]:
    return [_INDENT + line for line in lines]


# A program shows itself as source. The nodes cannot import their printer, so they get it here.
Program.__str__ = lambda self: print_program(self)
Kernel.__str__ = lambda self: print_kernel(self)
