"""The reader of functions: kernels into programs, and calls of functions that are expanded.

May import `base`, `ir` and the modules of this folder below it.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import CellType, FunctionType
from typing import Any, NoReturn

from tilewright.base.dtypes import BOOL, INT32
from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.frontend.annotations import (
    Optional,
    TupleKind,
    check_symbols,
    parameter_type,
    symbols_of,
)
from tilewright.frontend.builder import Builder, current
from tilewright.frontend.entry import Entry, KernelParameters, device_entry
from tilewright.frontend.frames import Binding, Frame
from tilewright.frontend.markers import Constexpr, Expanded
from tilewright.frontend.older_frames import FRAMES, LaunchAxis, Region
from tilewright.frontend.reader_statements import Signal, StatementReader
from tilewright.frontend.source import Source, read_source
from tilewright.frontend.taking import taken, tidied
from tilewright.frontend.tensors import CellTensor
from tilewright.frontend.values import Cell, wrap
from tilewright.ir.expressions import AddressOf, Expr, Var, constant, int32
from tilewright.ir.host import foreign
from tilewright.ir.statements import Declare, For, Kernel, LaunchKernel, Program, Stmt
from tilewright.ir.types import PointerType, ScalarType, TensorMapType, TensorType, Type
from tilewright.ir.visit import defined, variables, walk_expressions


class _Cells(Mapping[str, Any]):
    """The variables of a closure, read when they are used."""

    def __init__(self, names: tuple[str, ...], cells: tuple[CellType, ...]) -> None:
        self.cells = dict(zip(names, cells, strict=True))

    def __getitem__(self, name: str) -> Any:
        try:
            return self.cells[name].cell_contents
        except ValueError as error:
            raise KeyError(name) from error

    def __contains__(self, name: object) -> bool:
        try:
            self[str(name)]
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)


def surroundings(function: FunctionType) -> tuple[Mapping[str, Any], ...]:
    """List the names around a function: its closure, then its module."""
    code = function.__code__
    return _Cells(code.co_freevars, function.__closure__ or ()), function.__globals__


@dataclass
class LocalFunction(Expanded):
    """A function that is defined inside the code that is read, expanded where it is called."""

    node: ast.Lambda | ast.FunctionDef
    name: str
    frame: Frame
    signature: inspect.Signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return current().reader.expand_local(self, args, kwargs)

    @property
    def __name__(self) -> str:
        return self.name


@dataclass
class _Open:
    """A kernel whose body is being read; `axes` are those that it is launched along so far."""

    entry: Entry
    params: tuple[Var, ...] | None = None
    body: list[Stmt] = field(default_factory=list[Stmt])
    axes: set[tuple[str, int]] | None = None


class Reader(StatementReader):
    """Reads one function, and what it calls, into a program."""

    # How a kernel begins, and where its body is, in the words of the dialect.
    inside_hint = "after T.device_entry(…)"
    entry_hint = (
        "begin with T.device_entry(launch=T.cuda.LaunchConfig(grid=…, block=…)); "
        "a helper of kernels is @T.function(private=True)"
    )

    def __init__(self, builder: Builder, frame: Frame) -> None:
        self.builder = builder
        self.frame = frame
        self.params: tuple[Var, ...] = ()
        self.kernels: list[Kernel] = []
        self.opened: _Open | None = None
        builder.reader = self

    # ---- programs

    def read_program(self, name: str, source: Source, types: dict[str, Type]) -> Program:
        """Read the body of a function into a program.

        Raises `FrontendError` (`no-entry`) if it has no device entry.
        """
        places = {each.arg: self.frame.place(each) for each in _arguments(source.tree)}
        self.params = tuple(
            Var(each, type, location=places.get(each)) for each, type in types.items()
        )
        for var in self.params:
            self.builder.names.add(var.name)
            self.frame.bind(var.name, Binding(wrap(var), var.location))
        check_symbols(self.params)
        self.builder.names.update(var.name for var in symbols_of(list(types.values())))
        where = self.frame.place(source.tree)
        with self.builder.block() as host:
            self.read_block(source.tree.body)
            if self.opened is not None:
                self.builder.blocks.pop()
                self._close(name, host)
        if not self.kernels:
            raise FrontendError(
                f"the function {name!r} has no device entry",
                code="no-entry",
                location=_header(where, source.tree),
                hint=self.entry_hint,
            )
        body = tidied(tuple(host), self.builder)
        program = Program(name, self.params, body, tuple(self.kernels), location=where)
        for each in foreign(program):
            self._refuse_on_host(each)
        return program

    def _refuse_on_host(self, node: Expr | Stmt) -> NoReturn:
        kind = "expression" if isinstance(node, Expr) else "statement"
        raise FrontendError(
            "this has no meaning on the host, outside a kernel",
            code=f"unsupported-{kind}",
            location=node.location,
            expected="numbers, branches, loops and what launches kernels",
            hint="a kernel begins with T.device_entry(…)",
        )

    def take_effect(self, value: Any, node: ast.Expr) -> None:
        """Enter a kernel, or set its parameters, where a statement says so."""
        match value:
            case Entry():
                opened = self._enter(value, node)
                self.builder.blocks.append(opened.body)
            case KernelParameters() if self.opened is not None:
                params = [Var(name, type) for name, type in value.types.items()]
                self.opened.params = tuple(params)
                for var in params:
                    self.builder.names.add(var.name)
                    # Not bound anew: `_region` puts back what the host has under the name.
                    bound = Binding(wrap(var), self.frame.place(node))
                    self.frame.scopes[-1].names[var.name] = bound
            case Region() | LaunchAxis():
                self.refuse(node, "this frame, without `with` before it and a body after it,")
            case _:
                pass

    def with_statement(self, node: ast.With) -> Signal | None:
        """Read the region of a device entry, or that of older frames."""
        entry = None
        if self._has_older_frames(node):
            return self._older_frames(node, node.items)
        match node.items:
            case [ast.withitem(ast.Call(func=called) as call, None)]:
                if self.evaluate(called) is device_entry:
                    entry = self.evaluate(call)
            case _:
                pass
        if not isinstance(entry, Entry):
            self.refuse(node, "the statement `with`, except over T.device_entry(…),")
        self._region(entry, node, lambda: self.read_block(node.body))
        return None

    def _has_older_frames(self, node: ast.With) -> bool:
        calls = [each.context_expr for each in node.items]
        return all(
            isinstance(call, ast.Call) and self.evaluate(call.func) in FRAMES for call in calls
        )

    def _older_frames(self, node: ast.With, items: list[ast.withitem]) -> Signal | None:
        """Read the frames of a `with` from the outside in, and then its body."""
        if not items:
            return self.read_block(node.body)
        frame = self.evaluate(items[0].context_expr)
        target = items[0].optional_vars

        def inside() -> Signal | None:
            if isinstance(target, ast.Name) and isinstance(frame, LaunchAxis):
                bound = wrap(self.builder.bind(target.id, frame.index))
                self.frame.bind(target.id, Binding(bound, self.frame.place(target)))
            return self._older_frames(node, items[1:])

        if not isinstance(frame, LaunchAxis):
            if self.opened is not None:
                self.refuse(node, f"{frame.name} inside a kernel")
            return inside()
        if self.opened is not None:
            self._launch_along(frame, self.opened)
            return inside()
        self._region(frame.entry(), node, inside, axes={frame.place})
        return None

    def _launch_along(self, axis: LaunchAxis, opened: _Open) -> None:
        """Launch the kernel that is open along one more axis."""
        own = {var.name for var in defined(tuple(opened.body))}
        if inner := [var.name for var in variables(axis.extent) if var.name in own]:
            raise FrontendError(
                f"the launch depends on {inner[0]!r}, which only the kernel knows",
                code="unbound-name",
                location=axis.location,
                hint="compute it before the outermost T.launch_thread(…)",
            )
        if opened.axes is None or axis.place in opened.axes:
            axis.check(opened.entry.launch)
            return
        opened.axes.add(axis.place)
        opened.entry = replace(opened.entry, launch=axis.joined(opened.entry.launch))

    def _region(
        self,
        entry: Entry,
        node: ast.With,
        read: Callable[[], Any],
        axes: set[tuple[str, int]] | None = None,
    ) -> None:
        """Read a kernel that is the body of a `with`."""
        opened = self._enter(entry, node)
        opened.axes = axes
        names = self.frame.scopes[-1].names
        host, around = dict(names), (self.builder.depth, self.builder.loops)
        self.builder.blocks.append(opened.body)
        self.builder.depth = self.builder.loops = 0
        try:
            with self.frame.scope("region", "it is bound inside another kernel"):
                read()
        finally:
            self.builder.blocks.pop()
            self.builder.depth, self.builder.loops = around
        for param in opened.params or ():  # names that the kernel has of its own
            names.pop(param.name, None)
            if param.name in host:
                names[param.name] = host[param.name]
        self._close(self.frame.name, self.builder.blocks[-1])

    def _enter(self, entry: Entry, node: ast.AST) -> _Open:
        if self.opened is not None or not self.may_enter():
            self.refuse(node, "a device entry inside a kernel or a helper")
        if self.frame.nest and not isinstance(node, ast.With):
            hint = "write `with T.device_entry(…):`, and the kernel as its body"
            self.refuse(node, "a device entry without `with`, inside a branch or a loop,", hint)
        self.opened = _Open(entry)
        self.builder.attributes.clear()
        return self.opened

    def may_enter(self) -> bool:
        """Tell whether a kernel may begin in the function that is being read."""
        return self.frame.is_kernel

    def _close(self, name: str, host: list[Stmt]) -> None:
        opened = self.opened
        assert opened is not None
        self.opened = None
        body = tidied(tuple(opened.body), self.builder)
        outer = {var.name: var for var in self.builder.counters}
        for block in self.builder.blocks:
            outer |= {var.name: var for var in defined(tuple(block))}
        used = (opened.entry.launch, *body)
        captured = [v for part in used for v in variables(part) if v.name in outer]
        self._check_captured(captured, opened.entry.location)
        params = opened.params
        if params is None:
            self._check_maps(body, outer)
            params = (*self.params, *dict.fromkeys(captured))
        index = len(self.kernels)
        default = f"{name}_kernel" + (f"_{index}" if index else "")
        taken = {var.name for var in self.params}
        symbols = symbols_of([var.type for var in self.params])
        kernel = Kernel(
            str(self.builder.attributes.get("name", default)),
            params,
            opened.entry.launch,
            body,
            tuple(each for each in symbols if each.name not in taken),
            (*opened.entry.attributes, *self.builder.attributes.get("bounds", ())),
            int(self.builder.attributes.get("shared_bytes", 0)),
            location=opened.entry.location,
        )
        self.kernels.append(kernel)
        host.append(LaunchKernel(kernel.name, location=opened.entry.location))

    def _check_captured(self, captured: list[Var], where: Location | None) -> None:
        """Refuse kernels that use what lives on the host but is no plain value."""
        for var in captured:
            is_place = isinstance(var.type, TensorType | PointerType)
            if var.name in self.builder.cells or is_place:
                now = f"bind what it holds before the kernel: `now = {var.name}`"
                raise FrontendError(
                    f"the kernel uses {var.name!r}, which is declared before it, on the host",
                    code="unbound-name",
                    location=where,
                    hint=f"declare it {self.inside_hint}" + ("" if is_place else f", or {now}"),
                    notes=(f"declared at {var.location.header()}",) if var.location else (),
                )

    def _check_maps(self, body: tuple[Stmt, ...], host: Mapping[str, Var]) -> None:
        """Refuse a kernel that points at a tensor map which the host has not made."""
        made = {*host, *(var.name for var in self.params)}
        for node in walk_expressions(body):
            match node:
                case AddressOf(tensor=Var(type=TensorMapType()) as var) if var.name not in made:
                    raise FrontendError(
                        f"the kernel uses the tensor map {var.name!r}, which is not made before it",
                        code="unbound-name",
                        location=node.location,
                        hint=f"T.cuda.tensormap_encode_tiled({var.name}, …) makes it, before "
                        "T.device_entry(…)",
                        notes=(f"declared at {var.location.header()}",) if var.location else (),
                    )
                case _:
                    continue

    # ---- functions that are expanded

    def local_function(self, node: ast.Lambda | ast.FunctionDef, name: str) -> LocalFunction:
        """Make a function of a definition inside the code that is read."""
        return LocalFunction(node, name, self.frame, self._signature(node.args))

    def expand_local(
        self, function: LocalFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Expand a call of a local function."""
        outer = function.frame
        frame = Frame(outer.file, function.name, outer.outer, outer, self.builder.where)
        bound = function.signature.bind(*args, **kwargs)
        body = function.node.body
        return self.expand(frame, bound, body if isinstance(body, list) else [ast.Return(body)])

    def expand_function(
        self, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Expand a call of a function whose source is read."""
        source = read_source(function)
        frame = Frame(
            source.file, function.__name__, surroundings(function), None, self.builder.where
        )
        bound = inspect.signature(function).bind(*args, **kwargs)
        return self.expand(frame, bound, source.tree.body)

    def expand(self, frame: Frame, bound: inspect.BoundArguments, body: list[Any]) -> Any:
        """Read a body in a frame of its own; gives what it returns."""
        signal = self._read_body(frame, bound, body)
        return signal.value if signal is not None else None

    def expand_typed(
        self, frame: Frame, bound: inspect.BoundArguments, tree: ast.FunctionDef
    ) -> Any:
        """Expand a function that states what it gives.

        One that returns early becomes a loop of one turn, which a return leaves.
        """
        result, where = frame.result, self.builder.where
        assert result is not None
        with self.builder.block() as issued:
            signal = self._read_body(frame, bound, tree.body)
            if signal is None and result.type is not None:
                raise self._no_result(frame, tree, result.type)
            value = None if signal is None else signal.value
            if result.early and value is not None:
                self.set_result(result, value.expr, where)
        if not result.early:
            self.builder.blocks[-1].extend(issued)
            return value
        for cell, first in ((result.cell, None), (result.left, constant(False, BOOL))):
            if cell is not None:
                self.builder.emit(Declare(cell, first, location=where))
        once = self.builder.variable("once", ScalarType(INT32))
        bounds = int32(0), int32(1), int32(1)
        self.builder.emit(For(once, *bounds, tuple(issued), location=where))
        return None if result.cell is None else wrap(result.cell)

    def _no_result(self, frame: Frame, tree: ast.FunctionDef, type: Type) -> FrontendError:
        return FrontendError(
            f"{frame.name!r} may end without giving the {type} that it states",
            code="type-mismatch",
            location=_header(frame.place(tree), tree),
            expected="a `return` with a value on every way to the end",
        )

    def _read_body(
        self, frame: Frame, bound: inspect.BoundArguments, body: list[Any]
    ) -> Signal | None:
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            is_place = isinstance(value, Cell | CellTensor)
            frame.bind(name, Binding(value, self.builder.where, cell=is_place))
        caller, where = self.frame, self.builder.where
        self.frame, self.builder.hint = frame, None
        try:
            match body:
                case [ast.Return(value=ast.expr() as value)] if frame.result is None:
                    return Signal("return", self.evaluate(value))
                case _:
                    signal = self.read_block(body)
        finally:
            self.frame = caller
        self.builder.where = where
        return signal

    def _signature(self, arguments: ast.arguments) -> inspect.Signature:
        kinds = inspect.Parameter
        plain = [*arguments.posonlyargs, *arguments.args]
        defaults: list[Any] = [kinds.empty] * (len(plain) - len(arguments.defaults))
        defaults += [taken(self.evaluate(each)) for each in arguments.defaults]
        found = [
            kinds(
                each.arg,
                kinds.POSITIONAL_ONLY
                if each in arguments.posonlyargs
                else kinds.POSITIONAL_OR_KEYWORD,
                default=default,
            )
            for each, default in zip(plain, defaults, strict=True)
        ]
        if arguments.vararg is not None:
            found.append(kinds(arguments.vararg.arg, kinds.VAR_POSITIONAL))
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            value = kinds.empty if default is None else taken(self.evaluate(default))
            found.append(kinds(each.arg, kinds.KEYWORD_ONLY, default=value))
        if arguments.kwarg is not None:
            found.append(kinds(arguments.kwarg.arg, kinds.VAR_KEYWORD))
        return inspect.Signature(found)


def _arguments(tree: ast.FunctionDef) -> list[ast.arg]:
    return [*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs]


def _header(where: Location, tree: ast.FunctionDef) -> Location:
    """Narrow a function's place to its first line."""
    return Location(where.file, where.line, where.column, where.line, where.column + len("def"))


def read_function(
    function: Callable[..., Any],
    constants: dict[str, Any] | None = None,
    around: Mapping[str, Any] | None = None,
) -> tuple[Program, dict[str, Type]]:
    """Read a Python function into a program; `constants` are parameters that are known.

    `around` are the names where the function is defined, which annotations may mention.
    Raises `FrontendError`.
    """
    source = read_source(function)
    assert isinstance(function, FunctionType)
    outer = (*surroundings(function), around or {})
    frame = Frame(source.file, function.__name__, outer, is_kernel=True)
    builder = Builder()
    reader = Reader(builder, frame)
    with builder.activate():
        types = parameter_types(reader, function, source, constants)
        return reader.read_program(function.__name__, source, types), types


def read_signature(
    function: FunctionType, around: Mapping[str, Any]
) -> tuple[dict[str, Any], Type | None]:
    """Read what a function takes, as values by name, and the type of what it gives, if any.

    Raises `FrontendError` (`missing-annotation`, `bad-annotation`).
    """
    source = read_source(function)
    outer = (*surroundings(function), around)
    frame = Frame(source.file, function.__name__, outer)
    builder = Builder()
    reader = Reader(builder, frame)
    with builder.activate():
        parameter_types(reader, function, source, None)
        params = {
            each.arg: frame.look_up(each.arg, frame.place(each)).value
            for each in _arguments(source.tree)
        }
        returns = source.tree.returns
        given = None if returns is None else read_annotation(reader, returns)
        if returns is None or given is None:
            return params, None
        type = parameter_type(given, "return", frame.place(returns))
    if not isinstance(type, ScalarType | PointerType):
        raise FrontendError(
            "a function gives a number or a pointer",
            code="bad-annotation",
            location=frame.place(returns),
            found=str(type),
        )
    return params, type


def parameter_types(
    reader: Reader, function: FunctionType, source: Source, given_constants: dict[str, Any] | None
) -> dict[str, Type]:
    """Read the annotations, in order; later ones may mention earlier parameters.

    `given_constants` is what a template is specialised with, `None` for a plain function.
    """
    frame, constants = reader.frame, given_constants or {}
    for name, value in constants.items():
        frame.bind(name, Binding(value))
    for other in (source.tree.args.vararg, source.tree.args.kwarg):
        if other is not None:
            raise FrontendError(
                f"a kernel has no variable parameters such as {other.arg!r}",
                code="bad-annotation",
                location=frame.place(other),
            )
    given = _annotations(function)
    types: dict[str, Type] = {}
    for each in _arguments(source.tree):
        if each.arg in constants:
            continue
        where = frame.place(each)
        default = inspect.signature(function).parameters[each.arg].default
        if default is not inspect.Parameter.empty:
            raise FrontendError(
                f"the parameter {each.arg!r} of a kernel has a default",
                code="bad-annotation",
                location=where,
                hint="only T.constexpr parameters of @T.jit have defaults",
            )
        if each.annotation is None:
            raise FrontendError(
                f"the parameter {each.arg!r} has no annotation",
                code="missing-annotation",
                location=where,
                hint=f'write its type, as in {each.arg}: T.Tensor((16, 16), "float16")',
            )
        annotation = given.get(each.arg)
        if annotation is None or isinstance(annotation, str):
            annotation = read_annotation(reader, each.annotation)
        if isinstance(annotation, Constexpr):
            raise FrontendError(
                f"the parameter {each.arg!r} is known only after specialisation",
                code="bad-annotation",
                location=where,
                hint="decorate the function with @T.jit, and call .specialize(…)",
            )
        if isinstance(annotation, Optional) and given_constants is None:
            raise FrontendError(
                f"the parameter {each.arg!r} may be absent, which no call can say",
                code="bad-annotation",
                location=frame.place(each.annotation),
                hint=f"decorate the function with @T.jit; .specialize({each.arg}=None) drops it",
            )
        place = frame.place(each.annotation)
        made = _parameter(each.arg, annotation, types, place, anywhere=not frame.is_kernel)
        frame.bind(each.arg, Binding(made, where))
    return types


def _parameter(
    name: str, annotation: Any, types: dict[str, Type], place: Location, anywhere: bool
) -> Any:
    """Note the type of a parameter, of each field of a tuple, and give what the kernel has."""
    if isinstance(annotation, TupleKind):
        fields = enumerate(annotation.fields)
        return tuple(_parameter(f"{name}_{i}", each, types, place, anywhere) for i, each in fields)
    if name in types:
        raise FrontendError(
            f"two parameters have the name {name!r}", code="bad-annotation", location=place
        )
    types[name] = parameter_type(annotation, name, place, anywhere)
    return wrap(Var(name, types[name]))


def read_annotation(reader: Reader, node: ast.expr) -> Any:
    """Evaluate an annotation, also one that is written as text."""
    match node:
        case ast.BinOp(op=ast.BitOr(), left=left, right=ast.Constant(value=None)):
            return Optional(read_annotation(reader, left))
        case ast.Constant(value=str() as text):
            parsed = ast.parse(text, mode="eval").body
            for each in ast.walk(parsed):
                if isinstance(each, ast.expr):
                    ast.copy_location(each, node)
            return read_annotation(reader, parsed)
        case _:
            return reader.evaluate(node)


def _annotations(function: FunctionType) -> dict[str, Any]:
    try:
        return dict(function.__annotations__)
    except Exception:  # Python 3.14 evaluates them here, and a later read explains the failure.
        return {}
