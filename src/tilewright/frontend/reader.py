"""The reader of functions: kernels into programs, and calls of functions that are expanded.

May import `base`, `ir` and the modules of this folder below it.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CellType, FunctionType
from typing import Any

from tilewright.base.errors import FrontendError
from tilewright.base.locations import Location
from tilewright.frontend.annotations import Optional, parameter_type, symbols_of
from tilewright.frontend.builder import Builder, current
from tilewright.frontend.entry import Entry, KernelParameters, device_entry
from tilewright.frontend.frames import Binding, Frame
from tilewright.frontend.markers import Constexpr, Expanded
from tilewright.frontend.reader_statements import Signal, StatementReader
from tilewright.frontend.source import Source, read_source
from tilewright.frontend.taking import taken, tidied
from tilewright.frontend.values import wrap
from tilewright.ir.expressions import AddressOf, Var
from tilewright.ir.statements import Kernel, LaunchKernel, Program, Stmt
from tilewright.ir.types import PointerType, TensorMapType, TensorType, Type
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
    """A kernel whose body is being read."""

    entry: Entry
    params: tuple[Var, ...] | None = None
    body: list[Stmt] = field(default_factory=list[Stmt])


class Reader(StatementReader):
    """Reads one function, and what it calls, into a program."""

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
                hint="begin with T.device_entry(launch=T.cuda.LaunchConfig(grid=…, block=…))",
            )
        body = tidied(tuple(host), self.builder)
        return Program(name, self.params, body, tuple(self.kernels), location=where)

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
                    self.frame.bind(var.name, Binding(wrap(var), self.frame.place(node)))
            case _:
                pass

    def with_statement(self, node: ast.With) -> Signal | None:
        """Read the region of a device entry."""
        entry = None
        match node.items:
            case [ast.withitem(ast.Call(func=called) as call, None)]:
                if self.evaluate(called) is device_entry:
                    entry = self.evaluate(call)
            case _:
                pass
        if not isinstance(entry, Entry):
            self.refuse(node, "the statement `with`, except over T.device_entry(…),")
        self._enter(entry, node)
        opened = self.opened
        assert opened is not None
        self.builder.blocks.append(opened.body)
        host = dict(self.frame.scopes[-1].names)
        try:
            with self.frame.scope("region", "it is bound inside another kernel"):
                self.read_block(node.body)
        finally:
            self.builder.blocks.pop()
        for param in opened.params or ():  # names that the kernel has of its own
            if param.name in host:
                self.frame.scopes[-1].names[param.name] = host[param.name]
        self._close(self.frame.name, self.builder.blocks[-1])
        return None

    def _enter(self, entry: Entry, node: ast.AST) -> _Open:
        if self.opened is not None or self.frame.nest or not self.frame.is_kernel:
            self.refuse(node, "a device entry inside a kernel, a branch, a loop or a helper")
        self.opened = _Open(entry)
        self.builder.attributes.clear()
        return self.opened

    def _close(self, name: str, host: list[Stmt]) -> None:
        opened = self.opened
        assert opened is not None
        self.opened = None
        body = tidied(tuple(opened.body), self.builder)
        outer = {var.name: var for var in defined(tuple(host))}
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
            opened.entry.attributes,
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
                raise FrontendError(
                    f"the kernel uses {var.name!r}, which is declared before it, on the host",
                    code="unbound-name",
                    location=where,
                    hint="declare it after T.device_entry(…)",
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
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            frame.bind(name, Binding(value, self.builder.where))
        caller, where = self.frame, self.builder.where
        self.frame, self.builder.hint = frame, None
        try:
            match body:
                case [ast.Return(value=ast.expr() as value)]:
                    return self.evaluate(value)
                case _:
                    signal = self.read_block(body)
        finally:
            self.frame = caller
        self.builder.where = where
        return signal.value if signal is not None else None

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
        types = _parameter_types(reader, function, source, constants or {})
        return reader.read_program(function.__name__, source, types), types


def _parameter_types(
    reader: Reader, function: FunctionType, source: Source, constants: dict[str, Any]
) -> dict[str, Type]:
    """Read the annotations, in order; later ones may mention earlier parameters."""
    frame = reader.frame
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
        types[each.arg] = parameter_type(annotation, each.arg, frame.place(each.annotation))
        frame.bind(each.arg, Binding(wrap(Var(each.arg, types[each.arg])), where))
    return types


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
