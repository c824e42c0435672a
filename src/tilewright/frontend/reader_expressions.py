"""How Python expressions are read: evaluated, with values of the kernel standing for its data.

May import `base`, `ir` and the modules of this folder below it. Everything is a call in the
end: operators call the methods of `Value`, names of the dialect call their builders, and
ordinary Python is ordinary Python.
"""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, NoReturn

from tilewright.base.errors import FrontendError, TilewrightError
from tilewright.base.locations import Location
from tilewright.frontend.builder import Builder, placed
from tilewright.frontend.failures import failed_assertion, python_failure
from tilewright.frontend.frames import Binding, Frame, Scope
from tilewright.frontend.markers import Expanded, MetaValue
from tilewright.frontend.taking import Taken, taken
from tilewright.frontend.tensors import CellTensor, Pointer, Tensor
from tilewright.frontend.values import Cell, Value, operand, wrap
from tilewright.ir.expressions import Constant, as_constant, binary, select, unary

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b,
    ast.LShift: lambda a, b: a << b,
    ast.RShift: lambda a, b: a >> b,
    ast.BitOr: lambda a, b: a | b,
    ast.BitXor: lambda a, b: a ^ b,
    ast.BitAnd: lambda a, b: a & b,
    ast.MatMult: lambda a, b: a @ b,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, among: item in among,
    ast.NotIn: lambda item, among: item not in among,
}


_END = object()


def _is_of_dialect(function: Any) -> bool:
    """Tell whether a function is one of the dialect's own, which may be given places."""
    function = getattr(function, "__func__", function)
    if isinstance(function, Expanded):
        return False
    module = getattr(function, "__module__", None) or type(function).__module__
    return module.startswith("tilewright.") and not module.startswith("tilewright.lang")


def _parameter_names(function: Any, count: int) -> list[str]:
    """Name the positional arguments of a call; "value" where the function does not say."""
    try:
        names = list(inspect.signature(function).parameters)[:count]
    except (TypeError, ValueError):
        names = []
    return names + ["value"] * (count - len(names))


def _given(value: Any, name: str) -> Any:
    """Give a function a value, unless the caller asks for an expression as it is."""
    if isinstance(value, MetaValue):
        return value.value
    known = isinstance(value, Taken) and not value.is_place
    found = value if known else taken(value, name)
    if isinstance(found, Taken):
        found.shared = True
    return found


