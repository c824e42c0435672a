"""The reader of functions of the tile dialect.

May import `base`, `ir` and the modules of `frontend`. Beside what all dialects have, a function
may declare outputs (`T.empty`, and `return` of them) and memory for its own use, and may state the
types of its parameters inside its body; kernels may stand in macros.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, NoReturn

from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.frontend.annotations import (
    PointerKind,
    check_symbols,
    parameter_type,
    symbols_of,
)
from tilewright.frontend.builder import Builder
from tilewright.frontend.entry import Entry
from tilewright.frontend.frames import Binding, Frame
from tilewright.frontend.reader import LocalFunction, Reader, parameter_types, surroundings
from tilewright.frontend.reader_statements import Signal
from tilewright.frontend.source import Source, read_source
from tilewright.frontend.taking import Taken
from tilewright.frontend.tensors import CellTensor, Tensor
from tilewright.frontend.tile.frames import Ignored, TileLoop, WarpGroups
from tilewright.frontend.tile.types import Reference
from tilewright.frontend.values import Cell, ScalarKind, Value, as_tuple, wrap
from tilewright.frontend.views import reshape, subview
from tilewright.ir.expressions import Expr, Load, Var, int32
from tilewright.ir.statements import If, Program
from tilewright.ir.tile import AnnotateTile, TileStmt
from tilewright.ir.types import ScalarType, TensorType, Type
from tilewright.ir.visit import walk_kinds


@dataclass(frozen=True)
class Reading:
    """What a function of the tile dialect is read into.

    `types` are those of all parameters by name, arguments first; `outputs` are the positions of
    parameters that a caller gets back, `allocated` those that it does not give. `options` is
    what the body asks of the compilation.
    """

    program: Program
    types: dict[str, Type]
    outputs: tuple[int, ...]
    allocated: tuple[int, ...]
    options: dict[str, Any]


@dataclass(frozen=True)
class Declared:
    """What the beginning of a function says of its arguments: types, and symbols to be known."""

    types: dict[str, Type]
    constants: tuple[str, ...]


class Reached(Exception):
    """The first kernel begins, where only what stands before it was to be read."""


@dataclass
class Facts:
    """What a reader is told, and what it finds.

    `sizes` are the numbers that names of `T.const` stand for; `declaring` ends the reading at the
    first kernel. `arguments` are parameters whose types the body states. Of what is `allocated`,
    `outputs` are what `T.empty` declares, by name, and where it does.
    """

    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    declaring: bool = False
    arguments: tuple[str, ...] = ()
    constants: list[str] = field(default_factory=list[str])
    allocated: list[Var] = field(default_factory=list[Var])
    outputs: dict[str, Location | None] = field(default_factory=dict[str, Location | None])
    returned: tuple[Var, ...] | None = None
    options: dict[str, Any] = field(default_factory=dict[str, Any])


class TileReader(Reader):
    """Reads one function of the tile dialect, and what it calls."""

    inside_hint = "inside of `with T.Kernel(…)`"
    entry_hint = "begin with `with T.Kernel(…):`; a helper of kernels is @T.macro"

    def __init__(self, builder: Builder, frame: Frame, facts: Facts) -> None:
        super().__init__(builder, frame)
        builder.lenient = True
        self.facts = facts

    # ---- parameters

    def constant(self, name: str, dtype: Any) -> Any:
        """Give what a name of `T.const` stands for: a number, or a symbol while it is unknown."""
        if name not in self.facts.constants:
            self.facts.constants.append(name)
        if name in self.facts.sizes:
            return self.facts.sizes[name]
        if not self.facts.declaring:
            raise FrontendError(
                f"no argument tells what {name} is",
                code="bad-call",
                location=self.builder.where,
                hint=f"name it in the shape of an argument, or give it: {name}=…",
            )
        return wrap(Var(name, ScalarType(dtype)))

    def output(self, type: TensorType, otherwise: str, *, returned: bool) -> Tensor:
        """Add a parameter that a call allocates; what is to be `returned`, a function returns."""
        var = self.builder.variable(self.builder.named(None, otherwise), type)
        unknown = symbols_of([type])
        known = {each.name for each in symbols_of([each.type for each in self.params])}
        known |= {each.name for each in self.params}
        missing = [each.name for each in unknown if each.name not in known]
        if missing and not self.facts.declaring:
            raise FrontendError(
                f"no argument tells what {missing[0]} is",
                code="bad-annotation",
                location=self.builder.where,
                hint="an output has the extents of arguments, or numbers",
            )
        self.facts.allocated.append(var)
        if returned:
            self.facts.outputs[var.name] = self.builder.where
        self.params = (*self.params, var)
        return Tensor(var)

    def annotated_assignment(self, node: ast.AnnAssign) -> None:
        """Read `A: T.Tensor(…)` of a parameter: the type of an argument."""
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=None) if self._is_argument(name):
                self._argument(name, self.evaluate(node.annotation), node)
            case _:
                super().annotated_assignment(node)

    def _is_argument(self, name: str) -> bool:
        return self.frame.is_kernel and name in self.facts.arguments

    def _argument(self, name: str, annotation: Any, node: ast.AnnAssign) -> None:
        where = self.frame.place(node.annotation)
        given: object = annotation
        if callable(given) and not isinstance(given, ScalarKind | PointerKind):
            given = given()
        var = Var(name, parameter_type(given, name, where), location=self.frame.place(node.target))
        if any(each.name == name for each in self.params):
            self.refuse(node, f"a second type of the argument {name!r}")
        self.builder.names.add(name)
        order = self.facts.arguments
        ranked = {each: at for at, each in enumerate(order)}
        self.params = tuple(
            sorted((*self.params, var), key=lambda each: ranked.get(each.name, len(order)))
        )
        self.frame.bind(name, Binding(wrap(var), var.location))

    def held(self, name: str, value: Any) -> Any:
        """Bind what is computed in a kernel; on the host expressions stay, for shapes to have."""
        plain = isinstance(value, Value) and isinstance(value.expr.type, ScalarType)
        if self.opened is None and plain and not self.builder.reads_state(value.expr):
            return value
        return super().held(name, value)

    # ---- kernels

    def may_enter(self) -> bool:
        """Let a kernel begin anywhere on the host: macros have kernels, too."""
        if self.facts.declaring:
            raise Reached
        check_symbols([each for each in self.params if each not in self.facts.allocated])
        self.builder.names.update(each.name for each in symbols_of([p.type for p in self.params]))
        return True

    def with_statement(self, node: ast.With) -> Signal | None:
        """Read the body of a kernel, or what some warpgroups do."""
        if len(node.items) > 1:
            first, *rest = node.items
            inner = ast.copy_location(ast.With(rest, node.body), node)
            return self.with_statement(ast.copy_location(ast.With([first], [inner]), node))
        item = node.items[0]
        frame = self.evaluate(item.context_expr)
        target = item.optional_vars
        match frame:
            case Entry():
                self._kernel(frame, node, target)
                return None
            case WarpGroups() if target is None:
                where = self.frame.place(node)
                then = self.nested("branch", "it is bound for some warpgroups", node.body)
                self.builder.emit(If(frame.condition, then, location=where))
                return None
            case Ignored() if target is None:
                return self.read_block(node.body)
            case _:
                self.refuse(node, "the statement `with`, except over T.Kernel(…) or T.ws(…),")

    def _kernel(self, entry: Entry, node: ast.With, target: ast.expr | None) -> None:
        def inside() -> None:
            if target is not None:
                self._bind_blocks(target, entry.indices)
            self.read_block(node.body)
            body = self.builder.blocks[-1]
            if not any(True for _ in walk_kinds(tuple(body), TileStmt)):
                # What threads access by themselves is guarded as what tiles do.
                body.insert(0, AnnotateTile("outside", (), location=self.frame.place(node)))

        self._region(entry, node, inside)

    def _bind_blocks(self, target: ast.expr, indices: tuple[Expr, ...]) -> None:
        """Bind the names after `as` to the CTA's indices; one name for several is a tuple."""
        names = [target] if isinstance(target, ast.Name) else getattr(target, "elts", [])
        hints = [getattr(each, "id", "index") for each in names]
        if len(hints) != len(indices):
            hints = [f"{hints[0]}_{at}" for at in range(len(indices))]
        values = [
            wrap(self.builder.bind(name, index)) for name, index in zip(hints, indices, strict=True)
        ]
        single = isinstance(target, ast.Name) and len(indices) == 1
        self.assign(target, values[0] if single else tuple(values))

    # ---- loops that are more than counting

    def loop_over(self, node: ast.For, over: Any) -> Signal | None:
        """Read `for`; over tiles of a domain it is a loop that finds the tile of each turn."""
        if not isinstance(over, TileLoop):
            return super().loop_over(node, over)
        over.read(self, node)
        return None

    # ---- what is returned

    def return_statement(self, node: ast.Return) -> Signal | None:
        """Read `return`: on the host of the function, it says which outputs a caller gets."""
        if not self.frame.is_kernel or self.opened is not None or node.value is None:
            return super().return_statement(node)
        value = self.evaluate(node.value)
        outputs = as_tuple(value)
        allocated = {each.name: each for each in self.facts.allocated}
        found: list[Var] = []
        for each in outputs:
            place = each.expr if isinstance(each, Tensor) else None
            if not isinstance(place, Var) or place.name not in allocated:
                self._no_output(node, each)
            found.append(place)
        self.facts.returned = tuple(found)
        return Signal("return")

    def _no_output(self, node: ast.Return, value: Any) -> NoReturn:
        raise FrontendError(
            "a function returns outputs, and this is none",
            code="type-mismatch",
            location=self.frame.place(node),
            expected="what T.empty(…) has given",
            found=str(value.expr.type) if isinstance(value, Value) else repr(value),
        )

    # ---- macros

    def expand_local(
        self, function: LocalFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Expand a function that is defined in the code that is read; `T.Ref` gets places."""
        tree = function.node.args
        names = {each.arg: each.annotation for each in (*tree.args, *tree.kwonlyargs)}
        wanted = {name for name, kind in names.items() if kind is not None and _is_ref(kind)}
        return super().expand_local(function, *referring(function.signature, wanted, args, kwargs))


def _is_ref(node: ast.expr) -> bool:
    text = node.value if isinstance(node, ast.Constant) else ast.unparse(node)
    return str(text).partition("[")[0].rpartition(".")[2] in ("Ref", "Var")


def referring(
    signature: inspect.Signature, wanted: set[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Make references of the arguments of some parameters.

    Raises `FrontendError` (`operand-type`) for what is neither a variable nor an element.
    """
    if not wanted:
        return args, kwargs
    bound = signature.bind(*args, **kwargs)
    for name in wanted & bound.arguments.keys():
        bound.arguments[name] = reference(bound.arguments[name], name)
    return bound.args, bound.kwargs


def reference(value: Any, name: str) -> Any:
    """Make what a name stands for, that is assigned to, of an argument."""
    place = value.place if isinstance(value, Taken) else None
    match place if place is not None else value:
        case Cell() | Tensor():
            return value
        case Var() as cell:
            return Cell(cell)
        case Load(tensor=tensor, indices=indices):
            axes = [(each, 1, int32(1)) for each in indices]
            return CellTensor(reshape(subview(tensor, axes, None), [int32(1)], None))
        case _:
            raise FrontendError(
                f"{name!r} stands for a variable or an element, and gets neither",
                code="operand-type",
                found=repr(value),
                hint="T.alloc_var(dtype) makes a variable",
            )


def reference_names(function: Callable[..., Any]) -> set[str]:
    """Name the parameters of a function that are annotated with `T.Ref`."""
    found: dict[str, Any] = getattr(function, "__annotations__", {})
    return {
        name
        for name, kind in found.items()
        if isinstance(kind, Reference) or (isinstance(kind, str) and _is_ref(ast.Constant(kind)))
    }


# ---------------------------------------------------------------------------- reading


def _reader(
    function: Callable[..., Any], around: Mapping[str, Any], facts: Facts
) -> tuple[TileReader, Source]:
    source = read_source(function)
    assert isinstance(function, FunctionType)
    outer = (*surroundings(function), around)
    frame = Frame(source.file, function.__name__, outer, is_kernel=True)
    return TileReader(Builder(), frame, facts), source


def read_function(function: FunctionType, around: Mapping[str, Any]) -> Reading:
    """Read a function whose parameters are annotated, as under `@T.prim_func`.

    Raises `FrontendError`.
    """
    reader, source = _reader(function, around, Facts())
    with reader.builder.activate():
        types = parameter_types(reader, function, source, None)
        program = reader.read_program(function.__name__, source, types)
    return _reading(reader, program)


def stated_arguments(function: FunctionType) -> tuple[str, ...]:
    """Name the parameters whose types the body states, in the order of the parameters."""
    tree = read_source(function).tree
    stated = {
        each.target.id
        for each in ast.walk(tree)
        if isinstance(each, ast.AnnAssign)
        and each.value is None
        and isinstance(each.target, ast.Name)
    }
    return tuple(name for name in inspect.signature(function).parameters if name in stated)


def declare(
    function: FunctionType, around: Mapping[str, Any], constants: Mapping[str, Any]
) -> Declared:
    """Read what a function says of its arguments, up to its first kernel.

    `constants` are the parameters that are known. Raises `FrontendError`.
    """
    facts = Facts(declaring=True, arguments=stated_arguments(function))
    reader, source = _reader(function, around, facts)
    with reader.builder.activate():
        _bind_arguments(reader, function, constants)
        with suppress(Reached):
            reader.read_program(function.__name__, source, {})
        types = {each.name: each.type for each in reader.params if each not in facts.allocated}
        return Declared(types, tuple(facts.constants))


def read_body(
    function: FunctionType,
    around: Mapping[str, Any],
    constants: Mapping[str, Any],
    sizes: Mapping[str, int],
) -> Reading:
    """Read a function whose body states the types of its arguments.

    `constants` are the parameters that are known, `sizes` what the names of `T.const` stand for.
    Raises `FrontendError`.
    """
    facts = Facts(sizes=sizes, arguments=stated_arguments(function))
    reader, source = _reader(function, around, facts)
    with reader.builder.activate():
        _bind_arguments(reader, function, constants)
        program = reader.read_program(function.__name__, source, {})
    _check_returned(facts)
    return _reading(reader, program)


def _check_returned(facts: Facts) -> None:
    """Refuse an output that a function declares and does not return: nobody would get it."""
    returned = {each.name for each in facts.returned or ()}
    for name, where in facts.outputs.items():
        if name not in returned:
            raise FrontendError(
                f"the output {name!r} is declared, and not returned",
                code="bad-call",
                location=where,
                expected=f"return {', '.join(facts.outputs)}",
                found=f"return {', '.join(sorted(returned))}" if returned else "no return",
                hint="memory for the kernels' own use is T.alloc_global(shape, dtype)",
            )


class Unstated:
    """An argument that may be left out and is given, until the body states its type."""

    def __repr__(self) -> str:
        return "an argument whose type is not stated before"


def _bind_arguments(
    reader: TileReader, function: FunctionType, constants: Mapping[str, Any]
) -> None:
    """Bind what is known, and what a body may ask of others: whether they are None."""
    where: Location | None = None
    optional = [
        name
        for name in reader.facts.arguments
        if inspect.signature(function).parameters[name].default is None
    ]
    for name, value in {**dict.fromkeys(optional, Unstated()), **constants}.items():
        reader.frame.bind(name, Binding(value, where))


def _reading(reader: TileReader, program: Program) -> Reading:
    facts = reader.facts
    names = [each.name for each in program.params]
    returned = [names.index(each.name) for each in facts.returned or ()]
    allocated = [names.index(each.name) for each in facts.allocated]
    return Reading(
        program,
        {each.name: each.type for each in program.params},
        tuple(returned),
        tuple(allocated),
        dict(facts.options),
    )