class ExpressionReader:
    """Evaluates expressions of the function that is being read."""

    builder: Builder
    frame: Frame

    # ---- running Python

    def perform(self, where: Location, function: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        """Call a Python function on behalf of the code at a place.

        Raises `FrontendError` there (`trace-error`, `bad-call`) if it fails.
        """
        self.builder.where = where
        try:
            return function(*args, **kw)
        except TilewrightError as error:
            if error.location is not None:
                raise
            raise placed(error, where) from error
        except RecursionError as error:
            raise FrontendError(
                "the functions that this calls call themselves without end",
                code="trace-error",
                location=where,
            ) from error
        except AssertionError as error:
            raise failed_assertion(error, where) from error
        except Exception as error:
            raise python_failure(error, where, function, args, kw) from error

    def binary_operator(self, kind: ast.operator) -> Callable[[Any, Any], Any]:
        """Give the function of an operator."""
        return _BINARY[type(kind)]

    def refuse(self, node: ast.AST, what: str, hint: str | None = None) -> NoReturn:
        """Raise that something has no meaning in a kernel."""
        raise FrontendError(
            f"{what} has no meaning in a kernel",
            code="unsupported-statement",
            location=self.frame.place(node),
            hint=hint,
        )

    # ---- evaluation

    def evaluate(self, node: ast.expr) -> Any:
        """Evaluate an expression to a Python object or a value of the kernel."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self.name(node)
            case ast.Call():
                return self.call(node)
            case ast.Attribute():
                return self.attribute(node)
            case ast.Subscript():
                parts = (self.evaluate(node.value), self.index(node.slice))
                return self.item(*parts, self.frame.place(node))
            case ast.BinOp():
                return self.operation(node)
            case ast.UnaryOp():
                return self.unary(node)
            case ast.Compare():
                return self.comparison(node)
            case ast.BoolOp():
                return self.logical(node)
            case ast.IfExp():
                return self.choice(node)
            case _:
                return self.display(node)

    def operation(self, node: ast.BinOp) -> Any:
        """Evaluate an operator; a long chain of them, `a + b + …`, term by term."""
        chain = [node]
        while isinstance(chain[-1].left, ast.BinOp):
            chain.append(chain[-1].left)
        value = self.evaluate(chain[-1].left)
        for each in reversed(chain):
            left, right = self.in_order(self._with_right(value, each))
            where = self.frame.place(each)
            value = self.perform(where, self.binary_operator(each.op), left, right)
        return value

    def _with_right(self, left: Any, node: ast.BinOp) -> Iterator[Any]:
        yield left
        yield self.evaluate(node.right)

    def display(self, node: ast.expr) -> Any:
        """Evaluate what makes a Python object: displays, comprehensions, strings, functions."""
        match node:
            case ast.Tuple():
                return tuple(self.elements(node.elts))
            case ast.List():
                return self.elements(node.elts)
            case ast.Set():
                return set(self.elements(node.elts))
            case ast.Dict():
                return self.dictionary(node)
            case ast.ListComp() | ast.GeneratorExp():
                found = self.in_order(self.comprehension(node.generators, node.elt))
                return found if isinstance(node, ast.ListComp) else iter(found)
            case ast.SetComp():
                return set(self.in_order(self.comprehension(node.generators, node.elt)))
            case ast.DictComp():
                pair = ast.copy_location(ast.Tuple([node.key, node.value], ast.Load()), node)
                return dict(self.in_order(self.comprehension(node.generators, pair)))
            case ast.JoinedStr():
                return "".join(self.text(part) for part in node.values)
            case ast.Lambda():
                return self.local_function(node, "<lambda>")
            case ast.Slice():
                return self.index(node)
            case ast.NamedExpr():
                self.refuse(node, "an assignment inside an expression (:=)")
            case ast.Yield() | ast.YieldFrom():
                self.refuse(node, "yield")
            case ast.Await():
                self.refuse(node, "await")
            case _:
                raise FrontendError(
                    f"the expression {type(node).__name__} has no meaning in a kernel",
                    code="unsupported-expression",
                    location=self.frame.place(node),
                )

    def local_function(self, node: ast.Lambda | ast.FunctionDef, name: str) -> Any:
        """Make a function of a definition inside the code that is read."""
        raise NotImplementedError

    def name(self, node: ast.Name) -> Any:
        """Evaluate a name; a tensor that is used as a cell gives its element."""
        where = self.frame.place(node)
        binding = self.frame.look_up(node.id, where)
        return self.content(binding.value, where)

    def content(self, value: Any, where: Location) -> Any:
        """Give what a cell holds; other objects as they are."""
        if isinstance(value, CellTensor):
            return self.perform(where, value.element)
        return wrap(value.expr) if isinstance(value, Cell) else value

    def item(self, value: Any, index: Any, where: Location) -> Any:
        """Give an item: an element of a tensor is not read before it is used."""
        get = value.at if isinstance(value, Tensor | Pointer) else partial(operator.getitem, value)
        return self.content(self.perform(where, get, index), where)

    def attribute(self, node: ast.Attribute) -> Any:
        """Evaluate an attribute; errors point at the name after the dot."""
        value = self.evaluate(node.value)
        where = self.frame.attribute_place(node)
        return self.content(self.perform(where, getattr, value, node.attr), where)

    def call(self, node: ast.Call) -> Any:
        """Evaluate a call, whatever is called.

        Functions of the dialect are given places, which they may write to, others values.
        """
        hint, self.builder.hint = self.builder.hint, None
        callee = self.evaluate(node.func)
        plain = [arg.value if isinstance(arg, ast.Starred) else arg for arg in node.args]
        named = [keyword.value for keyword in node.keywords]
        values = iter(self.values([*plain, *named]))
        args: list[Any] = []
        places: dict[int | str, Location] = {}
        for arg in node.args:
            value = next(values)
            spread = list(value) if isinstance(arg, ast.Starred) else [value]
            for each in spread:
                places[len(args)] = self.frame.place(arg)
                args.append(each)
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            value = next(values)
            given = value if keyword.arg is None else {keyword.arg: value}
            for key, each in given.items():
                places[key] = self.frame.place(keyword.value)
                kwargs[key] = each
        if not _is_of_dialect(callee):
            names = _parameter_names(callee, len(args))
            args = [_given(each, name) for each, name in zip(args, names, strict=True)]
            kwargs = {name: _given(each, name) for name, each in kwargs.items()}
        self.builder.arguments = places
        self.builder.hint = hint
        return self.perform(self.frame.place(node), callee, *args, **kwargs)

    def index(self, node: ast.expr) -> Any:
        """Evaluate what stands in brackets."""
        match node:
            case ast.Tuple():
                return tuple(self.elements(node.elts))
            case ast.Slice():
                parts = (node.lower, node.upper, node.step)
                return slice(*(None if p is None else self.evaluate(p) for p in parts))
            case _:
                return self.evaluate(node)

    def values(self, nodes: Sequence[ast.expr]) -> list[Any]:
        """Evaluate expressions, one after another."""
        return self.in_order(self.evaluate(each) for each in nodes)

    def in_order(self, values: Iterable[Any]) -> list[Any]:
        """List values that are evaluated as they are asked for, one after another.

        Where a later one issues statements, what earlier ones read is taken before these.
        """
        found: list[Any] = []
        done = 0
        remaining = iter(values)
        while True:
            block = self.builder.blocks[-1] if self.builder.blocks else []
            before = len(block)
            value = next(remaining, _END)
            if len(block) > before:
                late = block[before:]
                del block[before:]
                found[done:] = [taken(each) for each in found[done:]]
                done = len(found)
                block.extend(late)
            if value is _END:
                return found
            found.append(value)

    def elements(self, nodes: Sequence[ast.expr]) -> list[Any]:
        """Evaluate the elements of a display; what they make is named by the display's name."""
        found: list[Any] = []
        plain = [each.value if isinstance(each, ast.Starred) else each for each in nodes]
        element = self.element_reader()
        for node, value in zip(nodes, self.in_order(map(element, plain)), strict=True):
            if isinstance(node, ast.Starred):
                found.extend(value)
            else:
                found.append(value)
        return found

    def element_reader(self) -> Callable[[ast.expr], Any]:
        """Give what evaluates one element after another of what is about to get a name.

        In `full = [T.alloc_shared(…), T.alloc_shared(…)]` they are full_0 and full_1.
        """
        whole, numbers = self.builder.hint, count()

        def evaluate(node: ast.expr) -> Any:
            self.builder.hint = f"{whole}_{next(numbers)}" if whole else None
            return self.evaluate(node)

        return evaluate

    def dictionary(self, node: ast.Dict) -> dict[Any, Any]:
        """Evaluate a dictionary display."""
        found: dict[Any, Any] = {}
        written = [each for pair in zip(node.keys, node.values, strict=True) for each in pair]
        values = iter(self.values([each for each in written if each is not None]))
        for key in node.keys:
            if key is None:
                found.update(next(values))
            else:
                name, value = next(values), next(values)
                found[name] = value
        return found

    def comprehension(
        self, generators: Sequence[ast.comprehension], element: ast.expr
    ) -> Iterator[Any]:
        """Evaluate a comprehension as Python does, in a scope of its own."""
        self.frame.scopes.append(Scope(is_own=True))
        try:
            yield from self._generate(list(generators), element, self.element_reader())
        finally:
            self.frame.scopes.pop()

    def _generate(
        self,
        generators: list[ast.comprehension],
        element: ast.expr,
        read: Callable[[ast.expr], Any],
    ) -> Iterator[Any]:
        if not generators:
            yield read(element)
            return
        first, *rest = generators
        where = self.frame.place(first.iter)
        for item in self.perform(where, iter, taken(self.evaluate(first.iter))):
            self.bind_target(first.target, item)
            conditions = (self.known_truth(each, self.evaluate(each)) for each in first.ifs)
            if all(conditions):
                yield from self._generate(rest, element, read)

    def bind_target(self, target: ast.expr, value: Any) -> None:
        """Bind names of a target to parts of a Python value."""
        if isinstance(target, ast.Name):
            self.frame.bind(target.id, Binding(value, self.frame.place(target)))
            return
        if not isinstance(target, ast.Tuple | ast.List):
            self.refuse(target, "a loop target that is not a name")
        parts = self.perform(self.frame.place(target), list, value)
        for each, part in zip(target.elts, parts, strict=True):
            self.bind_target(each, part)

    def text(self, node: ast.expr) -> str:
        """Evaluate a part of an f-string."""
        if not isinstance(node, ast.FormattedValue):
            return str(self.evaluate(node))
        value = self.evaluate(node.value)
        if isinstance(value, Value):
            number = as_constant(value.expr)
            value = str(value.expr) if number is None else number
        convert = {ord("s"): str, ord("r"): repr, ord("a"): ascii}.get(node.conversion)
        shown = value if convert is None else convert(value)
        spec = "" if node.format_spec is None else str(self.evaluate(node.format_spec))
        return self.perform(self.frame.place(node), format, shown, spec)

    # ---- truth

    def known_truth(self, node: ast.expr, value: Any) -> bool:
        """Decide a condition that must be known now."""
        if isinstance(value, Value) and isinstance(value.expr, Constant):
            return bool(value.expr.value)
        return self.perform(self.frame.place(node), bool, value)

    def unary(self, node: ast.UnaryOp) -> Any:
        """Evaluate an operator of one operand."""
        value = self.evaluate(node.operand)
        where = self.frame.place(node)
        if not isinstance(node.op, ast.Not):
            return self.perform(where, _UNARY[type(node.op)], value)
        if isinstance(value, Value):
            return wrap(self.perform(where, unary, "not", value.expr, where))
        return self.perform(where, operator.not_, value)

    def comparison(self, node: ast.Compare) -> Any:
        """Evaluate a comparison; a chain is the conjunction of its links."""
        values = self.values([node.left, *node.comparators])
        where = self.frame.place(node)
        result: Any = True
        for op, left, right in zip(node.ops, values, values[1:], strict=False):
            link = self.perform(where, _COMPARE[type(op)], left, right)
            result = link if result is True else self._combine("logical_and", result, link, where)
            if result is False:
                return False
        return result

    def _combine(self, op: str, left: Any, right: Any, where: Location) -> Any:
        if not isinstance(left, Value) and not isinstance(right, Value):
            return (left and right) if op == "logical_and" else (left or right)
        return wrap(self.perform(where, binary, op, operand(left), operand(right), where))

    def logical(self, node: ast.BoolOp) -> Any:
        """Evaluate `and` and `or`: in the kernel if the left side is a value of it."""
        op = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        result = self.evaluate(node.values[0])
        for each in node.values[1:]:
            if isinstance(result, Value):
                right = self.conditional(each)
                result = self._combine(op, result, right, self.frame.place(node))
                continue
            truth = self.perform(self.frame.place(node), bool, result)
            if truth == (op == "logical_or"):
                return result
            result = self.evaluate(each)
        return result

    def choice(self, node: ast.IfExp) -> Any:
        """Evaluate `a if c else b`: a selection if the condition is a value of the kernel."""
        condition = self.evaluate(node.test)
        if not isinstance(condition, Value) or isinstance(condition.expr, Constant):
            known = self.known_truth(node.test, condition)
            return self.evaluate(node.body if known else node.orelse)
        true, false = self.conditional(node.body), self.conditional(node.orelse)
        where = self.frame.place(node)
        sides = [self.perform(where, operand, side) for side in (true, false)]
        return wrap(self.perform(where, select, condition.expr, *sides, where))

    def conditional(self, node: ast.expr) -> Any:
        """Evaluate an expression that is computed only sometimes, so must issue nothing."""
        with self.builder.block() as issued:
            value = self.evaluate(node)
        if issued:
            raise FrontendError(
                "this would be executed whether or not the condition holds",
                code="unsupported-expression",
                location=self.frame.place(node),
                hint="write an `if` statement around what has an effect",
            )
        return value
